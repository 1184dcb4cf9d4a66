//! Short prompts beside long ones, on a host whose steps take time.

use stall_free::StallFree;
use tokenloom_sdk::scheduler::{Arrival, Policy, Scheduler, StepCost};
use tokenloom_sdk::testing::{Host, arrival};

/// 5 ms a step, 50 us a token, and attention that doubles that at a depth of 50,000 tokens.
const COST: StepCost = StepCost { fixed_us: 5000, row_ns: 50_000, context_ps: 1000 };

fn policy(settings: &str) -> impl Policy {
    StallFree::configure(settings).expect("valid").policy()
}

fn grants(host: &mut Host, policy: &mut impl Policy) -> Vec<(u32, u32)> {
    let decision = host.step(policy).expect("valid");
    decision.grant.iter().map(|grant| (grant.slot, grant.tokens)).collect()
}

/// The whole step when nobody decodes, and what the target leaves when somebody does.
#[test]
fn the_target_binds_only_beside_answers() {
    let (mut host, mut policy) = (Host::new(8, 4096).timed(50_000, COST), policy(""));
    host.arrive(arrival(0, 100_000, 1));
    let (_, alone) = grants(&mut host, &mut policy)[0];
    assert!((890..=900).contains(&alone), "{alone}: 45 ms");
    host.arrive(arrival(1, 10, 100));
    grants(&mut host, &mut policy);
    let (slot, beside) = grants(&mut host, &mut policy)[0];
    assert!(slot == 0 && (525..=560).contains(&beside), "{beside}: 28 ms");
}

/// Chunks shrink as the prompt gets deep, because attention gets dear.
#[test]
fn chunks_follow_the_measured_cost() {
    let (mut host, mut policy) = (Host::new(8, 4096).timed(30_000, COST), policy(""));
    host.arrive(Arrival { cached_tokens: 99_000, ..arrival(0, 100_000, 1) });
    let (_, deep) = grants(&mut host, &mut policy)[0];
    assert!((160..=170).contains(&deep), "{deep}: 25 ms at 149 us");
}

/// A short prompt is computed whole in its first step; the long one keeps at least a quarter, and loses nothing else.
#[test]
fn sched_01_short_prompts_do_not_wait() {
    let (mut host, mut policy) = (Host::new(8, 4096).timed(30_000, COST), policy(""));
    host.arrive(arrival(0, 50_000, 1));
    grants(&mut host, &mut policy);
    for slot in 1..4 {
        host.arrive(arrival(slot, 100, 1));
    }
    let found = grants(&mut host, &mut policy);
    assert_eq!(found[..3], [(1, 100), (2, 100), (3, 100)]);
    assert!(found[3].0 == 0 && found[3].1 >= 100, "{found:?}");
}

/// A flood of short prompts slows the long one down to a quarter of the steps, and no further.
#[test]
fn a_flood_does_not_stop_the_oldest() {
    let (mut host, mut policy) = (Host::new(64, 4096).timed(30_000, COST), policy(""));
    host.arrive(arrival(0, 5_000, 1));
    for slot in 1..2000 {
        if host.finished.iter().any(|request| request.arrival.slot == 0) {
            // 5,000 tokens at 50 us take 250 ms, and a quarter of the steps a second and a bit.
            assert!(host.now_us < 1_600_000, "{} us", host.now_us);
            return;
        }
        (0..4).for_each(|n| host.arrive(arrival(slot * 4 + n, 150, 1)));
        grants(&mut host, &mut policy);
    }
    panic!("the long prompt never ended");
}

/// Equal long prompts end one after the other, so that half of them are there after half of the time.
#[test]
fn equal_prompts_do_not_all_wait_for_the_last() {
    let (mut host, mut policy) = (Host::new(64, 4096).timed(30_000, COST), policy(""));
    (0..20).for_each(|slot| host.arrive(arrival(slot, 3000, 1)));
    let mut ends = Vec::new();
    for step in 0..2000 {
        grants(&mut host, &mut policy);
        ends.resize(host.finished.len(), step);
    }
    assert_eq!(ends.len(), 20);
    assert!(ends[9] * 10 <= ends[19] * 6, "{ends:?}");
}

/// On a device where even a page is too slow for the target, prompts go on all the same.
#[test]
fn a_slow_device_makes_progress() {
    let slow = StepCost { fixed_us: 40_000, row_ns: 4_000_000, context_ps: 0 };
    let (mut host, mut policy) = (Host::new(8, 512).timed(50_000, slow), policy("{\"itl_target_ms\": 1}"));
    (0..4).for_each(|slot| host.arrive(arrival(slot, 200, 30)));
    (0..400).for_each(|_| drop(grants(&mut host, &mut policy)));
    assert_eq!(host.finished.len(), 4);
}

#[test]
fn settings_are_checked() {
    for bad in ["{\"itl_target_ms\": 0}", "{\"itl\": 1}", "[]"] {
        assert!(StallFree::configure(bad).is_err(), "{bad}");
    }
}
