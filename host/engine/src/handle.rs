//! The client side: submit requests, read their streams, look at the engine.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc;
use std::time::Instant;

use contract::generation::{GenerationError, Request, TokenEvent};
use contract::policy::SchedulePolicy;
use tokio::sync::mpsc as out;

use crate::config::EngineLimits;
use crate::message::{Msg, Submission};
use crate::observe::Observer;
use crate::pool::{Pool, Pooled, Pooling};
use crate::status::{EngineStatus, Shared, Stopped};

/// Events that may wait in a request's channel. A step sends one; a client this far behind is parked.
pub(crate) const OUT_EVENTS_MAX: usize = 64;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("{queued} requests wait already, the limit is {limit}; retry after {retry_after_s} s")]
    QueueFull { queued: usize, limit: usize, retry_after_s: u32 },
    #[error("a prompt of {prompt_tokens} tokens leaves no room in the context of {context_len} tokens")]
    TooLong { prompt_tokens: u32, context_len: u32 },
    #[error(
        "the request needs {needed_tokens} tokens of KV, the pool holds {pool_tokens}; shorten the prompt or enlarge the pool"
    )]
    NeverFits { needed_tokens: u64, pool_tokens: u64 },
    /// The request itself is wrong: an empty prompt, a token outside the vocabulary, no token to generate.
    #[error("invalid request: {0}")]
    Invalid(String),
    #[error("this device gives no hidden states; serve the model on another, such as --device cpu")]
    NoPooling,
    #[error("this model's device gives no logprobs of prompts; serve the model on another, such as --device cpu")]
    NoPromptLogprobs,
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// Namespaces of pooled requests: each has one that no other request has, because cached pages hold no hidden states.
const POOL_NAMESPACE: u64 = 0x706f_6f6c_0000_0000;

/// A running engine; clones share it. Dropping the last one stops the engine.
#[derive(Clone)]
pub struct Handle {
    inner: Arc<Inner>,
}

struct Inner {
    mailbox: mpsc::Sender<Msg>,
    shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The engine may have stopped by itself; then nobody needs the message.
        let _ = self.mailbox.send(Msg::Shutdown);
    }
}

impl Handle {
    pub(crate) fn new(mailbox: mpsc::Sender<Msg>, shared: Arc<Shared>) -> Self {
        Self { inner: Arc::new(Inner { mailbox, shared }) }
    }

    pub fn limits(&self) -> &EngineLimits {
        &self.inner.shared.limits
    }

    /// Checks a request against the limits and puts it in the mailbox; never blocks.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        self.send(request, None)
    }

    /// Reads a prompt and pools its hidden states; nothing is generated, whatever `max_new_tokens` says, and the prefix
    /// cache is not used.
    pub fn pool(&self, mut request: Request, kind: Pooling) -> Result<Pooled, SubmitError> {
        if !self.limits().pools {
            return Err(SubmitError::NoPooling);
        }
        request.max_new_tokens = 1;
        request.constraint = None;
        request.prompt_logprobs = None;
        let (pool, vector) = Pool::new(kind);
        Ok(Pooled { generation: self.send(request, Some(pool))?, vector })
    }

    fn send(&self, mut request: Request, pool: Option<Pool>) -> Result<Generation, SubmitError> {
        let shared = &self.inner.shared;
        if let Some(why) = shared.stopped() {
            return Err(stopped(why));
        }
        check(&request, &shared.limits)?;
        if request.prompt_logprobs.is_some() && !shared.limits.scores {
            return Err(SubmitError::NoPromptLogprobs);
        }
        let id = shared.admit()?;
        if pool.is_some() {
            request.namespace = POOL_NAMESPACE ^ id;
        }
        let (sender, events) = out::channel(OUT_EVENTS_MAX);
        let submission = Submission { id, request, pool, sender, arrived: Instant::now() };
        if self.inner.mailbox.send(Msg::Submit(Box::new(submission))).is_err() {
            shared.live.fetch_sub(1, Ordering::AcqRel);
            return Err(stopped(shared.stopped().unwrap_or(Stopped::Shutdown)));
        }
        Ok(Generation { id, events, mailbox: self.inner.mailbox.clone(), shared: Arc::clone(shared), ended: false })
    }

    pub fn status(&self) -> EngineStatus {
        self.inner.shared.status()
    }

    /// Exchanges the policy between two steps; it starts from a snapshot and no request is dropped.
    pub fn swap_policy(&self, policy: Box<dyn SchedulePolicy>) {
        self.seat_policy(Some(policy));
    }

    /// From the next step on native first come, first served decides; no request is dropped.
    pub fn swap_to_native(&self) {
        self.seat_policy(None);
    }

    fn seat_policy(&self, policy: Option<Box<dyn SchedulePolicy>>) {
        // A stopped engine has no policy to exchange.
        let _ = self.inner.mailbox.send(Msg::SwapPolicy(policy));
    }

    /// Shows the policy's decisions until the other end is dropped; one observer at a time.
    pub fn observe(&self, observer: Observer) {
        // A stopped engine decides nothing.
        let _ = self.inner.mailbox.send(Msg::Observe(observer));
    }

    /// Stops the engine after the step that runs; every request that is still open ends as `Shutdown`.
    pub fn shutdown(&self) {
        let _ = self.inner.mailbox.send(Msg::Shutdown);
    }
}

