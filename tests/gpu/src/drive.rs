//! A backend driven by hand, one sequence per seat: what the engine would do, without its freedom.

use anyhow::{Context, Result};
use backend::Backend;
use backend::step::{Emit, Feed, Run, SeatInit, Step, StepOut, Table};
use contract::sampling::SamplingParams;
use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

/// Sequences in a backend, each on a seat of its own with pages in order.
pub struct Driver<'a> {
    pub backend: &'a mut dyn Backend,
    lengths: Vec<u32>,
    pages: Vec<u32>,
    next_page: u32,
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
        Self { backend, lengths: vec![0; seats], pages: vec![0; seats], next_page: 0 }
    }

    pub fn bind(&mut self, seat: u16, sampling: &SamplingParams, prompt: &[TokenId]) -> Result<()> {
        // Whoever sat there before is gone; a free seat takes no notice.
        self.backend.release(Seat(seat));
        let init = SeatInit { sampling, seed: 7 + u64::from(seat), adapter: None, start: 0, prompt, generated: &[] };
        self.lengths[usize::from(seat)] = 0;
        self.pages[usize::from(seat)] = 0;
        Ok(self.backend.bind(Seat(seat), &init)?)
    }

    /// Launches a step and leaves it in flight.
    pub fn launch(&mut self, parts: &[Part<'_>]) -> Result<backend::step::Ticket> {
        self.launch_as(parts, Emit::Next)
    }

    fn launch_as(&mut self, parts: &[Part<'_>], emitted: Emit) -> Result<backend::step::Ticket> {
        let mut tokens = Vec::new();
        let mut runs = Vec::new();
        let mut grown: Vec<(Seat, u32, Vec<PageId>)> = Vec::new();
        for part in parts {
            let seat = usize::from(part.seat);
            let rows = part.tokens.len().max(1) as u32;
            let end = self.lengths[seat] + rows;
            let wanted = end.div_ceil(PAGE_TOKENS);
            let first = self.pages[seat];
            if wanted > first {
                let new = (first..wanted).map(|_| self.page()).collect::<Result<Vec<_>>>()?;
                grown.push((Seat(part.seat), first, new));
                self.pages[seat] = wanted;
            }
            let at = tokens.len() as u32;
            tokens.extend_from_slice(part.tokens);
            let feed = if part.tokens.is_empty() { Feed::Last } else { Feed::Tokens(at..tokens.len() as u32) };
            let emit = if part.emit { emitted } else { Emit::Nothing };
            runs.push(Run { seat: Seat(part.seat), feed, rows, end_max: end, emit, masked: false });
            self.lengths[seat] = end;
        }
        let tables: Vec<Table<'_>> =
            grown.iter().map(|(seat, at, pages)| Table::Append { seat: *seat, at: *at, pages }).collect();
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
        self.pages.fill(0);
    }
}
