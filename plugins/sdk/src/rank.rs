//! The short way to a scheduler: say who comes first, and get a full policy.
//!
//! [`Ranked`] keeps the queue in rank order, admits within seats and pages, cuts long prompts into chunks, leaves
//! decoding requests alone (they advance without a grant) and, where [`Rank::may_preempt`] allows it, takes one seat
//! per step from a request that is less urgent. What it costs goes with what changed in a step, not with how many
//! requests run.

use std::collections::BTreeSet;

use crate::PluginError;
use crate::scheduler::{Arrival, Decision, Delta, Grant, Limits, Policy, Snapshot, State, no_change, rest};

/// Who comes first.
pub trait Rank: Clone + 'static {
    type Key: Ord + Clone + 'static;

    /// Called once, with the operator's settings as JSON; see [`crate::parse_settings`].
    fn configure(settings_json: &str) -> Result<Self, PluginError>;

    /// Lower comes first; equal keys go in order of arrival. Called once per request: a key that should change with
    /// waiting time is written relative to `arrived_us`, so that the order of any two requests stays.
    fn rank(&self, request: &Arrival) -> Self::Key;

    /// Whether `waiting` may take the seat of `running` when no seat is free. Must not hold both ways round.
    fn may_preempt(&self, _waiting: &Arrival, _running: &Arrival) -> bool {
        false
    }
}

/// Prompts that share one step. More would leave each a chunk too small to be worth a row of its own.
const PREFILLS_MAX: usize = 32;

/// Length of the standing list of victims. The host asks for one at a time and lists are only sent after a change.
const VICTIMS_MAX: usize = 64;

/// Slot numbers above this are not believed: the table is dense, and no engine has that many requests.
const SLOTS_MAX: u32 = 1 << 20;

struct Entry<K> {
    request: Arrival,
    place: (K, u64, u32),
    computed: u32,
    emitted: u32,
    running: bool,
    /// Tokens granted by the last decision, until the next delta says what became of them.
    granted: u32,
}

impl<K> Entry<K> {
    /// Decoding needs no grant. Generated tokens that are lost to a preemption are the host's to compute again.
    fn decoding(&self) -> bool {
        self.running && self.computed >= self.request.prompt_tokens
    }

    /// Tokens to feed before the next one can be sampled, at least 1 for a request without a seat.
    fn need(&self) -> u32 {
        if self.running {
            self.request.prompt_tokens.saturating_sub(self.computed)
        } else {
            let cached =
                if self.computed == 0 && self.emitted == 0 { self.request.cached_tokens } else { self.computed };
            self.request.prompt_tokens.saturating_add(self.emitted).saturating_sub(cached).max(1)
        }
    }
}

/// The policy around a [`Rank`].
pub struct Ranked<R: Rank> {
    rank: R,
    slots: Vec<Option<Entry<R::Key>>>,
    /// Requests that advance only by a grant, best first.
    queue: BTreeSet<(R::Key, u64, u32)>,
    /// Requests on a seat, best first.
    seated: BTreeSet<(R::Key, u64, u32)>,
    decoding: u32,
    granted: Vec<u32>,
    seated_changed: bool,
}

/// What one decision may still give away.
struct Room {
    tokens: u32,
    seats: u32,
    pages: u32,
    page_tokens: u32,
    least: u32,
}

impl<R: Rank> Ranked<R> {
    pub fn new(rank: R) -> Self {
        Self {
            rank,
            slots: Vec::new(),
            queue: BTreeSet::new(),
            seated: BTreeSet::new(),
            decoding: 0,
            granted: Vec::new(),
            seated_changed: false,
        }
    }

    fn entry(&self, slot: u32) -> Option<&Entry<R::Key>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn insert(&mut self, request: Arrival) {
        let slot = request.slot;
        if slot >= SLOTS_MAX {
            return;
        }
        self.remove(slot);
        if self.slots.len() <= slot as usize {
            self.slots.resize_with(slot as usize + 1, || None);
        }
        let place = (self.rank.rank(&request), request.arrived_us, slot);
        self.queue.insert(place.clone());
        self.slots[slot as usize] = Some(Entry { request, place, computed: 0, emitted: 0, running: false, granted: 0 });
    }

    fn remove(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.decoding -= u32::from(entry.decoding());
        self.queue.remove(&entry.place);
        self.seated_changed |= self.seated.remove(&entry.place);
    }

