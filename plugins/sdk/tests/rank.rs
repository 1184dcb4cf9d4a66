//! The policy around a rank, against a small host that keeps the protocol's rules.

use proptest::prelude::*;
use tokenloom_sdk::PluginError;
use tokenloom_sdk::rank::{Rank, Ranked};
use tokenloom_sdk::scheduler::{Arrival, Decision, Policy};
use tokenloom_sdk::testing::{self, Host};

#[derive(Clone)]
struct ByPriority;

impl Rank for ByPriority {
    type Key = i32;

    fn configure(_settings_json: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn rank(&self, request: &Arrival) -> i32 {
        request.priority
    }

    fn may_preempt(&self, waiting: &Arrival, running: &Arrival) -> bool {
        waiting.priority < running.priority
    }
}

/// The same, and whoever has a seat keeps it.
#[derive(Clone)]
struct Patient;

impl Rank for Patient {
    type Key = i32;

    fn configure(_settings_json: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn rank(&self, request: &Arrival) -> i32 {
        request.priority
    }
}

fn arrival(slot: u32, priority: i32, prompt_tokens: u32, max_new_tokens: u32) -> Arrival {
    Arrival { priority, ..testing::arrival(slot, prompt_tokens, max_new_tokens) }
}

fn slots(decision: &Decision) -> Vec<u32> {
    decision.grant.iter().map(|grant| grant.slot).collect()
}

#[test]
fn the_best_rank_is_admitted_first() {
    let (mut host, mut policy) = (Host::new(2, 512), Ranked::new(ByPriority));
    for (slot, priority) in [(0, 5), (1, 1), (2, 3)] {
        host.arrive(arrival(slot, priority, 10, 4));
    }
    assert_eq!(slots(&host.step(&mut policy).expect("valid")), [1, 2]);
}

#[test]
fn one_victim_per_step_and_only_a_less_urgent_one() {
    let (mut host, mut policy) = (Host::new(2, 512), Ranked::new(ByPriority));
    host.arrive(arrival(0, 5, 10, 100));
    host.arrive(arrival(1, 4, 10, 100));
    host.step(&mut policy).expect("valid");
    for slot in 2..4 {
        host.arrive(arrival(slot, 1, 10, 100));
    }
    host.arrive(arrival(4, 4, 10, 100));
    let first = host.step(&mut policy).expect("valid");
    assert_eq!((first.preempt.clone(), slots(&first)), (vec![0], vec![2]));
    let second = host.step(&mut policy).expect("valid");
    assert_eq!((second.preempt.clone(), slots(&second)), (vec![1], vec![3]));
    assert!(host.step(&mut policy).expect("valid").preempt.is_empty());
}

#[test]
fn a_long_prompt_leaves_room_for_a_short_one() {
    let (mut host, mut policy) = (Host::new(4, 256), Ranked::new(ByPriority));
    host.arrive(arrival(0, 0, 10_000, 1));
    host.arrive(arrival(1, 0, 20, 1));
    let decision = host.step(&mut policy).expect("valid");
    assert_eq!(slots(&decision), [0, 1]);
    assert_eq!(decision.grant.iter().map(|grant| grant.tokens).sum::<u32>(), 256);
}

/// However many wait before them, requests on seats go on.
#[test]
fn who_waits_stops_nobody_on_a_seat() {
    let (mut host, mut policy) = (Host::new(2, 128), Ranked::new(Patient));
    (0..2).for_each(|slot| host.arrive(arrival(slot, 5, 200, 1)));
    host.step(&mut policy).expect("valid");
    (2..1500).for_each(|slot| host.arrive(arrival(slot, 1, 10, 1)));
    assert_eq!(slots(&host.step(&mut policy).expect("valid")), [0, 1]);
}

/// A request that the host seated by itself, because it waited too long, is granted the rest of its prompt.
#[test]
fn who_was_forced_in_goes_on() {
    let (mut host, mut policy) = (Host::new(1, 128), Ranked::new(Patient));
    host.arrive(arrival(0, 5, 200, 1));
    host.step(&mut policy).expect("valid");
    host.arrive(arrival(1, 5, 200, 1));
    let forced = host.requests.get_mut(&1).expect("it arrived");
    (forced.running, forced.computed) = (true, 64);
    host.delta.progress.extend([1, 64, 0]);
    (host.budget, host.seats) = (512, 2);
    assert_eq!(slots(&host.step(&mut policy).expect("valid")), [0, 1]);
}

#[test]
fn a_steady_step_says_nothing() {
    let (mut host, mut policy) = (Host::new(64, 4096), Ranked::new(ByPriority));
    (0..64).for_each(|slot| host.arrive(arrival(slot, 0, 8, 1000)));
    // 32 prompts share a step.
    (0..3).for_each(|_| drop(host.step(&mut policy).expect("valid")));
    let decision = host.step(&mut policy).expect("valid");
    assert_eq!((decision.grant.len(), decision.victims.len()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Everything finishes, whatever comes when, also through a resync; and no decision asks for what is not there.
    #[test]
    fn everything_finishes(
        requests in prop::collection::vec((0..200u64, -2..3i32, 1..900u32, 1..20u32), 1..40),
        seats in 1..6u32,
        budget in 64..512u32,
        resync in 0..100u64,
    ) {
        let (mut host, mut policy) = (Host::new(seats, budget), Ranked::new(ByPriority));
        for step in 0..20_000u64 {
            for (slot, (at, priority, prompt, new)) in requests.iter().enumerate() {
                if *at == step {
                    host.arrive(arrival(slot as u32, *priority, *prompt, *new));
                }
            }
            if step == resync {
                policy.resync(host.snapshot());
            }
            let outcome = host.step(&mut policy);
            prop_assert!(outcome.is_ok(), "step {}: {:?}", step, outcome);
            if host.finished.len() == requests.len() {
                return Ok(());
            }
        }
        prop_assert!(false, "{} of {} finished", host.finished.len(), requests.len());
    }
}
