//! What a policy is told: deltas, and snapshots to start from.

use std::collections::VecDeque;

use contract::policy::{ARRIVALS_PER_DELTA_MAX, Clamp, Delta, Limits, Progress, SlotView, Snapshot};
use contract::{PAGE_TOKENS, Slot};

use crate::limits::Tick;
use crate::queue::Scheduler;
use crate::request::Entry;
use crate::room::Outlook;

/// Bookkeeping between two deltas. Without a policy nothing is kept.
#[derive(Default)]
pub(crate) struct PolicyView {
    tracking: bool,
    arrivals: VecDeque<(Slot, u64)>,
    /// Requests that ended and that the policy knows; then the slots of those that the last delta reported.
    finished: Vec<Progress>,
    resting: Vec<Slot>,
    preempted: Vec<(Slot, u64)>,
    pub clamped: Vec<Clamp>,
    delta: Delta,
}

impl PolicyView {
    pub fn is_tracking(&self) -> bool {
        self.tracking
    }

    pub fn arrives(&mut self, slot: Slot, seq: u64) {
        if self.tracking {
            self.arrivals.push_back((slot, seq));
        }
    }

    /// Whether the slot's number must rest until the policy has heard of the end.
    pub fn finishes(&mut self, entry: &Entry) -> bool {
        let told = self.tracking && entry.reported;
        if told {
            self.finished.push(entry.progress());
        }
        told
    }

    pub fn preempts(&mut self, slot: Slot, seq: u64) {
        if self.tracking {
            self.preempted.push((slot, seq));
        }
    }

    /// A number that was reported finished in the last delta may be used after the one that is built now.
    pub fn recycle(&mut self, free: &mut Vec<Slot>) {
        free.append(&mut self.resting);
        self.resting.extend(self.delta.finished.iter().map(|progress| progress.slot));
    }

    /// Forgets everything; slots whose end was not told are free at once, since the policy forgets too.
    fn restart(&mut self, tracking: bool, free: &mut Vec<Slot>) {
        free.append(&mut self.resting);
        free.extend(self.finished.drain(..).map(|progress| progress.slot));
        self.arrivals.clear();
        self.preempted.clear();
        self.clamped.clear();
        self.delta.finished.clear();
        self.tracking = tracking;
    }
}

impl Scheduler {
    /// What changed since the last call, for the policy's next decision.
    pub fn delta(&mut self, tick: &Tick) -> &Delta {
        let mut delta = std::mem::take(&mut self.view.delta);
        delta.tenants.clear();
        self.tenants.take_news(&mut delta.tenants);
        delta.finished.clear();
        delta.finished.append(&mut self.view.finished);
        delta.preempted.clear();
        let preempted = std::mem::take(&mut self.view.preempted);
        let alive = preempted.iter().filter(|(slot, seq)| self.get(*slot).is_some_and(|entry| entry.seq == *seq));
        delta.preempted.extend(alive.map(|(slot, _)| *slot));
        delta.progress.clear();
        self.list_arrivals(&mut delta);
        delta.clamped.clear();
        let clamped = std::mem::take(&mut self.view.clamped);
        delta.clamped.extend(clamped.iter().filter(|clamp| self.get(clamp.slot).is_some()));
        for index in 0..delta.preempted.len() {
            let slot = delta.preempted[index];
            if !self.entry(slot).is_running() {
                self.list_progress(slot, &mut delta.progress);
            }
        }
        for index in 0..self.running.len() {
            self.list_progress(self.running[index], &mut delta.progress);
        }
        delta.limits = self.limits(tick);
        // The lists keep their memory.
        self.view.preempted = preempted;
        self.view.preempted.clear();
        self.view.clamped = clamped;
        self.view.clamped.clear();
        self.view.delta = delta;
        self.recycle_slots();
        &self.view.delta
    }

