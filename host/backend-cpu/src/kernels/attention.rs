//! Causal attention of a few query rows over paged keys and values.
//!
//! A pool is one slice of f16 for each layer: page after page, in a page one block for each key head, and in a block
//! first the keys `[head_dim][64 tokens]`, then the values `[64 tokens][head_dim]`. Keys lie transposed so that 64 scores
//! come out of a page side by side without adding lanes.
//!
//! The tokens of a sequence are cut into parts of [`PART_PAGES`] pages. A part is a softmax of its own, page after page,
//! and parts are merged in order, so a row's result is the same to the bit whether it came as a decode row or in a
//! prefill chunk, and whether one thread did all parts ([`attend`]) or several ([`attend_part`], [`merge_parts`]).

mod inner;

use std::ops::Range;

use contract::{PAGE_TOKENS, PageId};

use self::inner::{Part, finish, merge, part};
use super::simd::{LANES, Simd, entry};
use super::{Isa, OutCols, Scratch};

const PAGE: usize = PAGE_TOKENS as usize;

/// Pages in one part of a sequence: 512 tokens, so that two threads share one sequence from about 1,000 tokens on.
pub const PART_PAGES: usize = 8;

/// Query rows (times heads) that one pass over the pages serves: their queries, scores and sums stay in cache.
const PASS_ROWS: usize = 96;

/// From so many rows on a page is first converted to f32.
const CONVERT_ROWS: usize = 12;

/// The shape of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub kv_heads: usize,
    /// A multiple of 16.
    pub head_dim: usize,
}

impl KvShape {
    /// f16 elements of one key head in one page.
    pub fn block_len(&self) -> usize {
        2 * PAGE * self.head_dim
    }

    /// f16 elements of one page.
    pub fn page_len(&self) -> usize {
        self.kv_heads * self.block_len()
    }

    /// Where the block of a key head starts in a layer's pool.
    pub fn block_start(&self, page: PageId, kv_head: usize) -> usize {
        page.0 as usize * self.page_len() + kv_head * self.block_len()
    }
}

/// Where row 0 of the outputs starts, and the distance of rows.
#[derive(Clone, Copy)]
struct Target {
    at: *mut f32,
    stride: usize,
}

/// Writes one token's key and value of one key head into its block, rounded to f16; magnitudes above 65504 become that.
///
/// # Panics
/// When the block, key or value has not the shape's length, or the page has no such token.
pub fn store_kv(isa: Isa, shape: KvShape, block: &mut [u16], token: usize, key: &[f32], value: &[f32]) {
    assert!(block.len() == shape.block_len() && token < PAGE, "token {token}, block of {}", block.len());
    assert!(key.len() == shape.head_dim && value.len() == shape.head_dim, "{} keys", key.len());
    assert!(shape.head_dim.is_multiple_of(LANES), "head dimension {}", shape.head_dim);
    // SAFETY: the lengths are asserted.
    unsafe { store_kv_on(isa, block, token, key, value) }
}

/// What to attend to. Row `m` stands at position `first + m` and sees the tokens up to its own.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    pub shape: KvShape,
    /// One layer's pool.
    pub pool: &'a [u16],
    /// The sequence's pages in order, at least up to the last row's token.
    pub pages: &'a [PageId],
    pub kv_head: usize,
    /// Query heads that read this key head.
    pub group: usize,
    /// Query row `m` of the group's head `h` is at `m q_stride + h head_dim`.
    pub q: &'a [f32],
    pub q_stride: usize,
    pub rows: usize,
    pub first: usize,
}

