//! Scheduling policies for tests: one that works by priority, and some that fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;

use contract::Slot;
use contract::policy::{Arrival, Decision, Delta, Grant, PolicyError, SchedulePolicy, Snapshot};

/// (priority, arrival, runs) of what is known; grants everything that waits, and preempts a lower priority for a seat.
#[derive(Default)]
pub(crate) struct ByPriority {
    slots: HashMap<Slot, (i32, u64, bool)>,
}

impl SchedulePolicy for ByPriority {
    fn name(&self) -> &str {
        "by-priority"
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        self.slots = full
            .slots
            .iter()
            .map(|view| {
                let request = &view.request;
                let runs = view.computed > 0 && view.pages > 0;
                (request.slot, (request.priority, request.arrived_us, runs))
            })
            .collect();
        Ok(())
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        for finished in &delta.finished {
            self.slots.remove(&finished.slot);
        }
        for arrival in &delta.arrived {
            self.slots.insert(arrival.slot, (arrival.priority, arrival.arrived_us, false));
        }
        for progress in &delta.progress {
            if let Some(known) = self.slots.get_mut(&progress.slot) {
                known.2 = true;
            }
        }
        for slot in &delta.preempted {
            if let Some(known) = self.slots.get_mut(slot) {
                known.2 = false;
            }
        }
        let mut order: Vec<_> =
            self.slots.iter().map(|(&slot, &(priority, arrived, runs))| (priority, arrived, slot, runs)).collect();
        order.sort();
        let mut decision = Decision::default();
        let waiting = order.iter().filter(|known| !known.3).count();
        if let (Some(best), Some(worst)) =
            (order.iter().find(|known| !known.3), order.iter().rev().find(|known| known.3))
            && delta.limits.free_seats == 0
            && best.0 < worst.0
            && waiting > 0
        {
            decision.preempt.push(worst.2);
        }
        let seats = delta.limits.free_seats as usize + decision.preempt.len();
        let admitted = order.iter().filter(|known| !known.3).take(seats);
        let grants = order.iter().filter(|known| known.3).chain(admitted);
        decision.grant = grants.map(|known| Grant { slot: known.2, tokens: 64 }).collect();
        Ok(decision)
    }
}

/// Every call goes wrong in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    Traps,
    Panics,
    Invalid,
    /// Correct, for a deadline that no call keeps.
    Late,
    GrantsNothing,
    PreemptsAll,
    HoldsAll,
}

pub(crate) struct Hostile {
    pub how: Failing,
    pub seen: Vec<Slot>,
}

impl SchedulePolicy for Hostile {
    fn name(&self) -> &str {
        "hostile"
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        self.seen = full.slots.iter().map(|view| view.request.slot).collect();
        Ok(())
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        self.seen.retain(|slot| delta.finished.iter().all(|finished| finished.slot != *slot));
        self.seen.extend(delta.arrived.iter().map(|arrival| arrival.slot));
        let all = || self.seen.iter().map(|&slot| Grant { slot, tokens: 64 }).collect::<Vec<_>>();
        match self.how {
            Failing::Traps => Err(PolicyError::Trapped { policy: "hostile".into(), cause: "out of fuel".into() }),
            Failing::Panics => panic!("a policy that panics"),
            Failing::Invalid => {
                Ok(Decision { grant: vec![Grant { slot: Slot(1 << 30), tokens: 1 }], ..Decision::default() })
            }
            Failing::Late => Ok(Decision { grant: all(), ..Decision::default() }),
            Failing::GrantsNothing => Ok(Decision::default()),
            Failing::PreemptsAll => Ok(Decision { grant: all(), preempt: self.seen.clone(), ..Decision::default() }),
            Failing::HoldsAll => Ok(Decision { grant: all(), hold: self.seen.clone(), ..Decision::default() }),
        }
    }
}

/// Works by priority and rests whenever nobody waits; counts its calls, those without news apart.
pub(crate) struct Resting {
    pub inner: ByPriority,
    pub calls: Arc<AtomicU32>,
    pub idle_calls: Arc<AtomicU32>,
}

impl SchedulePolicy for Resting {
    fn name(&self) -> &str {
        "resting"
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        self.inner.resync(full)
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        self.calls.fetch_add(1, Relaxed);
        self.idle_calls.fetch_add(u32::from(delta.is_uneventful()), Relaxed);
        let decision = self.inner.step(delta)?;
        Ok(Decision { rests_until_us: Some(u64::MAX), ..decision })
    }
}

/// Tells of each arrival, and when the policy heard of it.
pub(crate) struct Witness {
    pub inner: ByPriority,
    pub arrivals: Sender<(u64, Arrival)>,
}

impl SchedulePolicy for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        self.inner.resync(full)
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        for arrival in &delta.arrived {
            let _ = self.arrivals.send((delta.limits.now_us, arrival.clone()));
        }
        self.inner.step(delta)
    }
}
