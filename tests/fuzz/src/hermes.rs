//! Any output with tool calls, cut anywhere, alone and behind `think`: the answer does not depend on the cutting.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    cases::fuzz(&["hermes"], data);
    cases::fuzz(&["qwen3", "hermes"], data);
});
