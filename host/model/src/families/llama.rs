//! Llama (arXiv 2307.09288, 2407.21783) and all that shares its form: SmolLM2, Mistral, TinyLlama.

use super::Family;

pub(super) const FAMILY: Family = Family {
    name: "llama",
    hf_names: &["LlamaForCausalLM"],
    qk_norm: false,
    gguf_interleaves_qk: true,
    hybrid: false,
    gguf_ffn_norm: "ffn_norm",
    skipped: &[],
};
