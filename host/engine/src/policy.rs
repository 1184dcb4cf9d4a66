//! The policy's seat: calls with a deadline, strikes, and native FCFS in its place.
//!
//! A call that fails, comes late or gives an invalid decision is a strike, and FCFS decides that step; the policy then
//! starts again from a snapshot. After [`STRIKES_MAX`] strikes the policy that it was exchanged for comes back; without one, FCFS
//! decides until another is loaded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use contract::policy::{Decision, PolicyError, SchedulePolicy};
use scheduler::{Scheduler, Tick};

use crate::status::{PolicyState, Shared};

pub(crate) const STRIKES_MAX: u32 = 3;

/// Good decisions in a row after which old strikes do not count: a policy that fails once an hour is useful.
const GOOD_DECISIONS_TO_FORGIVE: u32 = 256;

/// Name of the native policy in status and metrics.
pub(crate) const NATIVE: &str = "fcfs (native)";

pub(crate) struct PolicySeat {
    policy: Option<Box<dyn SchedulePolicy>>,
    /// What decided before the last exchange and had not failed: it comes back when its successor does.
    previous: Option<Box<dyn SchedulePolicy>>,
    /// Stays after the policy was benched, for the status.
    name: String,
    serial: u64,
    deadline: Duration,
    resync: bool,
    /// Until then a delta that lists nothing is not worth a call: the policy said so.
    rests_until_us: u64,
    strikes: u32,
    good: u32,
}

impl PolicySeat {
    pub fn new(deadline: Duration) -> Self {
        Self {
            policy: None,
            previous: None,
            name: NATIVE.into(),
            serial: 0,
            deadline,
            resync: false,
            rests_until_us: 0,
            strikes: 0,
            good: 0,
        }
    }

    pub fn load(&mut self, policy: Option<Box<dyn SchedulePolicy>>, shared: &Shared) {
        self.previous = self.policy.take();
        let state = if policy.is_some() { PolicyState::Active } else { PolicyState::Native };
        self.seat(policy);
        shared.strikes.store(0, std::sync::atomic::Ordering::Relaxed);
        shared.set_policy((&self.name, self.serial), state, None);
    }

    /// From the next step on this policy decides, from a snapshot.
    fn seat(&mut self, policy: Option<Box<dyn SchedulePolicy>>) {
        self.name = policy.as_ref().map_or_else(|| NATIVE.into(), |policy| policy.name().to_owned());
        self.serial = policy.as_ref().map_or(0, |policy| policy.serial());
        self.resync = policy.is_some();
        self.rests_until_us = 0;
        (self.strikes, self.good) = (0, 0);
        self.policy = policy;
    }

    /// The policy's decision for this step; `Ok(None)`: there is no policy.
    pub fn decide(&mut self, scheduler: &mut Scheduler, tick: &Tick) -> Result<Option<Decision>, PolicyError> {
        let Some(policy) = &mut self.policy else { return Ok(None) };
        let name = &self.name;
        // A rest ends with the call that it saves no longer, and with a failure of that call.
        let rests_until_us = std::mem::take(&mut self.rests_until_us);
        if self.resync {
            let snapshot = scheduler.snapshot(tick);
            timed(name, self.deadline, || policy.resync(&snapshot))?;
            self.resync = false;
        }
        let delta = scheduler.delta(tick);
        if tick.now_us < rests_until_us && delta.is_uneventful() {
            self.rests_until_us = rests_until_us;
            return Ok(Some(Decision::default()));
        }
        let decision = timed(name, self.deadline, || policy.step(delta))?;
        self.rests_until_us = decision.rests_until_us.unwrap_or(0);
        Ok(Some(decision))
    }

    pub fn good(&mut self, shared: &Shared) {
        self.good += 1;
        if self.strikes > 0 && self.good >= GOOD_DECISIONS_TO_FORGIVE {
            self.strikes = 0;
            shared.strikes.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    pub fn strike(&mut self, error: &PolicyError, scheduler: &mut Scheduler, shared: &Shared) {
        self.strikes += 1;
        self.good = 0;
        self.resync = true;
        shared.strikes.store(self.strikes, std::sync::atomic::Ordering::Relaxed);
        if self.strikes < STRIKES_MAX {
            tracing::warn!(strikes = self.strikes, limit = STRIKES_MAX, "{error}; fcfs decides this step");
            return;
        }
        let strikes = self.strikes;
        if let Some(previous) = self.previous.take() {
            let failed = std::mem::take(&mut self.name);
            self.seat(Some(previous));
            tracing::error!("{error}; strike {strikes} of {STRIKES_MAX}: scheduler `{}` decides again", self.name);
            let why = format!("scheduler `{failed}` was exchanged back after {strikes} strikes ({error})");
            shared.strikes.store(0, std::sync::atomic::Ordering::Relaxed);
            shared.set_policy((&self.name, self.serial), PolicyState::Returned, Some(why));
            return;
        }
        tracing::error!("{error}; strike {strikes} of {STRIKES_MAX}: fcfs decides until another policy is loaded");
        self.policy = None;
        scheduler.without_policy();
        shared.set_policy((&self.name, self.serial), PolicyState::Benched, Some(error.to_string()));
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Calls the policy; a panic in it is its failure, not the engine's, and an answer after the deadline is not used.
fn timed<T>(name: &str, deadline: Duration, call: impl FnOnce() -> Result<T, PolicyError>) -> Result<T, PolicyError> {
    let start = Instant::now();
    let answer = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(PolicyError::Trapped { policy: name.to_owned(), cause: panic_text(panic.as_ref()) })
    })?;
    let took = start.elapsed();
    if took > deadline {
        let limit = format!("it took {} us, the deadline is {} us", took.as_micros(), deadline.as_micros());
        return Err(PolicyError::Late { policy: name.to_owned(), limit });
    }
    Ok(answer)
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a text".into())
}
