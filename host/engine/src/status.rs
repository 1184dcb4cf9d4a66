//! What other threads may see of the engine: plain numbers in atomics, and two short texts.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contract::generation::GenerationError;

use crate::config::EngineLimits;
use crate::handle::SubmitError;

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyState {
    /// Native FCFS by choice.
    Native,
    /// The policy decides; FCFS stands in for single steps.
    Active,
    /// An exchanged policy failed too often, and the one before it decides again.
    Returned,
    /// The policy failed too often: FCFS decides until it is exchanged.
    Benched,
}

impl PolicyState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Active => "active",
            Self::Returned => "returned",
            Self::Benched => "benched",
        }
    }
}

/// A snapshot for readiness, metrics and people.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStatus {
    pub name: String,
    pub waiting: u32,
    pub running: u32,
    pub pages_used: u32,
    pub pages_cached: u32,
    pub pages_total: u32,
    /// `None` before the first token.
    pub last_token_age: Option<Duration>,
    pub steps: u64,
    pub policy: String,
    /// [`SchedulePolicy::serial`](contract::policy::SchedulePolicy::serial) of who decides.
    pub policy_serial: u64,
    pub policy_state: PolicyState,
    /// How often a policy was exchanged back, or FCFS took its place, after its last strike.
    pub policies_removed: u64,
    pub strikes: u32,
    /// One sentence per fallback that runs; empty when all is well.
    pub degraded: Vec<String>,
    /// The first fault; the engine has stopped.
    pub fault: Option<String>,
}

/// The texts change rarely: with a policy, and once at the end.
struct Texts {
    policy: String,
    policy_serial: u64,
    policy_state: PolicyState,
    policies_removed: u64,
    last_strike: Option<String>,
    fault: Option<String>,
    stopped: Option<Stopped>,
}

/// Why there is no engine any more.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stopped {
    Fault(String),
    Shutdown,
}

impl Stopped {
    pub fn error(&self) -> GenerationError {
        match self {
            Self::Fault(why) => GenerationError::Engine(why.clone()),
            Self::Shutdown => GenerationError::Shutdown,
        }
    }
}

pub(crate) struct Shared {
    name: String,
    pub limits: EngineLimits,
    start: Instant,
    next_id: AtomicU64,
    /// Requests that were admitted and have not ended.
    pub live: AtomicUsize,
    /// Requests whose channel is full.
    pub parked: AtomicU32,
    pub waiting: AtomicU32,
    pub running: AtomicU32,
    pub pages_used: AtomicU32,
    pub pages_cached: AtomicU32,
    pub steps: AtomicU64,
    pub strikes: AtomicU32,
    /// Milliseconds between two requests that end, smoothed: the base of the retry estimate.
    pub finish_gap_ms: AtomicU64,
    /// Microseconds since `start`, plus 1; 0: none yet.
    last_token_us: AtomicU64,
    texts: Mutex<Texts>,
}

/// A queue that needs longer than this to drain is no reason to ask clients to stay away longer.
const RETRY_AFTER_S_MAX: u64 = 60;

impl Shared {
    pub fn new(name: &str, limits: EngineLimits) -> Self {
        Self {
            name: name.to_owned(),
            limits,
            start: Instant::now(),
            next_id: AtomicU64::new(0),
            live: AtomicUsize::new(0),
            parked: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            running: AtomicU32::new(0),
            pages_used: AtomicU32::new(0),
            pages_cached: AtomicU32::new(0),
            steps: AtomicU64::new(0),
            strikes: AtomicU32::new(0),
            finish_gap_ms: AtomicU64::new(0),
            last_token_us: AtomicU64::new(0),
            texts: Mutex::new(Texts {
                policy: String::new(),
                policy_serial: 0,
                policy_state: PolicyState::Native,
                policies_removed: 0,
                last_strike: None,
                fault: None,
                stopped: None,
            }),
        }
    }

