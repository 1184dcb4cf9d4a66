//! The requests of one engine, kept up to date by deltas: what most policies need before they can decide anything.
//!
//! [`Queue`] knows who waits, who is on a seat, who decodes and who still lacks prompt; [`Room`](crate::room::Room) is
//! what a step has to give. What a delta costs goes with what changed, not with how many requests run.

use std::collections::BTreeSet;

use crate::scheduler::{Arrival, Decision, Delta, Grant, Snapshot, State};

/// Slot numbers above this are not believed: the table is dense, and no engine has that many requests.
const SLOTS_MAX: u32 = 1 << 20;

/// Length of the standing list of victims. The host asks for one at a time and lists are only sent after a change.
pub const VICTIMS_MAX: usize = 64;

/// Where a request stands among others: its key, then its arrival, then its slot.
pub type Place<K> = (K, u64, u32);

/// One request as the policy knows it.
pub struct Request<K> {
    pub arrival: Arrival,
    pub place: Place<K>,
    /// Tokens whose KV is computed, grants included.
    pub computed: u32,
    pub emitted: u32,
    /// It has a seat.
    pub running: bool,
    /// Tokens granted by the last decision, until the next delta says what became of them.
    granted: u32,
}

impl<K> Request<K> {
    /// Decoding needs no grant. Generated tokens that are lost to a preemption are the host's to compute again.
    pub fn decodes(&self) -> bool {
        self.running && self.computed >= self.arrival.prompt_tokens
    }

    /// Tokens that need not be computed any more: where the next grant begins.
    pub fn start(&self) -> u32 {
        let untouched = !self.running && self.computed == 0 && self.emitted == 0;
        if untouched { self.arrival.cached_tokens } else { self.computed }
    }

    /// Tokens to feed before the next one can be sampled, at least 1 for a request without a seat.
    pub fn need(&self) -> u32 {
        if self.running {
            self.arrival.prompt_tokens.saturating_sub(self.computed)
        } else {
            self.arrival.prompt_tokens.saturating_add(self.emitted).saturating_sub(self.start()).max(1)
        }
    }
}

/// All requests of an engine, ordered by a key that each gets when it arrives.
pub struct Queue<K: Ord + Clone> {
    slots: Vec<Option<Request<K>>>,
    /// Requests that advance only by a grant, best first.
    open: BTreeSet<Place<K>>,
    /// Those of them that are on a seat, best first.
    unfinished: BTreeSet<Place<K>>,
    /// Requests on a seat, best first.
    seated: BTreeSet<Place<K>>,
    decoding: u32,
    granted: Vec<u32>,
    seated_changed: bool,
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            open: BTreeSet::new(),
            unfinished: BTreeSet::new(),
            seated: BTreeSet::new(),
            decoding: 0,
            granted: Vec::new(),
            seated_changed: false,
        }
    }
}

impl<K: Ord + Clone> Queue<K> {
    pub fn get(&self, slot: u32) -> Option<&Request<K>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Requests that advance only by a grant, with and without a seat, best first.
    pub fn open(&self) -> impl Iterator<Item = &Request<K>> {
        self.open.iter().filter_map(|place| self.get(place.2))
    }

    /// The same, from one place on.
    pub fn open_from(&self, place: Place<K>) -> impl Iterator<Item = &Request<K>> {
        self.open.range(place..).filter_map(|place| self.get(place.2))
    }

    /// Requests on a seat that lack prompt, best first. Whoever waits before them, these must go on: the seat that is
    /// waited for is theirs.
    pub fn unfinished(&self) -> impl Iterator<Item = &Request<K>> {
        self.unfinished.iter().filter_map(|place| self.get(place.2))
    }

    /// The same, from one place on.
    pub fn unfinished_from(&self, place: Place<K>) -> impl Iterator<Item = &Request<K>> {
        self.unfinished.range(place..).filter_map(|place| self.get(place.2))
    }

    /// Requests on a seat, worst first.
    pub fn seated_from_the_end(&self) -> impl Iterator<Item = &Request<K>> {
        self.seated.iter().rev().filter_map(|place| self.get(place.2))
    }

    pub fn seated_count(&self) -> u32 {
        self.seated.len() as u32
    }

    pub fn decoding(&self) -> u32 {
        self.decoding
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Starts from a snapshot.
    pub fn restart(&mut self, full: Snapshot, key: impl Fn(&Arrival) -> K) {
        *self = Self::default();
        for seat in full.seats {
            let slot = seat.request.slot;
            let place = (key(&seat.request), seat.request.arrived_us, slot);
            self.insert(seat.request, place);
            self.change(slot, |entry| {
                entry.running = matches!(seat.state, State::Prefilling | State::Decoding);
                entry.computed = seat.computed;
                entry.emitted = seat.emitted;
            });
        }
        self.seated_changed = true;
    }

    /// Takes in what changed, in the order that the protocol gives; `key` is asked once per arrival.
    pub fn apply(&mut self, delta: &mut Delta, mut key: impl FnMut(&Arrival) -> K) {
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
            let place = (key(&request), request.arrived_us, request.slot);
            self.insert(request, place);
        }
        for &[slot, computed, emitted] in delta.progress.as_chunks::<3>().0 {
            // The host seats who waited too long without being asked.
            let seated = !delta.preempted.contains(&slot);
            self.change(slot, |entry| {
                entry.computed = computed;
                entry.emitted = emitted;
                entry.running |= seated;
            });
        }
    }

    /// Adds a grant to the decision and remembers it.
    pub fn grant(&mut self, slot: u32, tokens: u32, decision: &mut Decision) {
        if tokens == 0 {
            return;
        }
        if let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            entry.granted = tokens;
            self.granted.push(slot);
            decision.grant.push(Grant { slot, tokens });
        }
    }

    /// Tells the host, when it changed, in which order running requests may lose their pages: worst first.
    pub fn list_victims(&mut self, decision: &mut Decision) {
        if std::mem::take(&mut self.seated_changed) {
            decision.victims = self.seated.iter().rev().take(VICTIMS_MAX).map(|place| place.2).collect();
        }
    }

    fn insert(&mut self, arrival: Arrival, place: Place<K>) {
        let slot = arrival.slot;
        if slot >= SLOTS_MAX {
            return;
        }
        self.remove(slot);
        if self.slots.len() <= slot as usize {
            self.slots.resize_with(slot as usize + 1, || None);
        }
        self.open.insert(place.clone());
        self.slots[slot as usize] =
            Some(Request { arrival, place, computed: 0, emitted: 0, running: false, granted: 0 });
    }

    fn remove(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.decoding -= u32::from(entry.decodes());
        self.open.remove(&entry.place);
        self.unfinished.remove(&entry.place);
        self.seated_changed |= self.seated.remove(&entry.place);
    }

    /// Changes an entry and moves it between the lists that its new state belongs to.
    fn change(&mut self, slot: u32, change: impl FnOnce(&mut Request<K>)) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let (was_decoding, was_running) = (entry.decodes(), entry.running);
        change(entry);
        let (decoding, running) = (entry.decodes(), entry.running);
        if decoding != was_decoding {
            if decoding {
                self.decoding += 1;
                self.open.remove(&entry.place);
            } else {
                self.decoding -= 1;
                self.open.insert(entry.place.clone());
            }
        }
        let (unfinished, was_unfinished) = (running && !decoding, was_running && !was_decoding);
        if unfinished != was_unfinished {
            if unfinished {
                self.unfinished.insert(entry.place.clone());
            } else {
                self.unfinished.remove(&entry.place);
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
}
