//! What the engine is asked for, and what it answers: token ids only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::TokenId;
use crate::constraint::TokenConstraint;
use crate::sampling::{SamplingParams, TokenLogprobs};

/// Who pays for a request. Policies see the number the engine gives the name, and the weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    pub name: Arc<str>,
    pub weight: f64,
}

impl Default for Tenant {
    fn default() -> Self {
        Self { name: "default".into(), weight: 1.0 }
    }
}

/// One sequence to generate. `n > 1` is `n` of these with one `group`.
pub struct Request {
    /// For logs and traces only; the engine gives each request its own slot.
    pub id: Arc<str>,
    pub prompt: Arc<[TokenId]>,
    pub sampling: SamplingParams,
    pub seed: u64,
    /// At least 1. The engine ends the sequence with [`FinishReason::Length`] when it is reached.
    pub max_new_tokens: u32,
    /// Lower runs first.
    pub priority: i32,
    pub tenant: Tenant,
    /// When the first token is due.
    pub deadline: Option<Instant>,
    /// Prefix-cache namespace: requests share pages only within one (a hash of tenant and cache salt).
    pub namespace: u64,
    /// Requests that share a prompt.
    pub group: u64,
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// `Some(n)`: the logprobs of the prompt's own tokens and those of the `n` likeliest at each place. The whole prompt
    /// is computed for it, whatever the prefix cache holds.
    pub prompt_logprobs: Option<u8>,
}

/// Why a sequence ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the request's stop tokens was sampled; it is the last token of the stream.
    Stop { token: TokenId },
    /// `max_new_tokens`, or the context, was reached.
    Length,
}

/// Why a sequence was ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    #[error("the scheduler refused the request ({code}); retry after {retry_after_ms} ms")]
    Refused { code: String, retry_after_ms: u32 },
    #[error("the engine failed: {0}")]
    Engine(String),
    #[error("the engine aborted the request: {0}")]
    Aborted(String),
    /// The grammar met a limit of its own, or can no longer go on.
    #[error("the grammar cannot go on: {0}")]
    Grammar(String),
    #[error("script_violates_grammar: token {position} of the script is forbidden by the grammar")]
    ScriptViolatesGrammar { position: u32 },
    #[error("the engine is shutting down")]
    Shutdown,
}

/// What a request's stream carries, in order: `Started`, any number of `Prompt`, any number of `Tokens`, then one
/// `Finished` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenEvent {
    /// The prompt's first grant was accepted.
    Started {
        cached_tokens: u32,
        queued: Duration,
    },
    /// Logprobs of the next tokens of the prompt, if they were asked for; the first token of a prompt has none.
    Prompt {
        logprobs: Vec<TokenLogprobs>,
    },
    /// Tokens committed by one step. `logprobs` is empty or has one entry per token.
    Tokens {
        tokens: Vec<TokenId>,
        logprobs: Vec<TokenLogprobs>,
    },
    Finished {
        reason: FinishReason,
        preemptions: u32,
    },
    Failed(GenerationError),
}
