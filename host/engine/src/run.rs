//! The loop: messages, a plan, a launch, the results of the step before.
//!
//! With one step in flight a step is launched, sampled and collected in turn. With two, step N+1 is planned and launched
//! while step N runs; then N is collected and committed, and only then is N+1 sampled, because its grammar masks need
//! the tokens of N.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use backend::step::{Caps, StepOut};
use backend::{Backend, BackendError};
use contract::generation::{FinishReason, GenerationError, TokenEvent};
use contract::policy::PolicyError;
use contract::{Seat, Slot};
use scheduler::{Advice, Ended, NewRequest, Scheduler, Tick};

use crate::budget::Budget;
use crate::config::EngineConfig;
use crate::launch::{Flight, Scratch};
use crate::live::{Live, Lives};
use crate::message::{Msg, Submission};
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::policy::PolicySeat;
use crate::score::Score;
use crate::status::Shared;

/// Messages taken between two steps: with more, a flood of requests would hold up the tokens of those that run.
const MESSAGES_PER_STEP_MAX: usize = 256;

/// Pause before the policy is asked again after it let nobody run.
const NOTHING_PLANNED_PAUSE: Duration = Duration::from_millis(1);

/// How often a stalled client is looked for while nothing else happens.
const STALL_CHECK_PAUSE: Duration = Duration::from_secs(1);

/// The engine cannot go on.
#[derive(Debug)]
pub(crate) struct Fault(pub String);

impl From<BackendError> for Fault {
    fn from(error: BackendError) -> Self {
        Self(error.to_string())
    }
}

/// The ends of messages that other prompts are likely to share: the first, which is the system's, and the last two.
fn message_ends(ends: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut ends: Vec<u32> = ends.collect();
    if ends.len() > 3 {
        ends.drain(1..ends.len() - 2);
    }
    ends
}

pub(crate) struct Engine {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) caps: Caps,
    pub(crate) config: EngineConfig,
    pub(crate) scheduler: Scheduler,
    pub(crate) lives: Lives,
    pub(crate) shared: Arc<Shared>,
    pub(crate) metrics: Metrics,
    pub(crate) budget: Budget,
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) scratch: Scratch,
    pub(crate) policy: PolicySeat,
    pub(crate) observer: Option<Observer>,
    pub(crate) mailbox: Receiver<Msg>,
    /// Seats whose request the backend did not take; they are not to be released.
    pub(crate) unbound: Vec<Seat>,
    pub(crate) last_step: (Duration, u32),
    /// The time of the last plan, on the scheduler's clock.
    pub(crate) now_us: u64,
    pub(crate) last_end: Option<Instant>,
    /// When the last collected step had ended, as far as is known.
    pub(crate) device_free: Instant,
    /// Whether the last plan had runs.
    pub(crate) busy: bool,
    pub(crate) checked_idle: bool,
}

impl Engine {
    /// Runs until it is told to stop.
    pub fn run(&mut self) -> Result<(), Fault> {
        loop {
            if !self.receive()? {
                return Ok(());
            }
            self.drop_stalled();
            if self.lives.len() > 0 || !self.flights.is_empty() {
                self.step()?;
            }
            self.publish();
        }
    }

    /// Takes messages; waits for one when there is nothing to compute. `false`: stop.
    fn receive(&mut self) -> Result<bool, Fault> {
        if !self.linger()? {
            return Ok(false);
        }
        let mut first = self.wait()?;
        for _ in 0..MESSAGES_PER_STEP_MAX {
            let message = match first.take() {
                Some(message) => message,
                None => match self.mailbox.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Empty) => return Ok(true),
                    Err(TryRecvError::Disconnected) => return Ok(false),
                },
            };
            if !self.take(message) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `false`: stop.
    pub(crate) fn take(&mut self, message: Msg) -> bool {
        match message {
            Msg::Submit(submission) => self.submit(*submission),
            Msg::Abort(id) => self.abort(id),
            Msg::Drained(id) => self.drained(id),
            Msg::SwapPolicy(policy) => {
                if policy.is_none() {
                    self.scheduler.without_policy();
                }
                self.policy.load(policy, &self.shared);
                tracing::info!(policy = self.policy.name(), "the scheduler was exchanged");
            }
            Msg::Observe(observer) => self.observer = Some(observer),
            Msg::Shutdown => return false,
        }
        true
    }

