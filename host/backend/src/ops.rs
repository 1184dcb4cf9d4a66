//! A model as data: its shape, its weights, and the block operations of one forward pass.
//!
//! The operations work on a few named buffers, each with one row per token of the step:
//! `h` the residual stream `[hidden]`, `mix` the attention's input projections `[(heads + 2 kv_heads) head_dim]`,
//! `attended` `[heads head_dim]`, `act` the activated feed-forward rows `[ffn]`. An operation is the grain at which a
//! GPU backend launches one fused kernel; a CPU backend interprets it plainly.

use crate::weights::{Weight, WeightId};

/// Rotary embedding of half-split pairs `(j, j + dims / 2)`, angles `position * inv_freq[j]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `dims / 2` frequencies; dimensions beyond `dims` pass through.
    pub inv_freq: Vec<f32>,
}

impl Rope {
    pub fn dims(&self) -> usize {
        self.inv_freq.len() * 2
    }

    /// `theta^(-2j/dims)` for `j < dims / 2`, computed in f64 (RoFormer, arXiv 2104.09864).
    pub fn plain(dims: usize, theta: f64) -> Self {
        let inv_freq = (0..dims / 2).map(|j| theta.powf(-2.0 * j as f64 / dims as f64) as f32).collect();
        Self { inv_freq }
    }
}

/// Shape of grouped-query attention: query head `i` reads key head `i / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl AttentionShape {
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// One block operation. `rms(x; w)` is `w * x / sqrt(mean(x^2) + eps)` in f32.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockOp {
    /// `h = table[token]`
    Embed { table: WeightId },
    /// `mix = [Wq; Wk; Wv] rms(h; norm)`
    NormQkv { norm: WeightId, q: WeightId, k: WeightId, v: WeightId },
    /// Per-head `rms` of q and k where the family has it, rotary embedding of both, and k and v to the layer's pages.
    QkNormRopeKv { kv_layer: u32, q_norm: Option<WeightId>, k_norm: Option<WeightId> },
    /// `attended = softmax(q k / sqrt(head_dim)) v`, causal over the seat's pages.
    Attend { kv_layer: u32 },
    /// `h += Wo attended`
    OutResidual { out: WeightId },
    /// `act = silu(Wgate n) * (Wup n)` with `n = rms(h; norm)`
    NormGateUp { norm: WeightId, gate: WeightId, up: WeightId },
    /// `h += Wdown act`
    DownResidual { down: WeightId },
    /// Copies `h` after this layer, for drafters and embeddings.
    Tap { layer: u32 },
    /// `logits = W rms(h; norm)`, for the rows that emit.
    Head { norm: WeightId, weight: WeightId },
}

/// A model, whatever its file was.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// The family's name, for logs.
    pub family: String,
    pub vocab: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub attention: AttentionShape,
    /// Layers that keep KV.
    pub kv_layers: usize,
    pub context_len: u32,
    pub norm_eps: f32,
    pub rope: Rope,
    pub ops: Vec<BlockOp>,
    pub weights: Vec<Weight>,
}

impl ModelSpec {
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }
}
