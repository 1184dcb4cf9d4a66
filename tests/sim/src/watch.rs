//! Nobody starves beyond the bound, whatever the policy does.
//!
//! A running request has progress at the latest a bound, and as many steps as there may be others in the same state, after
//! the last one. Among those that wait, nobody who came later takes a first seat while an elder is starved and ready, for
//! longer than [`FORCED_SEAT_STEPS`] after a starved one had its turn.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use contract::Slot;
use scheduler::{FORCED_SEAT_STEPS, Scheduler, StepPlan};

struct Seen {
    arrived: (u64, u64),
    progress_us: u64,
    started: bool,
    waits: bool,
    /// Steps planned since the request was starved.
    starved_steps: u64,
}

pub struct Watch {
    /// The most steps that a starved request on a seat went on without progress.
    pub starved_steps_max: u64,
    bound_us: u64,
    number: u64,
    step: u64,
    /// The last step in which a starved request took a seat.
    turn: Option<u64>,
    seen: BTreeMap<Slot, Seen>,
    waiting: BTreeMap<(u64, u64), Slot>,
}

/// Steps within which starved requests get their turn: each step forces in every running one that fits, and the elders of
/// those that wait; the rows that a step always has serve one at a time.
const STEPS_MAX: u64 = 4096;

impl Watch {
    pub fn new(bound_us: u64) -> Self {
        Self {
            starved_steps_max: 0,
            bound_us,
            number: 0,
            step: 0,
            turn: None,
            seen: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    pub fn arrives(&mut self, slot: Slot, at_us: u64) {
        self.number += 1;
        let arrived = (at_us, self.number);
        let seen = Seen { arrived, progress_us: at_us, started: false, waits: true, starved_steps: 0 };
        self.seen.insert(slot, seen);
        self.waiting.insert(arrived, slot);
    }

    pub fn ends(&mut self, slot: Slot) {
        if let Some(seen) = self.seen.remove(&slot) {
            self.waiting.remove(&seen.arrived);
        }
    }

    pub fn planned(&mut self, plan: &StepPlan, scheduler: &Scheduler, now_us: u64) -> Result<()> {
        self.step += 1;
        for refused in &plan.refused {
            self.ends(refused.slot);
        }
        for slot in &plan.preempted {
            if let Some(seen) = self.seen.get_mut(slot) {
                seen.waits = true;
                self.waiting.insert(seen.arrived, *slot);
            }
        }
        let due = self.turn.is_none_or(|turn| self.step - turn >= FORCED_SEAT_STEPS);
        let elder = self.waiting.first_key_value().map(|(&arrived, &slot)| (arrived, slot));
        for started in &plan.started {
            let Some(seen) = self.seen.get_mut(&started.slot) else { continue };
            seen.started = true;
            // The elder may be held back by its own result in flight; only one that never ran is certainly ready.
            if let Some((arrived, slot)) = elder
                && due
                && arrived < seen.arrived
                && self
                    .seen
                    .get(&slot)
                    .is_some_and(|elder| !elder.started && now_us - elder.progress_us > self.bound_us)
            {
                ensure!(
                    plan.binds.iter().any(|bind| bind.slot == slot),
                    "slot {} starts before slot {}, which waits since {} us",
                    started.slot.0,
                    slot.0,
                    now_us - arrived.0
                );
            }
        }
        let starved = |seen: &Seen| now_us - seen.progress_us > self.bound_us;
        if plan.binds.iter().filter_map(|bind| self.seen.get(&bind.slot)).any(starved) {
            self.turn = Some(self.step);
        }
        for run in &plan.runs {
            if let Some(seen) = self.seen.get_mut(&run.slot) {
                seen.progress_us = now_us;
                seen.starved_steps = 0;
                if std::mem::take(&mut seen.waits) {
                    self.waiting.remove(&seen.arrived);
                }
            }
        }
        // Looking at everybody in every step would be most of the work.
        if plan.runs.len() < scheduler.running_count() {
            self.starved(now_us)?;
        }
        Ok(())
    }

    fn starved(&mut self, now_us: u64) -> Result<()> {
        for (slot, seen) in &mut self.seen {
            if !seen.waits && now_us - seen.progress_us > self.bound_us {
                seen.starved_steps += 1;
                self.starved_steps_max = self.starved_steps_max.max(seen.starved_steps);
                let (steps, since) = (seen.starved_steps, now_us - seen.progress_us);
                ensure!(steps <= STEPS_MAX, "slot {} runs without progress for {since} us and {steps} steps", slot.0);
            }
        }
        Ok(())
    }
}
