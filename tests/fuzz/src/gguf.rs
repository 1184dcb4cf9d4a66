//! Any bytes as a GGUF file: everything the server reads of one, from the header to the last weight.
#![no_main]

use model::gguf::Gguf;
use model::{GgufTokenizerData, families};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(data.to_vec()) else { return };
    let metadata = gguf.metadata();
    for key in metadata.keys() {
        let _ = metadata.value(key);
    }
    for tensor in gguf.tensors() {
        let _ = gguf.weight(&tensor.name);
    }
    // A file that is no model is a typed error; only a panic is a finding.
    let _ = families::from_gguf(&gguf);
    let _ = GgufTokenizerData::read(&gguf);
});