impl Attend<'_> {
    /// Parts that the last row sees.
    pub fn parts(&self) -> usize {
        (self.first + self.rows).div_ceil(PART_PAGES * PAGE)
    }

    /// f32 elements of a part's result: for each row and head of the group, sums, maximum and weight.
    pub fn part_len(&self) -> usize {
        self.rows * self.group * self.state_len()
    }

    fn state_len(&self) -> usize {
        self.shape.head_dim + LANES
    }

    fn check(&self) {
        let KvShape { kv_heads, head_dim } = self.shape;
        assert!(head_dim.is_multiple_of(LANES) && head_dim > 0 && self.group > 0, "head dimension {head_dim}");
        assert!(self.kv_head < kv_heads, "key head {} of {kv_heads}", self.kv_head);
        let q_len = (self.rows - 1) * self.q_stride + self.group * head_dim;
        assert!(self.q.len() >= q_len, "{} queries for {} rows", self.q.len(), self.rows);
        let pages = (self.first + self.rows).div_ceil(PAGE);
        assert!(self.pages.len() >= pages, "{} pages for {} tokens", self.pages.len(), self.first + self.rows);
        let pool = self.pool.len() / self.shape.page_len();
        assert!(self.pages[..pages].iter().all(|page| (page.0 as usize) < pool), "a page beyond the pool of {pool}");
    }

    fn scratch_bytes(&self) -> usize {
        scratch_bytes(self.shape, self.group, self.rows * self.group)
    }
}

/// Bytes of scratch for so many query rows, times heads: queries, scores and a converted page.
fn scratch_bytes(shape: KvShape, group: usize, rows: usize) -> usize {
    let rows = rows.min(PASS_ROWS.max(group));
    4 * (rows * (shape.head_dim + PAGE + 2 * (shape.head_dim + LANES)) + shape.block_len())
}

/// The most scratch that [`attend`] and [`attend_part`] need for a shape.
pub fn scratch_bytes_max(shape: KvShape, group: usize) -> usize {
    scratch_bytes(shape, group, usize::MAX)
}

/// `out[m][h head_dim ..] = softmax(q k / sqrt(head_dim)) v` for the rows and the group's heads.
///
/// # Panics
/// When a slice is too short for the rows, a page lies outside the pool, or `out` has not the rows and columns.
pub fn attend(isa: Isa, job: &Attend<'_>, out: &mut OutCols<'_>, scratch: &mut Scratch) {
    let width = job.group * job.shape.head_dim;
    assert_eq!((out.rows(), out.cols()), (job.rows, width), "output rows and columns");
    if job.rows == 0 {
        return;
    }
    job.check();
    let (at, stride) = out.raw();
    // SAFETY: the job is checked, the scratch is as large as it asks, the output has the rows and columns.
    unsafe { attend_all(isa, job, Target { at, stride }, scratch.get(job.scratch_bytes()).cast()) }
}

/// The result of part `part` alone, of [`Attend::part_len`] elements, for [`merge_parts`].
///
/// # Panics
/// As [`attend`]; when there is no such part or `result` has another length.
pub fn attend_part(isa: Isa, job: &Attend<'_>, part: usize, result: &mut [f32], scratch: &mut Scratch) {
    assert!(part < job.parts() && result.len() == job.part_len(), "part {part}, {} elements", result.len());
    if job.rows == 0 {
        return;
    }
    job.check();
    // SAFETY: the job is checked, the scratch is as large as it asks, the result is as long as it must be.
    unsafe { one_part(isa, job, part, result.as_mut_ptr(), scratch.get(job.scratch_bytes()).cast()) }
}

/// Merges the results of all parts, which lie one after another in `results`.
///
/// # Panics
/// When `results` or `out` have not the job's size.
pub fn merge_parts(isa: Isa, job: &Attend<'_>, results: &mut [f32], out: &mut OutCols<'_>) {
    assert_eq!(results.len(), job.parts() * job.part_len(), "elements of all parts");
    assert_eq!((out.rows(), out.cols()), (job.rows, job.group * job.shape.head_dim), "output rows and columns");
    let (at, stride) = out.raw();
    // SAFETY: the lengths are asserted.
    unsafe { merge_all(isa, job, results, Target { at, stride }) }
}