    /// Changes an entry and moves it between the lists that its new state belongs to.
    fn change(&mut self, slot: u32, change: impl FnOnce(&mut Entry<R::Key>)) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let (was_decoding, was_running) = (entry.decoding(), entry.running);
        change(entry);
        let (decoding, running) = (entry.decoding(), entry.running);
        if decoding != was_decoding {
            if decoding {
                self.decoding += 1;
                self.queue.remove(&entry.place);
            } else {
                self.decoding -= 1;
                self.queue.insert(entry.place.clone());
            }
        }
        if running != was_running {
            self.seated_changed = true;
            if running {
                self.seated.insert(entry.place.clone());
            } else {
                self.seated.remove(&entry.place);
            }
        }
    }

    /// Takes in what changed, in the order that the protocol gives.
    fn apply(&mut self, delta: &mut Delta) {
        for &[slot, _, _] in delta.finished.as_chunks::<3>().0 {
            self.remove(slot);
        }
        for &[slot, tokens] in delta.clamped.as_chunks::<2>().0 {
            if let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
                entry.granted = tokens;
            }
        }
        // What was granted and not taken back is on a seat now; its totals follow in `progress`.
        for slot in std::mem::take(&mut self.granted) {
            self.change(slot, |entry| {
                entry.running |= entry.granted > 0;
                entry.granted = 0;
            });
        }
        for &slot in &delta.preempted {
            self.change(slot, |entry| {
                entry.running = false;
                entry.computed = 0;
            });
        }
        for request in delta.arrived.drain(..) {
            self.insert(request);
        }
        for &[slot, computed, emitted] in delta.progress.as_chunks::<3>().0 {
            self.change(slot, |entry| {
                entry.computed = computed;
                entry.emitted = emitted;
            });
        }
    }

    fn decide(&mut self, limits: &Limits) -> Decision {
        let mut decision = no_change();
        let page_tokens = limits.page_tokens.max(1);
        let mut room = Room {
            tokens: limits.token_budget.saturating_sub(self.decoding),
            seats: limits.free_seats,
            pages: limits.free_pages,
            page_tokens,
            least: page_tokens.max(limits.resume_align),
        };
        if !self.queue.is_empty() {
            self.free_a_seat(&mut room, &mut decision);
            self.admit(&mut room, &mut decision);
        }
        if self.queue.is_empty() {
            rest(&mut decision, u64::MAX);
        }
        if std::mem::take(&mut self.seated_changed) {
            decision.victims = self.seated.iter().rev().take(VICTIMS_MAX).map(|place| place.2).collect();
        }
        decision
    }

    /// The first who waits for a seat may take the last one's, once per step.
    fn free_a_seat(&self, room: &mut Room, decision: &mut Decision) {
        if room.seats > 0 || room.tokens == 0 {
            return;
        }
        let waiting = self.queue.iter().filter_map(|place| self.entry(place.2)).find(|entry| !entry.running);
        let Some(waiting) = waiting else { return };
        // Worst first; equal ranks in a row are one comparison each, so a handful is enough to look at.
        let running = self.seated.iter().rev().filter_map(|place| self.entry(place.2));
        let victim = running.take(VICTIMS_MAX).find(|entry| self.rank.may_preempt(&waiting.request, &entry.request));
        if let Some(victim) = victim {
            decision.preempt.push(victim.request.slot);
            room.seats = 1;
            room.pages = room.pages.saturating_add(victim.computed / room.page_tokens);
        }
    }

    /// Shares the step between prompts in rank order. Each takes at most half of what is left, so that a short prompt
    /// behind a long one starts at once; what nobody wants goes to the first ones.
    fn admit(&mut self, room: &mut Room, decision: &mut Decision) {
        let mut wants = Vec::new();
        let mut open = true;
        for place in &self.queue {
            if room.tokens == 0 || wants.len() == PREFILLS_MAX || (!open && room.seats == 0 && wants.len() > 1) {
                break;
            }
            let Some(entry) = self.entry(place.2) else { continue };
            if decision.preempt.contains(&place.2) {
                continue;
            }
            let need = entry.need();
            if !entry.running {
                // Nobody overtakes the first one that finds no seat or no pages: it would wait for ever.
                let whole = need.saturating_add(room.page_tokens).div_ceil(room.page_tokens);
                open &= room.seats > 0 && whole <= room.pages;
                if !open {
                    continue;
                }
                room.seats -= 1;
                room.pages -= whole;
            }
            let tokens = need.min((room.tokens / 2).max(room.least)).min(room.tokens);
            room.tokens -= tokens;
            wants.push((Grant { slot: place.2, tokens }, need - tokens));
        }
        for (mut grant, more) in wants {
            let more = more.min(room.tokens);
            room.tokens -= more;
            grant.tokens += more;
            if let Some(entry) = self.slots.get_mut(grant.slot as usize).and_then(Option::as_mut) {
                entry.granted = grant.tokens;
            }
            self.granted.push(grant.slot);
            decision.grant.push(grant);
        }
    }
}

impl<R: Rank> Policy for Ranked<R> {
    fn resync(&mut self, full: Snapshot) {
        *self = Self::new(self.rank.clone());
        for seat in full.seats {
            let slot = seat.request.slot;
            self.insert(seat.request);
            self.change(slot, |entry| {
                entry.running = matches!(seat.state, State::Prefilling | State::Decoding);
                entry.computed = seat.computed;
                entry.emitted = seat.emitted;
            });
        }
        self.seated_changed = true;
    }

    fn step(&mut self, mut delta: Delta) -> Decision {
        self.apply(&mut delta);
        self.decide(&delta.limits)
    }
}

/// Makes a type that implements [`rank::Rank`](crate::rank::Rank) a scheduler component.
#[macro_export]
macro_rules! export_rank {
    ($rank:ty) => {
        const _: () = {
            struct TokenloomRanked($rank);
            impl $crate::scheduler::Scheduler for TokenloomRanked {
                type Policy = $crate::rank::Ranked<$rank>;
                fn configure(settings_json: &str) -> Result<Self, $crate::PluginError> {
                    <$rank as $crate::rank::Rank>::configure(settings_json).map(Self)
                }
                fn policy(&self) -> Self::Policy {
                    $crate::rank::Ranked::new(self.0.clone())
                }
            }
            $crate::export_scheduler!(TokenloomRanked);
        };
    };
}
