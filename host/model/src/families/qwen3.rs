//! Qwen3 dense (arXiv 2505.09388): Llama with per-head norms of q and k, and a head size of its own.

use super::Family;

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    hf_names: &["Qwen3ForCausalLM"],
    qk_norm: true,
    gguf_interleaves_qk: false,
    hybrid: false,
    gguf_ffn_norm: "ffn_norm",
    skipped: &[],
};
