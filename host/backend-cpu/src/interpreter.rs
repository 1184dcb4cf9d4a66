//! What runs a batch of rows through a model.

use contract::PageId;

use crate::batch::Batch;
use crate::pool::{Panicked, ThreadPool};
use crate::state::States;

/// Runs a model's operations. There are two: [`crate::exact::Exact`], the oracle, and [`crate::fast::Fast`].
pub trait Interpreter: Send {
    /// Every operation before the head, for all rows of a batch; keys and values go to the batch's pages.
    fn run(&mut self, batch: &Batch) -> Result<(), Panicked>;

    /// Logits `[rows][vocab]` of some rows of the last batch, at most [`HEAD_ROWS`].
    fn head(&mut self, rows: &[usize], logits: &mut [f32]) -> Result<(), Panicked>;

    /// The hidden states `[rows][hidden]` that the head reads.
    fn normed_rows(&mut self, rows: &[usize], out: &mut [f32]);

    fn copy_page(&mut self, from: PageId, to: PageId);

    /// The recurrent states of seats, and those that were saved; `None` for a model without.
    fn states(&mut self) -> Option<&mut States>;

    /// Its threads, which also sample.
    fn pool(&mut self) -> &mut ThreadPool;
}

/// Rows of one call of [`Interpreter::head`]: their logits are the largest rows there are.
pub const HEAD_ROWS: usize = 16;
