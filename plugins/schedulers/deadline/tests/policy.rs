//! Who is served first, and who not at all.

use deadline::Deadline;
use tokenloom_sdk::rank::{Rank, Ranked};
use tokenloom_sdk::scheduler::{Arrival, StepCost};
use tokenloom_sdk::testing::{Host, arrival};

/// A tenth of a millisecond a token.
const COST: StepCost = StepCost { fixed_us: 1000, row_ns: 100_000, context_ps: 0 };

fn policy(settings: &str) -> Ranked<Deadline> {
    Ranked::new(Deadline::configure(settings).expect("valid"))
}

fn due(slot: u32, prompt: u32, deadline_ms: u64) -> Arrival {
    Arrival { deadline_us: Some(deadline_ms * 1000), ..arrival(slot, prompt, 1) }
}

fn order(host: &Host) -> Vec<u32> {
    host.finished.iter().map(|request| request.arrival.slot).collect()
}

#[test]
fn the_earliest_deadline_has_the_step() {
    let (mut host, mut policy) = (Host::new(8, 4096).timed(20_000, COST), policy(""));
    host.arrive(due(0, 500, 900));
    host.arrive(due(1, 500, 300));
    host.arrive(arrival(2, 500, 1));
    host.arrive(due(3, 500, 600));
    (0..20).for_each(|_| drop(host.step(&mut policy).expect("valid")));
    assert_eq!(order(&host), [1, 3, 0, 2]);
}

/// 500 tokens take 50 ms and the steps' own time; a deadline of 40 ms is refused at once, or served last.
#[test]
fn what_cannot_be_met_holds_nobody_up() {
    for (settings, refused, served) in [
        ("", vec![(0, "deadline-unreachable".to_owned())], vec![1, 2]),
        ("{\"late\": \"last\"}", vec![], vec![1, 2, 0]),
    ] {
        let (mut host, mut policy) = (Host::new(8, 4096).timed(20_000, COST), policy(settings));
        host.arrive(due(0, 500, 40));
        host.arrive(due(1, 500, 100));
        host.arrive(due(2, 500, 150));
        (0..20).for_each(|_| drop(host.step(&mut policy).expect("valid")));
        assert_eq!((host.refused.clone(), order(&host)), (refused, served), "{settings}");
        let late = |r: &tokenloom_sdk::testing::Request| r.first_us > r.arrival.deadline_us;
        assert!(host.finished.iter().filter(|r| r.arrival.slot > 0).all(|r| !late(r)));
    }
}

/// By the measured cost 500 tokens take 53 ms. Steps are not all alike, so a deadline of 55 ms is not promised.
#[test]
fn a_hair_is_not_in_time() {
    for (deadline_ms, refused) in [(55, 1), (65, 0)] {
        let (mut host, mut policy) = (Host::new(8, 4096).timed(20_000, COST), policy(""));
        host.arrive(due(0, 500, deadline_ms));
        (0..5).for_each(|_| drop(host.step(&mut policy).expect("valid")));
        assert_eq!((host.refused.len(), host.finished.len()), (refused, 1 - refused), "{deadline_ms} ms");
    }
}

/// A prompt that is partly computed and cannot be in time any more goes behind those that can.
#[test]
fn a_lost_prompt_does_not_take_others_along() {
    let (mut host, mut policy) = (Host::new(8, 4096).timed(20_000, COST), policy(""));
    host.arrive(due(0, 500, 70));
    host.step(&mut policy).expect("valid");
    // More urgent, and it takes the time that the first one lacks then.
    host.arrive(due(1, 200, 48));
    host.step(&mut policy).expect("valid");
    host.arrive(due(2, 380, 95));
    (0..10).for_each(|_| drop(host.step(&mut policy).expect("valid")));
    assert_eq!((order(&host), host.refused.len()), (vec![1, 2, 0], 0));
    let late = |n: usize| host.finished[n].first_us > host.finished[n].arrival.deadline_us;
    assert_eq!([late(0), late(1), late(2)], [false, false, true]);
}

/// A step that ends a prompt just in time is not made longer by the next one.
#[test]
fn the_rest_of_a_step_makes_nobody_late() {
    let (mut host, mut policy) = (Host::new(8, 4096).timed(60_000, COST), policy(""));
    host.arrive(due(0, 200, 25));
    host.arrive(due(1, 500, 900));
    (0..5).for_each(|_| drop(host.step(&mut policy).expect("valid")));
    assert_eq!(order(&host), [0, 1]);
    assert!(host.finished[0].first_us <= Some(25_000), "{:?}", host.finished[0].first_us);
}

/// Before anything was measured nobody is refused.
#[test]
fn without_a_cost_all_are_served() {
    let (mut host, mut policy) = (Host::new(8, 256), policy(""));
    host.arrive(due(0, 500, 1));
    (0..5).for_each(|_| drop(host.step(&mut policy).expect("valid")));
    assert_eq!(order(&host), [0]);
}

/// A request with a deadline takes a seat from one without, and from nobody else.
#[test]
fn seats_go_to_deadlines() {
    let policy = Deadline::configure("").expect("valid");
    assert!(policy.may_preempt(&due(0, 1, 5), &arrival(1, 1, 1)));
    assert!(!policy.may_preempt(&due(0, 1, 5), &due(1, 1, 9)));
    assert!(!policy.may_preempt(&arrival(0, 1, 1), &arrival(1, 1, 1)));
}

#[test]
fn settings_are_checked() {
    for bad in ["{\"default_ms\": 0}", "{\"late\": \"never\"}", "[]"] {
        assert!(Deadline::configure(bad).is_err(), "{bad}");
    }
}
