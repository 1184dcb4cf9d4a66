//! Any output with tool calls, cut anywhere, alone and behind `think`: the answer does not depend on the cutting.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    cases::fuzz(&["qwen3_coder"], data);
    cases::fuzz(&["qwen3", "qwen3_coder"], data);
});
