//! A small honest host for tests of policies: seats, pages, a budget and the protocol's rules, without results in flight.
//!
//! [`Host::step`] asks the policy once and complains about advice that a real host would cut, count or strike.

use std::collections::BTreeMap;

use crate::scheduler::{Arrival, Decision, Delta, Limits, Policy, Seat, Snapshot, State, StepCost, Tenant};

/// A request as the host sees it.
pub struct Request {
    pub arrival: Arrival,
    pub computed: u32,
    pub emitted: u32,
    pub running: bool,
    /// Time of the first token.
    pub first_us: Option<u64>,
}

impl Request {
    fn decodes(&self) -> bool {
        self.running && self.computed >= self.arrival.prompt_tokens
    }
}

/// An engine that does what it is told.
pub struct Host {
    pub requests: BTreeMap<u32, Request>,
    pub seats: u32,
    /// Tokens of a step.
    pub budget: u32,
    /// Wanted time of a step, and what one costs; without a target only the tokens count.
    pub target_us: u32,
    pub cost: StepCost,
    pub now_us: u64,
    /// What the next delta lists.
    pub delta: Delta,
    /// Requests that ended, in order.
    pub finished: Vec<Request>,
    pub refused: Vec<(u32, String)>,
    step: u64,
}

/// A request that came `slot` times ten microseconds after the start.
pub fn arrival(slot: u32, prompt_tokens: u32, max_new_tokens: u32) -> Arrival {
    Arrival {
        slot,
        group: u64::from(slot),
        tenant: 0,
        adapter: 0,
        priority: 0,
        arrived_us: u64::from(slot) * 10,
        deadline_us: None,
        prompt_tokens,
        cached_tokens: 0,
        max_new_tokens,
        ext: Vec::new(),
    }
}

impl Host {
    pub fn new(seats: u32, budget: u32) -> Self {
        Self {
            requests: BTreeMap::new(),
            seats,
            budget,
            target_us: 0,
            cost: StepCost { fixed_us: 0, row_ns: 0, context_ps: 0 },
            now_us: 0,
            delta: empty(),
            finished: Vec::new(),
            refused: Vec::new(),
            step: 0,
        }
    }

    /// Steps of this target time, on a device that costs this.
    pub fn timed(self, target_us: u32, cost: StepCost) -> Self {
        Self { target_us, cost, ..self }
    }

    pub fn arrive(&mut self, request: Arrival) {
        self.delta.arrived.push(request.clone());
        let request = Request { arrival: request, computed: 0, emitted: 0, running: false, first_us: None };
        self.requests.insert(request.arrival.slot, request);
    }

    pub fn tenant(&mut self, id: u32, weight: f64) {
        self.delta.tenants.push(Tenant { id, name: id.to_string(), weight });
    }

    fn running(&self) -> u32 {
        self.requests.values().filter(|r| r.running).count() as u32
    }

    fn limits(&self) -> Limits {
        let decoding = self.requests.values().filter(|r| r.decodes());
        let (rows, context) = decoding.fold((0, 0), |(rows, context), r| (rows + 1, context + u64::from(r.computed)));
        let decode_us = f64::from(self.cost.fixed_us)
            + f64::from(self.cost.row_ns) * 1e-3 * f64::from(rows)
            + f64::from(self.cost.context_ps) * 1e-6 * context as f64;
        Limits {
            step: self.step,
            now_us: self.now_us,
            token_budget: self.budget,
            tokens_max: self.budget,
            target_us: self.target_us,
            decode_us: decode_us as u32,
            cost: self.cost,
            free_seats: self.seats - self.running(),
            free_pages: 10_000,
            page_tokens: 64,
            resume_align: 1,
            last_step_us: 0,
            last_step_tokens: 0,
            in_flight_steps: 0,
            ext: Vec::new(),
        }
    }

    /// One step; a millisecond, or what its rows cost.
    pub fn step(&mut self, policy: &mut impl Policy) -> Result<Decision, String> {
        self.step += 1;
        let mut delta = std::mem::replace(&mut self.delta, empty());
        delta.limits = self.limits();
        let mut took_us = f64::from(delta.limits.decode_us);
        let decision = policy.step(delta);
        for refusal in &decision.refuse {
            let request = self.requests.remove(&refusal.slot).filter(|r| !r.running);
            let request = request.ok_or("refuses who does not wait")?;
            self.delta.finished.extend([refusal.slot, request.computed, request.emitted]);
            self.refused.push((refusal.slot, refusal.code.clone()));
        }
        let decoding: Vec<u32> = self.requests.values().filter(|r| r.decodes()).map(|r| r.arrival.slot).collect();
        for slot in &decision.preempt {
            let request = self.requests.get_mut(slot).filter(|r| r.running).ok_or("preempts who does not run")?;
            (request.running, request.computed) = (false, 0);
            self.delta.preempted.push(*slot);
        }
        let mut used = 0;
        for slot in decoding.into_iter().filter(|slot| !decision.preempt.contains(slot)) {
            used += 1;
            let request = self.requests.get_mut(&slot).ok_or("unknown")?;
            (request.computed, request.emitted) = (request.computed + 1, request.emitted + 1);
        }
        let mut first = Vec::new();
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
            took_us += crate::room::Cost::from(self.cost).rows_us(request.computed, grant.tokens);
            request.computed += grant.tokens;
            request.emitted += u32::from(grant.tokens == need);
            if grant.tokens == need {
                first.push(grant.slot);
            }
            self.delta.progress.extend([grant.slot, request.computed, request.emitted]);
        }
        if used > self.budget.max(self.requests.len() as u32) {
            return Err(format!("{used} tokens in a budget of {}", self.budget));
        }
        if self.running() > self.seats {
            return Err("more run than there are seats".into());
        }
        self.now_us += if self.target_us > 0 { took_us as u64 } else { 1000 };
        for slot in first {
            if let Some(request) = self.requests.get_mut(&slot) {
                request.first_us.get_or_insert(self.now_us);
            }
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
                self.finished.push(request);
            }
        }
    }

    /// Everything, for a policy that starts in the middle; the pending delta is told with it.
    pub fn snapshot(&mut self) -> Snapshot {
        let seat = |r: &Request| Seat {
            request: r.arrival.clone(),
            state: match (r.running, r.decodes()) {
                (false, _) => State::Waiting,
                (true, false) => State::Prefilling,
                (true, true) => State::Decoding,
            },
            computed: r.computed,
            emitted: r.emitted,
            pages: 0,
            preemptions: 0,
        };
        self.delta = empty();
        Snapshot { limits: self.limits(), tenants: Vec::new(), seats: self.requests.values().map(seat).collect() }
    }
}

/// A delta that lists nothing.
pub fn empty() -> Delta {
    let limits = Limits {
        step: 0,
        now_us: 0,
        token_budget: 0,
        tokens_max: 0,
        target_us: 0,
        decode_us: 0,
        cost: StepCost { fixed_us: 0, row_ns: 0, context_ps: 0 },
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
