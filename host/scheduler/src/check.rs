//! What must hold between any two calls. Tests check it after every step, the engine when it is idle.

use contract::Slot;

use crate::queue::Scheduler;
use crate::request::{Entry, Phase};

impl Scheduler {
    /// The first rule that does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check(self.entries.iter().flatten().map(|entry| entry.pages.as_slice()))?;
        let pending = self.in_flight.iter().flat_map(|launched| &launched.saves);
        self.pool.states.check(pending.map(|save| save.slot))?;
        for entry in self.entries.iter().flatten() {
            self.check_entry(entry).map_err(|why| format!("slot {}: {why}", entry.slot().0))?;
        }
        let live = self.entries.iter().flatten().count();
        if live != self.waiting.len() + self.running.len() {
            return Err(format!("{live} requests, {} wait and {} run", self.waiting.len(), self.running.len()));
        }
        let seats = usize::from(self.config.seats);
        if self.running.len() + self.seats.empty_count() != seats {
            return Err(format!("{} run, {} seats are empty of {seats}", self.running.len(), self.seats.empty_count()));
        }
        if !self.running.is_sorted_by_key(|&slot| self.entry(slot).seq) {
            return Err("running requests are not in order of arrival".into());
        }
        let parked = self.entries.iter().flatten().filter(|entry| entry.parked).count();
        if parked != self.parked {
            return Err(format!("{parked} requests are parked, {} are counted", self.parked));
        }
        self.check_pending()
    }

    fn check_entry(&self, entry: &Entry) -> Result<(), String> {
        let queued = self.waiting.get(&entry.seq) == Some(&entry.slot());
        let running = self.running.contains(&entry.slot());
        let rules = [
            (queued != running, "is in both queues, or in none"),
            (running == matches!(entry.phase, Phase::Running(_)), "has a seat without running, or the reverse"),
            (running || entry.pages.is_empty(), "holds pages without a seat"),
            (entry.committed <= entry.computed, "more is committed than computed"),
            (entry.computed < entry.len() || entry.is_exhausted(), "has nothing left to feed"),
            (!running || entry.pages.len() as u32 >= Entry::pages_for(entry.computed), "lacks pages for its tokens"),
            (entry.emitted() + entry.pending <= entry.new_tokens_max, "generates more than it may"),
            (entry.named_pages as usize <= entry.pages.len() || !running, "named pages that it does not hold"),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, why)) => Err(why.into()),
            None => Ok(()),
        }
    }

    fn check_pending(&self) -> Result<(), String> {
        let pending = |slot: Slot, seq: u64| {
            let runs = self.in_flight.iter().flat_map(|launched| &launched.runs);
            runs.filter(|run| run.slot == slot && run.seq == seq && run.emits).count() as u32
        };
        match self.entries.iter().flatten().find(|entry| pending(entry.slot(), entry.seq) != entry.pending) {
            Some(entry) => {
                Err(format!("slot {} expects {} tokens from steps in flight", entry.slot().0, entry.pending))
            }
            None => Ok(()),
        }
    }
}
