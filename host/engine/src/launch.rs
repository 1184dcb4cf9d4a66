//! Between a plan and a backend: bind, run, mask, collect.

use std::time::Instant;

use backend::BackendError;
use backend::step::{self, Emit, Mask, Run, SeatFault, SeatInit, StateSlot, Step, StepOut, Table, Ticket};
use contract::generation::{FinishReason, GenerationError, TokenEvent};
use contract::{Seat, Slot};
use scheduler::{Ending, Feed, PlannedRun, RequestView, RunResult, StateCopy};

use crate::budget::Measured;
use crate::live::Live;
use crate::run::{Engine, Fault};

/// A step in flight.
pub(crate) struct Flight {
    pub ticket: Ticket,
    pub launched: Instant,
    runs: FlightRuns,
    pub measured: Measured,
    pub decode_only: bool,
}

#[derive(Default)]
struct FlightRuns {
    /// The plan's run behind each run of the backend.
    planned: Vec<usize>,
    /// Runs whose sampled row waits for a mask: the backend's run, and the plan's.
    masked: Vec<(u32, usize)>,
}

/// Memory that is kept between steps.
#[derive(Default)]
pub(crate) struct Scratch {
    released: Vec<Seat>,
    runs: Vec<Run>,
    spare: Vec<FlightRuns>,
    masks: Vec<u32>,
    /// Which of the masks force their one token.
    forced: Vec<bool>,
    refused: Vec<(Slot, Seat, GenerationError)>,
}

impl Engine {
    /// Binds seats and queues the forward pass of the current plan; `false` when it has no runs.
    pub(crate) fn launch(&mut self) -> Result<bool, Fault> {
        self.release_seats();
        if self.scheduler.current().runs.is_empty() {
            return Ok(false);
        }
        self.bind()?;
        let mut runs = self.scratch.spare.pop().unwrap_or_default();
        runs.planned.clear();
        runs.masked.clear();
        let mut measured = Measured::default();
        self.scratch.runs.clear();
        let plan = self.scheduler.current();
        for (index, run) in plan.runs.iter().enumerate() {
            if self.unbound.contains(&run.seat) {
                continue;
            }
            let waits_for_mask = run.emits
                && self.lives.get(run.slot).and_then(|live| live.constraint.as_ref()).is_some_and(|constraint| {
                    // With a step in flight its token may still wake the grammar.
                    constraint.is_active() || !self.flights.is_empty()
                });
            if waits_for_mask {
                runs.masked.push((runs.planned.len() as u32, index));
            }
            runs.planned.push(index);
            measured.rows += run.rows;
            measured.context += f64::from(run.rows) * (f64::from(run.end) - f64::from(run.rows - 1) / 2.0);
            self.scratch.runs.push(Run {
                seat: run.seat,
                feed: match &run.feed {
                    Feed::Last => step::Feed::Last,
                    Feed::Tokens(range) => step::Feed::Tokens(range.clone()),
                },
                rows: run.rows,
                end_max: run.end,
                emit: emit(run, self.lives.get_mut(run.slot), self.scheduler.view_of(run.slot)),
                masked: waits_for_mask,
            });
        }
        let appends = plan.appends.iter().filter(|append| !self.unbound.contains(&append.seat));
        let appends = appends.map(|append| Table::Append {
            seat: append.seat,
            at: append.at,
            pages: &plan.pages[append.pages.start as usize..append.pages.end as usize],
        });
        // A slot that is loaded may be saved to in the same step.
        let bound = |copy: &&StateCopy| !self.unbound.contains(&copy.seat);
        let loads = plan.loads.iter().filter(bound);
        let loads = loads.map(|load| Table::Load { seat: load.seat, from: StateSlot(load.slot) });
        let saves = plan.saves.iter().filter(bound);
        let saves = saves.map(|save| Table::Save { seat: save.seat, at: save.at, to: StateSlot(save.slot) });
        let tables: Vec<Table<'_>> = appends.chain(loads).chain(saves).collect();
        let decode_only = plan.decode_rows == plan.rows;
        measured.prompts = !decode_only;
        let launched = Instant::now();
        let step = Step { tables: &tables, runs: &self.scratch.runs, tokens: &plan.tokens };
        // A step whose only requests were refused by the backend still has its place in the order of steps.
        let ticket = if runs.planned.is_empty() { None } else { Some(self.backend.forward(&step)?) };
        let ticket = ticket.unwrap_or(EMPTY_STEP);
        self.flights.push_back(Flight { ticket, launched, runs, measured, decode_only });
        Ok(true)
    }

    /// Seats that requests left go back before any is taken again.
    pub(crate) fn release_seats(&mut self) {
        self.scratch.released.clear();
        self.scheduler.take_released(&mut self.scratch.released);
        for &seat in &self.scratch.released {
            match self.unbound.iter().position(|&unbound| unbound == seat) {
                Some(at) => drop(self.unbound.swap_remove(at)),
                None => self.backend.release(seat),
            }
        }
    }

