//! Every tenant gets its share, by virtual token counters.
//!
//! A counter per tenant adds what the tenant was given, prompt tokens and, at twice the price, generated ones, divided by
//! its weight; whoever has the smallest counter is served next. A tenant that comes back after a pause starts from the
//! smallest counter of those who stayed, less the prompt it comes with, so nobody saves up more than that. The method is
//! the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models", 2024 (arXiv 2401.00588),
//! section 4.
//!
//! A request waits at least for the steps that are on their way when it comes. Where several tenants share the engine
//! these are kept short, and only who is behind all others may make one longer, for its own prompts and at most by the
//! engine's target.

use std::collections::BTreeMap;

use tokenloom_sdk::PluginError;
use tokenloom_sdk::queue::{Place, Queue, Request};
use tokenloom_sdk::room::Room;
use tokenloom_sdk::scheduler::{Decision, Delta, Limits, Policy, Scheduler, Snapshot, no_change, rest};

/// Grants of one step; more would leave each a chunk too small to be worth a row of its own.
const GRANTS_MAX: usize = 64;

/// Tenants whose counters are kept; the idle ones with the smallest are forgotten first, which costs them nothing.
const TENANTS_MAX: usize = 4096;

/// A tenant that left no longer ago than this may be back at any moment.
const REMEMBERED_US: u64 = 60_000_000;

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Wanted time of a step; at most the engine's `step_target_ms`.
    step_ms: u32,
    /// The same while more than one tenant is there, or was lately.
    shared_step_ms: u32,
    /// What a generated token costs, in prompt tokens.
    output_cost: f64,
    /// One seat in this many is kept for tenants that hold less than their share; 0: none.
    reserve: u32,
    /// Whether a tenant without a seat may take one from a tenant that holds more than its share.
    preempt: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { step_ms: 30, shared_step_ms: 25, output_cost: 2.0, reserve: 8, preempt: true }
    }
}

#[derive(Clone)]
pub struct Fair(Settings);

impl Scheduler for Fair {
    type Policy = FairPolicy;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if !(settings.output_cost.is_finite() && settings.output_cost >= 0.0) {
            return Err(tokenloom_sdk::disable("invalid-settings", "settings: output_cost must be 0 or more"));
        }
        if settings.step_ms == 0 || settings.shared_step_ms == 0 {
            let message = "settings: step_ms and shared_step_ms must be at least 1";
            return Err(tokenloom_sdk::disable("invalid-settings", message));
        }
        Ok(Self(settings))
    }

    fn policy(&self) -> FairPolicy {
        FairPolicy {
            settings: self.0.clone(),
            queue: Queue::default(),
            tenants: BTreeMap::new(),
            given: Vec::new(),
            seated: Vec::new(),
            sitting: Vec::new(),
            step: 0,
        }
    }
}

struct Tenant {
    weight: f64,
    /// Service so far, in prompt tokens, per weight.
    counter: f64,
    /// Requests that live, those of them on a seat, and those that decode.
    live: u32,
    seats: u32,
    decoding: u32,
    /// When the last of its requests ended.
    left_us: u64,
}

impl Default for Tenant {
    fn default() -> Self {
        Self { weight: 1.0, counter: 0.0, live: 0, seats: 0, decoding: 0, left_us: 0 }
    }
}

/// What the last decision gave to a request.
struct Given {
    tenant: u32,
    slot: u32,
    tokens: u32,
}

/// A request on a seat.
#[derive(PartialEq)]
struct Seated {
    tenant: u32,
    decodes: bool,
}

/// A request whose tenant is next.
struct Turn {
    slot: u32,
    start: u32,
    need: u32,
    /// It takes a seat with its grant.
    sits: bool,
    /// Where its tenant's next request is looked for.
    next: Next,
}

/// From where on a tenant's next request is looked for: first among those on seats, then among those that wait.
#[derive(Clone, Copy)]
enum Next {
    Unfinished(Place<u32>),
    Waiting(Place<u32>),
}

impl Turn {
    fn of(request: &Request<u32>, next: Next) -> Self {
        let slot = request.arrival.slot;
        Self { slot, start: request.start(), need: request.need(), sits: !request.running, next }
    }
}

