//! The simulator's own promises, at the size that CI has time for.

use sim::figures::{groups, quantile};
use sim::fleet::{Fleet, Plan, Router, fewest};
use sim::load::{Job, scenario};
use sim::policies::{HOSTILE, Source};
use sim::replica::{Machine, Outcome};
use sim::stress;

/// `cargo xtask sim --hostile all` is the long form.
const STEPS: u64 = 40_000;

/// No advice breaks an invariant, nobody starves, and every request ends.
#[test]
fn hostile_policies_break_nothing() {
    for (name, _) in HOSTILE {
        let survived = stress::run(name, None, 7, STEPS).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(survived.counts.steps >= STEPS && survived.requests > 0);
    }
    stress::run("native", None, 7, STEPS).unwrap_or_else(|error| panic!("native: {error:#}"));
}

fn machine() -> Machine {
    let config = scheduler::Config {
        seats: 64,
        pages: 6000,
        context_len: 131_072,
        max_rows: 8192,
        resume_align: 1,
        rows_tile: 1,
        large_rows_tile: 1,
        prefix_cache: true,
        starvation_bound_us: 30_000_000,
    };
    let cost = contract::cost::StepCost { fixed_us: 5500, row_ns: 24_000, context_ps: 1100 };
    Machine { config, cost, step_target_us: 50_000, in_flight: 2 }
}

fn fleet(replicas: usize, router: Router) -> Fleet {
    let (machine, source) = (machine(), Source::Native);
    let plan = Plan { machine: &machine, source: &source, replicas, router, seed: 1, check: true };
    Fleet::new(&plan).expect("it starts")
}

