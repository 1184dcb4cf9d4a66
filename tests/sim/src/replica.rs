//! One engine: the real scheduler core and a policy, over a device that only takes time.
//!
//! The loop is the engine's: a step is planned while the one before it runs, and late where that one takes long; results come
//! back in order; a policy that fails is replaced by native first come, first served for that step and starts again from a
//! snapshot.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use contract::cost::{StepCost, plan_after_us};
use contract::generation::Tenant;
use contract::policy::{Decision, SchedulePolicy};
use contract::{Slot, TokenId};
use scheduler::{Advice, Config, Feed, NewRequest, RunResult, Scheduler, Tick};

use crate::load::Job;
use crate::watch::Watch;

/// What a simulated machine is like.
#[derive(Clone, Debug)]
pub struct Machine {
    pub config: Config,
    pub cost: StepCost,
    pub step_target_us: u32,
    pub in_flight: usize,
}

/// What became of a request; times in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub job: usize,
    pub arrived_us: u64,
    pub first_us: Option<u64>,
    pub last_us: u64,
    pub tokens: u32,
    pub cached: u32,
    pub preemptions: u32,
    /// Gaps between tokens.
    pub gaps_us: Vec<u32>,
    pub refused: bool,
    pub cancelled: bool,
}

struct Live {
    outcome: Outcome,
    cancel_us: Option<u64>,
}

struct Flight {
    end_us: u64,
    rows: u32,
    took_us: u32,
    /// (end, emits) of each run.
    runs: Vec<(u32, bool)>,
}

impl Flight {
    /// When the step behind it is planned.
    fn planned_over_us(&self) -> u64 {
        self.end_us - u64::from(self.took_us) + plan_after_us(self.took_us.into())
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub steps: u64,
    pub fallbacks: u64,
    pub violations: u64,
    pub preemptions: u64,
    pub busy_us: u64,
    /// Of that, what rows of prompts took.
    pub prompt_us: f64,
    pub calls: u64,
}

pub struct Replica {
    scheduler: Scheduler,
    policy: Option<Box<dyn SchedulePolicy>>,
    machine: Machine,
    resync: bool,
    rests_until_us: u64,
    now_us: u64,
    device_free_us: u64,
    flights: VecDeque<Flight>,
    spare: Vec<Vec<(u32, bool)>>,
    last_step: (u32, u32),
    live: HashMap<Slot, Live>,
    cancels: u32,
    pub watch: Watch,
    /// Prompt and output tokens of requests that have not ended.
    pub owed_tokens: u64,
    pub ended: Vec<Outcome>,
    pub counts: Counts,
    released: Vec<contract::Seat>,
    keep_gaps: bool,
}

impl Replica {
    pub fn new(machine: Machine, policy: Option<Box<dyn SchedulePolicy>>, keep_gaps: bool) -> Result<Self> {
        let scheduler = Scheduler::new(machine.config.clone())?;
        let bound_us = machine.config.starvation_bound_us;
        Ok(Self {
            scheduler,
            resync: policy.is_some(),
            policy,
            machine,
            rests_until_us: 0,
            now_us: 0,
            device_free_us: 0,
            flights: VecDeque::new(),
            spare: Vec::new(),
            last_step: (0, 0),
            live: HashMap::new(),
            cancels: 0,
            watch: Watch::new(bound_us),
            owed_tokens: 0,
            ended: Vec::new(),
            counts: Counts::default(),
            released: Vec::new(),
            keep_gaps,
        })
    }

    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    pub fn is_idle(&self) -> bool {
        self.live.is_empty() && self.flights.is_empty()
    }

    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Takes a request that came at `at_us`; one that can never fit is refused at once.
    pub fn submit(&mut self, number: usize, job: &Job, at_us: u64) {
        // An idle engine notices a request when it comes, a busy one between two steps.
        if self.is_idle() {
            self.now_us = self.now_us.max(at_us);
        }
        let new = NewRequest {
            prompt: prompt(number, job),
            max_new_tokens: job.output,
            priority: job.priority,
            tenant: Tenant { name: job.tenant.as_str().into(), weight: job.weight },
            deadline_us: job.deadline_ms.map(|ms| at_us + (ms * 1e3) as u64),
            namespace: 0,
            group: number as u64,
            reads_prompt: false,
        };
        let mut outcome = Outcome { job: number, arrived_us: at_us, ..Outcome::default() };
        match self.scheduler.submit(new, at_us) {
            Ok(slot) => {
                let cancel_us = job.cancel_ms.map(|ms| at_us + (ms * 1e3) as u64);
                self.cancels += u32::from(cancel_us.is_some());
                self.owed_tokens += u64::from(job.prompt) + u64::from(job.output);
                self.watch.arrives(slot, at_us);
                self.live.insert(slot, Live { outcome, cancel_us });
            }
            Err(_) => {
                outcome.refused = true;
                self.ended.push(outcome);
            }
        }
    }

