//! A model as data: its shape, its weights, and the block operations of one forward pass.
//!
//! The operations work on a few named buffers, each with one row per token of the step:
//! `h` the residual stream `[hidden]`, `mix` a layer's input projections, `attended` what its mixer made of them
//! (`[heads head_dim]`, or `[value_heads value_dim]` of a linear layer), `act` the activated feed-forward rows `[ffn]`.
//! An operation is the grain at which a GPU backend launches one fused kernel; a CPU backend interprets it plainly.

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
    /// The q projection gives each head's query and then its gate, head after head, and the head's result is multiplied
    /// by `sigmoid(gate)`.
    pub gated: bool,
}

impl AttentionShape {
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// From one head's query to the next in `mix`; the gate, where there is one, lies between them.
    pub fn q_stride(&self) -> usize {
        self.head_dim * if self.gated { 2 } else { 1 }
    }

    /// Outputs of the q projection.
    pub fn q_rows(&self) -> usize {
        self.heads * self.q_stride()
    }

    /// A row of `mix`: queries (with gates), keys, values.
    pub fn mix_width(&self) -> usize {
        self.q_rows() + 2 * self.kv_width()
    }
}

/// Which key head a value head works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `i` uses key head `i / (value_heads / key_heads)`: checkpoints of transformers.
    Grouped,
    /// Value head `i` uses key head `i % key_heads`: GGUF files, whose value heads (rows of the projections, columns of the
    /// output) are stored in that order.
    Tiled,
}

/// What the output gate of a linear layer goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFn {
    /// `x sigmoid(x)`
    Silu,
    Sigmoid,
}

/// Shape of the gated delta rule (arXiv 2412.06464): per value head a matrix `S[value_dim][key_dim]` in f32 that is zero
/// at a sequence's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Taps of the convolution, the current token's included.
    pub conv: usize,
    pub order: HeadOrder,
    pub gate: GateFn,
}

impl DeltaShape {
    /// Of q, and of k.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q, k and v.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// A row of `mix`: q, k, v, then z, then beta and alpha.
    pub fn mix_width(&self) -> usize {
        self.channels() + self.value_width() + 2 * self.value_heads
    }

    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    /// Numbers of one layer's recurrent state: `[value_heads][value_dim][key_dim]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }

    /// Numbers that the convolution remembers of one layer: `[conv - 1][channels]`, the oldest token first.
    pub fn ring_len(&self) -> usize {
        (self.conv - 1) * self.channels()
    }
}

/// Tokens of one block of the chunked delta rule. Blocks lie at multiples of it, in absolute position: whole blocks of a
/// prompt are computed by the chunk form, all else by the recurrence, so that a state does not depend on how the prompt
/// was cut as long as the cuts are multiples of this.
pub const DELTA_CHUNK: usize = 64;

/// One block operation. `rms(x; w)` is `w * x / sqrt(mean(x^2) + eps)` in f32.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockOp {
    /// `h = table[token]`
    Embed { table: WeightId },
    /// `mix = [Wq; Wk; Wv] rms(h; norm)`; Wq has [`AttentionShape::q_rows`].
    NormQkv { norm: WeightId, q: WeightId, k: WeightId, v: WeightId },
    /// Per-head `rms` of q and k where the family has it, rotary embedding of both, and k and v to the layer's pages.
    QkNormRopeKv { kv_layer: u32, q_norm: Option<WeightId>, k_norm: Option<WeightId> },
    /// `attended = softmax(q k / sqrt(head_dim)) v`, causal over the seat's pages, times `sigmoid(gate)` where the shape is
    /// gated.
    Attend { kv_layer: u32 },
    /// `mix = [Wqkv; Wz; Wbeta; Walpha] rms(h; norm)`, a row as in [`DeltaShape::mix_width`].
    NormDelta { norm: WeightId, qkv: WeightId, z: WeightId, beta: WeightId, alpha: WeightId },
    /// The gated delta rule over the seat's state number `state_layer`. With `u` the first [`DeltaShape::channels`] of `mix`:
    /// - `c_t = silu(sum over j < conv of taps[channel][j] u_(t - conv + 1 + j))`, zeros before the start; `q, k, v = c_t`
    /// - `q / sqrt(sum q^2 + 1e-6) / sqrt(key_dim)` and `k / sqrt(sum k^2 + 1e-6)` per key head
    /// - `beta = sigmoid(beta)`, `g = decay ln(1 + e^(alpha + bias))` per value head
    /// - `S = e^g S; d = beta (v - S k); S = S + d k^T; o = S q` per value head
    /// - `attended = rms(o; norm) gate(z)` per value head, `rms` over `value_dim`
    DeltaRule {
        state_layer: u32,
        /// `[channels, conv]`
        taps: WeightId,
        /// `[1, value_heads]`, negative: `-e^A_log`
        decay: WeightId,
        /// `[1, value_heads]`
        bias: WeightId,
        /// `[1, value_dim]`
        norm: WeightId,
    },
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
    /// Rows of the embedding and the head.
    pub vocab: usize,
    /// Ids from here on are padding, which no tokenizer knows: they are never sampled. At most `vocab`.
    pub vocab_used: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub attention: AttentionShape,
    /// Layers that keep KV.
    pub kv_layers: usize,
    /// Present when some layers keep a recurrent state instead.
    pub delta: Option<DeltaShape>,
    /// How many those are.
    pub state_layers: usize,
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

    /// Bytes of one sequence's recurrent state, with the convolutions' memory in elements of `ring_bytes`.
    pub fn state_bytes(&self, ring_bytes: u64) -> u64 {
        let layer = |delta: &DeltaShape| 4 * delta.state_len() as u64 + ring_bytes * delta.ring_len() as u64;
        self.delta.as_ref().map_or(0, layer) * self.state_layers as u64
    }
}