    fn list_arrivals(&mut self, delta: &mut Delta) {
        delta.arrived.clear();
        while delta.arrived.len() < ARRIVALS_PER_DELTA_MAX
            && let Some((slot, seq)) = self.view.arrivals.pop_front()
        {
            // A request may have ended before the policy heard of it; then it never does.
            if let Some(entry) = self.get_mut(slot)
                && entry.seq == seq
            {
                entry.reported = true;
                entry.seen = Progress { slot, computed: 0, emitted: 0 };
                delta.arrived.push(entry.arrival.clone());
            }
        }
    }

    /// Lists a slot unless the policy's own count is right: plus one for a decoding slot that was not held.
    fn list_progress(&mut self, slot: Slot, progress: &mut Vec<Progress>) {
        let step = self.steps;
        let entry = self.entry_mut(slot);
        let decoding = entry.is_decoding();
        if !entry.reported {
            return;
        }
        let step_tokens = u32::from(entry.seen_decoding && entry.hold_asked_at != step);
        let seen = entry.seen;
        let expected = Progress { slot, computed: seen.computed + step_tokens, emitted: seen.emitted + step_tokens };
        let actual = entry.progress();
        // Generated tokens that are computed again look like decoding to a policy that only knows the prompt.
        let recomputing = entry.computed >= entry.prompt_len() && !decoding && entry.is_running();
        if actual != expected || recomputing {
            progress.push(actual);
        }
        entry.seen = actual;
        entry.seen_decoding = decoding;
    }

    /// Everything, for a policy that starts or starts again; deltas count from here.
    pub fn snapshot(&mut self, tick: &Tick) -> Snapshot {
        self.restart_view(true);
        let limits = self.limits(tick);
        let tenants = self.tenants.all();
        let slots: Vec<Slot> = self.waiting.values().chain(&self.running).copied().collect();
        let slots = slots.into_iter().map(|slot| self.introduce(slot)).collect();
        Snapshot { limits, tenants, slots }
    }

    fn introduce(&mut self, slot: Slot) -> SlotView {
        let entry = self.entry_mut(slot);
        entry.reported = true;
        entry.seen = entry.progress();
        entry.seen_decoding = entry.is_decoding();
        slot_view(entry)
    }

    /// What a snapshot would say at this moment of the requests that the policy knows; nothing is changed by looking.
    pub fn look(&self, tick: &Tick) -> Snapshot {
        let slots = self.waiting.values().chain(&self.running).map(|&slot| self.entry(slot));
        let slots = slots.filter(|entry| entry.reported).map(slot_view).collect();
        Snapshot { limits: self.limits(tick), tenants: self.tenants.known(), slots }
    }

    /// There is no policy (any more): nothing is kept for one.
    pub fn without_policy(&mut self) {
        self.restart_view(false);
        self.tenants.forget_news();
        self.victims.clear();
    }

    fn restart_view(&mut self, tracking: bool) {
        let mut free = Vec::new();
        self.view.restart(tracking, &mut free);
        self.free_slots_extend(free);
    }

    fn limits(&self, tick: &Tick) -> Limits {
        let Outlook { rows, target_us, decode_us } = self.outlook(tick);
        Limits {
            step: self.steps + 1,
            now_us: tick.now_us,
            token_budget: rows,
            tokens_max: tick.token_budget.min(self.config.max_rows),
            target_us,
            decode_us,
            cost: tick.cost,
            free_seats: self.seats.free_count(),
            free_pages: self.pool.available(),
            page_tokens: PAGE_TOKENS,
            resume_align: self.config.resume_align,
            last_step_us: tick.last_step_us,
            last_step_tokens: tick.last_step_tokens,
            in_flight_steps: tick.in_flight_steps,
        }
    }
}

fn slot_view(entry: &Entry) -> SlotView {
    SlotView {
        request: entry.arrival.clone(),
        state: entry.state(),
        computed: entry.computed,
        emitted: entry.emitted(),
        pages: entry.pages.len() as u32,
        preemptions: entry.preemptions,
    }
}
