//! Any body of a chat or completion request: a checked request or a typed error.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Both outcomes are right; only a panic is a finding.
    let _ = api::wire::decode_chat(data);
    let _ = api::wire::decode_completion(data);
});