fn stopped(why: Stopped) -> SubmitError {
    SubmitError::Stopped(why.error().to_string())
}

fn check(request: &Request, limits: &EngineLimits) -> Result<(), SubmitError> {
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    if prompt_tokens == 0 {
        return Err(SubmitError::Invalid("the prompt is empty; it needs at least one token".into()));
    }
    if request.max_new_tokens == 0 {
        return Err(SubmitError::Invalid("max_new_tokens is 0; it must be at least 1".into()));
    }
    if prompt_tokens >= limits.context_len {
        return Err(SubmitError::TooLong { prompt_tokens, context_len: limits.context_len });
    }
    // The sampled token of a step has no KV yet, so a prompt that fills the pool can still give one token.
    if u64::from(prompt_tokens) > limits.kv_tokens {
        return Err(SubmitError::NeverFits {
            needed_tokens: u64::from(prompt_tokens) + 1,
            pool_tokens: limits.kv_tokens,
        });
    }
    if let Some(position) = request.prompt.iter().position(|&token| token >= limits.vocab) {
        return Err(SubmitError::Invalid(format!(
            "prompt token {} at position {position} is not below the vocabulary size {}",
            request.prompt[position], limits.vocab
        )));
    }
    Ok(())
}

/// One request's stream. Dropping it aborts the request within one step.
pub struct Generation {
    id: u64,
    events: out::Receiver<TokenEvent>,
    mailbox: mpsc::Sender<Msg>,
    shared: Arc<Shared>,
    ended: bool,
}

impl Generation {
    /// The next event; `None` after the last one (`Finished` or `Failed`).
    pub async fn next(&mut self) -> Option<TokenEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.took(event))
    }

    /// As [`Generation::next`], for threads outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<TokenEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.took(event))
    }

    fn took(&mut self, event: Option<TokenEvent>) -> TokenEvent {
        // A stream that closes without an end means that the engine's thread is gone: say so instead of hanging.
        let event = event.unwrap_or_else(|| {
            let why = self.shared.stopped().map(|why| why.error());
            TokenEvent::Failed(why.unwrap_or_else(|| GenerationError::Engine("its thread ended".into())))
        });
        self.ended = matches!(event, TokenEvent::Finished { .. } | TokenEvent::Failed(_));
        // Pairs with the fence in `live`: either the engine sees the room we made, or we see that somebody is parked.
        fence(Ordering::SeqCst);
        if !self.ended && self.shared.parked.load(Ordering::Relaxed) > 0 {
            let _ = self.mailbox.send(Msg::Drained(self.id));
        }
        event
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            self.events.close();
            let _ = self.mailbox.send(Msg::Abort(self.id));
        }
    }
}
