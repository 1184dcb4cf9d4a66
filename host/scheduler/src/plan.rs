//! One step: who runs, for how many rows, in which pages.
//!
//! Decoding requests come first, one row each, in order of arrival. What is left of the budget goes to prompts: first to
//! a request that waited too long, then as the policy (or native FCFS) grants, last to requests that compute generated
//! tokens again after a preemption and were not granted. Pages for the decoding rows are found before any run is
//! planned, so a victim is never a request that is already part of the step.

use contract::Slot;
use contract::policy::{Clamp, Decision, Grant};

use crate::decision::{Advice, InvalidDecision, Violation};
use crate::fcfs;
use crate::limits::{
    FORCED_SEAT_STEPS, READ_ROWS_MAX, REFUSAL_CODE_BYTES_MAX, RETRY_AFTER_MS_MAX, STARVED_SCAN_MAX, Tick,
};
use crate::queue::Scheduler;
use crate::request::Phase;
use crate::room::{Decodes, Room};
use crate::states::{Pending, StateCopy};
use crate::step::{Append, Feed, PlannedRun, Refused, StepPlan};

/// A run of a step in flight: what is needed to take its result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchedRun {
    pub slot: Slot,
    pub seq: u64,
    pub binding: u32,
    pub end: u32,
    pub emits: bool,
}

#[derive(Default)]
pub(crate) struct Launched {
    pub runs: Vec<LaunchedRun>,
    /// States that the runs save.
    pub saves: Vec<Pending>,
}

/// Memory that is kept between steps.
#[derive(Default)]
pub(crate) struct PlanScratch {
    /// Running requests that decode in this step, and those with tokens to compute before they can.
    pub decodes: Vec<Slot>,
    pub prefills: Vec<Slot>,
    pub order: Vec<Slot>,
    pub grants: Vec<Grant>,
    pub seen: Vec<bool>,
}

/// What one look at the running requests tells.
#[derive(Default)]
pub(crate) struct Survey {
    pub decodes: Decodes,
    /// Pages that the decoding rows of this step lack.
    pub missing: u32,
    /// See [`crate::preempt`].
    pub elder: Option<Slot>,
}

impl Scheduler {
    /// Plans the next step. An invalid decision changes nothing: call again with [`Advice::Native`].
    ///
    /// A plan with runs counts as launched: its results must be committed.
    pub fn plan(&mut self, tick: &Tick, advice: Advice<'_>) -> Result<&StepPlan, InvalidDecision> {
        if let Advice::Policy(decision) = advice {
            self.validate(decision)?;
        }
        self.plan.clear();
        self.steps += 1;
        self.seats.cool(self.committed);
        if let Advice::Policy(decision) = advice {
            self.follow(decision, tick);
        }
        let mut launched = self.spare.pop().unwrap_or_default();
        launched.runs.clear();
        launched.saves.clear();
        self.launching = launched;
        let survey = self.survey();
        let decodes = survey.decodes;
        self.free_pages_for_decodes(survey);
        self.plan_decodes(tick);
        let mut room = self.room(tick, decodes);
        room.rows =
            (room.rows + decodes.rows).saturating_sub(self.plan.rows).min(self.config.max_rows - self.plan.rows);
        room.in_order = matches!(advice, Advice::Native);
        let depth = self.scratch.prefills.iter().map(|&slot| self.entry(slot).computed).max().unwrap_or(0);
        self.plan.budget = self.plan.rows + room.rows_from(depth);
        self.plan_starved(&mut room);
        match advice {
            Advice::Native => self.plan_native(&mut room),
            Advice::Policy(decision) => self.plan_grants(decision, &mut room),
        }
        self.plan_recompute(&mut room);
        self.launch();
        Ok(&self.plan)
    }

    /// The plan of the last call.
    pub fn current(&self) -> &StepPlan {
        &self.plan
    }

    /// Everything in a decision but its grants.
    fn follow(&mut self, decision: &Decision, tick: &Tick) {
        if !decision.victims.is_empty() {
            self.victims.clear();
            for &slot in &decision.victims {
                if let Some(seq) = self.get(slot).map(|entry| entry.seq) {
                    self.victims.push((slot, seq));
                }
            }
        }
        for refusal in &decision.refuse {
            let waits = self.get(refusal.slot).is_some_and(|entry| !entry.started);
            if !waits {
                self.plan.violations.push(Violation::Refuse);
                continue;
            }
            self.remove(refusal.slot);
            let mut code = refusal.code.clone();
            code.truncate(code.floor_char_boundary(REFUSAL_CODE_BYTES_MAX));
            let retry_after_ms = refusal.retry_after_ms.min(RETRY_AFTER_MS_MAX);
            self.plan.refused.push(Refused { slot: refusal.slot, code, retry_after_ms });
        }
        for &slot in &decision.preempt {
            let may = self.get(slot).is_some_and(|entry| entry.is_running() && self.may_preempt(entry));
            if may { self.preempt(slot) } else { self.plan.violations.push(Violation::Preempt) }
        }
        let (step, bound) = (self.steps, self.config.starvation_bound_us);
        for &slot in &decision.hold {
            match self.get_mut(slot) {
                Some(entry) if entry.is_decoding() => {
                    entry.hold_asked_at = step;
                    // A hold does not last beyond the starvation bound.
                    if tick.now_us.saturating_sub(entry.progress_us) <= bound {
                        entry.held_at = step;
                    }
                }
                _ => self.plan.violations.push(Violation::HoldNotDecoding),
            }
        }
    }

