//! Any output through any bundled stage, cut anywhere, alone and behind a stage that finds reasoning: the answer does
//! not depend on the cutting. The input's first byte picks the stage (`cases::fuzz`).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cases::fuzz(data));