    /// Runs steps until `until_us`, or until nothing is left to do.
    pub fn advance(&mut self, until_us: u64, jobs: &[Job], check: bool) -> Result<()> {
        while self.now_us < until_us && !self.is_idle() {
            if let Some(plan_us) = self.flights.front().map(Flight::planned_over_us).filter(|&at| at > self.now_us) {
                self.now_us = plan_us.min(until_us);
                continue;
            }
            self.step(jobs)?;
            if check {
                self.check()?;
            }
        }
        Ok(())
    }

    pub fn check(&self) -> Result<()> {
        if let Err(why) = self.scheduler.check() {
            bail!("step {}: {why}", self.counts.steps);
        }
        let pages = self.scheduler.pages();
        let sum = pages.free + pages.cached + pages.used;
        ensure!(sum == self.machine.config.pages, "step {}: {pages:?} are {sum} pages", self.counts.steps);
        Ok(())
    }

    /// Nothing is left of requests that are over.
    pub fn check_empty(&self) -> Result<()> {
        let (waiting, running) = (self.scheduler.waiting_count(), self.scheduler.running_count());
        let pages = self.scheduler.pages();
        ensure!(
            (waiting, running, pages.used) == (0, 0, 0),
            "at the end {waiting} wait, {running} run and {pages:?} are left"
        );
        Ok(())
    }

    /// One turn of the engine's loop.
    pub fn step(&mut self, jobs: &[Job]) -> Result<()> {
        self.cancel_due(jobs);
        self.plan()?;
        self.counts.steps += 1;
        let launched = self.launch(jobs);
        if launched {
            while self.flights.len() >= self.machine.in_flight.max(1) {
                self.collect(jobs);
            }
        } else if self.flights.is_empty() {
            // The policy let nobody run; it is asked again after a pause.
            self.now_us += 1000;
        } else {
            while !self.flights.is_empty() {
                self.collect(jobs);
            }
        }
        Ok(())
    }

    fn cancel_due(&mut self, jobs: &[Job]) {
        if self.cancels == 0 {
            return;
        }
        let now_us = self.now_us;
        let due: Vec<Slot> = self
            .live
            .iter()
            .filter(|(_, live)| live.cancel_us.is_some_and(|at| at <= now_us))
            .map(|(&slot, _)| slot)
            .collect();
        for slot in due {
            self.scheduler.cancel(slot);
            self.end(slot, jobs, |outcome| outcome.cancelled = true);
        }
    }

    fn end(&mut self, slot: Slot, jobs: &[Job], change: impl FnOnce(&mut Outcome)) {
        if let Some(mut live) = self.live.remove(&slot) {
            change(&mut live.outcome);
            let job = &jobs[live.outcome.job];
            self.owed_tokens -= u64::from(job.prompt) + u64::from(job.output);
            self.cancels -= u32::from(live.cancel_us.is_some());
            self.watch.ends(slot);
            self.ended.push(live.outcome);
        }
    }

    fn tick(&self) -> Tick {
        Tick {
            now_us: self.now_us,
            token_budget: self.machine.config.max_rows,
            target_us: self.machine.step_target_us,
            cost: self.machine.cost,
            last_step_us: self.last_step.0,
            last_step_tokens: self.last_step.1,
            in_flight_steps: self.flights.len() as u32,
        }
    }