    /// Sorts the running requests into those that decode and those that prefill; the only pass over all of them before
    /// runs are planned.
    fn survey(&mut self) -> Survey {
        let mut survey = Survey::default();
        let PlanScratch { decodes, prefills, .. } = &mut self.scratch;
        decodes.clear();
        prefills.clear();
        for &slot in &self.running {
            let entry = self.entries[slot.0 as usize].as_deref().expect("a running slot has an entry");
            let decoding = entry.is_decoding();
            if decoding {
                survey.decodes.add(entry.computed);
            }
            if entry.parked {
                continue;
            }
            survey.elder = survey.elder.or(Some(slot));
            if !decoding {
                prefills.push(slot);
            } else if !entry.is_exhausted() && entry.held_at != self.steps {
                decodes.push(slot);
                survey.missing += entry.pages_missing(1);
            }
        }
        survey
    }

    fn plan_decodes(&mut self, tick: &Tick) {
        let mut decodes = std::mem::take(&mut self.scratch.decodes);
        // More of them than rows: those that ran least recently go first.
        let rows_max = self.config.max_rows as usize;
        if decodes.len() > rows_max {
            decodes.sort_by_key(|&slot| (self.entry(slot).planned_at, self.entry(slot).seq));
            decodes.truncate(rows_max);
        }
        let mut available = self.pool.available();
        for &slot in &decodes {
            let entry = self.entry(slot);
            // Preempted just now for the others, or without a page until a parked owner gives one up.
            let missing = entry.pages_missing(1);
            if entry.is_running() && missing <= available {
                available -= missing;
                self.push_run(slot, 1, tick.now_us);
            }
        }
        self.plan.decode_rows = self.plan.rows;
        self.scratch.decodes = decodes;
    }

    /// Gives a chunk to requests that waited beyond the bound, before anyone else gets one.
    fn plan_starved(&mut self, room: &mut Room) {
        let since = room.now_us.saturating_sub(self.config.starvation_bound_us);
        let starved = |scheduler: &Self, slot: Slot| {
            let entry = scheduler.entry(slot);
            entry.progress_us < since && !entry.parked && !entry.is_decoding()
        };
        let mut order = std::mem::take(&mut self.scratch.order);
        order.clear();
        let prefills = self.scratch.prefills.iter().copied();
        order.extend(prefills.filter(|&slot| self.entry(slot).is_running() && starved(self, slot)));
        if self.steps >= self.forced_seat_from {
            let waiting = self.waiting.values().take(STARVED_SCAN_MAX).copied();
            order.extend(waiting.filter(|&slot| starved(self, slot)).take(1));
        }
        for &slot in &order {
            // A page's worth each, so that they do not take the step from everybody else.
            let least = contract::PAGE_TOKENS.max(self.config.resume_align);
            let was_waiting = !self.entry(slot).is_running();
            let granted = self.grant(slot, least, room) > 0;
            match (was_waiting, granted) {
                (true, true) => self.forced_seat_from = self.steps + FORCED_SEAT_STEPS,
                (true, false) => room.closed = true,
                (false, _) => {}
            }
        }
        self.scratch.order = order;
    }

    fn plan_native(&mut self, room: &mut Room) {
        let mut grants = std::mem::take(&mut self.scratch.grants);
        fcfs::decide(self, room.clone(), &mut grants);
        for grant in &grants {
            self.grant(grant.slot, grant.tokens, room);
        }
        self.scratch.grants = grants;
    }

    fn plan_grants(&mut self, decision: &Decision, room: &mut Room) {
        let mut seats = self.seats.free_count() as usize;
        for grant in &decision.grant {
            if grant.tokens == 0 {
                self.plan.violations.push(Violation::ZeroGrant);
                continue;
            }
            // Refused or preempted by the same decision, decoding (it needs no grant), or served as starved.
            let Some(entry) = self.get(grant.slot) else { continue };
            if entry.is_decoding() || entry.planned_at == self.steps {
                continue;
            }
            if !entry.is_running() {
                match seats.checked_sub(1) {
                    Some(left) => seats = left,
                    None => self.plan.violations.push(Violation::OverSeats),
                }
            }
            if room.is_empty() {
                self.plan.violations.push(Violation::OverBudget);
            }
            let accepted = self.grant(grant.slot, grant.tokens, room);
            if accepted < grant.tokens {
                self.view.clamped.push(Clamp { slot: grant.slot, tokens: accepted });
            }
        }
    }

    /// Generated tokens that must be computed again look like decoding to a policy, so no grant may come for them.
    fn plan_recompute(&mut self, room: &mut Room) {
        for index in 0..self.scratch.prefills.len() {
            let slot = self.scratch.prefills[index];
            let entry = self.entry(slot);
            let forgotten = entry.computed >= entry.prompt_len() && entry.can_prefill();
            if forgotten && entry.planned_at != self.steps {
                let need = entry.need();
                self.grant(slot, need, room);
            }
        }
    }

