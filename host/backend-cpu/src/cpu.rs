//! The step trait over an interpreter: seats, tickets, and the checks of what the engine asks for.

use std::time::{Duration, Instant};

use backend::sampler::{Sampler, raw_logprobs};
use backend::step::{Caps, Emit, Feed, Mask, Run, SeatInit, StateSlot, Step, StepOut, Table, Ticket};
use backend::{Backend, BackendError};
use contract::sampling::TokenLogprobs;
use contract::{PAGE_TOKENS, Seat, TokenId};

use crate::batch::{Batch, Save};
use crate::interpreter::{HEAD_ROWS, Interpreter};
use crate::invalid;
use crate::pool::{Panicked, Shares, Tickets};
use crate::sample::Drawn;
use crate::seats::SeatTable;

/// A run of the open step.
#[derive(Clone, Debug)]
pub(crate) struct OpenRun {
    pub seat: Seat,
    pub emit: Emit,
    pub masked: bool,
    /// The seat's length after the run.
    pub end: u32,
    /// The seat was done before: its rows were not run.
    pub skipped: bool,
    pub first_row: usize,
    pub rows: usize,
    /// Index of its logits.
    pub logits: Option<usize>,
    pub logprobs: std::ops::Range<u32>,
    pub pooled: std::ops::Range<u32>,
}

/// The launched step.
pub(crate) struct Open {
    ticket: Ticket,
    sampled: bool,
    pub spent: Duration,
    pub out: StepOut,
}

/// What the backend remembers of a model's shape.
pub(crate) struct Widths {
    pub hidden: usize,
    pub vocab_used: usize,
}

/// A state to be saved when its seat's rows reach `at` tokens.
#[derive(Clone, Copy, Debug)]
struct Saving {
    seat: Seat,
    at: u32,
    slot: usize,
    /// Whether a run has taken it on; `None`: nothing is saved, the seat is done.
    taken: Option<bool>,
}

/// A model on the CPU.
pub struct CpuBackend {
    pub(crate) caps: Caps,
    hidden: usize,
    /// See [`backend::ops::ModelSpec::vocab_used`].
    vocab_used: usize,
    pub(crate) interpreter: Box<dyn Interpreter>,
    pub(crate) seats: SeatTable,
    /// Of each slot the length of the sequence whose state it holds.
    saved: Vec<Option<u32>>,
    /// States that this step's rows save, once for each slot.
    saving: Vec<Saving>,
    batch: Batch,
    pub(crate) runs: Vec<OpenRun>,
    /// Which seats the step has named.
    named: Vec<bool>,
    /// Rows whose logits are wanted, and their logits `[rows][vocab]`.
    pub(crate) head_rows: Vec<usize>,
    pub(crate) logits: Vec<f32>,
    /// Logits of prompt rows, `[HEAD_ROWS][vocab]`; made when a prompt's logprobs are first asked for.
    prompt_logits: Vec<f32>,
    pub(crate) samplers: Vec<Sampler>,
    /// What was drawn for each run; kept between steps for its memory.
    pub(crate) drawn: Vec<Drawn>,
    /// The engine's thread, which calls every step, was moved to its place.
    placed: bool,
    pub(crate) open: Option<Open>,
    next_ticket: u64,
    pub(crate) fault: Option<BackendError>,
}

impl CpuBackend {
    pub(crate) fn new(caps: Caps, spec: &Widths, mut interpreter: Box<dyn Interpreter>) -> Self {
        let seats = usize::from(caps.seats);
        let emitting = seats.min(caps.max_rows as usize);
        let context_pages = caps.context_len.div_ceil(PAGE_TOKENS) as usize;
        let threads = interpreter.pool().threads();
        Self {
            hidden: spec.hidden,
            vocab_used: spec.vocab_used,
            seats: SeatTable::new(caps.seats, caps.pages, context_pages),
            saved: vec![None; caps.state_slots as usize],
            saving: Vec::with_capacity(emitting),
            batch: Batch::with_capacity(caps.max_rows as usize, emitting, emitting * context_pages),
            runs: Vec::with_capacity(seats),
            named: vec![false; seats],
            head_rows: Vec::with_capacity(emitting),
            logits: vec![0.0; emitting * caps.vocab as usize],
            prompt_logits: Vec::new(),
            samplers: (0..threads).map(|_| Sampler::with_capacity(caps.vocab as usize)).collect(),
            drawn: Vec::with_capacity(seats),
            placed: false,
            open: None,
            next_ticket: 0,
            fault: None,
            caps,
            interpreter,
        }
    }

