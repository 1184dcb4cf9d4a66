//! Activation rows, quantised once for all weights that read them.
//!
//! Rows are kept in groups of [`GROUP_ROWS`], and inside a group block by block, so that the kernel that serves a whole
//! group reads one stream: `codes[group][block][row][2][32]`, `scales[group][block][row]`, and so on; the last group is as
//! wide as it has rows.
//!
//! A code has 12 bits, in two bytes: 16 times a high part, which is what an int8 code would be, and a low part. One byte
//! alone moves the logits of a small model by tenths; the second costs little, since weights decide how long a product
//! takes, and the tile unit sums 64 products as fast as 32.

use super::buffer::Buffer;
use super::elementwise::{inverse_rms, silu};
use super::simd::{LANES, Simd, entry};
use super::{BLOCK, GROUP_ROWS, Isa};

/// Bytes of a block's codes.
pub(super) const CODE_BYTES: usize = 2 * BLOCK;

/// The largest code: 16 times the largest high part.
const CODE_MAX: f32 = 16.0 * 127.0;

/// Which forms of the rows are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowForms {
    /// 12-bit codes with `scale = max|x| / 2032` for each block of 32: for block formats.
    pub codes: bool,
    /// Sums of half blocks too: for formats with two scales in a block.
    pub halves: bool,
    /// f32: for F32, F16 and BF16 weights.
    pub float: bool,
}

impl RowForms {
    pub fn and(self, other: Self) -> Self {
        Self { codes: self.codes || other.codes, halves: self.halves || other.halves, float: self.float || other.float }
    }
}

/// Up to `max_rows` rows of up to `max_cols` activations.
pub struct QuantRows {
    forms: RowForms,
    max_rows: usize,
    max_cols: usize,
    rows: usize,
    cols: usize,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
    biases: Buffer,
    floats: Buffer,
}

/// One block's place.
#[derive(Clone, Copy)]
struct Place {
    /// Index of (group, block, row) in the order of the arrays.
    block: usize,
    /// Index of the row's first float of this block; the next ones are `group_rows` apart.
    float: usize,
    group_rows: usize,
}

impl QuantRows {
    /// Memory for the largest shape; `set_shape` says what a step uses of it.
    pub fn new(max_rows: usize, max_cols: usize, forms: RowForms) -> Self {
        let blocks = max_rows * max_cols.div_ceil(BLOCK);
        // Kernels that always compute whole groups read beyond the last one.
        let coded = |bytes: usize| Buffer::zeroed(if forms.codes { (blocks + GROUP_ROWS) * bytes } else { 0 });
        Self {
            forms,
            max_rows,
            max_cols,
            rows: 0,
            cols: 0,
            codes: coded(CODE_BYTES),
            scales: coded(4),
            sums: coded(4),
            biases: coded(12),
            floats: Buffer::zeroed(if forms.float { blocks * BLOCK * 4 } else { 0 }),
        }
    }

    /// Sets the shape; what the rows held before means nothing afterwards.
    ///
    /// # Panics
    /// When the shape is larger than the memory, or `cols` is not whole blocks.
    pub fn set_shape(&mut self, rows: usize, cols: usize) {
        assert!(rows <= self.max_rows && cols <= self.max_cols, "{rows} x {cols} rows");
        assert!(cols.is_multiple_of(BLOCK), "{cols} columns are not whole blocks of {BLOCK}");
        self.rows = rows;
        self.cols = cols;
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn forms(&self) -> RowForms {
        self.forms
    }

    /// Writes rows.
    pub fn writer(&mut self) -> RowWriter<'_> {
        RowWriter { rows: self }
    }