    fn plan(&mut self) -> Result<()> {
        let tick = self.tick();
        let decided = self.decide(&tick);
        let planned = match &decided {
            Some(decision) => self.scheduler.plan(&tick, Advice::Policy(decision)).is_ok(),
            None => false,
        };
        if !planned {
            if self.policy.is_some() {
                self.counts.fallbacks += 1;
                self.resync = true;
                self.rests_until_us = 0;
            }
            self.scheduler.plan(&tick, Advice::Native)?;
        }
        let plan = self.scheduler.current();
        self.counts.violations += plan.violations.len() as u64;
        self.counts.preemptions += plan.preempted.len() as u64;
        self.watch.planned(plan, &self.scheduler, self.now_us)
    }

    /// `None`: native first come, first served decides.
    fn decide(&mut self, tick: &Tick) -> Option<Decision> {
        let policy = self.policy.as_mut()?;
        if std::mem::take(&mut self.resync) {
            let snapshot = self.scheduler.snapshot(tick);
            policy.resync(&snapshot).ok()?;
        }
        let delta = self.scheduler.delta(tick);
        if tick.now_us < self.rests_until_us && delta.is_uneventful() {
            return Some(Decision::default());
        }
        self.counts.calls += 1;
        let decision = policy.step(delta).ok()?;
        self.rests_until_us = decision.rests_until_us.unwrap_or(0);
        Some(decision)
    }

    fn launch(&mut self, jobs: &[Job]) -> bool {
        self.released.clear();
        self.scheduler.take_released(&mut self.released);
        let plan = self.scheduler.current();
        for started in &plan.started {
            if let Some(live) = self.live.get_mut(&started.slot) {
                live.outcome.cached = started.cached_tokens;
            }
        }
        let refused: Vec<Slot> = plan.refused.iter().map(|refused| refused.slot).collect();
        let mut runs = self.spare.pop().unwrap_or_default();
        runs.clear();
        let mut us = f64::from(self.machine.cost.fixed_us);
        for run in &plan.runs {
            let row_us = self.machine.cost.rows_us(run.end - run.rows, run.rows);
            us += row_us;
            if run.feed != Feed::Last {
                self.counts.prompt_us += row_us;
            }
            runs.push((run.end, run.emits));
        }
        let rows = plan.rows;
        for slot in refused {
            self.end(slot, jobs, |outcome| outcome.refused = true);
        }
        if runs.is_empty() {
            self.spare.push(runs);
            return false;
        }
        let took_us = us as u32;
        let end_us = self.device_free_us.max(self.now_us) + u64::from(took_us.max(1));
        self.device_free_us = end_us;
        self.counts.busy_us += u64::from(took_us);
        self.flights.push_back(Flight { end_us, rows, took_us, runs });
        true
    }

    fn collect(&mut self, jobs: &[Job]) {
        let Some(flight) = self.flights.pop_front() else { return };
        self.now_us = self.now_us.max(flight.end_us);
        for (run, &(end, emits)) in flight.runs.iter().enumerate() {
            let tokens: &[TokenId] = if emits { &[7] } else { &[] };
            let Some(committed) = self.scheduler.commit_run(run, &RunResult { tokens, end, done: false }) else {
                continue;
            };
            if committed.tokens > 0 {
                self.count_token(committed.slot);
            }
            if let Some((_, ended)) = committed.ended {
                self.end(committed.slot, jobs, |outcome| outcome.preemptions = ended.preemptions);
            }
        }
        self.scheduler.commit_done();
        self.last_step = (flight.took_us, flight.rows);
        self.spare.push(flight.runs);
    }

    fn count_token(&mut self, slot: Slot) {
        let Some(live) = self.live.get_mut(&slot) else { return };
        let outcome = &mut live.outcome;
        match outcome.first_us {
            None => outcome.first_us = Some(self.now_us),
            Some(_) if self.keep_gaps => outcome.gaps_us.push((self.now_us - outcome.last_us) as u32),
            Some(_) => {}
        }
        outcome.last_us = self.now_us;
        outcome.tokens += 1;
    }
}

/// Tokens that no other request has, after those that its family shares.
fn prompt(number: usize, job: &Job) -> Arc<[TokenId]> {
    let shared = job.shared.min(job.prompt);
    let own = (number as u32).wrapping_mul(0x9E37_79B9);
    let family = job.family.wrapping_mul(0x85EB_CA6B);
    (0..job.prompt)
        .map(|at| if at < shared { family.wrapping_add(at) } else { own ^ at.wrapping_mul(0xC2B2_AE35) })
        .collect()
}