    pub(crate) fn workspace_bytes(&self) -> u64 {
        4 * self.logits.len() as u64
    }

    /// Logits of the open step's sampling run `index`, before anything was drawn from them; for tests and tools.
    pub fn logits(&self, index: usize) -> Option<&[f32]> {
        let vocab = self.caps.vocab as usize;
        let count = self.head_rows.len();
        (index < count).then(|| &self.logits[index * vocab..(index + 1) * vocab])
    }

    /// All numbers of a seat's recurrent state; for tests and tools.
    pub fn state(&mut self, seat: Seat) -> Option<&[f32]> {
        self.interpreter.states().map(|states| states.of(seat.0.into()))
    }

    fn healthy(&self) -> Result<(), BackendError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn failed(&mut self, operation: &str) -> BackendError {
        let cause = "a worker panicked; this is a bug".to_owned();
        let fault = BackendError::Device { operation: operation.to_owned(), cause };
        self.fault.get_or_insert(fault).clone()
    }

    fn tables(&mut self, tables: &[Table<'_>]) -> Result<(), BackendError> {
        for table in tables {
            match table {
                Table::Append { .. } => self.seats.append(table)?,
                Table::CopyPage { from, to } => {
                    self.seats.check_page(*from)?;
                    self.seats.check_page(*to)?;
                    self.interpreter.copy_page(*from, *to);
                }
                Table::Save { seat, at, to } => self.save(*seat, *at, *to)?,
                Table::Load { seat, from } => self.load_state(*seat, *from)?,
            }
        }
        Ok(())
    }

    fn slot(&self, slot: StateSlot) -> Result<usize, BackendError> {
        let (index, slots) = (slot.0 as usize, self.saved.len());
        if index < slots { Ok(index) } else { Err(invalid(format!("state slot {index} of {slots}"))) }
    }

    /// Saves the seat's state at once when it is at that length, or notes that its run will.
    fn save(&mut self, seat: Seat, at: u32, to: StateSlot) -> Result<(), BackendError> {
        let slot = self.slot(to)?;
        let state = self.seats.get_mut(seat)?;
        if at < state.position || !at.is_multiple_of(self.caps.resume_align) {
            let (position, align) = (state.position, self.caps.resume_align);
            return Err(invalid(format!("seat {}: a state at {at}; it is at {position}, aligned to {align}", seat.0)));
        }
        self.saved[slot] = None;
        if at > state.position {
            self.saving.push(Saving { seat, at, slot, taken: Some(false) });
            return Ok(());
        }
        if state.state_at != Some(at) {
            return Err(invalid(format!("seat {} has no state at {at}", seat.0)));
        }
        if let Some(states) = self.interpreter.states() {
            states.copy(seat.0.into(), states.slot(slot));
            self.saved[slot] = Some(at);
        }
        Ok(())
    }

    fn load_state(&mut self, seat: Seat, from: StateSlot) -> Result<(), BackendError> {
        let slot = self.slot(from)?;
        let state = self.seats.get_mut(seat)?;
        if self.saved[slot] != Some(state.position) {
            let (saved, position) = (self.saved[slot], state.position);
            return Err(invalid(format!("seat {} is at {position}, state slot {slot} at {saved:?}", seat.0)));
        }
        state.state_at = Some(state.position);
        if let Some(states) = self.interpreter.states() {
            states.copy(states.slot(slot), seat.0.into());
        }
        Ok(())
    }

    /// Gives the run of a seat the states that it has to save.
    fn take_saves(&mut self, seat: Seat, first: u32, end: u32, skipped: bool) {
        for saving in self.saving.iter_mut().filter(|saving| saving.seat == seat) {
            if skipped {
                saving.taken = None;
            } else if saving.at <= end {
                saving.taken = Some(true);
                let sequence = self.batch.sequences.len() - 1;
                self.batch.saves.push(Save { sequence, rows: (saving.at - first) as usize, slot: saving.slot });
            }
        }
    }

    /// Checks a run and adds its rows to the batch.
    fn add_run(&mut self, run: &Run, tokens: &[TokenId]) -> Result<(), BackendError> {
        let name = run.seat.0;
        let state = self.seats.get_mut(run.seat)?;
        if std::mem::replace(&mut self.named[usize::from(name)], true) {
            return Err(invalid(format!("seat {name} has two runs in one step")));
        }
        let (first_row, rows) = (self.batch.rows.len(), run.rows as usize);
        let (logprobs, pooled) = (0..0, 0..0);
        let open = |end, skipped, rows| OpenRun {
            seat: run.seat,
            emit: run.emit,
            masked: run.masked,
            end,
            skipped,
            first_row,
            rows,
            logits: None,
            logprobs,
            pooled,
        };
        if state.done {
            self.runs.push(open(state.position, true, 0));
            self.take_saves(run.seat, 0, 0, true);
            return Ok(());
        }
        if self.caps.recurrent && state.state_at != Some(state.position) {
            let (position, at) = (state.position, state.state_at);
            return Err(invalid(format!("seat {name} is at {position}, its recurrent state at {at:?}")));
        }
        let last;
        let fed = match (&run.feed, state.last) {
            (Feed::Tokens(range), _) => tokens
                .get(range.start as usize..range.end as usize)
                .ok_or_else(|| invalid(format!("seat {name}: tokens {range:?} of {}", tokens.len())))?,
            (Feed::Last, Some(token)) => {
                last = [token];
                &last
            }
            (Feed::Last, None) => return Err(invalid(format!("seat {name}: no token was sampled yet"))),
            (Feed::Draft { .. }, _) => return Err(invalid(format!("seat {name}: there is no drafter"))),
        };
        if fed.len() != rows || rows == 0 {
            return Err(invalid(format!("seat {name}: {rows} rows, {} tokens", fed.len())));
        }
        if let Some(token) = fed.iter().find(|&&token| token >= self.caps.vocab) {
            return Err(invalid(format!("seat {name}: token {token}, the vocabulary has {}", self.caps.vocab)));
        }
        let end = state.position.saturating_add(run.rows);
        if end > run.end_max || run.end_max > self.caps.context_len {
            let (end_max, context) = (run.end_max, self.caps.context_len);
            return Err(invalid(format!("seat {name}: end {end}, end_max {end_max}, context {context}")));
        }
        let pages = end.div_ceil(PAGE_TOKENS) as usize;
        if state.pages.len() < pages {
            return Err(invalid(format!("seat {name}: {} pages, length {end} needs {pages}", state.pages.len())));
        }
        match run.emit {
            Emit::Verify => return Err(invalid(format!("seat {name}: there are no drafts to verify"))),
            Emit::Every { from, .. } if from >= run.rows => {
                return Err(invalid(format!("seat {name}: logprobs from row {from} of {rows}")));
            }
            Emit::Every { next: Some(token), .. } if token >= self.caps.vocab => {
                return Err(invalid(format!("seat {name}: token {token}, the vocabulary has {}", self.caps.vocab)));
            }
            _ => {}
        }
        let first = state.position;
        self.batch.push(name.into(), first, fed, &state.pages[..pages]);
        self.runs.push(open(end, false, rows));
        self.take_saves(run.seat, first, end, false);
        Ok(())
    }

    /// Runs the batch and everything that needs its hidden states.
    fn compute(&mut self, out: &mut StepOut) -> Result<(), Panicked> {
        if self.batch.rows.is_empty() {
            return Ok(());
        }
        self.interpreter.run(&self.batch)?;
        let mut runs = std::mem::take(&mut self.runs);
        let ran = runs.iter_mut().filter(|run| !run.skipped).try_for_each(|run| self.emit(run, out));
        self.runs = runs;
        ran?;
        let vocab = self.caps.vocab as usize;
        for (rows, logits) in self.head_rows.chunks(HEAD_ROWS).zip(self.logits.chunks_mut(HEAD_ROWS * vocab)) {
            self.interpreter.head(rows, &mut logits[..rows.len() * vocab])?;
            mask_padding(&mut logits[..rows.len() * vocab], vocab, self.vocab_used);
        }
        Ok(())
    }

    fn emit(&mut self, run: &mut OpenRun, out: &mut StepOut) -> Result<(), Panicked> {
        let end = run.first_row + run.rows;
        match run.emit {
            Emit::Nothing | Emit::Verify => return Ok(()),
            Emit::Next => {}
            Emit::Every { from, top, next } => {
                let start = out.logprobs.len() as u32;
                let rows = run.first_row + from as usize..end - usize::from(next.is_none());
                self.prompt_logprobs(rows, top, next, out)?;
                run.logprobs = start..out.logprobs.len() as u32;
                if next.is_some() {
                    return Ok(());
                }
            }
            Emit::Pool { mean } => {
                let start = out.pooled.len();
                out.pooled.resize(start + self.hidden, 0.0);
                self.pool_rows(if mean { run.first_row } else { end - 1 }..end, &mut out.pooled[start..]);
                run.pooled = start as u32..out.pooled.len() as u32;
                return Ok(());
            }
        }
        run.logits = Some(self.head_rows.len());
        self.head_rows.push(end - 1);
        Ok(())
    }

    /// Row `r` says how likely the token of row `r + 1` was, the last one of a chunk how likely `next` is; a few rows at
    /// a time, because logits are large.
    fn prompt_logprobs(
        &mut self,
        rows: std::ops::Range<usize>,
        top: u8,
        next: Option<TokenId>,
        out: &mut StepOut,
    ) -> Result<(), Panicked> {
        let vocab = self.caps.vocab as usize;
        self.prompt_logits.resize(HEAD_ROWS * vocab, 0.0);
        let mut first = rows.start;
        while first < rows.end {
            let end = rows.end.min(first + HEAD_ROWS);
            let mut indices = [0; HEAD_ROWS];
            for (index, row) in indices.iter_mut().zip(first..end) {
                *index = row;
            }
            let count = end - first;
            self.interpreter.head(&indices[..count], &mut self.prompt_logits[..count * vocab])?;
            mask_padding(&mut self.prompt_logits[..count * vocab], vocab, self.vocab_used);
            let (logits, batch) = (&self.prompt_logits, &self.batch);
            let score = |at: usize| {
                let token = next.filter(|_| first + at + 1 == rows.end);
                let token = token.unwrap_or_else(|| batch.rows[first + at + 1].token);
                raw_logprobs(&logits[at * vocab..(at + 1) * vocab], token, top)
            };
            let mut found: [Option<TokenLogprobs>; HEAD_ROWS] = std::array::from_fn(|_| None);
            let (shares, tickets) = (Shares::new(&mut found), Tickets::new(count, 1));
            self.interpreter.pool().run(&|_| {
                while let Some(range) = tickets.take() {
                    // SAFETY: each row is one item and has a result of its own.
                    let results = unsafe { shares.get(range.clone()) };
                    range.zip(results).for_each(|(at, result)| *result = Some(score(at)));
                }
            })?;
            out.logprobs.extend(found.into_iter().flatten());
            first = end;
        }
        Ok(())
    }

    /// The mean of some rows' hidden states after the last norm.
    fn pool_rows(&mut self, rows: std::ops::Range<usize>, out: &mut [f32]) {
        let count = rows.len() as f32;
        let mut row_out = vec![0.0; self.hidden];
        for row in rows {
            self.interpreter.normed_rows(&[row], &mut row_out);
            out.iter_mut().zip(&row_out).for_each(|(sum, x)| *sum += x / count);
        }
    }
}

/// Ids that no tokenizer knows are never sampled and take no probability.
fn mask_padding(logits: &mut [f32], vocab: usize, used: usize) {
    if used < vocab {
        logits.chunks_exact_mut(vocab).for_each(|row| row[used..].fill(f32::NEG_INFINITY));
    }
}

impl Backend for CpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn pools(&self) -> bool {
        true
    }

