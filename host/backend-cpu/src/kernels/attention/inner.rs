//! One part of a sequence: scores, softmax and sums, page after page.

use std::ops::Range;

use super::{Attend, CONVERT_ROWS, PAGE, PART_PAGES, Target};
use crate::kernels::elementwise::exp2;
use crate::kernels::simd::{LANES, Simd, unroll};

/// Registers of scores in a page, and of sums in one pass over the values.
const WIDE: usize = PAGE / LANES;

/// Some rows of a job against one part of its tokens.
pub(super) struct Part<'a> {
    pub job: &'a Attend<'a>,
    pub rows: Range<usize>,
    pub index: usize,
}

/// State of one row and head: `head_dim` sums, then these.
mod state {
    pub const MAX: usize = 0;
    pub const WEIGHT: usize = 1;
    pub const SHRINK: usize = 2;
}

/// One page's keys and values.
#[derive(Clone, Copy)]
struct Block {
    at: *const u8,
    head_dim: usize,
    /// f32, otherwise f16.
    converted: bool,
    /// The keys that are read after this page's values: they are fetched meanwhile, as the values are during the scores.
    /// The processor's own prefetching does not go from page to page.
    next: *const u16,
}

/// Consecutive rows and heads of the pass.
#[derive(Clone, Copy)]
struct Heads {
    q: *const f32,
    scores: *mut f32,
    state: *mut f32,
    head_dim: usize,
}

impl Heads {
    /// # Safety
    /// There are more than `n` heads.
    unsafe fn skip(&self, n: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                q: self.q.add(n * self.head_dim),
                scores: self.scores.add(n * PAGE),
                state: self.state.add(n * (self.head_dim + LANES)),
                head_dim: self.head_dim,
            }
        }
    }

    /// # Safety
    /// There are more than `n` heads.
    unsafe fn tail(&self, n: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.state.add(n * (self.head_dim + LANES) + self.head_dim) }
    }
}

/// Writes the states of the part's rows and heads to `to`.
///
/// # Safety
/// The processor has `S`; the job is checked; `to` holds the states and `scratch` queries, scores and a page in f32.
#[inline(always)]
pub(super) unsafe fn part<S: Simd>(part: &Part<'_>, to: *mut f32, scratch: *mut f32) {
    let Part { job, rows, index } = part;
    let head_dim = job.shape.head_dim;
    let count = rows.len() * job.group;
    let scores = scratch.wrapping_add(count * head_dim);
    let page_f32 = scores.wrapping_add(count * PAGE);
    let all = Heads { q: scratch, scores, state: to, head_dim };
    let seen = job.first + rows.end;
    // SAFETY: the caller's promises. The first visible row of a page is below `rows.end`, because the page starts
    // before `seen`, so at least one head is left.
    unsafe {
        prepare::<S>(part, all);
        for page in index * PART_PAGES..seen.div_ceil(PAGE).min((index + 1) * PART_PAGES) {
            let first_row = (page * PAGE).saturating_sub(job.first).max(rows.start);
            let skipped = (first_row - rows.start) * job.group;
            let start = job.shape.block_start(job.pages[page], job.kv_head);
            let stored = &job.pool[start..start + job.shape.block_len()];
            let next = job.pages.get(page + 1).map_or(start, |&page| job.shape.block_start(page, job.kv_head));
            let next = job.pool.as_ptr().wrapping_add(next);
            let mut block = Block { at: stored.as_ptr().cast(), head_dim, converted: false, next };
            if count - skipped >= CONVERT_ROWS {
                let tokens = (seen - page * PAGE).min(PAGE);
                convert::<S>(stored, head_dim, tokens, page_f32);
                block = Block { at: page_f32.cast_const().cast(), converted: true, ..block };
            }
            let mut done = skipped;
            while done < count {
                let heads = all.skip(done);
                // Head `done + r` stands `(done + r) / group` rows after the pass's first.
                let visible = |r: usize| (job.first + rows.start + (done + r) / job.group + 1 - page * PAGE).min(PAGE);
                done += match (count - done).min(S::ATTEND_ROWS) {
                    6.. if const { S::ATTEND_ROWS >= 6 } => page_rows::<S, 6>(&block, heads, visible),
                    4.. if const { S::ATTEND_ROWS >= 4 } => page_rows::<S, 4>(&block, heads, visible),
                    3.. if const { S::ATTEND_ROWS >= 3 } => page_rows::<S, 3>(&block, heads, visible),
                    2.. if const { S::ATTEND_ROWS >= 2 } => page_rows::<S, 2>(&block, heads, visible),
                    _ => page_rows::<S, 1>(&block, heads, visible),
                };
            }
        }
    }
}