/// The same seed gives the same run, to the microsecond.
#[test]
fn a_seed_replays() {
    let run = || {
        let jobs = scenario("chat", 3, 5.0, 0.5, 24.0).expect("known");
        let mut fleet = fleet(1, Router::RoundRobin);
        fleet.run(&jobs, true).expect("no invariant is violated");
        fleet.outcomes().iter().map(|outcome| (outcome.job, outcome.first_us, outcome.last_us)).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// Sending a family's requests to one replica finds its prefix there.
#[test]
fn affinity_finds_prefixes() {
    let jobs = scenario("chat", 3, 5.0, 0.5, 24.0 / 8.0).expect("known");
    let cached = |router| {
        let mut fleet = fleet(8, router);
        fleet.run(&jobs, true).expect("no invariant is violated");
        let outcomes = fleet.outcomes();
        groups(&jobs, &outcomes)["chat"].cached
    };
    assert!(cached(Router::PrefixAffinity) > cached(Router::RoundRobin));
}

/// Two hundred replicas: every request is served, a seed replays, the load is spread, and finding prefixes is worth more
/// than evening out.
#[test]
fn hundreds_of_replicas_share_a_load() {
    const REPLICAS: usize = 200;
    let jobs = scenario("chat", 5, 1.5, 0.5, 24.0 / REPLICAS as f64).expect("known");
    let run = |router| {
        let mut fleet = fleet(REPLICAS, router);
        fleet.run(&jobs, false).expect("no invariant is violated");
        fleet
    };
    let (even, near) = (run(Router::LeastLoaded), run(Router::PrefixAffinity));
    for fleet in [&even, &near] {
        let whole = fleet.outcomes().iter().filter(|outcome| outcome.tokens == jobs[outcome.job].output).count();
        assert_eq!(whole, jobs.len());
    }
    assert!(even.busy_shares().0 > 0.3 * even.busy_shares().1, "{:?}", even.busy_shares());
    let cached = |fleet: &Fleet| fleet.outcomes().iter().map(|outcome| u64::from(outcome.cached)).sum::<u64>();
    assert!(cached(&near) > cached(&even));
    let ends = |fleet: &Fleet| fleet.outcomes().iter().map(|outcome| outcome.last_us).collect::<Vec<_>>();
    assert_eq!(ends(&even), ends(&run(Router::LeastLoaded)));
}

/// One replica fewer than the fewest misses the target.
#[test]
fn the_fewest_replicas_are_found() {
    let jobs = scenario("chat", 3, 3.0, 0.9, 24.0 / 6.0).expect("known");
    let (machine, source) = (machine(), Source::Native);
    let router = Router::LeastLoaded;
    let plan = Plan { machine: &machine, source: &source, replicas: 1, router, seed: 1, check: false };
    let (found, tried) = fewest(plan, &jobs, 500.0).expect("no invariant is violated");
    let found = found.expect("it can be kept");
    let p95 = |replicas| tried.iter().find(|tried| tried.replicas == replicas).map(|tried| tried.ttft_p95_ms);
    assert!(found > 1 && p95(found) <= Some(500.0) && p95(found - 1) > Some(500.0), "{found} of {tried:?}");
}

/// Chunks follow the cost of depth: with a target of 50 ms no gap of a stream is much longer, 100,000 tokens deep.
#[test]
fn steps_keep_their_target_at_depth() {
    let jobs = scenario("mixed", 1, 14.0, 0.0, 24.0).expect("known");
    let mut fleet = fleet(1, Router::RoundRobin);
    fleet.run(&jobs, false).expect("no invariant is violated");
    let outcomes = fleet.outcomes();
    let groups = groups(&jobs, &outcomes);
    assert_eq!(groups["long"].ttft_ms.len(), 1, "the long prompt ends");
    assert!(quantile(&groups["stream"].gaps_ms, 0.999) < 60.0);
}

/// One engine with steps of 512 rows at most, every row at the same price; answers by job.
fn serve(policy: &str, seats: u16, jobs: &[Job]) -> Vec<Outcome> {
    let mut machine = machine();
    machine.config.seats = seats;
    machine.config.max_rows = 512;
    machine.cost.context_ps = 0;
    let source = Source::parse(policy, None).expect("known");
    let (router, machine) = (Router::RoundRobin, &machine);
    let plan = Plan { machine, source: &source, replicas: 1, router, seed: 1, check: true };
    let mut fleet = Fleet::new(&plan).expect("it starts");
    fleet.run(jobs, true).expect("no invariant is violated");
    fleet.outcomes().into_iter().cloned().collect()
}

fn job(at_ms: f64, prompt: u32, output: u32) -> Job {
    let text = format!("{{\"at_ms\": {at_ms}, \"prompt\": {prompt}, \"output\": {output}}}");
    serde_json::from_str(&text).expect("a job")
}

fn ttft_us(outcome: &Outcome) -> u64 {
    outcome.first_us.expect("it has a token") - outcome.arrived_us
}

/// A full step of [`serve`].
const STEP_US: u64 = 5500 + 512 * 24;

/// A prompt of forty steps, eight streams that decode throughout, and then short requests, half of them with a prefix that
/// the cache holds.
fn sched_01_long_prefill_does_not_block(policy: &str) {
    let alone = ttft_us(&serve(policy, 64, &[job(0.0, 40 * 512, 1)])[0]);
    let stream = Job { cancel_ms: Some(3000.0), ..job(0.0, 20, 100_000) };
    let mut jobs = vec![stream; 8];
    jobs.push(Job { family: 1, shared: 64, ..job(0.0, 114, 1) });
    jobs.push(job(10.0, 40 * 512, 1));
    let long = jobs.len() - 1;
    let hit = || Job { family: 1, shared: 64, ..job(200.0, 114, 20) };
    jobs.extend((0..10).flat_map(|_| [hit(), job(200.0, 50, 20)]));
    let seen = serve(policy, 64, &jobs);
    let shorts = &seen[long + 1..];
    let worst = |shorts: &mut dyn Iterator<Item = &Outcome>| shorts.map(ttft_us).max().expect("there are some");
    // Their own 1,000 tokens are two steps.
    let waits_us = worst(&mut shorts.iter());
    assert!(waits_us < (5 + 2) * STEP_US, "{policy}: a short request waits {waits_us} us");
    let (mut hits, mut misses) = (shorts.iter().step_by(2), shorts.iter().skip(1).step_by(2));
    assert!(hits.clone().all(|short| short.cached == 64), "{policy}");
    assert!(worst(&mut hits) <= worst(&mut misses), "{policy}: a hit is slower than a miss");
    let gap = seen[..8].iter().flat_map(|stream| &stream.gaps_us).max().expect("streams have gaps");
    assert!(u64::from(*gap) <= 2 * STEP_US, "{policy}: a stream stands still for {gap} us");
    let mixed = ttft_us(&seen[long]);
    assert!(mixed as f64 <= 1.3 * alone as f64, "{policy}: the long prompt takes {mixed} us, alone {alone}");
}

#[test]
fn sched_01_native() {
    sched_01_long_prefill_does_not_block("native");
}

#[cfg(feature = "wasm")]
mod components {
    use super::*;

    #[test]
    fn sched_01_components() {
        ["fcfs", "stall-free"].into_iter().for_each(sched_01_long_prefill_does_not_block);
    }

    /// Four seats are taken by a low priority; a high one has its first token within five steps, from exactly one of them.
    #[test]
    fn sched_05_priority_inversion_at_seq_limit() {
        let low = || Job { priority: 5, ..job(0.0, 40, 2000) };
        let mut jobs: Vec<Job> = (0..4).map(|_| low()).collect();
        jobs.push(Job { priority: 0, ..job(500.0, 20, 20) });
        jobs.push(Job { at_ms: 600.0, output: 5, ..low() });
        let seen = serve("priority", 4, &jobs);
        assert!(ttft_us(&seen[4]) <= 5 * 6000, "the high priority waits {} us", ttft_us(&seen[4]));
        let preemptions: Vec<u32> = seen.iter().map(|outcome| outcome.preemptions).collect();
        assert_eq!(preemptions.iter().sum::<u32>(), 1, "{preemptions:?}");
        assert!(seen.iter().zip(&jobs).all(|(outcome, job)| outcome.tokens == job.output));
        let first_end = seen[..4].iter().map(|low| low.last_us).min().expect("four");
        assert!(seen[5].first_us.expect("served") >= first_end, "an equal priority preempts");
    }

    /// A hostile load on every bundled policy: they are not hostile, but the load is.
    #[test]
    fn bundled_policies_break_nothing() {
        for name in ["fcfs", "priority", "fair", "deadline", "shortest-prefill-first", "stall-free"] {
            let survived = stress::run(name, None, 3, 20_000).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert_eq!(survived.counts.fallbacks, 0, "{name}");
        }
    }
}
