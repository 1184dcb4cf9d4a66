//! A policy on trial: the real scheduler core, and a device on which every step takes a millisecond.

use std::collections::HashSet;

use contract::cost::StepCost;
use contract::generation::Tenant;
use contract::policy::{Decision, SchedulePolicy};
use contract::{PAGE_TOKENS, Slot};
use scheduler::{Advice, Config, NewRequest, RunResult, Scheduler, Tick};

/// A step of the device, in microseconds.
const STEP_US: u64 = 1000;
/// Longest prompt.
pub const TOKENS_MAX: u32 = 1 << 20;

/// What there is to share.
pub struct Stage {
    pub seats: u16,
    pub pages: u32,
    /// Tokens of a step.
    pub token_budget: u32,
}

/// A request.
pub struct Actor<'a> {
    /// Makes its prompt differ from those of other numbers.
    pub number: u32,
    pub prompt_tokens: u32,
    pub max_new_tokens: u32,
    pub priority: i32,
    pub tenant: &'a str,
    /// Of its first token, counted from now.
    pub deadline_ms: Option<u64>,
}

/// What a step brought, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A request's first token.
    First(Slot),
    Ended(Slot),
    Refused(Slot),
}

pub struct Rehearsal {
    policy: Box<dyn SchedulePolicy>,
    scheduler: Scheduler,
    token_budget: u32,
    begun: HashSet<Slot>,
    now_us: u64,
    last_tokens: u32,
    last_decision: Decision,
}

impl Rehearsal {
    pub fn new(stage: &Stage, policy: Box<dyn SchedulePolicy>) -> Result<Self, String> {
        let config = Config {
            seats: stage.seats,
            pages: stage.pages,
            context_len: stage.pages.saturating_mul(PAGE_TOKENS).min(TOKENS_MAX),
            max_rows: stage.token_budget,
            rows_tile: 1,
            large_rows_tile: 1,
            resume_align: 1,
            prefix_cache: false,
            // The host must not help: what waits for ever is the policy's fault.
            starvation_bound_us: u64::MAX / 4,
        };
        let scheduler = Scheduler::new(config).map_err(|e| e.to_string())?;
        let mut rehearsal = Self {
            policy,
            scheduler,
            token_budget: stage.token_budget,
            begun: HashSet::new(),
            now_us: 0,
            last_tokens: 0,
            last_decision: Decision::default(),
        };
        rehearsal.resync()?;
        Ok(rehearsal)
    }

    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// What the policy said in the last step.
    pub fn last_decision(&self) -> &Decision {
        &self.last_decision
    }

    /// The policy forgets everything and starts from a snapshot.
    pub fn resync(&mut self) -> Result<(), String> {
        let tick = self.tick();
        self.policy.resync(&self.scheduler.snapshot(&tick)).map_err(|e| e.to_string())
    }

    /// Another policy goes on from a snapshot.
    pub fn exchange(&mut self, policy: Box<dyn SchedulePolicy>) -> Result<(), String> {
        self.policy = policy;
        self.resync()
    }

    pub fn submit(&mut self, actor: &Actor<'_>) -> Result<Slot, String> {
        let new = NewRequest {
            prompt: (0..actor.prompt_tokens).map(|at| at ^ actor.number.wrapping_mul(0x9E37_79B9)).collect(),
            max_new_tokens: actor.max_new_tokens,
            priority: actor.priority,
            tenant: Tenant { name: actor.tenant.into(), weight: 1.0 },
            deadline_us: actor.deadline_ms.map(|ms| self.now_us + ms * 1000),
            namespace: 0,
            group: u64::from(actor.number),
            reads_prompt: false,
        };
        self.scheduler.submit(new, self.now_us).map_err(|e| format!("never fits: {e:?}"))
    }

    /// The client goes away.
    pub fn cancel(&mut self, slot: Slot) {
        self.begun.remove(&slot);
        self.scheduler.cancel(slot);
    }

    fn tick(&self) -> Tick {
        Tick {
            now_us: self.now_us,
            token_budget: self.token_budget,
            target_us: 0,
            cost: StepCost::default(),
            last_step_us: STEP_US as u32,
            last_step_tokens: self.last_tokens,
            in_flight_steps: 0,
        }
    }

    /// A decision, and the step that comes of it. An invalid, late or trapped decision is an error.
    pub fn step(&mut self) -> Result<Vec<News>, String> {
        let tick = self.tick();
        let decision = self.policy.step(self.scheduler.delta(&tick)).map_err(|e| e.to_string())?;
        self.scheduler.plan(&tick, Advice::Policy(&decision)).map_err(|e| format!("an invalid decision: {e}"))?;
        self.last_decision = decision;
        let plan = self.scheduler.current();
        let runs: Vec<(u32, bool)> = plan.runs.iter().map(|run| (run.end, run.emits)).collect();
        let mut news: Vec<News> = plan.refused.iter().map(|refused| News::Refused(refused.slot)).collect();
        self.last_tokens = plan.rows;
        self.now_us += STEP_US;
        let launched = !runs.is_empty();
        for (run, (end, emits)) in runs.into_iter().enumerate() {
            let tokens: &[u32] = if emits { &[7] } else { &[] };
            let Some(done) = self.scheduler.commit_run(run, &RunResult { tokens, end, done: false }) else { continue };
            if done.tokens > 0 && self.begun.insert(done.slot) {
                news.push(News::First(done.slot));
            }
            if done.ended.is_some() {
                self.begun.remove(&done.slot);
                news.push(News::Ended(done.slot));
            }
        }
        if launched {
            self.scheduler.commit_done();
        }
        self.scheduler.take_released(&mut Vec::new());
        Ok(news)
    }
}
