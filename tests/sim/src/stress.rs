//! Hostile policies under a hostile load: small pools, every length, cancels; the invariants are checked at each step.

use std::time::Instant;

use anyhow::{Context, Result};
use scheduler::Config;
use serde_json::{Value, json};

use crate::load::Job;
use crate::policies::Source;
use crate::random::Rng;
use crate::replica::{Counts, Machine, Outcome, Replica};

/// Steps with one machine; then another size, so that a run sees many pools.
const STEPS_PER_MACHINE: u64 = 20_000;

fn machine(rng: &mut Rng) -> Machine {
    let align = if rng.below(4) == 0 { 64 } else { 1 };
    let config = Config {
        seats: rng.between(1, 8) as u16,
        pages: rng.between(3, 24),
        context_len: rng.between(100, 1200),
        max_rows: align.max(rng.between(4, 300)),
        resume_align: align,
        rows_tile: [1, 1, 16, 64][rng.below(4) as usize],
        large_rows_tile: [1, 1, 32, 128][rng.below(4) as usize],
        prefix_cache: rng.below(5) > 0,
        starvation_bound_us: 200_000,
    };
    let cost =
        contract::cost::StepCost { fixed_us: 1000, row_ns: rng.between(0, 50_000), context_ps: rng.between(0, 9000) };
    Machine { config, cost, step_target_us: rng.between(0, 4) * 2500, in_flight: rng.between(1, 2) as usize }
}

fn job(rng: &mut Rng, at_ms: f64, config: &Config) -> Job {
    let longest = config.context_len.min(config.pages * 64);
    let text = ["a", "b", "c"][rng.below(3) as usize];
    Job {
        at_ms,
        prompt: 1 + rng.below(u64::from(longest)) as u32,
        output: rng.between(1, 120),
        tenant: text.into(),
        kind: String::new(),
        weight: 1.0 + rng.below(3) as f64,
        priority: rng.below(5) as i32 - 2,
        deadline_ms: (rng.below(2) == 0).then(|| rng.unit() * 500.0),
        family: rng.below(3) as u32,
        shared: rng.below(300) as u32,
        cancel_ms: (rng.below(8) == 0).then(|| rng.unit() * 300.0),
    }
}

/// What a hostile run did. That it ended is the result: every step was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Survived {
    pub counts: Counts,
    /// Sizes of pool, seats and steps that were tried.
    pub machines: u64,
    pub requests: u64,
    pub cancelled: u64,
    pub refused: u64,
    /// See [`crate::watch::Watch`].
    pub starved_steps_max: u64,
    pub seconds: f64,
}

impl Survived {
    fn add(&mut self, ended: &mut Vec<Outcome>) {
        let count = |what: fn(&Outcome) -> bool| ended.iter().filter(|outcome| what(outcome)).count() as u64;
        self.requests += ended.len() as u64;
        self.cancelled += count(|outcome| outcome.cancelled);
        self.refused += count(|outcome| outcome.refused);
        ended.clear();
    }

    pub fn steps_per_minute(&self) -> f64 {
        self.counts.steps as f64 / self.seconds * 60.0
    }

    pub fn json(&self, policy: &str) -> Value {
        json!({
            "policy": policy,
            "steps": self.counts.steps,
            "invariants_violated": 0,
            "machines": self.machines,
            "requests": self.requests,
            "cancelled": self.cancelled,
            "refused": self.refused,
            "policy_calls": self.counts.calls,
            "fallbacks": self.counts.fallbacks,
            "advice_not_followed": self.counts.violations,
            "preemptions": self.counts.preemptions,
            "starved_steps_max": self.starved_steps_max,
            "seconds": (self.seconds * 10.0).round() / 10.0,
            "steps_per_minute": self.steps_per_minute().round(),
        })
    }
}

/// Runs at least `steps` steps; the first violated invariant is the error.
pub fn run(policy: &str, settings: Option<&str>, seed: u64, steps: u64) -> Result<Survived> {
    let started = Instant::now();
    let source = Source::parse(policy, settings)?;
    let mut total = Survived::default();
    let mut rng = Rng(seed);
    while total.counts.steps < steps {
        let machine = machine(&mut rng);
        let about = format!("seed {seed}, after {} steps, {machine:?}", total.counts.steps);
        one(&source, machine, &mut rng, &mut total).context(about)?;
    }
    total.seconds = started.elapsed().as_secs_f64();
    Ok(total)
}

fn one(source: &Source, machine: Machine, rng: &mut Rng, total: &mut Survived) -> Result<()> {
    let policy = source.policy(rng.word())?;
    let config = machine.config.clone();
    let mut replica = Replica::new(machine, policy, false)?;
    let mut jobs: Vec<Job> = Vec::new();
    while replica.counts.steps < STEPS_PER_MACHINE {
        // A queue of about a dozen, so that there is always somebody to be unfair to.
        while replica.live() < 12 && rng.below(3) > 0 {
            let job = job(rng, replica.now_us() as f64 / 1e3, &config);
            jobs.push(job);
            replica.submit(jobs.len() - 1, &jobs[jobs.len() - 1], replica.now_us());
        }
        replica.step(&jobs)?;
        replica.check()?;
        total.add(&mut replica.ended);
    }
    replica.advance(u64::MAX, &jobs, true)?;
    total.add(&mut replica.ended);
    replica.check_empty()?;
    total.machines += 1;
    total.starved_steps_max = total.starved_steps_max.max(replica.watch.starved_steps_max);
    let (sum, counts) = (&mut total.counts, replica.counts);
    sum.steps += counts.steps;
    sum.fallbacks += counts.fallbacks;
    sum.violations += counts.violations;
    sum.preemptions += counts.preemptions;
    sum.calls += counts.calls;
    Ok(())
}