    /// Takes a place for one more request.
    pub fn admit(&self) -> Result<u64, SubmitError> {
        let seats = usize::from(self.limits.seats);
        let limit = self.limits.max_queued;
        let taken = self.live.fetch_update(Ordering::AcqRel, Ordering::Acquire, |live| {
            (live < seats.saturating_add(limit)).then_some(live + 1)
        });
        match taken {
            Ok(_) => Ok(self.next_id.fetch_add(1, Ordering::Relaxed)),
            Err(live) => {
                let queued = live.saturating_sub(self.running.load(Ordering::Relaxed) as usize);
                Err(SubmitError::QueueFull { queued, limit, retry_after_s: self.retry_after_s(queued) })
            }
        }
    }

    /// Time until the queue has drained at the rate at which requests end now.
    fn retry_after_s(&self, queued: usize) -> u32 {
        let gap_ms = self.finish_gap_ms.load(Ordering::Relaxed);
        let wait_s = gap_ms.saturating_mul(queued as u64).div_ceil(1000);
        wait_s.clamp(1, RETRY_AFTER_S_MAX) as u32
    }

    pub fn elapsed_us(&self) -> u64 {
        self.us_at(Instant::now())
    }

    /// A time on the scheduler's clock.
    pub fn us_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }

    pub fn token_at(&self, now: Instant) {
        let us = u64::try_from(now.saturating_duration_since(self.start).as_micros()).unwrap_or(u64::MAX - 1);
        self.last_token_us.store(us + 1, Ordering::Relaxed);
    }

    pub fn set_policy(&self, (name, serial): (&str, u64), state: PolicyState, last_strike: Option<String>) {
        let mut texts = self.texts();
        texts.policy.clear();
        texts.policy.push_str(name);
        texts.policy_serial = serial;
        texts.policy_state = state;
        texts.policies_removed += u64::from(matches!(state, PolicyState::Returned | PolicyState::Benched));
        texts.last_strike = last_strike;
    }

    /// Keeps the first reason; a fault is also shown in the status.
    pub fn stop(&self, why: Stopped) {
        let mut texts = self.texts();
        if texts.stopped.is_none() {
            if let Stopped::Fault(cause) = &why {
                texts.fault = Some(cause.clone());
            }
            texts.stopped = Some(why);
        }
    }

    pub fn stopped(&self) -> Option<Stopped> {
        self.texts().stopped.clone()
    }

    pub fn status(&self) -> EngineStatus {
        let texts = self.texts();
        let strikes = self.strikes.load(Ordering::Relaxed);
        let mut degraded = Vec::new();
        if texts.policy_state == PolicyState::Benched {
            let why = texts.last_strike.as_deref().unwrap_or("it failed");
            degraded.push(format!(
                "scheduler `{}` was replaced by native fcfs after {strikes} strikes ({why}); load another one to end this",
                texts.policy
            ));
        }
        if texts.policy_state == PolicyState::Returned {
            let why = texts.last_strike.as_deref().unwrap_or("its successor failed");
            degraded.push(format!("{why}; scheduler `{}` decides again", texts.policy));
        }
        let last = self.last_token_us.load(Ordering::Relaxed);
        EngineStatus {
            name: self.name.clone(),
            waiting: self.waiting.load(Ordering::Relaxed),
            running: self.running.load(Ordering::Relaxed),
            pages_used: self.pages_used.load(Ordering::Relaxed),
            pages_cached: self.pages_cached.load(Ordering::Relaxed),
            pages_total: self.limits.pages,
            last_token_age: (last > 0).then(|| Duration::from_micros(self.elapsed_us().saturating_sub(last - 1))),
            steps: self.steps.load(Ordering::Relaxed),
            policy: texts.policy.clone(),
            policy_serial: texts.policy_serial,
            policy_state: texts.policy_state,
            policies_removed: texts.policies_removed,
            strikes,
            degraded,
            fault: texts.fault.clone(),
        }
    }

    fn texts(&self) -> std::sync::MutexGuard<'_, Texts> {
        // The texts are whole after every statement, so a panic elsewhere does not spoil them.
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