    /// Up to `tokens` rows of prompt for a request, with or without a seat. Answers how many were planned.
    pub(crate) fn grant(&mut self, slot: Slot, tokens: u32, room: &mut Room) -> u32 {
        let entry = self.entry(slot);
        if entry.planned_at == self.steps {
            return 0;
        }
        let tokens = if entry.reads_prompt() { tokens.min(READ_ROWS_MAX) } else { tokens };
        let taken = match entry.phase {
            Phase::Waiting => self.admit(slot, tokens, room),
            Phase::Running(_) if entry.can_prefill() => self.chunk(slot, tokens, room),
            Phase::Running(_) => 0,
        };
        if taken > 0 {
            room.take(self.entry(slot).computed, taken);
            self.push_run(slot, taken, room.now_us);
        }
        taken
    }

    /// The rows that a running request can take of a grant: within its need, the budget, the pages, the alignment.
    fn chunk(&self, slot: Slot, tokens: u32, room: &Room) -> u32 {
        let entry = self.entry(slot);
        let cut = |tokens, rows| self.cut(entry.computed, entry.need(), tokens, rows, room.is_deep(entry.computed));
        let take = cut(tokens, room.rows_from(entry.computed));
        let page_room = (entry.pages.len() as u32 + self.pool.available()) * contract::PAGE_TOKENS - entry.computed;
        if take <= page_room { take } else { cut(page_room, page_room) }
    }

    /// A chunk from `start`: at most `need` and `rows`; a grant below the alignment is rounded up to it, and the end
    /// of every chunk but the last is a multiple of it. Where any end will do, the chunk fills whole tiles of rows with
    /// what the step has before it, or alone where it is deep: attention has tiles for each chunk, products for the step.
    pub(crate) fn cut(&self, start: u32, need: u32, tokens: u32, rows: u32, deep: bool) -> u32 {
        let align = self.config.resume_align;
        let take = tokens.max(align).min(need).min(rows);
        if take == need {
            return take;
        }
        let before = if deep { 0 } else { self.plan.rows };
        let (tile, large) = (self.config.rows_tile, self.config.large_rows_tile);
        let over = (before + take) % if !deep && (before + take) / 4 >= large { large.max(tile) } else { tile };
        if align == 1 {
            return if take > over { take - over } else { take };
        }
        ((start + take) / align * align).saturating_sub(start)
    }

    fn push_run(&mut self, slot: Slot, rows: u32, now_us: u64) {
        let step = self.steps;
        let entry = self.entries[slot.0 as usize].as_deref_mut().expect("a planned slot has an entry");
        let Phase::Running(seat) = entry.phase else { return };
        let emits = rows == entry.need();
        let at = entry.pages.len() as u32;
        let first = self.plan.pages.len() as u32;
        for _ in 0..entry.pages_missing(rows) {
            let page = self.pool.take().expect("pages were counted before the run was planned");
            entry.pages.push(page);
            self.plan.pages.push(page);
        }
        let last = self.plan.pages.len() as u32;
        if last > first {
            self.plan.appends.push(Append { seat, at, pages: first..last });
        }
        let end = entry.computed + rows;
        let feed = if entry.sampled && emits && rows == 1 {
            Feed::Last
        } else {
            let from = self.plan.tokens.len() as u32;
            entry.copy_tokens(entry.computed, end, &mut self.plan.tokens);
            Feed::Tokens(from..self.plan.tokens.len() as u32)
        };
        entry.computed = end;
        entry.pending += u32::from(emits);
        entry.sampled |= emits;
        entry.planned_at = step;
        entry.progress_us = now_us;
        let (seq, binding) = (entry.seq, entry.binding);
        self.save_states(slot, seat, end - rows, end);
        self.launching.runs.push(LaunchedRun { slot, seq, binding, end, emits });
        self.plan.rows += rows;
        self.plan.runs.push(PlannedRun { slot, seat, feed, rows, end, emits });
    }

    /// Plans to save the state of a run's sequence where somebody may go on from it.
    fn save_states(&mut self, slot: Slot, seat: contract::Seat, start: u32, end: u32) {
        if self.pool.states.is_empty() || !self.config.prefix_cache {
            return;
        }
        let page = contract::PAGE_TOKENS;
        for at in (start / page + 1..=end / page).map(|number| number * page) {
            if !self.entry(slot).is_worth_saving(at) {
                continue;
            }
            let Some(state) = self.pool.states.take() else { return };
            self.plan.saves.push(StateCopy { seat, at, slot: state });
            self.launching.saves.push(Pending { run: self.launching.runs.len(), at, slot: state });
        }
    }

    /// Keeps the runs for [`Scheduler::commit_run`]; a plan without runs is not launched.
    fn launch(&mut self) {
        let launched = std::mem::take(&mut self.launching);
        if launched.runs.is_empty() {
            self.spare.push(launched);
            return;
        }
        self.in_flight.push_back(launched);
        self.launched += 1;
    }
}