/// Queries times `log2(e) / sqrt(head_dim)`, so that powers of two do; and empty states.
///
/// # Safety
/// As [`part`].
#[inline(always)]
unsafe fn prepare<S: Simd>(part: &Part<'_>, all: Heads) {
    let head_dim = all.head_dim;
    // SAFETY: the caller's promises; the job's queries reach as far as its rows.
    unsafe {
        let scale = S::splat((f64::from(std::f32::consts::LOG2_E) / (head_dim as f64).sqrt()) as f32);
        for (n, row) in part.rows.clone().enumerate() {
            for h in 0..part.job.group {
                let from = part.job.q.as_ptr().add(row * part.job.q_stride + h * head_dim);
                let head = n * part.job.group + h;
                for at in (0..head_dim).step_by(LANES) {
                    let to = all.q.cast_mut().add(head * head_dim + at);
                    S::store(to, S::mul(S::load(from.add(at)), scale));
                    S::store(all.state.add(head * (head_dim + LANES) + at), S::splat(0.0));
                }
                let tail = all.tail(head);
                *tail.add(state::MAX) = f32::NEG_INFINITY;
                *tail.add(state::WEIGHT) = 0.0;
            }
        }
    }
}

/// The page's keys, and values of its first `tokens`, in f32.
///
/// # Safety
/// The processor has `S`; `to` holds a block.
#[inline(always)]
unsafe fn convert<S: Simd>(block: &[u16], head_dim: usize, tokens: usize, to: *mut f32) {
    let len = (PAGE + tokens) * head_dim;
    for at in (0..len).step_by(LANES) {
        // SAFETY: the block is `2 PAGE head_dim` long, and head_dim is a multiple of 16.
        unsafe { S::store(to.add(at), S::load_f16(block.as_ptr().add(at))) }
    }
}

/// `M` heads against one page; answers `M`.
///
/// # Safety
/// The processor has `S`; there are `M` heads; the first `visible(r)` tokens of the page are written.
#[inline(always)]
unsafe fn page_rows<S: Simd, const M: usize>(block: &Block, heads: Heads, visible: impl Fn(usize) -> usize) -> usize {
    // SAFETY: the caller's promises; heads further down see no less than those before.
    unsafe {
        if block.converted {
            score::<S, M, true>(block, heads);
        } else {
            score::<S, M, false>(block, heads);
        }
        for r in 0..M {
            soften::<S>(heads, r, visible(r));
        }
        let tokens = visible(M - 1);
        for at in (0..block.head_dim).step_by(LANES * WIDE) {
            let wide = at + LANES * WIDE <= block.head_dim;
            match (wide, block.converted) {
                (true, true) => gather::<S, M, WIDE, true>(block, heads, at, tokens),
                (true, false) => gather::<S, M, WIDE, false>(block, heads, at, tokens),
                (false, converted) => {
                    for at in (at..block.head_dim).step_by(LANES) {
                        if converted {
                            gather::<S, M, 1, true>(block, heads, at, tokens);
                        } else {
                            gather::<S, M, 1, false>(block, heads, at, tokens);
                        }
                    }
                }
            }
        }
    }
    M
}

/// # Safety
/// The processor has `S`; the block has 16 elements from `at` on.
#[inline(always)]
unsafe fn element<S: Simd, const F32: bool>(block: &Block, at: usize) -> S::F {
    // SAFETY: the caller's promises.
    unsafe { if F32 { S::load(block.at.cast::<f32>().add(at)) } else { S::load_f16(block.at.cast::<u16>().add(at)) } }
}

/// The 64 scores of each head.
///
/// # Safety
/// As [`page_rows`].
#[inline(always)]
unsafe fn score<S: Simd, const M: usize, const F32: bool>(block: &Block, heads: Heads) {
    // SAFETY: the caller's promises; key element `d` is 64 values from `64 d` on.
    unsafe {
        let mut sums = [[S::splat(0.0); WIDE]; M];
        for d in 0..block.head_dim {
            let mut keys = [S::splat(0.0); WIDE];
            if !F32 {
                let values = block.at.wrapping_add(2 * (PAGE * block.head_dim + d * PAGE));
                S::prefetch(values);
                S::prefetch(values.wrapping_add(64));
            }
            unroll!(WIDE, i, { keys[i] = element::<S, F32>(block, d * PAGE + i * LANES) });
            unroll!(M, r, {
                let q = S::splat(*heads.q.add(r * heads.head_dim + d));
                unroll!(WIDE, i, { sums[r][i] = S::fma(keys[i], q, sums[r][i]) });
            });
        }
        unroll!(M, r, {
            unroll!(WIDE, i, { S::store(heads.scores.add(r * PAGE + i * LANES), sums[r][i]) });
        });
    }
}