entry!(unsafe fn store_kv_on = store_token(block: &mut [u16], token: usize, key: &[f32], value: &[f32]));
entry!(unsafe fn part_on = part(of: &Part<'_>, to: *mut f32, scratch: *mut f32));
entry!(unsafe fn merge_on = merge(head_dim: usize, heads: usize, total: *mut f32, later: *const f32));
entry!(unsafe fn finish_on = finish(job: &Attend<'_>, rows: Range<usize>, total: *const f32, out: Target));

/// # Safety
/// The processor has `S`; the lengths are those of one shape.
#[inline(always)]
unsafe fn store_token<S: Simd>(block: &mut [u16], token: usize, key: &[f32], value: &[f32]) {
    let head_dim = key.len();
    let (keys, values) = block.split_at_mut(PAGE * head_dim);
    let row = &mut values[token * head_dim..(token + 1) * head_dim];
    for at in (0..head_dim).step_by(LANES) {
        let mut lanes = [0u16; LANES];
        // SAFETY: the caller's promises; `at + 16 <= head_dim`.
        unsafe {
            S::store_f16(row.as_mut_ptr().add(at), clamp::<S>(S::load(value.as_ptr().add(at))));
            S::store_f16(lanes.as_mut_ptr(), clamp::<S>(S::load(key.as_ptr().add(at))));
        }
        for (i, lane) in lanes.into_iter().enumerate() {
            keys[(at + i) * PAGE + token] = lane;
        }
    }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn clamp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise. NaN stays, being the second operand.
    unsafe { S::max(S::splat(-65504.0), S::min(S::splat(65504.0), x)) }
}

/// Rows of one pass: whole query rows, `PASS_ROWS` heads in all.
fn pass_rows(job: &Attend<'_>) -> usize {
    (PASS_ROWS / job.group).max(1)
}

/// # Safety
/// The job is checked; `scratch` has its size; `out` has its rows and columns.
unsafe fn attend_all(isa: Isa, job: &Attend<'_>, out: Target, scratch: *mut f32) {
    let state = job.state_len();
    for start in (0..job.rows).step_by(pass_rows(job)) {
        let rows = start..job.rows.min(start + pass_rows(job));
        let heads = rows.len() * job.group;
        let parts = (job.first + rows.end).div_ceil(PART_PAGES * PAGE);
        // SAFETY: the caller's promises; the scratch holds two states for each row and head before the rest.
        unsafe {
            let (total, fresh) = (scratch, scratch.add(heads * state));
            let rest = fresh.add(heads * state);
            for index in 0..parts {
                let to = if index == 0 { total } else { fresh };
                part_on(isa, &Part { job, rows: rows.clone(), index }, to, rest);
                if index > 0 {
                    merge_on(isa, job.shape.head_dim, heads, total, fresh);
                }
            }
            finish_on(isa, job, rows, total, out);
        }
    }
}

/// # Safety
/// As [`attend_all`], with `result` of the part's length.
unsafe fn one_part(isa: Isa, job: &Attend<'_>, index: usize, result: *mut f32, scratch: *mut f32) {
    for start in (0..job.rows).step_by(pass_rows(job)) {
        let rows = start..job.rows.min(start + pass_rows(job));
        // SAFETY: the caller's promises.
        unsafe {
            let to = result.add(start * job.group * job.state_len());
            part_on(isa, &Part { job, rows, index }, to, scratch);
        }
    }
}

/// # Safety
/// `results` has all parts, `out` the job's rows and columns.
unsafe fn merge_all(isa: Isa, job: &Attend<'_>, results: &mut [f32], out: Target) {
    let (total, others) = results.split_at_mut(job.part_len());
    // SAFETY: the caller's promises.
    unsafe {
        for other in others.chunks_exact(job.part_len()) {
            merge_on(isa, job.shape.head_dim, job.rows * job.group, total.as_mut_ptr(), other.as_ptr());
        }
        finish_on(isa, job, 0..job.rows, total.as_ptr(), out);
    }
}
