//! Folders as transformers saves them, against the GGUF files of the same models: equal weights in equal rows and equal
//! settings give equal logits, and those of the GGUF files are checked by the CPU backend.

use std::path::PathBuf;

use backend::ops::ModelSpec;

fn spec(name: &str) -> ModelSpec {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/data");
    model::load(&data.join(name)).unwrap_or_else(|e| panic!("{name}: {e}")).spec
}

#[test]
fn saved_folders_are_the_models_of_their_gguf_files() {
    for name in ["tiny-llama3-rope", "tiny-qwen3"] {
        let (folder, gguf) = (spec(name), spec(&format!("{name}.gguf")));
        assert_eq!(folder.ops, gguf.ops, "{name}");
        let shape = |s: &ModelSpec| (s.vocab, s.hidden, s.ffn, s.attention, s.kv_layers, s.context_len, s.norm_eps);
        assert_eq!(shape(&folder), shape(&gguf), "{name}");
        for (ours, theirs) in folder.weights.iter().zip(&gguf.weights) {
            assert_eq!((ours.ty, ours.rows, ours.cols), (theirs.ty, theirs.rows, theirs.cols), "{ours:?} {theirs:?}");
            assert!((0..ours.rows).all(|row| ours.row(row) == theirs.row(row)), "{name}: {ours:?} {theirs:?}");
        }
        assert_eq!(folder.rope.inv_freq.len(), gguf.rope.inv_freq.len(), "{name}");
        for (ours, theirs) in folder.rope.inv_freq.iter().zip(&gguf.rope.inv_freq) {
            // The GGUF file holds quotients that were rounded to f32.
            assert!((ours / theirs - 1.0).abs() < 1e-6, "{name}: {ours} {theirs}");
        }
    }
}