    /// Writes rows from one of several threads.
    ///
    /// # Safety
    /// While the writer is used, nobody else writes the same blocks of the same rows, and nobody reads them.
    pub unsafe fn shared_writer(&self) -> RowWriter<'_> {
        RowWriter { rows: self }
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        [&self.codes, &self.scales, &self.sums, &self.biases, &self.floats].iter().map(|buffer| buffer.len()).sum()
    }

    /// Pointers to the group that starts at row `first`.
    pub(super) fn group(&self, first: usize) -> Group {
        debug_assert!(first.is_multiple_of(GROUP_ROWS) && first < self.rows);
        let blocks = first * (self.cols / BLOCK);
        let rows = (self.rows - first).min(GROUP_ROWS);
        Group {
            codes: self.codes.ptr().cast::<i8>().wrapping_add(blocks * CODE_BYTES),
            scales: self.scales.ptr().cast::<f32>().wrapping_add(blocks),
            sums: self.sums.ptr().cast::<f32>().wrapping_add(blocks),
            biases: self.biases.ptr().cast::<i32>().wrapping_add(blocks * 3),
            floats: self.floats.ptr().cast::<f32>().wrapping_add(blocks * BLOCK),
            rows,
        }
    }

    fn place(&self, row: usize, block: usize) -> Place {
        let group = row / GROUP_ROWS * GROUP_ROWS;
        let group_rows = (self.rows - group).min(GROUP_ROWS);
        let blocks = self.cols / BLOCK;
        Place {
            block: group * blocks + block * group_rows + (row - group),
            float: group * self.cols + block * BLOCK * group_rows + (row - group),
            group_rows,
        }
    }

    /// Codes and the scale of one block, for tests.
    pub fn block(&self, row: usize, block: usize) -> ([i16; BLOCK], f32) {
        assert!(self.forms.codes && row < self.rows && block < self.cols / BLOCK);
        let at = self.place(row, block).block;
        // SAFETY: the row and block exist, so `at` is below the block count that the buffers were made for.
        let ([high, low], scale) =
            unsafe { (*self.codes.ptr().cast::<[[i8; BLOCK]; 2]>().add(at), *self.scales.ptr().cast::<f32>().add(at)) };
        (std::array::from_fn(|k| 16 * i16::from(high[k]) + i16::from(low[k])), scale)
    }
}

/// Pointers to one group of rows: `rows` is 1 to 16.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// `[block][row][2][32]`: high parts, then low ones.
    pub codes: *const i8,
    /// `[block][row]`
    pub scales: *const f32,
    /// `[block][row]`: scale times the sum of the codes, for formats with a minimum.
    pub sums: *const f32,
    /// `[block][row][3]`: minus 8 times the sum of all codes, and where they are kept those of the first and of the last 16: a sixteenth of what weights
    /// with an offset of 128 add too much.
    pub biases: *const i32,
    /// `[col][row]`
    pub floats: *const f32,
    pub rows: usize,
}

/// Writes blocks of rows.
pub struct RowWriter<'a> {
    rows: &'a QuantRows,
}