    fn bind(&mut self) -> Result<(), Fault> {
        for bind in &self.scheduler.current().binds {
            let (Some(view), Some(live)) = (self.scheduler.view_of(bind.slot), self.lives.get(bind.slot)) else {
                return Err(Fault(format!("slot {} was planned without a request", bind.slot.0)));
            };
            if live.pool.as_ref().is_some_and(|pool| pool.tokens() != bind.start) {
                let why = "older requests needed the pages of the part that was read; send it again";
                self.scratch.refused.push((bind.slot, bind.seat, GenerationError::Aborted(why.into())));
                continue;
            }
            let init = SeatInit {
                sampling: &live.sampling,
                seed: live.seed,
                adapter: None,
                start: bind.start,
                prompt: view.prompt,
                generated: view.generated,
            };
            let error = match self.backend.bind(bind.seat, &init) {
                Ok(()) => continue,
                Err(BackendError::ScriptViolatesGrammar { position }) => {
                    GenerationError::ScriptViolatesGrammar { position }
                }
                // The backend cannot serve this request; the others are not concerned.
                Err(error @ (BackendError::Script(_) | BackendError::Unsupported { .. })) => {
                    GenerationError::Engine(error.to_string())
                }
                Err(error) => return Err(error.into()),
            };
            self.scratch.refused.push((bind.slot, bind.seat, error));
        }
        while let Some((slot, seat, error)) = self.scratch.refused.pop() {
            self.unbound.push(seat);
            self.fail(slot, error);
        }
        Ok(())
    }

    /// Queues sampling of the newest step, with the masks of constrained requests.
    pub(crate) fn sample(&mut self) -> Result<(), Fault> {
        let Some(flight) = self.flights.back() else { return Ok(()) };
        if flight.runs.planned.is_empty() {
            return Ok(());
        }
        let words = self.caps.mask_words as usize;
        self.scratch.masks.clear();
        self.scratch.masks.resize(words * flight.runs.masked.len(), u32::MAX);
        self.scratch.forced.clear();
        self.scratch.forced.resize(flight.runs.masked.len(), false);
        let mut failed = Vec::new();
        let rows = self.scratch.masks.chunks_exact_mut(words.max(1)).zip(&mut self.scratch.forced);
        for ((bits, forced), &(_, index)) in rows.zip(&flight.runs.masked) {
            // A request that ended meanwhile, or whose grammar sleeps, samples freely.
            let slot = self.scheduler.newest_slot(index);
            let Some((slot, live)) = slot.and_then(|slot| Some((slot, self.lives.get_mut(slot)?))) else { continue };
            let Some(constraint) = live.constraint.as_mut().filter(|constraint| constraint.is_active()) else {
                continue;
            };
            // The forward pass of this step already runs.
            let start = Instant::now();
            *forced = constraint.forced().is_some();
            if let Err(error) = constraint.fill_mask(bits) {
                bits.fill(u32::MAX);
                failed.push((slot, error));
            }
            self.metrics.mask_seconds.observe(start.elapsed().as_secs_f64());
        }
        let bits = self.scratch.masks.chunks_exact(words.max(1)).zip(&self.scratch.forced);
        let mask = |(&(run, _), (bits, &forced))| Mask { run, row: 0, bits, forced };
        let masks: Vec<Mask<'_>> = flight.runs.masked.iter().zip(bits).map(mask).collect();
        self.backend.sample(flight.ticket, &masks)?;
        for (slot, error) in failed {
            self.metrics.mask_failures.inc();
            self.fail(slot, GenerationError::Grammar(error.to_string()));
        }
        Ok(())
    }

    /// Commits the oldest step and sends its tokens; `false`: it has not ended, or there is none.
    pub(crate) fn collect(&mut self, wait: bool) -> Result<bool, Fault> {
        let Some(flight) = self.flights.pop_front() else { return Ok(false) };
        if !flight.runs.planned.is_empty() {
            let out = match self.backend.collect(flight.ticket, wait)? {
                Some(out) => out,
                None if wait => return Err(Fault("the backend was asked to wait and gave no result".into())),
                None => {
                    self.flights.push_front(flight);
                    return Ok(false);
                }
            };
            if out.runs.len() != flight.runs.planned.len() {
                let (got, wanted) = (out.runs.len(), flight.runs.planned.len());
                return Err(Fault(format!("the backend answered {got} runs of a step of {wanted}")));
            }
            let now = Instant::now();
            self.device_free = now;
            for (at, &run) in flight.runs.planned.iter().enumerate() {
                self.take_run(run, &out, at, now)?;
            }
            self.measured(&flight, &out);
        }
        self.scheduler.commit_done();
        self.scratch.spare.push(flight.runs);
        Ok(true)
    }