pub struct FairPolicy {
    settings: Settings,
    /// By tenant, then in order of arrival.
    queue: Queue<u32>,
    tenants: BTreeMap<u32, Tenant>,
    given: Vec<Given>,
    /// By slot, who is counted among the tenants' seats.
    seated: Vec<Option<Seated>>,
    /// Tenants of whom the last decision seats one more; the next delta says whether it did.
    sitting: Vec<u32>,
    /// The step of the last call.
    step: u64,
}

impl FairPolicy {
    fn charge(&mut self, tenant: u32, tokens: f64) {
        let tenant = self.tenants.entry(tenant).or_default();
        tenant.counter += tokens / tenant.weight;
    }

    fn weight(&self, tenant: u32) -> f64 {
        self.tenants.get(&tenant).map_or(1.0, |tenant| tenant.weight)
    }

    fn name(&mut self, id: u32, weight: f64) {
        self.tenants.entry(id).or_default().weight = if weight > 0.0 { weight } else { 1.0 };
    }

    /// A tenant with nothing in the house starts where the least served of the others is, less the prompt it comes with:
    /// as far as it was behind by that much, its prompt is next.
    fn enters(&mut self, tenant: u32, prompt_tokens: u32) {
        let least = self.tenants.values().filter(|tenant| tenant.live > 0).map(|tenant| tenant.counter);
        let least = least.min_by(f64::total_cmp);
        let entry = self.tenants.entry(tenant).or_default();
        if entry.live == 0
            && let Some(least) = least
        {
            entry.counter = entry.counter.max(least - f64::from(prompt_tokens) / entry.weight);
        }
        entry.live += 1;
        if self.tenants.len() > TENANTS_MAX {
            self.tenants.retain(|_, tenant| tenant.live > 0);
        }
    }

    /// Generated tokens of the steps since the last call, and what the host took back of the last decision.
    fn settle(&mut self, delta: &Delta) {
        let steps = delta.limits.step.saturating_sub(self.step) as f64;
        self.step = delta.limits.step;
        let cost = self.settings.output_cost;
        for tenant in self.tenants.values_mut() {
            tenant.counter += f64::from(tenant.decoding) * steps * cost / tenant.weight;
        }
        let given = std::mem::take(&mut self.given);
        for &[slot, accepted] in delta.clamped.as_chunks::<2>().0 {
            if let Some(given) = given.iter().find(|given| given.slot == slot) {
                self.charge(given.tenant, -f64::from(given.tokens.saturating_sub(accepted)));
            }
        }
    }

    fn apply(&mut self, delta: &mut Delta) {
        let mut touched: Vec<u32> = self.given.iter().map(|given| given.slot).collect();
        touched.extend_from_slice(&delta.preempted);
        for triples in [&delta.finished, &delta.progress] {
            touched.extend(triples.as_chunks::<3>().0.iter().map(|&[slot, _, _]| slot));
        }
        self.settle(delta);
        for tenant in std::mem::take(&mut self.sitting) {
            if let Some(tenant) = self.tenants.get_mut(&tenant) {
                tenant.seats = tenant.seats.saturating_sub(1);
            }
        }
        for tenant in &delta.tenants {
            self.name(tenant.id, tenant.weight);
        }
        for &[slot, _, _] in delta.finished.as_chunks::<3>().0 {
            let tenant = self.queue.get(slot).map(|request| request.place.0);
            if let Some(tenant) = tenant.and_then(|tenant| self.tenants.get_mut(&tenant)) {
                tenant.live = tenant.live.saturating_sub(1);
                tenant.left_us = delta.limits.now_us;
            }
        }
        for arrival in &delta.arrived {
            self.enters(arrival.tenant, arrival.prompt_tokens.saturating_sub(arrival.cached_tokens));
        }
        self.queue.apply(delta, |arrival| arrival.tenant);
        self.count(&touched);
    }

    /// Brings the tenants' seats and decodes up to date with what became of some slots: the seated are too many to be gone
    /// through at every step.
    fn count(&mut self, touched: &[u32]) {
        for &slot in touched {
            let request = self.queue.get(slot).filter(|request| request.running);
            let now = request.map(|request| Seated { tenant: request.place.0, decodes: request.decodes() });
            let index = slot as usize;
            // Most have only moved on.
            if now.as_ref() == self.seated.get(index).and_then(Option::as_ref) {
                continue;
            }
            if self.seated.len() <= index {
                self.seated.resize_with(index + 1, || None);
            }
            if let Some(was) = std::mem::replace(&mut self.seated[index], now) {
                let tenant = self.tenants.entry(was.tenant).or_default();
                tenant.seats = tenant.seats.saturating_sub(1);
                tenant.decoding = tenant.decoding.saturating_sub(u32::from(was.decodes));
            }
            if let Some(now) = &self.seated[index] {
                let tenant = self.tenants.entry(now.tenant).or_default();
                tenant.seats += 1;
                tenant.decoding += u32::from(now.decodes);
            }
        }
    }

