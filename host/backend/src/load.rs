//! From a model to a backend: what to load, and what it costs.

use contract::PAGE_TOKENS;

/// What an operator may choose about a backend; every field is what was asked, not yet what will be.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    pub seats: u16,
    /// Rows in one step.
    pub max_rows: u32,
    /// Longest sequence; `None`: the model's own.
    pub context_len: Option<u32>,
    /// Tokens in the KV pool; `None`: what the memory rule gives.
    pub kv_tokens: Option<u32>,
    /// Worker threads; `None`: one per physical core.
    pub threads: Option<usize>,
    /// Quantises the weights of the layers' products; `None`: they stay as the file has them.
    pub quantization: Option<Quantization>,
}

/// What weights can be turned into while they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// e4m3 with a scale per 128 x 128 block, see [`crate::fp8`].
    Fp8,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { seats: 16, max_rows: 512, context_len: None, kv_tokens: None, threads: None, quantization: None }
    }
}

/// Where the memory goes, in bytes, printed at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    pub weights: u64,
    /// Weights that were copied into another layout, on top of what is mapped.
    pub repacked: u64,
    pub workspace: u64,
    pub state: u64,
    pub kv_pool: u64,
    pub kv_bytes_per_token: u64,
    pub pages: u32,
    pub seats: u16,
    /// Asked-for settings that could not be kept, one sentence each with the numbers.
    pub lowered: Vec<String>,
    /// How the model runs, and what it took to get there, one sentence each.
    pub notes: Vec<String>,
}

impl MemoryPlan {
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.pages) * u64::from(PAGE_TOKENS)
    }
}

/// Saved recurrent states for each seat: a prompt's end, its first and last messages, and a long prompt's way.
pub const STATES_PER_SEAT: u32 = 8;

/// The arithmetic of recurrent states of `bytes` a sequence, for [`MemoryPlan::notes`].
pub fn state_note(bytes: u64, seats: u16, slots: u32) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let all = bytes * (u64::from(seats) + u64::from(slots));
    format!(
        "recurrent state: {:.1} MiB a sequence, {seats} seats and {slots} saved states for the prefix cache: {:.1} MiB",
        mib(bytes),
        mib(all)
    )
}

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    pub bytes_done: u64,
    pub bytes_total: u64,
}
