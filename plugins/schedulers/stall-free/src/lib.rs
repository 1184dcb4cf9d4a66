//! Nobody waits for a long prompt: short prompts go first, whole; what is left of the step's time goes to long ones.
//!
//! Decoding requests take their rows before anything is granted, and the step is as long as `itl_target_ms` lets it be
//! while somebody decodes. The oldest unfinished prompt always has a quarter of the step, so a flood of short ones slows
//! it down and does not stop it; among the others the shortest remainder comes first.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::queue::{Queue, Request};
use tokenloom_sdk::room::Room;
use tokenloom_sdk::scheduler::{Decision, Delta, Limits, Policy, Scheduler, Snapshot, no_change, rest};

/// The share of a step that the oldest unfinished prompt has whatever else arrives.
const OLDEST_SHARE: f64 = 0.25;

/// Requests that are looked at in one step, oldest first: more would not fit a step anyway.
const CANDIDATES_MAX: usize = 256;

/// Prompts that may be partly computed at the same time; each holds a seat and pages until it is done.
const PARTIAL_MAX: usize = 8;

/// A chunk below this many tokens that does not end its prompt costs more than it brings.
const CHUNK_MIN: u32 = 16;

/// Others may be admitted before a request that found no pages only until it has waited this long.
const OVERTAKEN_US_MAX: u64 = 2_000_000;

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Wanted time of a step in which somebody decodes; at most the engine's `step_target_ms`.
    itl_target_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { itl_target_ms: 33 }
    }
}

pub struct StallFree(Settings);

impl Scheduler for StallFree {
    type Policy = StallFreePolicy;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if settings.itl_target_ms == 0 {
            return Err(tokenloom_sdk::disable("invalid-settings", "settings: itl_target_ms must be at least 1"));
        }
        Ok(Self(settings))
    }

    fn policy(&self) -> StallFreePolicy {
        StallFreePolicy { target_us: self.0.itl_target_ms.saturating_mul(1000), queue: Queue::default() }
    }
}

pub struct StallFreePolicy {
    target_us: u32,
    /// In order of arrival.
    queue: Queue<()>,
}

/// A prompt that could have a part of this step.
struct Candidate {
    slot: u32,
    start: u32,
    need: u32,
    granted: u32,
}

impl Candidate {
    fn of(request: &Request<()>) -> Self {
        Self { slot: request.arrival.slot, start: request.start(), need: request.need(), granted: 0 }
    }

    /// Gives it what fits, unless that is too little to be worth it.
    fn grow(&self, room: &Room) -> u32 {
        let start = self.start + self.granted;
        let more = (self.need - self.granted).min(room.tokens_from(start));
        if more < CHUNK_MIN && self.granted + more < self.need { 0 } else { more }
    }

    fn take(&mut self, room: &mut Room, tokens: u32) {
        room.take(self.start + self.granted, tokens);
        self.granted += tokens;
    }
}

impl StallFreePolicy {
    /// Running prompts and those that a seat and pages are there for, oldest first.
    fn candidates(&self, room: &mut Room, now_us: u64) -> Vec<Candidate> {
        let mut partial = self.queue.seated_count() as usize - self.queue.decoding() as usize;
        let mut open = true;
        let mut found = Vec::new();
        for request in self.queue.open().take(CANDIDATES_MAX) {
            if !request.running {
                // A short prompt leaves the step as it came; only a long one stays.
                let long = request.need() > room.least && request.need() > room.tokens_from(request.start());
                if !open || room.seats == 0 || (long && partial >= PARTIAL_MAX) {
                    continue;
                }
                if !room.admit(request) {
                    open = now_us.saturating_sub(request.arrival.arrived_us) < OVERTAKEN_US_MAX;
                    continue;
                }
                partial += usize::from(long);
            }
            found.push(Candidate::of(request));
        }
        found
    }

    fn share(&self, mut room: Room, now_us: u64) -> Vec<Candidate> {
        let mut all = self.candidates(&mut room, now_us);
        if all.is_empty() {
            return all;
        }
        let oldest = all.first().map_or(0, |oldest| oldest.slot);
        let mut kept = room.part(OLDEST_SHARE);
        let mut rest = room.part(1.0 - OLDEST_SHARE);
        all.sort_by_key(|candidate| candidate.need);
        // Whole prompts first, shortest first.
        for candidate in &mut all {
            let (start, need) = (candidate.start, candidate.need);
            if candidate.slot == oldest && need <= kept.tokens_from(start) {
                candidate.take(&mut kept, need);
            } else if need <= rest.tokens_from(start) {
                candidate.take(&mut rest, need);
            }
        }
        // Then chunks: the shortest remainder takes all it can use, so that equal prompts end one after the other and not
        // all at the end; the oldest has its own share besides, and whatever nobody wants.
        if !all.iter().any(|candidate| candidate.slot == oldest && candidate.granted == 0) {
            rest.join(&std::mem::take(&mut kept));
        }
        for candidate in all.iter_mut().filter(|candidate| candidate.granted == 0) {
            if candidate.slot == oldest {
                rest.join(&std::mem::take(&mut kept));
            }
            let more = candidate.grow(&rest);
            candidate.take(&mut rest, more);
        }
        all
    }

    fn decide(&mut self, limits: &Limits) -> Decision {
        let mut decision = no_change();
        if self.queue.is_idle() {
            rest(&mut decision, u64::MAX);
        } else {
            let decoding = self.queue.decoding();
            // Nobody feels the length of a step that has no answers in it.
            let target_us = if decoding > 0 { self.target_us } else { u32::MAX };
            let room = Room::new(limits, decoding, target_us);
            for Candidate { slot, granted, .. } in self.share(room, limits.now_us) {
                self.queue.grant(slot, granted, &mut decision);
            }
        }
        self.queue.list_victims(&mut decision);
        decision
    }
}

impl Policy for StallFreePolicy {
    fn resync(&mut self, full: Snapshot) {
        self.queue.restart(full, |_| ());
    }

    fn step(&mut self, mut delta: Delta) -> Decision {
        self.queue.apply(&mut delta, |_| ());
        self.decide(&delta.limits)
    }
}

tokenloom_sdk::export_scheduler!(StallFree);