    /// Whether somebody else may come while one tenant's step runs.
    fn is_shared(&self, now_us: u64) -> bool {
        let here = |tenant: &&Tenant| tenant.live > 0 || now_us.saturating_sub(tenant.left_us) < REMEMBERED_US;
        self.tenants.values().filter(here).nth(1).is_some()
    }

    /// Seats that a tenant may hold while others live: its part by weight.
    fn share_of(&self, tenant: &Tenant, seats: u32) -> f64 {
        let live = self.tenants.values().filter(|other| other.live > 0).map(|other| other.weight);
        f64::from(seats) * tenant.weight / live.sum::<f64>().max(tenant.weight)
    }

    /// The last seats are for tenants that hold little: one that sends a request now and then finds a place.
    fn may_sit(&self, tenant: &Tenant, free: u32) -> bool {
        let seats = self.queue.seated_count() + free;
        let kept = if self.tenants.len() > 1 { seats.checked_div(self.settings.reserve).unwrap_or(0) } else { 0 };
        free > kept || f64::from(tenant.seats) < self.share_of(tenant, seats) / 2.0
    }

    /// A tenant without a seat takes one of a tenant that holds more than its share, once per step.
    fn free_a_seat(&self, room: &mut Room, decision: &mut Decision) {
        if !self.settings.preempt || room.seats > 0 || room.is_empty() {
            return;
        }
        let waits = |id: u32| self.first_of(id).is_some();
        if !self.tenants.iter().any(|(&id, tenant)| tenant.seats == 0 && tenant.live > 0 && waits(id)) {
            return;
        }
        let seats = self.queue.seated_count();
        let over = |tenant: &Tenant| f64::from(tenant.seats) - self.share_of(tenant, seats).max(1.0);
        let worst = self.tenants.iter().filter(|(_, tenant)| over(tenant) > 0.0);
        let Some((&worst, _)) = worst.max_by(|(_, a), (_, b)| over(a).total_cmp(&over(b))) else { return };
        // Its youngest.
        let victims = self.queue.seated_from_the_end().filter(|request| request.place.0 == worst);
        if let Some(victim) = victims.max_by_key(|request| request.arrival.arrived_us) {
            decision.preempt.push(victim.arrival.slot);
            room.give_back(victim);
        }
    }

    /// The first request of a tenant that advances only by a grant.
    fn first_of(&self, tenant: u32) -> Option<&Request<u32>> {
        self.queue.open_from((tenant, 0, 0)).next().filter(|request| request.place.0 == tenant)
    }

    /// The next request of a tenant that may have a grant.
    fn next_of(&self, tenant: u32, from: Next, room: &mut Room, decision: &Decision) -> Option<Turn> {
        let stays = |request: &&Request<u32>| !decision.preempt.contains(&request.arrival.slot);
        let its = |request: &&Request<u32>| request.place.0 == tenant;
        let after = |request: &Request<u32>| (tenant, request.place.1, request.place.2 + 1);
        if let Next::Unfinished(from) = from
            && let Some(request) = self.queue.unfinished_from(from).take_while(its).find(stays)
        {
            let next = Next::Unfinished(after(request));
            return Some(Turn::of(request, next));
        }
        let from = match from {
            Next::Unfinished(_) => (tenant, 0, 0),
            Next::Waiting(from) => from,
        };
        let request = self.queue.open_from(from).take_while(its).filter(stays).find(|request| !request.running)?;
        // Within a tenant nobody overtakes who finds no place.
        let may_sit = self.may_sit(self.tenants.get(&tenant)?, room.seats);
        (may_sit && room.admit(request)).then(|| Turn::of(request, Next::Waiting(after(request))))
    }