impl RowWriter<'_> {
    /// Stores `values` as the columns from `first_col` on of a row, in every form that is kept.
    ///
    /// # Panics
    /// When the columns are not whole blocks inside the row.
    pub fn put(&mut self, isa: Isa, row: usize, first_col: usize, values: &[f32]) {
        assert!(row < self.rows.rows, "row {row} of {}", self.rows.rows);
        assert!(first_col.is_multiple_of(BLOCK) && values.len().is_multiple_of(BLOCK), "{first_col}+{}", values.len());
        assert!(first_col + values.len() <= self.rows.cols, "{first_col}+{} of {}", values.len(), self.rows.cols);
        // SAFETY: the row and its blocks exist, as asserted, and writing them is this writer's right.
        unsafe { put(isa, self.rows, row, first_col / BLOCK, values) }
    }

    /// Stores `weight values / sqrt(mean(values^2) + eps)` as a whole row.
    ///
    /// # Panics
    /// When there is no such row, or `values` or `weight` are not as long as the row.
    pub fn put_rms_norm(&mut self, isa: Isa, row: usize, values: &[f32], weight: &[f32], eps: f32) {
        assert!(row < self.rows.rows, "row {row} of {}", self.rows.rows);
        assert!(
            values.len() == self.rows.cols && weight.len() == values.len(),
            "{} of {}",
            values.len(),
            self.rows.cols
        );
        // SAFETY: the row exists and is as long as the values, as asserted; writing it is this writer's right.
        unsafe { put_norm(isa, self.rows, row, values, weight, eps) }
    }

    /// Stores `silu(gate) up` as the columns from `first_col` on of a row.
    ///
    /// # Panics
    /// When the columns are not whole blocks inside the row, or `gate` and `up` differ in length.
    pub fn put_silu_mul(&mut self, isa: Isa, row: usize, first_col: usize, gate: &[f32], up: &[f32]) {
        assert!(row < self.rows.rows, "row {row} of {}", self.rows.rows);
        assert!(first_col.is_multiple_of(BLOCK) && gate.len().is_multiple_of(BLOCK), "{first_col}+{}", gate.len());
        assert!(first_col + gate.len() <= self.rows.cols && up.len() == gate.len(), "{first_col}+{}", gate.len());
        // SAFETY: the row and its blocks exist, as asserted, and writing them is this writer's right.
        unsafe { put_silu(isa, self.rows, row, first_col / BLOCK, gate, up) }
    }
}

entry!(unsafe fn put = put_values(rows: &QuantRows, row: usize, first: usize, values: &[f32]));
entry!(unsafe fn put_norm = put_normed(rows: &QuantRows, row: usize, values: &[f32], weight: &[f32], eps: f32));
entry!(unsafe fn put_silu = put_gated(rows: &QuantRows, row: usize, first: usize, gate: &[f32], up: &[f32]));

/// Where the values of a row come from: not a closure, which may be compiled without the instruction set.
trait Values<S: Simd> {
    /// 16 values from element `at` after the first.
    ///
    /// # Safety
    /// The processor has `S`; there are as many values.
    unsafe fn get(&self, at: usize) -> S::F;
}

struct Plain<'a>(&'a [f32]);

struct Normed<'a, S: Simd> {
    values: &'a [f32],
    weight: &'a [f32],
    scale: S::F,
}

struct Gated<'a> {
    gate: &'a [f32],
    up: &'a [f32],
}

impl<S: Simd> Values<S> for Plain<'_> {
    #[inline(always)]
    unsafe fn get(&self, at: usize) -> S::F {
        // SAFETY: the caller's promises.
        unsafe { S::load(self.0.as_ptr().add(at)) }
    }
}

impl<S: Simd> Values<S> for Normed<'_, S> {
    #[inline(always)]
    unsafe fn get(&self, at: usize) -> S::F {
        // SAFETY: the caller's promises.
        unsafe {
            let scaled = S::mul(S::load(self.values.as_ptr().add(at)), self.scale);
            S::mul(scaled, S::load(self.weight.as_ptr().add(at)))
        }
    }
}

impl<S: Simd> Values<S> for Gated<'_> {
    #[inline(always)]
    unsafe fn get(&self, at: usize) -> S::F {
        // SAFETY: the caller's promises.
        unsafe { S::mul(silu::<S>(S::load(self.gate.as_ptr().add(at))), S::load(self.up.as_ptr().add(at))) }
    }
}

/// # Safety
/// The processor has `S`; the blocks lie inside the row and nobody else uses them.
#[inline(always)]
unsafe fn put_values<S: Simd>(rows: &QuantRows, row: usize, first: usize, values: &[f32]) {
    // SAFETY: the caller's promises; the blocks are those of the values.
    unsafe { put_blocks::<S>(rows, row, first..first + values.len() / BLOCK, &Plain(values)) }
}

