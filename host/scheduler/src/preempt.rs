//! Taking a seat away: the request waits again and computes later what the cache does not keep.
//!
//! Progress is certain because the *elder*, the running request that arrived first, is never a victim of the lack of
//! pages: it can have every page of the pool, so it ends, and then the next one is the elder. What a policy wants to
//! preempt is bounded by [`PREEMPTIONS_MAX`] per request.

use contract::Slot;

use crate::limits::PREEMPTIONS_MAX;
use crate::plan::Survey;
use crate::queue::Scheduler;
use crate::request::Entry;

impl Scheduler {
    /// Preempts until the decoding rows of this step, and a page for the elder's prompt, fit the pool.
    pub(crate) fn free_pages_for_decodes(&mut self, survey: Survey) {
        let Survey { mut missing, elder, .. } = survey;
        if let Some(elder) = elder.map(|slot| self.entry(slot)).filter(|elder| !elder.is_decoding()) {
            missing += elder.pages_missing(elder.need().min(contract::PAGE_TOKENS.max(self.config.resume_align)));
        }
        while missing > self.pool.available() {
            let Some(victim) = self.victim(elder) else { return };
            let entry = self.entry(victim);
            if entry.can_decode() && entry.held_at != self.steps {
                missing -= entry.pages_missing(1);
            }
            self.preempt(victim);
        }
    }

    /// The policy's order first, then requests whose clients do not read, then the youngest.
    fn victim(&self, elder: Option<Slot>) -> Option<Slot> {
        let may = |slot: Slot| Some(slot) != elder && self.may_preempt(self.entry(slot));
        let named = self.victims.iter().copied().find_map(|(slot, seq)| {
            let entry = self.get(slot)?;
            (entry.seq == seq && entry.is_running() && may(slot)).then_some(slot)
        });
        let youngest = || self.running.iter().rev().copied();
        named
            .or_else(|| youngest().find(|&slot| self.entry(slot).parked && may(slot)))
            .or_else(|| youngest().find(|&slot| may(slot)))
            .or_else(|| youngest().find(|&slot| Some(slot) != elder))
    }

    pub(crate) fn may_preempt(&self, entry: &Entry) -> bool {
        entry.preemptions < PREEMPTIONS_MAX
    }

    /// The request waits again, in its old place; it keeps what it emitted, and what it computed is what is cached.
    pub(crate) fn preempt(&mut self, slot: Slot) {
        self.unseat(slot);
        let entry = self.entry(slot);
        let seq = entry.seq;
        let cached = self.cached_tokens(entry);
        let entry = self.entry_mut(slot);
        entry.preemptions += 1;
        entry.computed = cached;
        entry.committed = cached;
        self.waiting.insert(seq, slot);
        self.view.preempts(slot, seq);
        self.plan.preempted.push(slot);
    }
}