    fn scores(&self) -> bool {
        true
    }

    fn bind(&mut self, seat: Seat, init: &SeatInit<'_>) -> Result<(), BackendError> {
        self.healthy()?;
        self.seats.bind(seat, init, self.caps.context_len)?;
        if let Some(states) = self.interpreter.states().filter(|_| init.start == 0) {
            states.reset(seat.0.into());
        }
        Ok(())
    }

    fn release(&mut self, seat: Seat) {
        self.seats.release(seat, self.open.is_some());
    }

    fn forward(&mut self, step: &Step<'_>) -> Result<Ticket, BackendError> {
        self.healthy()?;
        if let Some(open) = &self.open {
            return Err(invalid(format!("step {} is open, the limit is one", open.ticket.0)));
        }
        let rows: u64 = step.runs.iter().map(|run| u64::from(run.rows)).sum();
        if rows > u64::from(self.caps.max_rows) {
            return Err(invalid(format!("{rows} rows, the limit is {}", self.caps.max_rows)));
        }
        if !std::mem::replace(&mut self.placed, true) {
            self.interpreter.pool().place_caller();
        }
        let start = Instant::now();
        self.batch.clear();
        self.runs.clear();
        self.head_rows.clear();
        self.named.fill(false);
        self.saving.clear();
        self.tables(step.tables)?;
        step.runs.iter().try_for_each(|run| self.add_run(run, step.tokens))?;
        if let Some(lost) = self.saving.iter().find(|saving| saving.taken == Some(false)) {
            return Err(invalid(format!(
                "seat {}: no run of this step reaches {} to save its state",
                lost.seat.0, lost.at
            )));
        }
        let mut out = StepOut::default();
        if self.compute(&mut out).is_err() {
            return Err(self.failed("forward"));
        }
        for run in &self.runs {
            if let Some(state) = self.seats.open_mut(run.seat) {
                state.position = run.end;
                state.state_at = Some(run.end);
            }
        }
        for saving in self.saving.iter().filter(|saving| saving.taken.is_some()) {
            self.saved[saving.slot] = Some(saving.at);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.open = Some(Open { ticket, sampled: false, spent: start.elapsed(), out });
        Ok(ticket)
    }

    fn sample(&mut self, ticket: Ticket, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        self.healthy()?;
        let fresh = self.open.as_ref().is_some_and(|open| open.ticket == ticket && !open.sampled);
        if !fresh {
            return Err(invalid(format!("step {} is not open or was sampled already", ticket.0)));
        }
        let start = Instant::now();
        self.draw(masks)?;
        if let Some(open) = &mut self.open {
            open.sampled = true;
            open.spent += start.elapsed();
        }
        Ok(())
    }

    fn drafts(&mut self, ticket: Ticket, _run: u32) -> Result<Vec<TokenId>, BackendError> {
        Err(invalid(format!("step {}: there is no drafter", ticket.0)))
    }

    fn collect(&mut self, ticket: Ticket, _wait: bool) -> Result<Option<StepOut>, BackendError> {
        self.healthy()?;
        match self.open.take() {
            Some(open) if open.ticket == ticket && open.sampled => {
                self.seats.sweep();
                Ok(Some(StepOut { device: open.spent, ..open.out }))
            }
            other => {
                self.open = other;
                Err(invalid(format!("step {} is not open or was not sampled", ticket.0)))
            }
        }
    }
}
