//! Rules of one step, by small examples.

use std::sync::Arc;

use contract::Slot;
use contract::cost::StepCost;
use contract::generation::Tenant;
use contract::policy::{Clamp, Decision, Grant, Refusal};

use crate::room::Decodes;
use crate::sim::{Rng, Sim, native};
use crate::{Advice, Config, NewRequest, RunResult, Scheduler, Tick, Violation};

fn config() -> Config {
    Config {
        seats: 4,
        pages: 64,
        context_len: 2048,
        max_rows: 256,
        resume_align: 1,
        rows_tile: 1,
        large_rows_tile: 1,
        prefix_cache: true,
        starvation_bound_us: 1_000_000,
    }
}

fn request(tokens: usize, max_new: u32) -> NewRequest {
    NewRequest {
        prompt: (0..tokens as u32).collect::<Vec<_>>().into(),
        max_new_tokens: max_new,
        priority: 0,
        tenant: Tenant::default(),
        deadline_us: None,
        namespace: 0,
        group: 0,
        reads_prompt: false,
    }
}

fn tick(token_budget: u32) -> Tick {
    Tick { token_budget, ..Tick::default() }
}

/// (slot, rows, emits) of each run of the next step.
fn runs(scheduler: &mut Scheduler, budget: u32, advice: Advice<'_>) -> Vec<(u32, u32, bool)> {
    let plan = scheduler.plan(&tick(budget), advice).expect("a valid decision");
    plan.runs.iter().map(|run| (run.slot.0, run.rows, run.emits)).collect()
}

/// A long prompt takes at most half of a step from the prompts behind it, and all of it when there are none.
#[test]
fn sched_01_long_prefill_does_not_block() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    scheduler.submit(request(1600, 1), 0).expect("fits");
    scheduler.submit(NewRequest { namespace: 1, ..request(50, 1) }, 0).expect("fits");
    scheduler.submit(NewRequest { namespace: 2, ..request(500, 1) }, 0).expect("fits");
    assert_eq!(runs(&mut scheduler, 200, Advice::Native), [(0, 100, false), (1, 50, true), (2, 50, false)]);
    let mut alone = Scheduler::new(config()).expect("valid");
    alone.submit(request(1600, 1), 0).expect("fits");
    assert_eq!(runs(&mut alone, 200, Advice::Native), [(0, 200, false)]);
}

/// Context and pool bound a request; a prompt beyond them is refused at once.
#[test]
fn sched_02_too_big_request_is_refused() {
    let pool = Config { pages: 4, context_len: 8192, ..config() };
    let mut scheduler = Scheduler::new(pool.clone()).expect("valid");
    for (prompt, fits) in [(255, true), (256, true), (257, false), (5000, false)] {
        assert_eq!(scheduler.submit(request(prompt, 1), 0).is_ok(), fits, "prompt of {prompt}");
    }
    let mut sim = Sim::new(pool, 1, 256, false);
    sim.submit((0..250).collect(), 4000, None);
    sim.finish(&mut native(), &mut Rng(1), 100);
    assert_eq!(sim.generated, 7, "256 tokens of KV, and a last token that needs none");
}

/// The pool holds three of eight outputs: nobody starves, nobody is thrown out again and again.
#[test]
fn sched_07_preemption_makes_progress() {
    for in_flight in [1, 2] {
        let pool = Config { seats: 8, pages: 3 * 47, context_len: 8192, prefix_cache: true, ..config() };
        let mut sim = Sim::new(pool, in_flight, 256, false);
        for start in 0..8 {
            sim.submit((start * 1000..start * 1000 + 200).collect(), 2800, None);
        }
        sim.finish(&mut native(), &mut Rng(1), 30_000);
        assert_eq!(sim.generated, 8 * 2800);
        let most = sim.preemptions.values().copied().max().unwrap_or(0);
        assert!((1..=5).contains(&most), "{most} preemptions of one request");
        assert!(sim.recomputed <= 2 * sim.generated, "{} tokens computed again", sim.recomputed);
    }
}

