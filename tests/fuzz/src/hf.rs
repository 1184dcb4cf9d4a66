//! Any bytes as the header of a safetensors file, and as a `config.json`.
#![no_main]

use std::path::Path;

use model::hf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // A file that is no model is a typed error; only a panic is a finding.
    let _ = hf::parse(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = hf::Config::parse(Path::new("config.json"), text);
    }
});
