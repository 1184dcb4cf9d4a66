//! The step trait: how the engine drives a device.
//!
//! A step is two calls. [`Backend::forward`] queues uploads, table changes and the forward pass; [`Backend::sample`]
//! queues sampling of that step, with grammar masks that may have become known only while the forward pass ran.
//! [`Backend::collect`] brings the sampled tokens back. With `in_flight` of 2 the engine plans and launches step N+1
//! before it collects step N, so a seat's state (position, last token, penalty counts, whether it is done) lives in the
//! backend and the host only knows upper bounds.

use std::ops::Range;
use std::time::Duration;

use contract::sampling::{SamplingParams, TokenLogprobs};
use contract::{PageId, Seat, TokenId};

use crate::BackendError;

/// Fixed at load; the engine never exceeds them.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    pub vocab: u32,
    /// Longest sequence, prompt and output together, in tokens.
    pub context_len: u32,
    pub seats: u16,
    pub pages: u32,
    pub page_tokens: u32,
    /// A sequence has a state that only [`Table::Load`] brings to a position beyond 0: without slots for saved states a
    /// prefix cannot be used again.
    pub recurrent: bool,
    /// Slots for saved recurrent states; 0 for models that have none.
    pub state_slots: u32,
    pub adapters: u16,
    /// Token rows in one step, prefill and decode together.
    pub max_rows: u32,
    /// Tokens that one decoding seat may feed in one step; above 1 the backend verifies drafts.
    pub max_query: u8,
    /// Steps that may be launched before the oldest is collected.
    pub in_flight: u8,
    /// Prefill must be cut at multiples of this, in absolute position; the last chunk is exempt.
    pub resume_align: u32,
    /// Products take rows in tiles of so many: a step of whole tiles wastes nothing. 1 where that is not felt.
    pub rows_tile: u32,
    /// Those of steps that have at least four times as many; 1 where that is not felt.
    pub large_rows_tile: u32,
    /// Words of a grammar mask: `vocab.div_ceil(32)`.
    pub mask_words: u32,
    /// Captured decode sizes as (rows, query length); empty where steps are never captured.
    pub graphs: Vec<(u16, u8)>,
}

/// Index of a loaded LoRA adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdapterSlot(pub u16);

/// Where a recurrent state is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateSlot(pub u32);

/// A launched step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Written to the device once, at admission: nothing here changes from step to step.
#[derive(Clone, Debug)]
pub struct SeatInit<'a> {
    pub sampling: &'a SamplingParams,
    pub seed: u64,
    pub adapter: Option<AdapterSlot>,
    /// Position of the first token that will be fed: what the prefix cache holds already.
    pub start: u32,
    /// For penalties, and for a scripted model's choice of a response.
    pub prompt: &'a [TokenId],
    /// Tokens generated before a preemption; the seat goes on counting from here.
    pub generated: &'a [TokenId],
}

/// Where a run's input tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Host tokens: a range of [`Step::tokens`].
    Tokens(Range<u32>),
    /// The seat's last sampled token, which may not have reached the host yet.
    Last,
    /// The seat's last token and up to `max` drafts of its own.
    Draft { max: u8 },
}

/// What a run must give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// A prefill chunk before the last.
    Nothing,
    /// One sampled token after the run's last row.
    Next,
    /// Verify the drafts and sample after the last accepted one.
    Verify,
    /// Logprobs of the prompt's own tokens: each row from `from` on says how likely the token after it was, beside the
    /// `top` likeliest. After the last row comes `next`, and nothing is sampled; without it, the prompt ends and a token
    /// is sampled as with `Next`.
    Every { from: u32, top: u8, next: Option<TokenId> },
    /// A pooled hidden state of the run's rows instead of a token: their mean, or the last row.
    Pool { mean: bool },
}

impl Emit {
    /// Whether a token is sampled after the run's last row.
    pub fn samples(&self) -> bool {
        matches!(self, Self::Next | Self::Verify | Self::Every { next: None, .. })
    }
}

/// Consecutive rows of one seat in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub seat: Seat,
    pub feed: Feed,
    pub rows: u32,
    /// Upper bound of the seat's length after this run: pages for it are in the table.
    pub end_max: u32,
    pub emit: Emit,
    /// A mask for this run's sampled row will come with [`Backend::sample`].
    pub masked: bool,
}