/// Grants beyond the budget are cut, told, and counted; a grant below the alignment is rounded up to it.
#[test]
fn grants_are_cut_to_budget_and_alignment() {
    let mut scheduler = Scheduler::new(Config { resume_align: 64, ..config() }).expect("valid");
    let slots: Vec<Slot> =
        (0..3).map(|n| scheduler.submit(NewRequest { namespace: n, ..request(300, 1) }, 0).expect("fits")).collect();
    scheduler.snapshot(&tick(128));
    let grant = slots.iter().map(|&slot| Grant { slot, tokens: 10 }).collect();
    let decision = Decision { grant, ..Decision::default() };
    assert_eq!(runs(&mut scheduler, 128, Advice::Policy(&decision)), [(0, 64, false), (1, 64, false)]);
    assert_eq!(scheduler.plan.violations, [Violation::OverBudget]);
    let delta = scheduler.delta(&tick(128));
    assert_eq!(delta.clamped, [Clamp { slot: slots[2], tokens: 0 }]);
    assert_eq!(delta.progress.iter().map(|p| (p.slot.0, p.computed)).collect::<Vec<_>>(), [(0, 64), (1, 64)]);
}

/// Chunks that end no prompt fill tiles of rows with what stands before them; the end of a prompt, and a chunk that is
/// shorter than what lies over, stay as they are.
#[test]
fn chunks_fill_tiles_of_rows() {
    for (prompts, budget, want) in [
        (vec![300], 200, vec![(0, 192, false)]),
        (vec![100, 300], 200, vec![(0, 100, true), (1, 92, false)]),
        (vec![20, 300], 64, vec![(0, 20, true), (1, 44, false)]),
        (vec![60, 300], 66, vec![(0, 60, true), (1, 4, false)]),
        (vec![10, 60, 300], 72, vec![(0, 10, true), (1, 60, true), (2, 2, false)]),
    ] {
        let mut scheduler = Scheduler::new(Config { rows_tile: 64, ..config() }).expect("valid");
        for (n, &tokens) in prompts.iter().enumerate() {
            scheduler.submit(NewRequest { namespace: n as u64, ..request(tokens, 1) }, 0).expect("fits");
        }
        assert_eq!(runs(&mut scheduler, budget, Advice::Native), want, "{prompts:?} in {budget} rows");
    }
}

/// Of many rows the tiles are larger, unless attention's count.
#[test]
fn large_steps_have_larger_tiles() {
    let config = Config { rows_tile: 32, large_rows_tile: 128, ..config() };
    let mut scheduler = Scheduler::new(config).expect("valid");
    scheduler.plan.rows = 16;
    for (rows, deep, taken) in
        [(495, false, 464), (496, false, 496), (620, false, 496), (624, false, 624), (620, true, 608)]
    {
        assert_eq!(scheduler.cut(0, 5000, rows, rows, deep), taken, "{rows} rows");
    }
}

/// Where attention is most of a row's time, a chunk fills tiles without what stands before it.
#[test]
fn deep_chunks_fill_tiles_alone() {
    let mut scheduler = Scheduler::new(Config { rows_tile: 32, ..config() }).expect("valid");
    let cost = StepCost { fixed_us: 5000, row_ns: 20_000, context_ps: 1000 };
    let room = scheduler.room(&Tick { cost, ..tick(256) }, Decodes::default());
    scheduler.plan.rows = 16;
    for (start, rows) in [(0, 176), (20_000, 176), (20_001, 160), (100_000, 160)] {
        assert_eq!(scheduler.cut(start, 1000, 185, 185, room.is_deep(start)), rows, "behind {start}");
    }
}

/// What the engine is told of the next step: all rows that prompts lack, or what fits the time, with those that decode.
#[test]
fn the_next_step_is_expected() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    let tick =
        Tick { target_us: 10_000, cost: StepCost { fixed_us: 1000, row_ns: 50_000, context_ps: 0 }, ..tick(256) };
    assert_eq!(scheduler.expected(&tick), None);
    scheduler.submit(request(30, 5), 0).expect("fits");
    assert_eq!(scheduler.expected(&tick), Some((30, 15)));
    assert_eq!(runs(&mut scheduler, 256, Advice::Native), [(0, 30, true)]);
    scheduler.commit_run(0, &RunResult { tokens: &[7], end: 30, done: false });
    scheduler.commit_done();
    assert_eq!(scheduler.expected(&tick), None);
    scheduler.submit(NewRequest { namespace: 1, ..request(1000, 1) }, 0).expect("fits");
    // 10 ms, less a millisecond and a row, at 50 us each.
    assert_eq!(scheduler.expected(&tick), Some((180, 89)));
}

