//! A trace of a scheduler's calls: written, run again, compared.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use contract::Slot;
use contract::cost::StepCost;
use contract::policy::{
    Arrival, Clamp, Delta, Limits, Progress, SchedulePolicy, SlotState, SlotView, Snapshot, TenantInfo,
};
use plugin_host::trace::{Recorded, TraceError, replay, traced_policy};
use plugin_host::{Grants, HostConfig, PluginHost, PluginSource};
use prometheus_client::registry::Registry;

use crate::rig::{faults, rig};

fn bundled(name: &str) -> Box<dyn SchedulePolicy> {
    let host = PluginHost::new(HostConfig::default(), &mut Registry::default()).expect("it starts");
    host.load_scheduler(&PluginSource::parse(name), &Grants::default(), None).expect("it is bundled")
}

fn arrival(slot: u32) -> Arrival {
    Arrival {
        slot: Slot(slot),
        group: 1 << 40,
        tenant: slot % 2,
        adapter: 0,
        priority: -(slot as i32 % 3),
        arrived_us: u64::from(slot) * 10,
        deadline_us: slot.is_multiple_of(2).then_some(1 << 41),
        prompt_tokens: 300 + slot,
        cached_tokens: 64,
        max_new_tokens: 90,
    }
}

fn limits(step: u64) -> Limits {
    Limits {
        step,
        now_us: step * 1000,
        token_budget: 256,
        tokens_max: 512,
        target_us: 30_000,
        decode_us: 6000,
        cost: StepCost { fixed_us: 5500, row_ns: 24_000, context_ps: 1100 },
        free_seats: 3,
        free_pages: 99,
        page_tokens: 64,
        resume_align: 1,
        last_step_us: 7000,
        last_step_tokens: 30,
        in_flight_steps: 1,
    }
}

/// Everything that a delta can list, and a snapshot with a weight that decimal digits do not hold.
fn play(policy: &mut dyn SchedulePolicy) {
    let tenant = |id: u32| TenantInfo { id, name: Arc::from("ten\"ant\n"), weight: 1.0 / f64::from(3 + id) };
    let view = |slot: u32, state| SlotView {
        request: arrival(slot),
        state,
        computed: 64,
        emitted: 0,
        pages: 1,
        preemptions: 2,
    };
    let states = [SlotState::Waiting, SlotState::Prefilling, SlotState::Decoding, SlotState::Preempted];
    let slots = (0..4).zip(states).map(|(slot, state)| view(slot, state)).collect();
    // A hostile one may fail; the trace holds that too.
    let _ = policy.resync(&Snapshot { limits: limits(1), tenants: vec![tenant(0), tenant(1)], slots });
    for step in 2..12u32 {
        let progress = |slot: u32| Progress { slot: Slot(slot), computed: 64 + step * 8, emitted: 0 };
        let delta = Delta {
            limits: limits(step.into()),
            tenants: (step == 3).then(|| tenant(1)).into_iter().collect(),
            finished: (step == 5).then(|| progress(2)).into_iter().collect(),
            preempted: (step == 7).then_some(Slot(1)).into_iter().collect(),
            arrived: vec![arrival(10 + step)],
            clamped: (step == 6).then_some(Clamp { slot: Slot(12), tokens: 5 }).into_iter().collect(),
            progress: vec![progress(1)],
        };
        let _ = policy.step(&delta);
    }
}

fn record(policy: Box<dyn SchedulePolicy>, folder: &Path) -> PathBuf {
    let path = folder.join("trace.jsonl");
    play(&mut Recorded::new(policy, &path).expect("a new file"));
    path
}

/// What was recorded replays without a difference, and another policy differs in calls that are named.
#[test]
fn a_trace_replays() {
    for name in ["fair", "deadline", "stall-free"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = record(bundled(name), folder.path());
        assert_eq!(traced_policy(&path).expect("a header"), name);
        let found = replay(&path, bundled(name).as_mut()).expect("it is whole");
        assert_eq!((found.calls, found.differences), (11, vec![]), "{name}");
        let other = replay(&path, bundled("priority").as_mut()).expect("it is whole");
        let first = other.differences.first().unwrap_or_else(|| panic!("`priority` decides as {name} does"));
        assert!(first.line > 2 && first.recorded != first.replayed, "{first:?}");
    }
}

/// A call that failed is a part of the trace, and must fail again.
#[test]
fn failures_replay() {
    let rig = rig("scheduler", "");
    let load =
        |rules: &str| rig.host.load_scheduler(&rig.source, &Grants::default(), Some(&faults(rules))).expect("it loads");
    let folder = tempfile::tempdir().expect("a folder");
    let path = record(load("step=trap@3"), folder.path());
    assert_eq!(replay(&path, load("step=trap@3").as_mut()).expect("it is whole").differences, []);
    let well = replay(&path, load("").as_mut()).expect("it is whole");
    let first = well.differences.first().expect("it does not fail");
    assert_eq!((first.step, first.recorded.as_str()), (4, "a failed call"));
}

/// What is no trace is an error with the line.
#[test]
fn broken_traces_name_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.jsonl");
    let header = "{\"tokenloom_trace\": 1, \"policy\": \"fcfs\"}";
    for (text, line, word) in [
        ("", 0, "empty"),
        ("{}", 1, "tokenloom_trace"),
        ("{\"tokenloom_trace\": 9, \"policy\": \"fcfs\"}", 1, "format 9"),
        (&*format!("{header}\n{{\"call\": {{\"step\": 1}}}}"), 2, "expected"),
    ] {
        std::fs::write(&path, text).expect("written");
        let error = replay(&path, bundled("fcfs").as_mut()).expect_err("no trace");
        assert!(matches!(&error, TraceError::Line { line: found, .. } if *found == line), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    std::fs::remove_file(&path).expect("it was there");
    assert!(matches!(traced_policy(&path), Err(TraceError::Io { .. })));
}
