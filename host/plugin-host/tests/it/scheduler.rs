//! Schedulers that misbehave: a typed error for the step, and a fresh store at the next resync.

use contract::Slot;
use contract::policy::{Arrival, Delta, Grant, PolicyError, SchedulePolicy, Snapshot};
use plugin_host::{Grants, LimitOverrides};

use crate::rig::{Rig, faults, rig};

fn load(rig: &Rig, rules: &str) -> Box<dyn SchedulePolicy> {
    // Fuel is what ends a call here: a machine with other work may take long over what is within it.
    let grants = Grants { limits: LimitOverrides { call_ms: Some(2000), ..Default::default() }, ..Grants::default() };
    let policy = rig.host.load_scheduler(&rig.source, &grants, Some(&faults(rules)));
    policy.unwrap_or_else(|e| panic!("it loads with `{rules}`: {e}"))
}

fn delta() -> Delta {
    let arrival = Arrival {
        slot: Slot(3),
        group: 1,
        tenant: 0,
        adapter: 0,
        priority: -1,
        arrived_us: 5,
        deadline_us: None,
        prompt_tokens: 70,
        cached_tokens: 64,
        max_new_tokens: 9,
    };
    Delta { arrived: vec![arrival], ..Delta::default() }
}

#[test]
fn decides() {
    let rig = rig("scheduler", "");
    let mut policy = load(&rig, "");
    assert_eq!(policy.resync(&Snapshot::default()), Ok(()));
    for _ in 0..100 {
        let decision = policy.step(&delta()).expect("it decides");
        assert_eq!(decision.grant, [Grant { slot: Slot(3), tokens: 70 }]);
    }
    assert_eq!(policy.step(&Delta::default()).map(|d| d.grant), Ok(Vec::new()));
}

/// The kind of error and a word of its text.
fn kind(error: &PolicyError) -> &'static str {
    match error {
        PolicyError::Late { .. } => "late",
        PolicyError::Trapped { .. } => "trapped",
        PolicyError::Invalid { .. } => "invalid",
    }
}

#[test]
fn failures_are_typed_and_resync_mends() {
    for (fault, expected, word) in [
        ("loop", "late", "20000000 fuel"),
        ("trap", "trapped", "panicked"),
        ("memory", "trapped", "memory limit"),
        ("recurse", "trapped", "stack is exhausted"),
        ("huge", "invalid", "larger than"),
        ("many", "invalid", "larger than"),
        ("disorder", "invalid", "draft has 3 numbers"),
    ] {
        let rig = rig("scheduler", "");
        let mut policy = load(&rig, &format!("step={fault}@2"));
        for _ in 0..3 {
            assert_eq!(policy.resync(&Snapshot::default()), Ok(()), "{fault}");
            assert!(policy.step(&delta()).is_ok(), "{fault}");
            let error = policy.step(&delta()).expect_err("the second step fails");
            assert_eq!(kind(&error), expected, "{error}");
            assert!(error.to_string().contains(word), "{error}");
            let error = policy.step(&delta()).expect_err("there is no store now");
            assert!(error.to_string().contains("not resynced"), "{error}");
        }
        assert_eq!(rig.status().state, plugin_host::PluginState::Failing);
    }
}

#[test]
fn resync_may_fail_too() {
    let rig = rig("scheduler", "[limits]\nfuel = 100000\n");
    for (fault, expected) in [("loop", "late"), ("trap", "trapped"), ("memory", "late")] {
        let mut policy = load(&rig, &format!("resync={fault}"));
        let error = policy.resync(&Snapshot::default()).expect_err("it fails");
        assert!(kind(&error) == expected || fault == "memory", "{error}");
        assert!(policy.step(&delta()).is_err());
    }
}

/// The same deltas give the same decisions and use the same fuel: nothing in a policy depends on the clock.
#[test]
fn fuel_is_deterministic() {
    let limit = |fuel: u64| {
        let rig = rig("scheduler", &format!("[limits]\nfuel = {fuel}\n"));
        let mut policy = load(&rig, "");
        policy.resync(&Snapshot::default()).expect("it resyncs");
        (0..50).take_while(|_| policy.step(&delta()).is_ok()).count()
    };
    assert_eq!(limit(10_000), limit(10_000));
}