/// What makes a decision invalid, and that nothing happened then.
#[test]
fn decisions_of_a_lost_policy_are_invalid() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    let slot = scheduler.submit(request(10, 1), 0).expect("fits");
    scheduler.snapshot(&tick(64));
    let grant = |slot: Slot| Grant { slot, tokens: 1 };
    let cases = [
        Decision { grant: vec![grant(Slot(9))], ..Decision::default() },
        Decision { hold: vec![Slot(9)], ..Decision::default() },
        Decision { grant: vec![grant(slot), grant(slot)], ..Decision::default() },
        Decision { victims: vec![slot; 2], ..Decision::default() },
    ];
    for decision in &cases {
        assert!(scheduler.plan(&tick(64), Advice::Policy(decision)).is_err(), "{decision:?}");
        assert_eq!((scheduler.waiting_count(), scheduler.check()), (1, Ok(())));
    }
}

/// What cannot be followed is left out and counted, and the rest of the decision holds: here one request decodes on the only
/// seat and another waits.
#[test]
fn what_cannot_be_followed_is_counted() {
    let (runs, waits) = (Slot(0), Slot(1));
    let none = Decision::default;
    let grant = |slot, tokens| vec![Grant { slot, tokens }];
    let refusal = Refusal { slot: runs, retry_after_ms: 1, code: "no".into() };
    for (decision, violation) in [
        (Decision { grant: grant(waits, 0), ..none() }, Violation::ZeroGrant),
        (Decision { grant: grant(waits, 5), ..none() }, Violation::OverSeats),
        (Decision { hold: vec![waits], ..none() }, Violation::HoldNotDecoding),
        (Decision { preempt: vec![waits], ..none() }, Violation::Preempt),
        (Decision { refuse: vec![refusal], ..none() }, Violation::Refuse),
    ] {
        let mut scheduler = Scheduler::new(Config { seats: 1, ..config() }).expect("valid");
        for slot in [runs, waits] {
            assert_eq!(scheduler.submit(request(10, 5), 0), Ok(slot));
        }
        scheduler.snapshot(&tick(64));
        scheduler.plan(&tick(64), Advice::Native).expect("native");
        scheduler.commit_run(0, &RunResult { tokens: &[7], end: 10, done: false });
        scheduler.commit_done();
        let plan = scheduler.plan(&tick(64), Advice::Policy(&decision)).expect("valid");
        assert_eq!(plan.violations, [violation], "{decision:?}");
        assert_eq!(plan.runs.iter().map(|run| run.slot).collect::<Vec<_>>(), [runs], "{decision:?}");
        assert_eq!((scheduler.waiting_count(), scheduler.check()), (1, Ok(())), "{decision:?}");
    }
}

/// A refusal ends a waiting request; its code is cut to a bounded text.
#[test]
fn refusals_end_waiting_requests() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    let slot = scheduler.submit(request(10, 1), 0).expect("fits");
    scheduler.snapshot(&tick(64));
    let refuse = vec![Refusal { slot, retry_after_ms: u32::MAX, code: "é".repeat(100) }];
    let decision = Decision { refuse, ..Decision::default() };
    assert!(runs(&mut scheduler, 64, Advice::Policy(&decision)).is_empty());
    assert_eq!(scheduler.plan.refused[0].code, "é".repeat(32));
    assert_eq!(scheduler.plan.refused[0].retry_after_ms, 3_600_000);
    assert_eq!(scheduler.delta(&tick(64)).finished.len(), 1);
}

/// A policy that never grants cannot keep a request from running for longer than the bound.
#[test]
fn starved_requests_are_forced_in() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    scheduler.submit(request(10, 1), 0).expect("fits");
    scheduler.snapshot(&tick(64));
    let nothing = Decision::default();
    for (now_us, planned) in [(999_999, 0), (1_000_001, 1)] {
        let plan = scheduler.plan(&Tick { now_us, ..tick(64) }, Advice::Policy(&nothing)).expect("valid");
        assert_eq!(plan.runs.len(), planned, "at {now_us}");
    }
}