/// A change of tables, applied in order before the step's rows run, but for a [`Table::Save`] within them.
#[derive(Clone, Debug, PartialEq)]
pub enum Table<'a> {
    /// `pages` become the seat's pages number `at`, `at + 1`, ….
    Append {
        seat: Seat,
        at: u32,
        pages: &'a [PageId],
    },
    CopyPage {
        from: PageId,
        to: PageId,
    },
    /// Copies the seat's recurrent state as it is after `at` tokens: now, or while the step's rows of this seat run. `at` is
    /// a multiple of [`Caps::resume_align`], not before the seat's position and not beyond the end of its run. Of a run that
    /// is skipped because the seat is done nothing is saved.
    Save {
        seat: Seat,
        at: u32,
        to: StateSlot,
    },
    /// Gives the seat the state that was saved in a slot; before its first row, and at the position that it was bound with.
    Load {
        seat: Seat,
        from: StateSlot,
    },
}

/// One step. Runs are in row order, decodes first; a prompt's last token may be a run of one row behind longer ones.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    pub tables: &'a [Table<'a>],
    pub runs: &'a [Run],
    pub tokens: &'a [TokenId],
}

/// Allowed tokens of one run's row, as in [`contract::constraint::TokenConstraint::fill_mask`].
#[derive(Clone, Debug)]
pub struct Mask<'a> {
    pub run: u32,
    pub row: u8,
    pub bits: &'a [u32],
    /// The one allowed token is written by the host in the model's place, and not one of the model's choices that a
    /// grammar narrowed down to one. A device samples both alike; a scripted model does not take it for a mistake.
    pub forced: bool,
}

/// What one run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOut {
    /// Range of [`StepOut::tokens`]; empty for [`Emit::Nothing`] and for a seat that was already done.
    pub tokens: Range<u32>,
    /// Drafts accepted.
    pub accepted: u8,
    /// The seat's length after the run, in tokens whose KV exists.
    pub end: u32,
    /// A stop token was sampled: the seat runs no more rows that count.
    pub done: bool,
    /// Range of [`StepOut::logprobs`].
    pub logprobs: Range<u32>,
    /// Range of [`StepOut::pooled`].
    pub pooled: Range<u32>,
    /// This seat's sequence failed; the others are not affected.
    pub fault: Option<SeatFault>,
}

/// Why one seat's sequence cannot go on.
#[derive(Clone, Debug, PartialEq)]
pub enum SeatFault {
    /// Ends as [`contract::generation::GenerationError`] `Engine`.
    Error(String),
    /// Ends as `Aborted`.
    Abort(String),
    /// Ends as `ScriptViolatesGrammar`.
    ScriptViolatesGrammar { position: u32 },
    /// The sequence ends with `Length` although neither the limit nor the context was reached (scripted models).
    Length,
    /// The sequence says nothing more and does not end (scripted models): it keeps its seat until it is cancelled.
    Hang,
}

/// What one step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOut {
    /// One entry per run, in the step's order.
    pub runs: Vec<RunOut>,
    pub tokens: Vec<TokenId>,
    pub logprobs: Vec<TokenLogprobs>,
    pub pooled: Vec<f32>,
    /// Measured device time of the step.
    pub device: Duration,
    pub graph: Option<(u16, u8)>,
    /// Null rows that were run to fill a captured size.
    pub padded_rows: u32,
}

/// A device with a model on it. One thread drives it; every call but a waiting `collect` returns soon.
pub trait Backend: Send {
    fn caps(&self) -> &Caps;

    /// Whether it serves [`Emit::Pool`].
    fn pools(&self) -> bool {
        false
    }

    /// Whether it serves [`Emit::Every`].
    fn scores(&self) -> bool {
        false
    }

    /// Puts a sequence on a seat. The seat must be free.
    fn bind(&mut self, seat: Seat, init: &SeatInit<'_>) -> Result<(), BackendError>;

    /// Frees a seat; acts after the tickets in flight.
    fn release(&mut self, seat: Seat);

    /// Queues table changes and the forward pass; never waits for the device.
    fn forward(&mut self, step: &Step<'_>) -> Result<Ticket, BackendError>;

    /// Queues sampling of that step. Masks may come late: all else already runs.
    fn sample(&mut self, ticket: Ticket, masks: &[Mask<'_>]) -> Result<(), BackendError>;

    /// Drafts of a masked run, so that the host can build its masks; waits for that ticket only.
    fn drafts(&mut self, ticket: Ticket, run: u32) -> Result<Vec<TokenId>, BackendError>;

    /// The result of the oldest open ticket. With `wait: false` it polls and may answer `None`.
    fn collect(&mut self, ticket: Ticket, wait: bool) -> Result<Option<StepOut>, BackendError>;
}
