//! Any output of a reasoning model, cut anywhere: the answer does not depend on the cutting.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    cases::fuzz(&["qwen3"], data);
    cases::fuzz(&["deepseek_r1"], data);
});