/// # Safety
/// The processor has `S`; the row exists, is `values.len()` long, and nobody else uses it; `weight` is as long.
#[inline(always)]
unsafe fn put_normed<S: Simd>(rows: &QuantRows, row: usize, values: &[f32], weight: &[f32], eps: f32) {
    // SAFETY: the caller's promises; the blocks are those of the values.
    unsafe {
        let scale = S::splat(inverse_rms::<S>(values, eps));
        put_blocks::<S>(rows, row, 0..values.len() / BLOCK, &Normed::<S> { values, weight, scale });
    }
}

/// # Safety
/// The processor has `S`; the blocks lie inside the row and nobody else uses them; `up` is as long as `gate`.
#[inline(always)]
unsafe fn put_gated<S: Simd>(rows: &QuantRows, row: usize, first: usize, gate: &[f32], up: &[f32]) {
    // SAFETY: the caller's promises; the blocks are those of the values.
    unsafe { put_blocks::<S>(rows, row, first..first + gate.len() / BLOCK, &Gated { gate, up }) }
}

/// Stores blocks.
///
/// # Safety
/// The processor has `S`; the blocks lie inside the row, `values` has them all, and nobody else uses them.
#[inline(always)]
unsafe fn put_blocks<S: Simd>(rows: &QuantRows, row: usize, blocks: std::ops::Range<usize>, values: &impl Values<S>) {
    for (i, block) in blocks.enumerate() {
        let place = rows.place(row, block);
        // SAFETY: the caller's promises; `place` is inside every buffer because the row and the block exist.
        unsafe {
            let (low, high) = (values.get(i * BLOCK), values.get(i * BLOCK + LANES));
            if rows.forms.codes {
                quantise::<S>(rows, place.block, low, high);
            }
            if rows.forms.float {
                let mut lanes = [0.0; BLOCK];
                S::store(lanes.as_mut_ptr(), low);
                S::store(lanes.as_mut_ptr().add(LANES), high);
                let floats = rows.floats.ptr().cast::<f32>().add(place.float);
                for (j, x) in lanes.into_iter().enumerate() {
                    *floats.add(j * place.group_rows) = x;
                }
            }
        }
    }
}

/// Symmetric: `scale = max|x| / 2032`, codes rounded to nearest even.
///
/// # Safety
/// The processor has `S` and `at` is a block of the buffers that nobody else uses.
#[inline(always)]
unsafe fn quantise<S: Simd>(rows: &QuantRows, at: usize, low: S::F, high: S::F) {
    // SAFETY: the buffers hold block `at`.
    unsafe {
        let largest = f32::from_bits(S::max_abs_bits(low, high));
        let finite = largest.is_finite();
        let inverse = if largest > 0.0 && finite { CODE_MAX / largest } else { 0.0 };
        // The quotient overflows for tiny blocks: they are zero.
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let scale = if finite { largest / CODE_MAX } else { f32::NAN };
        let by = S::splat(inverse);
        let codes = rows.codes.ptr().cast::<i8>().add(at * CODE_BYTES);
        let zero = S::splat(0.0);
        let (low, high) = if finite { (S::round(S::mul(low, by)), S::round(S::mul(high, by))) } else { (zero, zero) };
        for (half, x) in [(0, low), (LANES, high)] {
            // Between -127 and 127, which leaves -8 to 8.
            let upper = S::round(S::mul(x, S::splat(1.0 / 16.0)));
            S::store_i8(codes.add(half), upper);
            S::store_i8(codes.add(BLOCK + half), S::fma(upper, S::splat(-16.0), x));
        }
        // Sums of at most 32 codes are exact in f32.
        let sum = S::sum(S::add(low, high));
        *rows.scales.ptr().cast::<f32>().add(at) = scale;
        *rows.sums.ptr().cast::<f32>().add(at) = scale * sum;
        let biases = rows.biases.ptr().cast::<i32>().add(at * 3);
        *biases = -8 * sum as i32;
        if rows.forms.halves {
            let low = S::sum(low);
            *biases.add(1) = -8 * low as i32;
            *biases.add(2) = -8 * (sum - low) as i32;
        }
    }
}