    /// A message to wait for: none while there is work, and no longer than something must be looked after.
    fn wait(&mut self) -> Result<Option<Msg>, Fault> {
        if !self.flights.is_empty() || (self.busy && self.lives.len() > 0) {
            return Ok(None);
        }
        let pause = if self.lives.len() > self.scheduler.parked_count() {
            NOTHING_PLANNED_PAUSE
        } else if self.shared.parked.load(Ordering::Relaxed) > 0 {
            STALL_CHECK_PAUSE
        } else {
            if !std::mem::replace(&mut self.checked_idle, true) {
                self.release_seats();
                self.scheduler.check().map_err(|why| Fault(format!("the scheduler lost track: {why}")))?;
            }
            return Ok(Some(self.mailbox.recv().unwrap_or(Msg::Shutdown)));
        };
        match self.mailbox.recv_timeout(pause) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Ok(Some(Msg::Shutdown)),
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { id, request, pool, sender, arrived } = submission;
        self.checked_idle = false;
        self.busy = true;
        // A request that comes while a step runs has waited since then.
        let arrived_us = self.shared.us_at(arrived);
        let new = NewRequest {
            prompt: request.prompt,
            max_new_tokens: request.max_new_tokens,
            priority: request.priority,
            tenant: request.tenant,
            deadline_us: request.deadline.map(|due| self.shared.us_at(due)),
            namespace: request.namespace,
            group: request.group,
            reads_prompt: request.prompt_logprobs.is_some(),
        };
        // A message ends with one of the tokens that answers end with.
        let stops = &request.sampling.stop_tokens;
        let ends = new.prompt.iter().enumerate().filter(|(_, token)| stops.contains(token));
        let anchors: Vec<u32> = match self.caps.recurrent {
            true => message_ends(ends.map(|(at, _)| at as u32 + 1)),
            false => Vec::new(),
        };
        match self.scheduler.submit(new, arrived_us) {
            Ok(slot) => {
                self.scheduler.anchor(slot, anchors.into_iter());
                let live = Live {
                    id,
                    name: request.id,
                    sampling: request.sampling,
                    seed: request.seed,
                    constraint: request.constraint,
                    pool,
                    score: request.prompt_logprobs.map(Score::new),
                    arrived,
                    last_token: None,
                    outlet: Lives::outlet(sender),
                };
                self.lives.insert(slot, live);
            }
            // `Handle::submit` checks the same limits; a request that gets here all the same must still get an answer.
            Err(error) => {
                let _ = sender.try_send(TokenEvent::Failed(GenerationError::Aborted(error.to_string())));
                self.shared.live.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn abort(&mut self, id: u64) {
        if let Some((slot, live)) = self.lives.abort(id) {
            let ended = self.scheduler.cancel(slot);
            self.count_end(&live, ended, "abort");
        }
    }

    fn drained(&mut self, id: u64) {
        if let Some(slot) = self.lives.drained(id) {
            let now_us = self.shared.elapsed_us();
            self.scheduler.park(slot, false, now_us);
            self.busy = true;
        }
    }

    fn drop_stalled(&mut self) {
        if self.shared.parked.load(Ordering::Relaxed) == 0 {
            return;
        }
        for id in self.lives.stalled(self.config.stall_limit) {
            tracing::warn!(id, limit = ?self.config.stall_limit, "a client reads nothing; its request is dropped");
            self.abort(id);
        }
    }

    fn step(&mut self) -> Result<(), Fault> {
        let start = Instant::now();
        self.plan();
        self.after_plan();
        self.metrics.plan_seconds.observe(start.elapsed().as_secs_f64());
        let launched = self.launch()?;
        self.busy = launched;
        let in_flight_max = usize::from(self.caps.in_flight.clamp(1, 2));
        if launched {
            while self.flights.len() > 1 {
                self.collect(true)?;
            }
            self.sample()?;
            while self.flights.len() >= in_flight_max {
                self.collect(true)?;
            }
        } else {
            // Nobody can run before a result is in.
            while !self.flights.is_empty() {
                self.collect(true)?;
                self.busy = true;
            }
        }
        Ok(())
    }

    fn plan(&mut self) {
        self.now_us = self.shared.elapsed_us();
        let mut tick = Tick {
            now_us: self.now_us,
            token_budget: self.budget.rows(),
            target_us: u32::try_from(self.config.step_target.as_micros()).unwrap_or(u32::MAX),
            cost: self.budget.cost(),
            last_step_us: u32::try_from(self.last_step.0.as_micros()).unwrap_or(u32::MAX),
            last_step_tokens: self.last_step.1,
            in_flight_steps: self.flights.len() as u32,
        };
        // A row of a long prompt's first chunk costs more than one of the short prompts before it.
        if let Some((rows, context)) = self.scheduler.expected(&tick) {
            tick.cost = self.budget.cost_ahead(rows, context);
        }
        let start = Instant::now();
        let decided = self.policy.decide(&mut self.scheduler, &tick);
        let error = match decided {
            Ok(None) => None,
            Ok(Some(decision)) => {
                self.metrics.policy_seconds.observe(start.elapsed().as_secs_f64());
                self.observer = self.observer.take().filter(|one| one.see(&self.scheduler, &tick, &decision));
                match self.scheduler.plan(&tick, Advice::Policy(&decision)) {
                    Ok(_) => return self.policy.good(&self.shared),
                    Err(invalid) => {
                        Some(PolicyError::Invalid { policy: self.policy.name().to_owned(), reason: invalid.0 })
                    }
                }
            }
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            let cause = match error {
                PolicyError::Late { .. } => "late",
                PolicyError::Trapped { .. } => "trapped",
                PolicyError::Invalid { .. } => "invalid",
            };
            self.metrics.fallbacks.get_or_create(&[("cause", cause)]).inc();
            self.policy.strike(&error, &mut self.scheduler, &self.shared);
        }
        self.scheduler.plan(&tick, Advice::Native).expect("native advice has nothing to be invalid");
    }

    /// Tells clients and counters what the plan decided.
    fn after_plan(&mut self) {
        let plan = self.scheduler.current();
        self.metrics.token_budget.set(plan.budget.into());
        for violation in &plan.violations {
            self.metrics.violations.get_or_create(&[("rule", violation.name())]).inc();
        }
        for &slot in &plan.preempted {
            self.metrics.preemptions.inc();
            let name = self.lives.get(slot).map_or("", |live| &*live.name);
            tracing::info!(request = name, slot = slot.0, "preempted; it goes on when pages are free");
        }
        for started in &plan.started {
            let queued = Duration::from_micros(started.queued_us);
            let prompt = self.scheduler.view_of(started.slot).map_or(0, |view| view.prompt.len() as u64);
            self.metrics.queue_time.observe(queued.as_secs_f64());
            self.metrics.prompt_tokens.inc_by(prompt);
            if self.config.prefix_cache {
                self.metrics.prefix_queries.inc_by(prompt);
                self.metrics.prefix_hits.inc_by(started.cached_tokens.into());
            }
            self.lives.send(started.slot, TokenEvent::Started { cached_tokens: started.cached_tokens, queued });
        }
        for refused in plan.refused.clone() {
            let error = GenerationError::Refused { code: refused.code, retry_after_ms: refused.retry_after_ms };
            self.end(refused.slot, TokenEvent::Failed(error), None, "refused");
        }
    }

    /// Ends a request that the scheduler still has.
    pub(crate) fn fail(&mut self, slot: Slot, error: GenerationError) {
        let ended = self.scheduler.cancel(slot);
        self.end(slot, TokenEvent::Failed(error), ended, "error");
    }

    pub(crate) fn finish(&mut self, slot: Slot, reason: FinishReason, ended: Ended) {
        let event = TokenEvent::Finished { reason, preemptions: ended.preemptions };
        let label = match reason {
            FinishReason::Stop { .. } => "stop",
            FinishReason::Length => "length",
        };
        self.end(slot, event, Some(ended), label);
    }

    /// The place is free and the numbers are right before the client hears of the end.
    fn end(&mut self, slot: Slot, event: TokenEvent, ended: Option<Ended>, label: &'static str) {
        if let Some(live) = self.lives.take(slot) {
            self.count_end(&live, ended, label);
            self.publish();
            self.lives.end(live, event);
        }
    }

    fn count_end(&mut self, live: &Live, ended: Option<Ended>, reason: &'static str) {
        self.shared.live.fetch_sub(1, Ordering::AcqRel);
        self.metrics.success.get_or_create(&[("finished_reason", reason)]).inc();
        self.metrics.e2e.observe(live.arrived.elapsed().as_secs_f64());
        if let Some(ended) = ended {
            self.metrics.prompt_len.observe(ended.prompt_tokens.into());
            self.metrics.generation_len.observe(ended.emitted.into());
        }
        let now = Instant::now();
        if let Some(last) = self.last_end.replace(now) {
            let gap_ms = u64::try_from((now - last).as_millis()).unwrap_or(u64::MAX);
            let old_ms = self.shared.finish_gap_ms.load(Ordering::Relaxed);
            // Smoothed over about eight ends; an idle hour is not the pace at which a full queue drains.
            let gap_ms = gap_ms.min(60_000);
            self.shared.finish_gap_ms.store(old_ms - old_ms / 8 + gap_ms.div_ceil(8), Ordering::Relaxed);
        }
    }

    pub(crate) fn measured(&mut self, flight: &Flight, out: &StepOut) {
        // A backend that measures nothing is timed from the launch.
        let device = if out.device.is_zero() { flight.launched.elapsed() } else { out.device };
        let measured = crate::budget::Measured { device, ..flight.measured };
        tracing::trace!(
            rows = measured.rows,
            context = measured.context,
            device_us = device.as_micros(),
            expected_us = self.budget.cost().step_us(measured.rows, measured.context),
            "step"
        );
        self.budget.observe(&measured);
        self.last_step = (device, measured.rows);
        self.metrics.step_seconds.observe(device.as_secs_f64());
        self.metrics.iteration_tokens.observe(measured.rows.into());
        if flight.decode_only && out.graph.is_none() && !self.caps.graphs.is_empty() {
            self.metrics.graph_misses.inc();
        }
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn publish(&self) {
        let pages = self.scheduler.pages();
        let (waiting, running) = (self.scheduler.waiting_count() as u32, self.scheduler.running_count() as u32);
        self.shared.waiting.store(waiting, Ordering::Relaxed);
        self.shared.running.store(running, Ordering::Relaxed);
        self.shared.pages_used.store(pages.used, Ordering::Relaxed);
        self.shared.pages_cached.store(pages.cached, Ordering::Relaxed);
        self.metrics.waiting.set(waiting.into());
        self.metrics.running.set(running.into());
        self.metrics.kv_usage.set(f64::from(pages.used) / f64::from(self.caps.pages));
        self.metrics.parked.set(self.shared.parked.load(Ordering::Relaxed).into());
        self.metrics.strikes.set(self.shared.strikes.load(Ordering::Relaxed).into());
    }
}
