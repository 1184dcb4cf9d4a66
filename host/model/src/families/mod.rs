//! The model families, as differences from the shared decoder, and how their settings are read.

mod gguf;
mod llama;
mod qwen3;
pub(crate) mod qwen35;

pub use gguf::from_gguf;

/// What sets one family apart.
#[derive(Debug)]
pub struct Family {
    /// `general.architecture` of a GGUF file; also the name in logs.
    pub name: &'static str,
    /// `architectures[0]` of a `config.json`.
    pub hf_names: &'static [&'static str],
    /// Per-head norms of q and k before the rotary embedding.
    pub qk_norm: bool,
    /// Its GGUF files interleave the rows of q and k.
    pub gguf_interleaves_qk: bool,
    /// Some layers keep a recurrent state, and attention has gated heads.
    pub hybrid: bool,
    /// Its GGUF files' word for the norm before the feed-forward.
    pub gguf_ffn_norm: &'static str,
    /// How the names of a checkpoint's tensors begin that are not the text model's.
    pub skipped: &'static [&'static str],
}

/// More than ten times the largest head there is; it sizes allocations before a weight of that size was seen.
pub(crate) const HEAD_DIM_MAX: usize = 1 << 16;

/// Every family that can be served.
pub const FAMILIES: [&Family; 3] = [&llama::FAMILY, &qwen3::FAMILY, &qwen35::FAMILY];
