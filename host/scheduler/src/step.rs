//! What a plan is made of: the words that the engine turns into calls of a backend.

use std::ops::Range;

use contract::{PageId, Seat, Slot, TokenId};

use crate::decision::Violation;
use crate::states::StateCopy;

/// A request that takes a seat in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    pub slot: Slot,
    pub seat: Seat,
    /// Tokens whose KV the pages hold already.
    pub start: u32,
}

/// Pages added to a seat's table: a range of [`StepPlan::pages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub seat: Seat,
    pub at: u32,
    pub pages: Range<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// A range of [`StepPlan::tokens`].
    Tokens(Range<u32>),
    /// What the seat sampled last.
    Last,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRun {
    pub slot: Slot,
    pub seat: Seat,
    pub feed: Feed,
    pub rows: u32,
    /// The seat's length after the run.
    pub end: u32,
    /// Whether a token is sampled after the last row.
    pub emits: bool,
}

/// A request whose first grant was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    pub slot: Slot,
    pub cached_tokens: u32,
    pub queued_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub slot: Slot,
    pub code: String,
    pub retry_after_ms: u32,
}

/// The next step, in the order in which a backend must see it: bind, append pages, load states, run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    pub binds: Vec<Bind>,
    pub appends: Vec<Append>,
    pub pages: Vec<PageId>,
    /// Saved states that seats go on from: before anything is saved.
    pub loads: Vec<StateCopy>,
    /// States that this step's runs save on their way, or at their end.
    pub saves: Vec<StateCopy>,
    /// Decodes first.
    pub runs: Vec<PlannedRun>,
    pub tokens: Vec<TokenId>,
    pub rows: u32,
    pub decode_rows: u32,
    /// Rows that were expected to fit the target time.
    pub budget: u32,
    pub started: Vec<Started>,
    pub preempted: Vec<Slot>,
    pub refused: Vec<Refused>,
    pub violations: Vec<Violation>,
}

impl StepPlan {
    pub(crate) fn clear(&mut self) {
        self.binds.clear();
        self.appends.clear();
        self.pages.clear();
        self.loads.clear();
        self.saves.clear();
        self.runs.clear();
        self.tokens.clear();
        self.rows = 0;
        self.decode_rows = 0;
        self.budget = 0;
        self.started.clear();
        self.preempted.clear();
        self.refused.clear();
        self.violations.clear();
    }
}
