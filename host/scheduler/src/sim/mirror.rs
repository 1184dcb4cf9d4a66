//! What a policy knows when it only counts: the delta rules of the protocol, checked against the scheduler's own state.

use std::collections::HashMap;

use contract::Slot;
use contract::policy::{ARRIVALS_PER_DELTA_MAX, Arrival, Decision, Delta, Limits, Progress, SlotState, Snapshot};

use crate::Scheduler;

pub(crate) struct Known {
    pub request: Arrival,
    pub waiting: bool,
    pub computed: u32,
    pub emitted: u32,
    held: bool,
}

impl Known {
    /// In the words of the protocol: it has a seat and no prompt left.
    pub fn decodes(&self) -> bool {
        !self.waiting && self.computed >= self.request.prompt_tokens
    }
}

#[derive(Default)]
pub(crate) struct Mirror {
    pub slots: HashMap<Slot, Known>,
    pub limits: Limits,
    /// Slots by the number of deltas since their end was told.
    resting: HashMap<Slot, u32>,
}

impl Mirror {
    pub fn restart(&mut self, full: &Snapshot) {
        self.resting.clear();
        let known = full.slots.iter().map(|view| {
            let waiting = matches!(view.state, SlotState::Waiting | SlotState::Preempted);
            let known = Known {
                request: view.request.clone(),
                waiting,
                computed: view.computed,
                emitted: view.emitted,
                held: false,
            };
            (view.request.slot, known)
        });
        self.slots = known.collect();
    }

    pub fn apply(&mut self, delta: &Delta) {
        self.limits = delta.limits.clone();
        self.resting.retain(|_, age| {
            *age += 1;
            *age < 2
        });
        assert!(delta.arrived.len() <= ARRIVALS_PER_DELTA_MAX);
        let listed: HashMap<Slot, Progress> =
            delta.progress.iter().map(|progress| (progress.slot, *progress)).collect();
        assert_eq!(listed.len(), delta.progress.len(), "a slot is listed twice");
        for finished in &delta.finished {
            assert!(self.slots.remove(&finished.slot).is_some(), "slot {} ended unknown", finished.slot.0);
            self.resting.insert(finished.slot, 0);
        }
        for slot in &delta.preempted {
            self.slots.get_mut(slot).expect("a preempted slot is known").waiting = true;
        }
        for arrival in &delta.arrived {
            assert!(!self.resting.contains_key(&arrival.slot), "slot {} is used again too early", arrival.slot.0);
            let known = Known { request: arrival.clone(), waiting: true, computed: 0, emitted: 0, held: false };
            assert!(self.slots.insert(arrival.slot, known).is_none(), "slot {} arrived twice", arrival.slot.0);
        }
        for clamp in &delta.clamped {
            assert!(self.slots.contains_key(&clamp.slot), "a clamp names slot {}", clamp.slot.0);
        }
        for (slot, known) in &mut self.slots {
            match listed.get(slot) {
                Some(progress) => {
                    // Progress of a slot that waited, and was not preempted just now, means that it was seated.
                    known.waiting &= delta.preempted.contains(slot);
                    (known.computed, known.emitted) = (progress.computed, progress.emitted);
                }
                None if known.decodes() && !known.held => {
                    known.computed += 1;
                    known.emitted += 1;
                }
                None => {}
            }
            known.held = false;
        }
        assert!(listed.keys().all(|slot| self.slots.contains_key(slot)), "progress of an unknown slot");
    }

    pub fn note(&mut self, decision: &Decision) {
        for slot in &decision.hold {
            if let Some(known) = self.slots.get_mut(slot) {
                known.held = known.decodes();
            }
        }
    }

    /// The policy's count is the scheduler's count.
    pub fn compare(&self, scheduler: &Scheduler) {
        for (slot, known) in &self.slots {
            let entry = scheduler.get(*slot).expect("a known slot is alive");
            if !known.waiting {
                let actual = (entry.computed, entry.emitted());
                assert_eq!((known.computed, known.emitted), actual, "slot {}: counted, actual", slot.0);
                assert!(entry.is_running(), "slot {} waits, the policy thinks it runs", slot.0);
            }
        }
        for entry in scheduler.entries.iter().flatten().filter(|entry| entry.reported) {
            assert!(self.slots.contains_key(&entry.slot()), "slot {} is unknown to the policy", entry.slot().0);
        }
    }
}
