//! The order of arrival, through the policy that the SDK puts around the rank.

use fcfs::Fcfs;
use tokenloom_sdk::rank::{Rank, Ranked};
use tokenloom_sdk::scheduler::{Arrival, Delta, Limits, Policy, StepCost};

#[test]
fn the_eldest_comes_first_whatever_its_priority() {
    let request = |slot: u32, arrived_us: u64, priority: i32| Arrival {
        slot,
        group: 0,
        tenant: 0,
        adapter: 0,
        priority,
        arrived_us,
        deadline_us: None,
        prompt_tokens: 10,
        cached_tokens: 0,
        max_new_tokens: 1,
        ext: Vec::new(),
    };
    let limits = Limits {
        step: 1,
        now_us: 100,
        token_budget: 512,
        tokens_max: 512,
        target_us: 0,
        decode_us: 0,
        cost: StepCost { fixed_us: 0, row_ns: 0, context_ps: 0 },
        free_seats: 2,
        free_pages: 100,
        page_tokens: 64,
        resume_align: 64,
        last_step_us: 0,
        last_step_tokens: 0,
        in_flight_steps: 0,
        ext: Vec::new(),
    };
    let delta = Delta {
        limits,
        tenants: Vec::new(),
        arrived: vec![request(0, 30, -5), request(1, 10, 0), request(2, 20, 7)],
        finished: Vec::new(),
        preempted: Vec::new(),
        progress: Vec::new(),
        clamped: Vec::new(),
    };
    let decision = Ranked::new(Fcfs::configure("").expect("no settings")).step(delta);
    assert_eq!(decision.grant.iter().map(|grant| (grant.slot, grant.tokens)).collect::<Vec<_>>(), [(1, 10), (2, 10)]);
    assert!(decision.preempt.is_empty());
}

#[test]
fn there_are_no_settings() {
    assert!(Fcfs::configure("{\"x\": 1}").is_err());
}
