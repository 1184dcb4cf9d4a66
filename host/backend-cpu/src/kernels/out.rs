//! A range of output columns, so that threads can write disjoint columns of one row-major buffer.

use std::marker::PhantomData;
use std::ops::Range;

/// Columns `first .. first + cols` of a row-major `rows x stride` buffer of f32.
#[derive(Debug)]
pub struct OutCols<'a> {
    start: *mut f32,
    rows: usize,
    stride: usize,
    cols: usize,
    buffer: PhantomData<&'a mut [f32]>,
}

// SAFETY: an `OutCols` is an exclusive borrow of its elements, as `&mut [f32]` is; two of them never overlap unless
// `alias` was used, whose caller promises disjoint columns.
unsafe impl Send for OutCols<'_> {}
// SAFETY: writing needs `&mut self` or `alias`, see above.
unsafe impl Sync for OutCols<'_> {}

impl<'a> OutCols<'a> {
    /// The columns `cols` of a buffer of `buffer.len() / stride` whole rows.
    ///
    /// # Panics
    /// When the columns do not fit in the stride or the buffer is not whole rows.
    pub fn new(buffer: &'a mut [f32], stride: usize, cols: Range<usize>) -> Self {
        assert!(stride > 0 && buffer.len().is_multiple_of(stride), "buffer of {} by {stride}", buffer.len());
        assert!(cols.start <= cols.end && cols.end <= stride, "columns {cols:?} of {stride}");
        let rows = buffer.len() / stride;
        // SAFETY: `cols.start <= stride`, so the pointer stays inside the buffer or one past it when it is empty.
        let start = if rows == 0 { buffer.as_mut_ptr() } else { unsafe { buffer.as_mut_ptr().add(cols.start) } };
        Self { start, rows, stride, cols: cols.len(), buffer: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns before `at`, and from `at` on.
    ///
    /// # Panics
    /// When `at` is beyond the last column.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.cols, "column {at} of {}", self.cols);
        // SAFETY: the two halves cover disjoint columns and `self` is consumed.
        unsafe { (self.alias(0..at), self.alias(at..self.cols)) }
    }

    /// Some of the columns, for a thread of a pool.
    ///
    /// # Safety
    /// While the answer is used nobody else reads or writes these columns, through whatever view.
    ///
    /// # Panics
    /// When the columns lie outside.
    pub unsafe fn alias(&self, cols: Range<usize>) -> OutCols<'a> {
        assert!(cols.start <= cols.end && cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let start = self.start.wrapping_add(cols.start);
        Self { start, rows: self.rows, stride: self.stride, cols: cols.len(), buffer: PhantomData }
    }

    /// Row `m` of these columns.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row_mut(&mut self, m: usize) -> &mut [f32] {
        assert!(m < self.rows, "row {m} of {}", self.rows);
        // SAFETY: `m < rows` and the columns lie inside the stride, so the slice is inside the buffer, which is borrowed
        // exclusively through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(m * self.stride), self.cols) }
    }

    /// Where row 0 starts, and the distance of rows; for kernels that have asserted their bounds.
    pub(super) fn raw(&mut self) -> (*mut f32, usize) {
        (self.start, self.stride)
    }
}
