//! The simulator's own promises, at the size that CI has time for.

use sim::figures::{groups, quantile};
use sim::fleet::{Fleet, Plan, Router};
use sim::load::scenario;
use sim::policies::HOSTILE;
use sim::replica::Machine;
use sim::stress;

/// `cargo xtask sim --policy NAME --steps 10000000` is the long form.
const STEPS: u64 = 40_000;

/// No advice breaks an invariant, nobody starves, and every request ends.
#[test]
fn hostile_policies_break_nothing() {
    for (name, _) in HOSTILE {
        let counts = stress::run(name, None, 7, STEPS).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(counts.steps >= STEPS);
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
        prefix_cache: true,
        starvation_bound_us: 30_000_000,
    };
    let cost = contract::cost::StepCost { fixed_us: 5500, row_ns: 24_000, context_ps: 1100 };
    Machine { config, cost, step_target_us: 50_000, in_flight: 2 }
}

fn fleet(replicas: usize, router: Router) -> Fleet {
    let plan = Plan { machine: machine(), policy: "native", settings: None, replicas, router, seed: 1, check: true };
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
