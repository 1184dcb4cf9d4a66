//! Hostile policies under a hostile load: small pools, every length, cancels; the invariants are checked at each step.

use anyhow::{Context, Result};
use scheduler::Config;

use crate::load::Job;
use crate::policies;
use crate::random::Rng;
use crate::replica::{Counts, Machine, Replica};

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
        rows_tile: 1,
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

/// Runs at least `steps` steps; the first violated invariant is the error.
pub fn run(policy: &str, settings: Option<&str>, seed: u64, steps: u64) -> Result<Counts> {
    let mut total = Counts::default();
    let mut rng = Rng(seed);
    while total.steps < steps {
        let machine = machine(&mut rng);
        let about = format!("seed {seed}, after {} steps, {machine:?}", total.steps);
        one(policy, settings, machine, &mut rng, &mut total).context(about)?;
    }
    Ok(total)
}

fn one(policy: &str, settings: Option<&str>, machine: Machine, rng: &mut Rng, total: &mut Counts) -> Result<()> {
    let policy = policies::load(policy, settings, rng.word())?;
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
        replica.ended.clear();
    }
    replica.advance(u64::MAX, &jobs, true)?;
    let counts = replica.counts;
    total.steps += counts.steps;
    total.fallbacks += counts.fallbacks;
    total.violations += counts.violations;
    total.preemptions += counts.preemptions;
    total.calls += counts.calls;
    Ok(())
}