/// More than 256 arrivals come with the next delta, and a slot that ended unheard is never heard of.
#[test]
fn arrivals_come_in_bounded_deltas() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    scheduler.snapshot(&tick(64));
    let slots: Vec<_> = (0..300).map(|_| scheduler.submit(request(10, 1), 0).expect("fits")).collect();
    scheduler.cancel(slots[299]);
    assert_eq!(scheduler.delta(&tick(64)).arrived.len(), 256);
    let second = scheduler.delta(&tick(64));
    assert_eq!((second.arrived.len(), second.finished.len()), (43, 0));
}

/// A turn that repeats the one before finds its pages; one token is always left to compute.
#[test]
fn a_second_turn_finds_its_pages() {
    let mut sim = Sim::new(config(), 1, 256, false);
    let prompt: Vec<u32> = (0..128).collect();
    sim.submit(prompt.clone(), 1, None);
    sim.finish(&mut native(), &mut Rng(1), 10);
    for (namespace, cached) in [(0, 64), (1, 0)] {
        let new = NewRequest { prompt: Arc::from(prompt.clone()), namespace, ..request(1, 1) };
        let slot = sim.scheduler.submit(new, 0).expect("fits");
        assert_eq!(sim.scheduler.entry(slot).arrival.cached_tokens, cached, "namespace {namespace}");
        sim.scheduler.cancel(slot);
    }
}

/// Looking shows what a snapshot would say of the requests the policy knows, and changes nothing of what it is told next.
#[test]
fn looking_changes_nothing() {
    let (mut watched, mut alone) = (Scheduler::new(config()).expect("valid"), Scheduler::new(config()).expect("valid"));
    let tick = tick(256);
    for scheduler in [&mut watched, &mut alone] {
        scheduler.snapshot(&tick);
    }
    for step in 0..12 {
        for scheduler in [&mut watched, &mut alone] {
            scheduler.submit(request(40 + step, 3), 0).expect("fits");
        }
        let before = watched.look(&tick);
        assert!(before.slots.len() <= step, "what the policy has not heard of is not shown");
        let told = watched.delta(&tick).clone();
        assert_eq!(told, *alone.delta(&tick), "step {step}");
        let grant = told.arrived.iter().map(|a| Grant { slot: a.slot, tokens: a.prompt_tokens }).collect();
        let decision = Decision { grant, ..Decision::default() };
        let seen = watched.look(&tick);
        assert_eq!(crate::check_decision(&seen, &decision), Ok(()));
        for scheduler in [&mut watched, &mut alone] {
            scheduler.plan(&tick, Advice::Policy(&decision)).expect("valid");
            for run in 0..scheduler.current().runs.len() {
                let (end, emits) = (scheduler.current().runs[run].end, scheduler.current().runs[run].emits);
                let tokens: &[u32] = if emits { &[1] } else { &[] };
                scheduler.commit_run(run, &crate::RunResult { tokens, end, done: false });
            }
            scheduler.commit_done();
        }
    }
    assert_eq!(watched.look(&tick), watched.snapshot(&tick));
}

/// A decision is checked against a snapshot as the scheduler itself would.
#[test]
fn decisions_are_checked_without_a_scheduler() {
    let mut scheduler = Scheduler::new(config()).expect("valid");
    scheduler.submit(request(10, 3), 0).expect("fits");
    let told = scheduler.snapshot(&tick(256));
    let grant = |slot| Grant { slot: Slot(slot), tokens: 5 };
    for (decision, needle) in [
        (Decision { grant: vec![grant(0)], ..Decision::default() }, ""),
        (Decision { grant: vec![grant(9)], ..Decision::default() }, "`grant` names slot 9"),
        (Decision { hold: vec![Slot(9)], ..Decision::default() }, "`hold` names slot 9"),
        (Decision { grant: vec![grant(0), grant(0)], ..Decision::default() }, "2 entries; there are 1 slots"),
    ] {
        let alone = crate::check_decision(&told, &decision).map_err(|e| e.0);
        assert_eq!(alone.is_ok(), needle.is_empty(), "{alone:?}");
        assert!(alone.as_ref().err().is_none_or(|why| why.contains(needle)), "{alone:?}");
        assert_eq!(scheduler.validate(&decision).map_err(|e| e.0).is_ok(), alone.is_ok());
    }
}
