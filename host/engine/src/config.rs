//! What an operator may choose about one engine, and what it is made of.

use std::time::Duration;

use backend::Backend;
use contract::policy::SchedulePolicy;

/// Settings of one engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// The label `model_name` of every metric, and the name of the thread.
    pub name: String,
    /// Requests that may wait beyond those that have a seat; one more is [`crate::SubmitError::QueueFull`].
    pub max_queued: usize,
    /// Wanted time of a mixed step: the token budget is what the fitted cost model expects to fit into it.
    pub step_target: Duration,
    pub prefix_cache: bool,
    /// A policy call that takes longer is a strike and native FCFS decides that step.
    pub policy_deadline: Duration,
    /// A request that made no progress for this long is served first, whatever the policy says.
    pub starvation_bound: Duration,
    /// A client that reads nothing for this long while its channel is full is taken for gone.
    pub stall_limit: Duration,
}

impl EngineConfig {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            // Twice the running requests of the largest servers: beyond it, waiting helps nobody.
            max_queued: 1024,
            // Decoding streams see a gap of at most one mixed step; 50 ms is still read as fluent text.
            step_target: Duration::from_millis(50),
            prefix_cache: true,
            // A policy that works takes microseconds, and one that loops runs out of its own fuel. Wall time also counts
            // what the operating system does to this thread, so the bound is far above both.
            policy_deadline: Duration::from_millis(10),
            starvation_bound: Duration::from_secs(30),
            stall_limit: Duration::from_secs(120),
        }
    }
}

/// Everything an engine owns. `policy: None` is native FCFS.
pub struct EngineParts {
    pub backend: Box<dyn Backend>,
    pub policy: Option<Box<dyn SchedulePolicy>>,
    pub config: EngineConfig,
}

/// What the engine can hold, after page rounding and reserves: the numbers that requests are checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Longest sequence, prompt and output together, in tokens.
    pub context_len: u32,
    /// Tokens in the KV pool.
    pub kv_tokens: u64,
    pub pages: u32,
    pub page_tokens: u32,
    pub seats: u16,
    /// Token rows in one step.
    pub max_rows: u32,
    pub vocab: u32,
    /// The backend gives hidden states, so prompts can be pooled.
    pub pools: bool,
    /// The backend gives logits of every row, so prompts can have logprobs.
    pub scores: bool,
    pub max_queued: usize,
}
