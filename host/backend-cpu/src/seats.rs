//! The seat table: what the backend remembers of each running sequence between steps.

use backend::BackendError;
use backend::sampler::TokenCounts;
use backend::step::{SeatInit, Table};
use contract::sampling::SamplingParams;
use contract::{PageId, Seat, TokenId};

use crate::invalid;

/// One sequence.
#[derive(Debug)]
pub struct SeatState {
    pub sampling: SamplingParams,
    pub seed: u64,
    /// Tokens whose KV exists.
    pub position: u32,
    /// Length of the sequence that its recurrent state is of; `None`: it was not loaded yet.
    pub state_at: Option<u32>,
    /// The last sampled token, once there is one.
    pub last: Option<TokenId>,
    /// Tokens generated so far.
    pub generated: u32,
    /// Present when a penalty needs it.
    pub counts: Option<TokenCounts>,
    pub pages: Vec<PageId>,
    /// A stop token was sampled.
    pub done: bool,
    /// Released while a ticket is open; free once it is collected.
    releasing: bool,
}

/// All seats.
#[derive(Debug)]
pub struct SeatTable {
    seats: Vec<Option<SeatState>>,
    pages: u32,
    context_pages: usize,
}

impl SeatTable {
    pub fn new(seats: u16, pages: u32, context_pages: usize) -> Self {
        Self { seats: (0..seats).map(|_| None).collect(), pages, context_pages }
    }

    pub fn bind(&mut self, seat: Seat, init: &SeatInit<'_>, context_len: u32) -> Result<(), BackendError> {
        let count = self.seats.len();
        let slot = self.seats.get_mut(usize::from(seat.0));
        let slot = slot.ok_or_else(|| invalid(format!("seat {} of {count}", seat.0)))?;
        if slot.is_some() {
            return Err(invalid(format!("seat {} is bound already", seat.0)));
        }
        if init.adapter.is_some() {
            let fix = "adapters are not supported here".to_owned();
            return Err(BackendError::Unsupported { what: "a LoRA adapter".to_owned(), fix });
        }
        if init.start >= context_len {
            return Err(invalid(format!("seat {} starts at {}, the context is {context_len}", seat.0, init.start)));
        }
        let history = init.sampling.needs_history();
        *slot = Some(SeatState {
            sampling: init.sampling.clone(),
            seed: init.seed,
            position: init.start,
            state_at: (init.start == 0).then_some(0),
            last: None,
            generated: init.generated.len() as u32,
            counts: history.then(|| TokenCounts::new(init.prompt, init.generated)),
            pages: Vec::with_capacity(self.context_pages),
            done: false,
            releasing: false,
        });
        Ok(())
    }

    /// Frees a seat, or marks it while `open` steps still name it. A seat that is free already stays so.
    pub fn release(&mut self, seat: Seat, open: bool) {
        let Some(slot) = self.seats.get_mut(usize::from(seat.0)) else { return };
        match slot {
            Some(state) if open => state.releasing = true,
            _ => *slot = None,
        }
    }

    /// Frees what was released while a step was open.
    pub fn sweep(&mut self) {
        for slot in &mut self.seats {
            if slot.as_ref().is_some_and(|state| state.releasing) {
                *slot = None;
            }
        }
    }

    /// A bound seat that is not on its way out.
    pub fn get_mut(&mut self, seat: Seat) -> Result<&mut SeatState, BackendError> {
        let slot = self.seats.get_mut(usize::from(seat.0)).and_then(Option::as_mut);
        slot.filter(|state| !state.releasing).ok_or_else(|| invalid(format!("seat {} is not bound", seat.0)))
    }

    /// A seat of an open step, released or not.
    pub fn open_mut(&mut self, seat: Seat) -> Option<&mut SeatState> {
        self.seats.get_mut(usize::from(seat.0)).and_then(Option::as_mut)
    }

    pub fn open(&self, seat: Seat) -> Option<&SeatState> {
        self.seats.get(usize::from(seat.0)).and_then(Option::as_ref)
    }

    /// Appends pages to a seat, checked.
    pub fn append(&mut self, table: &Table<'_>) -> Result<(), BackendError> {
        let Table::Append { seat, at, pages } = table else { return Ok(()) };
        let (limit, context_pages) = (self.pages, self.context_pages);
        if let Some(page) = pages.iter().find(|page| page.0 >= limit) {
            return Err(invalid(format!("seat {}: page {} of a pool of {limit}", seat.0, page.0)));
        }
        let state = self.get_mut(*seat)?;
        if *at as usize != state.pages.len() {
            let have = state.pages.len();
            return Err(invalid(format!("seat {} has {have} pages, the next come at {at}", seat.0)));
        }
        if state.pages.len() + pages.len() > context_pages {
            let count = state.pages.len() + pages.len();
            return Err(invalid(format!("seat {}: {count} pages, a context has {context_pages}", seat.0)));
        }
        state.pages.extend_from_slice(pages);
        Ok(())
    }

    pub fn check_page(&self, page: PageId) -> Result<(), BackendError> {
        if page.0 >= self.pages {
            return Err(invalid(format!("page {} of a pool of {}", page.0, self.pages)));
        }
        Ok(())
    }
}
