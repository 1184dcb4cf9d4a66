//! Steps whose rows do not depend on each other: [`crate::CudaOptions::batch_invariant`].
//!
//! What a row's sums depend on elsewhere, and what is done here instead:
//! - Products are summed by one of two ways, by the number of rows, and the library's order depends on it too; one or two
//!   rows of K formats have a third, in whole numbers. Here every row goes through the kernels of few rows, in which each is
//!   a column of its own, 16 at a time: the weights are read again for every 16 rows, which is what this costs.
//! - Attention of single rows is split by keys, that of prompts is not, but for deep ones that would leave the card idle.
//!   Here all rows are prompts to it and nothing is split: keys are added in the order of their pages, and a key that a row
//!   does not see adds nothing to it.
//! - A prompt's last row may stand alone, which the delta rule would take by the recurrence. Here it is a chunk of one, as
//!   it is behind others.
//!
//! What is left: an answer's tokens go through the recurrence, and through chunks when they are part of a prompt later. A
//! hybrid's state is then another form of the same sums.

use backend::BackendError;

use crate::block_products::Rows;
use crate::forward::{Forward, StepSize};
use crate::products::{Epilogue, FEW_ROWS_MAX, Matrix};

/// Rows as the kernels of few rows take them: the first of each group, and how many it has.
pub fn groups(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(FEW_ROWS_MAX).map(move |first| (first, FEW_ROWS_MAX.min(rows - first)))
}

impl Forward<'_> {
    /// Whether a product goes through the kernels of few rows.
    pub(crate) fn few(&self, rows: usize) -> bool {
        rows <= FEW_ROWS_MAX || self.model.invariant
    }

    /// Rows that attention takes one by one, and those that it takes as prompts.
    pub(crate) fn attention_rows(&self, size: StepSize) -> (usize, usize) {
        if self.model.invariant { (0, size.rows) } else { (size.decodes, size.prefill_rows) }
    }

    /// A product group by group.
    pub(crate) fn product_in_groups(
        &mut self,
        epilogue: Epilogue,
        (out, x): (u64, Rows),
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let size = if epilogue == Epilogue::StoreF32 { 4 } else { 2 };
        groups(m).try_for_each(|(first, rows)| {
            let (out, x) = (out + (first * n * size) as u64, Rows { pointer: x.pointer + (first * k * 2) as u64, ..x });
            self.product(epilogue, out, x, matrix, (rows, n, k))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_sixteens() {
        let of = |rows| groups(rows).collect::<Vec<_>>();
        assert_eq!(of(16), [(0, 16)]);
        assert_eq!(of(33), [(0, 16), (16, 16), (32, 1)]);
        assert_eq!(of(0), []);
    }
}
