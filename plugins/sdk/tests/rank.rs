//! The policy around a rank, against a small host that keeps the protocol's rules.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tokenloom_sdk::PluginError;
use tokenloom_sdk::rank::{Rank, Ranked};
use tokenloom_sdk::scheduler::{Arrival, Decision, Delta, Limits, Policy, Seat, Snapshot, State};

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

struct Request {
    arrival: Arrival,
    computed: u32,
    emitted: u32,
    running: bool,
}

/// Seats, pages of 64 tokens and a budget per step; an honest host without results in flight.
struct Host {
    requests: BTreeMap<u32, Request>,
    seats: u32,
    budget: u32,
    step: u64,
    delta: Delta,
    finished: Vec<u32>,
}

fn arrival(slot: u32, priority: i32, prompt_tokens: u32, max_new_tokens: u32) -> Arrival {
    Arrival {
        slot,
        group: u64::from(slot),
        tenant: 0,
        adapter: 0,
        priority,
        arrived_us: u64::from(slot) * 10,
        deadline_us: None,
        prompt_tokens,
        cached_tokens: 0,
        max_new_tokens,
        ext: Vec::new(),
    }
}

impl Host {
    fn new(seats: u32, budget: u32) -> Self {
        Self { requests: BTreeMap::new(), seats, budget, step: 0, delta: empty(), finished: Vec::new() }
    }

    fn arrive(&mut self, request: Arrival) {
        self.delta.arrived.push(request.clone());
        let request = Request { arrival: request, computed: 0, emitted: 0, running: false };
        self.requests.insert(request.arrival.slot, request);
    }

    fn limits(&self) -> Limits {
        let running = self.requests.values().filter(|r| r.running).count() as u32;
        Limits {
            step: self.step,
            now_us: self.step * 1000,
            token_budget: self.budget,
            free_seats: self.seats - running,
            free_pages: 10_000,
            page_tokens: 64,
            resume_align: 1,
            last_step_us: 0,
            last_step_tokens: 0,
            in_flight_steps: 0,
            ext: Vec::new(),
        }
    }

    fn decoding(request: &Request) -> bool {
        request.running && request.computed >= request.arrival.prompt_tokens
    }

    fn step(&mut self, policy: &mut impl Policy) -> Result<Decision, String> {
        self.step += 1;
        let mut delta = std::mem::replace(&mut self.delta, empty());
        delta.limits = self.limits();
        let decision = policy.step(delta);
        let decoding: Vec<u32> = self.requests.values().filter(|r| Self::decoding(r)).map(|r| r.arrival.slot).collect();
        for slot in &decision.preempt {
            let request = self.requests.get_mut(slot).filter(|r| r.running).ok_or("preempts who does not run")?;
            (request.running, request.computed) = (false, 0);
            self.delta.preempted.push(*slot);
        }
        let decoding = decoding.into_iter().filter(|slot| !decision.preempt.contains(slot));
        let mut used = 0;
        for slot in decoding {
            used += 1;
            let request = self.requests.get_mut(&slot).ok_or("unknown")?;
            (request.computed, request.emitted) = (request.computed + 1, request.emitted + 1);
        }
        for grant in &decision.grant {
            let request = self.requests.get_mut(&grant.slot).ok_or("grants to who is gone")?;
            if decision.preempt.contains(&grant.slot) {
                return Err("grants to who it preempts".into());
            }
            request.running = true;
            let need = (request.arrival.prompt_tokens + request.emitted).saturating_sub(request.computed);
            if grant.tokens == 0 || grant.tokens > need {
                return Err(format!("grants {} of {need}", grant.tokens));
            }
            used += grant.tokens;
            request.computed += grant.tokens;
            request.emitted += u32::from(grant.tokens == need);
            self.delta.progress.extend([grant.slot, request.computed, request.emitted]);
        }
        if used > self.budget.max(self.requests.len() as u32) {
            return Err(format!("{used} tokens in a budget of {}", self.budget));
        }
        if self.requests.values().filter(|r| r.running).count() as u32 > self.seats {
            return Err("more run than there are seats".into());
        }
        self.end_finished();
        Ok(decision)
    }

    fn end_finished(&mut self) {
        let done = |r: &Request| r.emitted >= r.arrival.max_new_tokens;
        let finished: Vec<u32> = self.requests.values().filter(|r| done(r)).map(|r| r.arrival.slot).collect();
        for slot in finished {
            if let Some(request) = self.requests.remove(&slot) {
                self.delta.finished.extend([slot, request.computed, request.emitted]);
                self.finished.push(slot);
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let seat = |r: &Request| Seat {
            request: r.arrival.clone(),
            state: match (r.running, Self::decoding(r)) {
                (false, _) => State::Waiting,
                (true, false) => State::Prefilling,
                (true, true) => State::Decoding,
            },
            computed: r.computed,
            emitted: r.emitted,
            pages: 0,
            preemptions: 0,
        };
        Snapshot { limits: self.limits(), tenants: Vec::new(), seats: self.requests.values().map(seat).collect() }
    }
}

fn empty() -> Delta {
    let limits = Limits {
        step: 0,
        now_us: 0,
        token_budget: 0,
        free_seats: 0,
        free_pages: 0,
        page_tokens: 64,
        resume_align: 1,
        last_step_us: 0,
        last_step_tokens: 0,
        in_flight_steps: 0,
        ext: Vec::new(),
    };
    let (arrived, tenants) = (Vec::new(), Vec::new());
    let (finished, preempted, progress, clamped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    Delta { limits, tenants, arrived, finished, preempted, progress, clamped }
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
                host.delta = empty();
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
