//! A waiting request takes a seat.

use contract::{PAGE_TOKENS, Slot};

use crate::limits::READMIT_HEADROOM_TOKENS;
use crate::queue::Scheduler;
use crate::request::{Entry, Phase};
use crate::room::Room;
use crate::states::StateCopy;
use crate::step::{Append, Bind, Started};

impl Scheduler {
    /// Seats a request if a seat, the pages and the budget are there; answers the rows of its first chunk, or 0.
    pub(crate) fn admit(&mut self, slot: Slot, tokens: u32, room: &mut Room) -> u32 {
        let entry = self.entry(slot);
        // A result in flight may still end it; and who was preempted in this step does not come back in it.
        if entry.pending > 0 || entry.parked || room.closed || self.plan.preempted.contains(&slot) {
            return 0;
        }
        if self.seats.free_count() == 0 {
            return 0;
        }
        let cached = self.cached_tokens(entry);
        let (need, rows) = (entry.need_from(cached), room.rows_from(cached));
        let take = self.cut(cached, need, tokens, rows, room.is_deep(cached));
        if take == 0 {
            return 0;
        }
        if !self.has_pages_for(slot) {
            room.closed |= room.in_order;
            return 0;
        }
        self.seat(slot, room.now_us);
        take
    }

    /// Whether the whole sequence fits beside the growth that running requests are given room for. Without that room a
    /// request would be admitted only to be the next victim.
    fn has_pages_for(&mut self, slot: Slot) -> bool {
        loop {
            let entry = self.entry(slot);
            let headroom = match entry.preemptions {
                0 => PAGE_TOKENS,
                n => READMIT_HEADROOM_TOKENS.saturating_mul(1 << (n - 1).min(16)),
            };
            let mut hits = 0;
            let mut kept = 0;
            self.walk_cache(entry, |page, _| {
                hits += 1;
                // A hit that nobody uses is no longer available to others.
                kept += u32::from(self.pool.is_unreferenced(page));
            });
            let tokens = entry.len().saturating_add(headroom).min(entry.kv_tokens_max());
            let new_pages = Entry::pages_for(tokens) - hits;
            let growth: u32 = self.running.iter().map(|&other| self.entry(other).growth(headroom)).sum();
            if new_pages + kept + growth <= self.pool.available() {
                return true;
            }
            // Alone it always fits: `submit` bounds every sequence by the pool.
            if self.running.is_empty() {
                return new_pages + kept <= self.pool.available();
            }
            // Requests that only wait for their clients must not keep everybody else from running.
            let all_parked = self.running.iter().all(|&other| self.entry(other).parked);
            let Some(&youngest) = self.running.last().filter(|_| all_parked) else { return false };
            self.preempt(youngest);
        }
    }

    fn seat(&mut self, slot: Slot, now_us: u64) {
        let seat = self.seats.take().expect("a free seat was counted");
        let entry = self.entry(slot);
        let seq = entry.seq;
        let (mut found, hits) = self.find_cached(entry);
        let junction = if found.len() > hits { found.len() as u32 * PAGE_TOKENS } else { 0 };
        found.truncate(hits);
        let start = found.len() as u32 * PAGE_TOKENS;
        let first = self.plan.pages.len() as u32;
        for &(page, _) in &found {
            self.pool.share(page);
            self.plan.pages.push(page);
        }
        if !found.is_empty() {
            self.plan.appends.push(Append { seat, at: 0, pages: first..self.plan.pages.len() as u32 });
        }
        if let Some(slot) = found.last().and_then(|&(_, node)| self.pool.states.touch(node)) {
            self.plan.loads.push(StateCopy { seat, at: start, slot });
        }
        let at = self.running_position(seq).unwrap_or_else(|at| at);
        self.running.insert(at, slot);
        self.waiting.remove(&seq);
        let entry = self.entry_mut(slot);
        entry.phase = Phase::Running(seat);
        entry.binding += 1;
        entry.computed = start;
        entry.committed = start;
        entry.sampled = false;
        entry.named_pages = found.len() as u32;
        entry.chain = found.last().map_or(crate::prefix::Node::Root(entry.namespace), |&(_, node)| node);
        entry.junction = junction;
        entry.rolling = None;
        entry.pages.extend(found.iter().map(|&(page, _)| page));
        let first_time = !std::mem::replace(&mut entry.started, true);
        let queued_us = now_us.saturating_sub(entry.arrival.arrived_us);
        if first_time {
            self.plan.started.push(Started { slot, cached_tokens: start, queued_us });
        }
        self.plan.binds.push(Bind { slot, seat, start });
    }
}

impl Entry {
    /// Tokens to feed when `start` of them are cached.
    pub fn need_from(&self, start: u32) -> u32 {
        self.len() - start
    }

    /// Pages it may take soon: for the rest of its prompt, and `headroom` tokens beyond.
    fn growth(&self, headroom: u32) -> u32 {
        let tokens = self.len().max(self.computed).saturating_add(headroom).min(self.kv_tokens_max());
        Self::pages_for(tokens).saturating_sub(self.pages.len() as u32)
    }
}