    fn take_run(&mut self, run: usize, out: &StepOut, at: usize, now: Instant) -> Result<(), Fault> {
        let result = &out.runs[at];
        let range = |range: &std::ops::Range<u32>| range.start as usize..range.end as usize;
        let outside = || Fault("the backend answered a range outside its step".into());
        let tokens = out.tokens.get(range(&result.tokens)).ok_or_else(outside)?;
        let logprobs = out.logprobs.get(range(&result.logprobs)).ok_or_else(outside)?;
        let taken = RunResult { tokens, end: result.end, done: result.done };
        let Some(committed) = self.scheduler.commit_run(run, &taken) else { return Ok(()) };
        let slot = committed.slot;
        let tokens = &tokens[..committed.tokens];
        let mut broken = None;
        // The prompt's own come before those of what was sampled.
        let wanted = self.lives.get(slot).is_some_and(|live| live.sampling.logprobs.is_some());
        let sampled_count = if wanted { result.tokens.len() } else { 0 };
        let (prompt, sampled) = logprobs.split_at(logprobs.len().saturating_sub(sampled_count));
        if !prompt.is_empty() {
            let full = self.lives.send(slot, TokenEvent::Prompt { logprobs: prompt.to_vec() });
            self.scheduler.park(slot, full, self.now_us);
        }
        if !tokens.is_empty() {
            broken = self.accept(slot, tokens);
            let logprobs = sampled.get(..tokens.len()).unwrap_or_default().to_vec();
            self.count_tokens(slot, tokens.len(), now);
            let full = self.lives.send(slot, TokenEvent::Tokens { tokens: tokens.to_vec(), logprobs });
            // Also back from parked: with two steps in flight the client may have made room for both at once.
            self.scheduler.park(slot, full, self.now_us);
        }
        let pooled = out.pooled.get(range(&result.pooled)).ok_or_else(outside)?;
        if self.pool(slot, pooled, result.end, committed.missing) {
            return Ok(());
        }
        if let Some((ending, ended)) = committed.ended {
            let reason = match ending {
                Ending::Stop(token) => FinishReason::Stop { token },
                Ending::Length => FinishReason::Length,
            };
            self.finish(slot, reason, ended);
        } else if let Some(fault) = &result.fault {
            self.seat_fault(slot, fault);
        } else if let Some(error) = broken {
            self.fail(slot, error);
        } else if committed.missing {
            self.fail(slot, GenerationError::Engine("the backend sampled no token for this request".into()));
        }
        Ok(())
    }

    /// Takes a chunk of a prompt that is only read; answers whether that was its last one.
    fn pool(&mut self, slot: Slot, pooled: &[f32], end: u32, last_chunk: bool) -> bool {
        let Some(pool) = self.lives.get_mut(slot).and_then(|live| live.pool.as_mut()) else { return false };
        pool.take(pooled, end);
        if !last_chunk || pooled.is_empty() {
            return false;
        }
        if let Some(pool) = self.lives.get_mut(slot).and_then(|live| live.pool.take()) {
            pool.finish();
        }
        if let Some(ended) = self.scheduler.cancel(slot) {
            self.finish(slot, FinishReason::Length, ended);
        }
        true
    }

    /// Tells the grammar what was sampled.
    fn accept(&mut self, slot: Slot, tokens: &[contract::TokenId]) -> Option<GenerationError> {
        let constraint = self.lives.get_mut(slot)?.constraint.as_mut()?;
        let error = tokens.iter().find_map(|&token| constraint.accept(token).err())?;
        Some(GenerationError::Grammar(error.to_string()))
    }

    fn count_tokens(&mut self, slot: Slot, tokens: usize, now: Instant) {
        self.shared.token_at(now);
        self.metrics.generation_tokens.inc_by(tokens as u64);
        if let Some(live) = self.lives.get_mut(slot) {
            match live.last_token.replace(now) {
                Some(last) => self.metrics.inter_token.observe((now - last).as_secs_f64() / tokens as f64),
                None => self.metrics.first_token.observe((now - live.arrived).as_secs_f64()),
            }
        }
    }

    fn seat_fault(&mut self, slot: Slot, fault: &SeatFault) {
        let error = match fault {
            SeatFault::Error(why) => GenerationError::Engine(why.clone()),
            SeatFault::Abort(why) => GenerationError::Aborted(why.clone()),
            SeatFault::ScriptViolatesGrammar { position } => {
                GenerationError::ScriptViolatesGrammar { position: *position }
            }
            SeatFault::Length => {
                if let Some(ended) = self.scheduler.cancel(slot) {
                    self.finish(slot, FinishReason::Length, ended);
                }
                return;
            }
            SeatFault::Hang => {
                let now_us = self.shared.elapsed_us();
                return self.scheduler.park(slot, true, now_us);
            }
        };
        self.fail(slot, error);
    }
}

/// What a run must give back.
fn emit(run: &PlannedRun, live: Option<&mut Live>, view: Option<RequestView<'_>>) -> Emit {
    let plain = if run.emits { Emit::Next } else { Emit::Nothing };
    let Some(live) = live else { return plain };
    match (&live.pool, &mut live.score, view) {
        (Some(pool), _, _) => pool.emit(run.emits),
        (None, Some(score), Some(view)) => score.emit(run, view.prompt).unwrap_or(plain),
        _ => plain,
    }
}

/// Stands for a step without runs, which no backend saw.
const EMPTY_STEP: Ticket = Ticket(u64::MAX);