/// Scores of head `r` to weights against the largest so far; what the sums shrink by is left in the state.
///
/// # Safety
/// As [`page_rows`], with `r < M`.
#[inline(always)]
unsafe fn soften<S: Simd>(heads: Heads, r: usize, visible: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        let scores = heads.scores.add(r * PAGE);
        let tail = heads.tail(r);
        let mut x = [S::splat(0.0); WIDE];
        let mut largest = S::splat(f32::NEG_INFINITY);
        for (i, x) in x.iter_mut().enumerate() {
            let left = visible.saturating_sub(i * LANES);
            *x = S::keep_first(S::load(scores.add(i * LANES)), left, S::splat(f32::NEG_INFINITY));
            largest = S::max(*x, largest);
        }
        let before = *tail.add(state::MAX);
        let after = before.max(S::max_lanes(largest));
        let mut sum = S::splat(0.0);
        for (i, x) in x.into_iter().enumerate() {
            let left = visible.saturating_sub(i * LANES);
            let weight = S::keep_first(exp2::<S>(S::sub(x, S::splat(after))), left, S::splat(0.0));
            S::store(scores.add(i * LANES), weight);
            sum = S::add(sum, weight);
        }
        // From an empty state the difference is minus infinity, and nothing shrinks.
        let shrink = first_lane::<S>(exp2::<S>(S::splat(before - after)));
        *tail.add(state::MAX) = after;
        *tail.add(state::WEIGHT) = *tail.add(state::WEIGHT) * shrink + S::sum(sum);
        *tail.add(state::SHRINK) = shrink;
    }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn first_lane<S: Simd>(x: S::F) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller's promise; `lanes` has 16 elements.
    unsafe { S::store(lanes.as_mut_ptr(), x) };
    lanes[0]
}

/// Adds the weighted values of the first `tokens` to the sums from element `at` on.
///
/// # Safety
/// As [`page_rows`]; head_dim has `N` registers from `at` on.
#[inline(always)]
unsafe fn gather<S: Simd, const M: usize, const N: usize, const F32: bool>(
    block: &Block,
    heads: Heads,
    at: usize,
    tokens: usize,
) {
    let head_dim = block.head_dim;
    // SAFETY: the caller's promises; the values start after the keys.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; M];
        unroll!(M, r, {
            let shrink = S::splat(*heads.tail(r).add(state::SHRINK));
            unroll!(N, i, {
                sums[r][i] = S::mul(S::load(heads.state.add(r * (head_dim + LANES) + at + i * LANES)), shrink);
            });
        });
        for t in 0..tokens {
            let mut values = [S::splat(0.0); N];
            if !F32 {
                let keys = block.next.wrapping_add(t * head_dim + at).cast::<u8>();
                S::prefetch(keys);
                S::prefetch(keys.wrapping_add(64));
            }
            unroll!(N, i, { values[i] = element::<S, F32>(block, (PAGE + t) * head_dim + at + i * LANES) });
            unroll!(M, r, {
                let weight = S::splat(*heads.scores.add(r * PAGE + t));
                unroll!(N, i, { sums[r][i] = S::fma(values[i], weight, sums[r][i]) });
            });
        }
        unroll!(M, r, {
            unroll!(N, i, { S::store(heads.state.add(r * (head_dim + LANES) + at + i * LANES), sums[r][i]) });
        });
    }
}

/// Merges the states of a later part into those of the parts before it.
///
/// # Safety
/// The processor has `S`; both hold `heads` states.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(head_dim: usize, heads: usize, total: *mut f32, later: *const f32) {
    for head in 0..heads {
        let start = head * (head_dim + LANES);
        // SAFETY: the caller's promises.
        unsafe {
            let (total, later) = (total.add(start), later.add(start));
            let (tail, later_tail) = (total.add(head_dim), later.add(head_dim));
            let (before, added) = (*tail.add(state::MAX), *later_tail.add(state::MAX));
            if added == f32::NEG_INFINITY && *later_tail.add(state::WEIGHT) == 0.0 {
                continue;
            }
            let after = before.max(added);
            let keep = exp2::<S>(S::splat(before - after));
            let scale = exp2::<S>(S::splat(added - after));
            for at in (0..head_dim).step_by(LANES) {
                let sum = S::mul(S::load(total.add(at)), keep);
                S::store(total.add(at), S::fma(S::load(later.add(at)), scale, sum));
            }
            let (keep, scale) = (first_lane::<S>(keep), first_lane::<S>(scale));
            *tail.add(state::MAX) = after;
            *tail.add(state::WEIGHT) = *tail.add(state::WEIGHT) * keep + *later_tail.add(state::WEIGHT) * scale;
        }
    }
}

/// Divides by the weights and writes the rows' outputs.
///
/// # Safety
/// The processor has `S`; `total` holds the states of the rows, `out` the job's rows and columns.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(job: &Attend<'_>, rows: Range<usize>, total: *const f32, out: Target) {
    let head_dim = job.shape.head_dim;
    for (n, row) in rows.enumerate() {
        for h in 0..job.group {
            // SAFETY: the caller's promises.
            unsafe {
                let from = total.add((n * job.group + h) * (head_dim + LANES));
                let weight = S::splat(*from.add(head_dim + state::WEIGHT));
                let to = out.at.add(row * out.stride + h * head_dim);
                for at in (0..head_dim).step_by(LANES) {
                    S::store(to.add(at), S::div(S::load(from.add(at)), weight));
                }
            }
        }
    }
}
