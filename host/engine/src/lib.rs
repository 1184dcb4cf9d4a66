//! The step loop: one thread, one mailbox, token ids only.
//!
//! It owns time, threads, channels and cancellation: it asks the policy, lets the scheduler plan, drives the backend and
//! sends what was sampled. It knows no text, no HTTP and no plugin.
//!
//! Start reading at [`start`] and [`Handle`], the client's side; then `run`, the loop itself.

mod budget;
mod config;
mod handle;
mod late;
mod launch;
mod live;
mod message;
mod metrics;
mod observe;
mod policy;
mod pool;
mod run;
mod score;
mod status;

#[cfg(test)]
mod tests;

pub use config::{EngineConfig, EngineLimits, EngineParts};
pub use handle::{Generation, Handle, SubmitError};
pub use observe::{Observation, Observations, Observer, observer};
pub use pool::{Pooled, Pooling};
pub use status::{EngineStatus, PolicyState};

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;

use backend::step::Caps;
use contract::PAGE_TOKENS;
use prometheus_client::registry::Registry;
use scheduler::Scheduler;

use crate::run::{Engine, Fault};
use crate::status::{Shared, Stopped};

/// Why an engine did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("the backend's {what} is {value}, but it must be {needed}")]
    Caps { what: &'static str, value: u64, needed: String },
    #[error("the engine thread did not start: {0}")]
    Thread(String),
}

/// Starts the engine thread. Metrics are registered with a label `model_name` of the configured name.
pub fn start(parts: EngineParts, registry: &mut Registry) -> Result<Handle, EngineError> {
    let EngineParts { backend, policy, config } = parts;
    let caps = backend.caps().clone();
    let scheduler = scheduler_for(&caps, &config)?;
    let shared = Arc::new(Shared::new(
        &config.name,
        EngineLimits {
            context_len: caps.context_len,
            kv_tokens: u64::from(caps.pages) * u64::from(PAGE_TOKENS),
            pages: caps.pages,
            page_tokens: PAGE_TOKENS,
            seats: caps.seats,
            max_rows: caps.max_rows,
            vocab: caps.vocab,
            pools: backend.pools(),
            scores: backend.scores(),
            max_queued: config.max_queued,
        },
    ));
    let (sender, mailbox) = mpsc::channel();
    let mut engine = Engine {
        metrics: metrics::Metrics::register(registry, &config.name, caps.pages),
        budget: budget::Budget::new(caps.max_rows),
        lives: live::Lives::new(Arc::clone(&shared)),
        policy: policy::PolicySeat::new(config.policy_deadline),
        observer: None,
        shared: Arc::clone(&shared),
        flights: VecDeque::new(),
        scratch: launch::Scratch::default(),
        unbound: Vec::new(),
        last_step: Default::default(),
        now_us: 0,
        last_end: None,
        device_free: std::time::Instant::now(),
        busy: false,
        checked_idle: true,
        backend,
        caps,
        scheduler,
        mailbox,
        config,
    };
    engine.policy.load(policy, &shared);
    let name = format!("engine {}", engine.config.name);
    std::thread::Builder::new()
        .name(name)
        .spawn(move || thread(engine))
        .map_err(|error| EngineError::Thread(error.to_string()))?;
    Ok(Handle::new(sender, shared))
}

fn scheduler_for(caps: &Caps, config: &EngineConfig) -> Result<Scheduler, EngineError> {
    let caps_error = |what, value: u64, needed: &str| EngineError::Caps { what, value, needed: needed.into() };
    if caps.page_tokens != PAGE_TOKENS {
        return Err(caps_error("page_tokens", caps.page_tokens.into(), &PAGE_TOKENS.to_string()));
    }
    if caps.vocab == 0 || caps.mask_words < caps.vocab.div_ceil(32) {
        return Err(caps_error("mask_words", caps.mask_words.into(), "at least vocab / 32, and the vocab not empty"));
    }
    let config = scheduler::Config {
        seats: caps.seats,
        pages: caps.pages,
        context_len: caps.context_len,
        max_rows: caps.max_rows,
        resume_align: caps.resume_align,
        rows_tile: caps.rows_tile,
        large_rows_tile: caps.large_rows_tile,
        prefix_cache: config.prefix_cache,
        starvation_bound_us: u64::try_from(config.starvation_bound.as_micros()).unwrap_or(u64::MAX),
    };
    let scheduler = Scheduler::new(config).map_err(|error| caps_error(error.what, error.value, error.needed))?;
    Ok(if caps.recurrent { scheduler.with_states(caps.state_slots) } else { scheduler })
}

/// The engine's thread. Clients learn the reason before their channels close with the engine.
fn thread(mut engine: Engine) {
    let shared = Arc::clone(&engine.shared);
    let ended = catch_unwind(AssertUnwindSafe(|| engine.run()));
    let why = match ended {
        Ok(Ok(())) => Stopped::Shutdown,
        Ok(Err(Fault(why))) => Stopped::Fault(why),
        Err(panic) => Stopped::Fault(format!("a panic: {}", policy::panic_text(panic.as_ref()))),
    };
    if let Stopped::Fault(why) = &why {
        tracing::error!(engine = engine.config.name, "the engine stopped: {why}");
    }
    shared.stop(why);
    drop(engine);
}