    /// One grant after another to the tenant with the smallest counter, until the step is full; `common` is the part of
    /// the step that is there for all.
    fn share(&mut self, room: &mut Room, mut common: Room, decision: &mut Decision) {
        let living = self.tenants.iter().filter(|(_, tenant)| tenant.live > 0);
        let wanting = living.filter(|&(&id, _)| self.first_of(id).is_some());
        let mut turns: BTreeMap<u32, Next> = wanting.map(|(&id, _)| (id, Next::Unfinished((id, 0, 0)))).collect();
        let mut wants = Vec::new();
        while !room.is_empty() && wants.len() < GRANTS_MAX {
            let counter = |id: &u32| self.tenants.get(id).map_or(0.0, |tenant| tenant.counter);
            let Some(&tenant) = turns.keys().min_by(|a, b| counter(a).total_cmp(&counter(b))) else { break };
            let ahead = turns.keys().filter(|id| **id != tenant).map(counter).min_by(f64::total_cmp);
            let behind = ahead.map_or(0.0, |ahead| (ahead - counter(&tenant)) * self.weight(tenant)) as u32;
            if behind == 0 && common.is_empty() {
                break;
            }
            let from = turns[&tenant];
            let Some(turn) = self.next_of(tenant, from, room, decision) else {
                turns.remove(&tenant);
                continue;
            };
            turns.insert(tenant, turn.next);
            // A long prompt leaves half of the step to whoever comes next, unless its tenant is behind all others even
            // with more.
            let half = common.part(0.5).tokens_from(turn.start).max(common.least).min(common.tokens_from(turn.start));
            let tokens = turn.need.min(half.max(behind.min(room.tokens_from(turn.start))));
            common.take(turn.start, tokens);
            room.take(turn.start, tokens);
            self.charge(tenant, f64::from(tokens));
            if let Some(known) = self.tenants.get_mut(&tenant).filter(|_| turn.sits) {
                known.seats += 1;
                self.sitting.push(tenant);
            }
            wants.push((Given { tenant, slot: turn.slot, tokens }, turn));
        }
        for (mut given, turn) in wants {
            let start = turn.start + given.tokens;
            let more = (turn.need - given.tokens).min(common.tokens_from(start));
            common.take(start, more);
            self.charge(given.tenant, f64::from(more));
            given.tokens += more;
            self.queue.grant(given.slot, given.tokens, decision);
            self.given.push(given);
        }
    }

    fn decide(&mut self, limits: &Limits) -> Decision {
        let mut decision = no_change();
        if self.queue.is_idle() {
            rest(&mut decision, u64::MAX);
        } else {
            let Settings { step_ms, shared_step_ms, .. } = self.settings;
            let common_ms = if self.is_shared(limits.now_us) { step_ms.min(shared_step_ms) } else { step_ms };
            let decoding = self.queue.decoding();
            let common = Room::new(limits, decoding, common_ms.saturating_mul(1000));
            let mut room = Room::new(limits, decoding, u32::MAX);
            self.free_a_seat(&mut room, &mut decision);
            self.share(&mut room, common, &mut decision);
        }
        self.queue.list_victims(&mut decision);
        decision
    }
}

fn is_uneventful(delta: &Delta) -> bool {
    let lists = [&delta.finished, &delta.preempted, &delta.progress, &delta.clamped];
    lists.iter().all(|list| list.is_empty()) && delta.arrived.is_empty() && delta.tenants.is_empty()
}

impl Policy for FairPolicy {
    /// Counters outlive a resync where the same policy goes on; the requests are counted anew.
    fn resync(&mut self, full: Snapshot) {
        self.step = full.limits.step;
        self.given.clear();
        self.sitting.clear();
        for tenant in self.tenants.values_mut() {
            (tenant.live, tenant.seats, tenant.decoding) = (0, 0, 0);
        }
        for tenant in &full.tenants {
            self.name(tenant.id, tenant.weight);
        }
        for seat in &full.seats {
            self.enters(seat.request.tenant, 0);
        }
        let slots: Vec<u32> = full.seats.iter().map(|seat| seat.request.slot).collect();
        self.queue.restart(full, |arrival| arrival.tenant);
        self.seated.clear();
        self.count(&slots);
    }

    fn step(&mut self, mut delta: Delta) -> Decision {
        // Decoding that only goes on is charged with the next news.
        if !(is_uneventful(&delta) && self.given.is_empty() && self.queue.is_idle()) {
            self.apply(&mut delta);
        }
        self.decide(&delta.limits)
    }
}

tokenloom_sdk::export_scheduler!(Fair);
