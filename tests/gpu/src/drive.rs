//! A backend driven by hand, one sequence per seat: what the engine would do, without its freedom.

use anyhow::{Context, Result};
use backend::Backend;
use backend::step::{Emit, Feed, Run, SeatInit, StateSlot, Step, StepOut, Table};
use contract::sampling::SamplingParams;
use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

/// Sequences in a backend, each on a seat of its own with pages in order.
pub struct Driver<'a> {
    pub backend: &'a mut dyn Backend,
    lengths: Vec<u32>,
    pages: Vec<Vec<PageId>>,
    next_page: u32,
    /// Seats whose first pages are not in the table yet.
    shared: Vec<Seat>,
    /// Saves and loads of the next step.
    states: Vec<Table<'static>>,
}

/// One run of a step to be.
pub struct Part<'a> {
    pub seat: u16,
    /// Host tokens; empty: the seat's own last token.
    pub tokens: &'a [TokenId],
    pub emit: bool,
}

impl<'a> Driver<'a> {
    pub fn new(backend: &'a mut dyn Backend) -> Self {
        let seats = usize::from(backend.caps().seats);
        let (lengths, pages) = (vec![0; seats], vec![Vec::new(); seats]);
        Self { backend, lengths, pages, next_page: 0, shared: Vec::new(), states: Vec::new() }
    }

    pub fn bind(&mut self, seat: u16, sampling: &SamplingParams, prompt: &[TokenId]) -> Result<()> {
        self.bind_at(seat, sampling, prompt, 0)
    }

    /// A seat that begins behind `start` tokens that another one's first pages hold, with a saved state of them.
    pub fn bind_behind(
        &mut self,
        seat: u16,
        sampling: &SamplingParams,
        prompt: &[TokenId],
        (of, start, slot): (u16, u32, u32),
    ) -> Result<()> {
        let pages = self.pages[usize::from(of)][..start.div_ceil(PAGE_TOKENS) as usize].to_vec();
        self.bind_at(seat, sampling, prompt, start)?;
        self.pages[usize::from(seat)] = pages;
        self.shared.push(Seat(seat));
        self.states.push(Table::Load { seat: Seat(seat), from: StateSlot(slot) });
        Ok(())
    }

    /// The next step saves the state that the seat has after `at` tokens.
    pub fn save(&mut self, seat: u16, at: u32, slot: u32) {
        self.states.push(Table::Save { seat: Seat(seat), at, to: StateSlot(slot) });
    }

    fn bind_at(&mut self, seat: u16, sampling: &SamplingParams, prompt: &[TokenId], start: u32) -> Result<()> {
        // Whoever sat there before is gone; a free seat takes no notice.
        self.backend.release(Seat(seat));
        let init = SeatInit { sampling, seed: 7 + u64::from(seat), adapter: None, start, prompt, generated: &[] };
        self.lengths[usize::from(seat)] = start;
        self.pages[usize::from(seat)].clear();
        Ok(self.backend.bind(Seat(seat), &init)?)
    }

    /// Launches a step and leaves it in flight.
    pub fn launch(&mut self, parts: &[Part<'_>]) -> Result<backend::step::Ticket> {
        self.launch_as(parts, Emit::Next)
    }

    fn launch_as(&mut self, parts: &[Part<'_>], emitted: Emit) -> Result<backend::step::Ticket> {
        let mut tokens = Vec::new();
        let mut runs = Vec::new();
        let first = |seat: Seat| (seat, 0, self.pages[usize::from(seat.0)].clone());
        let mut grown: Vec<(Seat, u32, Vec<PageId>)> = self.shared.drain(..).map(first).collect();
        for part in parts {
            let seat = usize::from(part.seat);
            let rows = part.tokens.len().max(1) as u32;
            let end = self.lengths[seat] + rows;
            let wanted = end.div_ceil(PAGE_TOKENS);
            let first = self.pages[seat].len() as u32;
            if wanted > first {
                let new = (first..wanted).map(|_| self.page()).collect::<Result<Vec<_>>>()?;
                self.pages[seat].extend(&new);
                grown.push((Seat(part.seat), first, new));
            }
            let at = tokens.len() as u32;
            tokens.extend_from_slice(part.tokens);
            let feed = if part.tokens.is_empty() { Feed::Last } else { Feed::Tokens(at..tokens.len() as u32) };
            let emit = if part.emit { emitted } else { Emit::Nothing };
            runs.push(Run { seat: Seat(part.seat), feed, rows, end_max: end, emit, masked: false });
            self.lengths[seat] = end;
        }
        let appends = grown.iter().map(|(seat, at, pages)| Table::Append { seat: *seat, at: *at, pages });
        let tables: Vec<Table<'_>> = appends.chain(self.states.drain(..)).collect();
        let ticket = self.backend.forward(&Step { tables: &tables, runs: &runs, tokens: &tokens })?;
        self.backend.sample(ticket, &[])?;
        Ok(ticket)
    }

    /// One run that gives what `emit` says.
    pub fn emit(&mut self, seat: u16, tokens: &[TokenId], emit: Emit) -> Result<StepOut> {
        let ticket = self.launch_as(&[Part { seat, tokens, emit: true }], emit)?;
        self.backend.collect(ticket, true)?.context("a waiting collect gave nothing")
    }

    pub fn step(&mut self, parts: &[Part<'_>]) -> Result<StepOut> {
        let ticket = self.launch(parts)?;
        self.backend.collect(ticket, true)?.context("a waiting collect gave nothing")
    }

    fn page(&mut self) -> Result<PageId> {
        let page = self.next_page;
        anyhow::ensure!(page < self.backend.caps().pages, "the check needs more than {page} pages");
        self.next_page += 1;
        Ok(PageId(page))
    }

    /// All pages free again; every seat must be bound anew.
    pub fn clear(&mut self) {
        self.next_page = 0;
        self.lengths.fill(0);
        self.pages.iter_mut().for_each(Vec::clear);
    }
}
