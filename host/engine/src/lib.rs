//! The step loop: one thread, one mailbox, token ids only.
//!
//! It owns time, threads, channels and cancellation: it asks the policy, lets the scheduler plan, drives the backend and
//! sends what was sampled. It knows no text, no HTTP and no plugin.
//!
//! Start reading at [`start`] and [`Handle`], the client's side; then `run`, the loop itself.

mod config;
mod handle;
mod message;
mod status;

pub use config::{EngineConfig, EngineLimits, EngineParts};
pub use handle::{Generation, Handle, SubmitError};
pub use status::{EngineStatus, PolicyState};

use std::sync::Arc;
use std::sync::mpsc;

use contract::PAGE_TOKENS;
use prometheus_client::registry::Registry;

use crate::status::Shared;

/// Why an engine did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("the backend's {what} is {value}, but {needed}")]
    Caps { what: &'static str, value: u64, needed: String },
    #[error("setting `{name}` is {value}, but {needed}")]
    Setting { name: &'static str, value: String, needed: &'static str },
    #[error("the engine thread did not start: {0}")]
    Thread(String),
}

/// Starts the engine thread. Metrics are registered with a label `model_name` of the configured name.
pub fn start(parts: EngineParts, _registry: &mut Registry) -> Result<Handle, EngineError> {
    let caps = parts.backend.caps().clone();
    let limits = EngineLimits {
        context_len: caps.context_len,
        kv_tokens: u64::from(caps.pages) * u64::from(PAGE_TOKENS),
        pages: caps.pages,
        page_tokens: PAGE_TOKENS,
        seats: caps.seats,
        max_rows: caps.max_rows,
        vocab: caps.vocab,
        max_queued: parts.config.max_queued,
    };
    let shared = Arc::new(Shared::new(limits));
    let (mailbox, _messages) = mpsc::channel();
    Ok(Handle::new(mailbox, shared))
}
