//! The gated delta rule of one head: token by token, and in blocks of [`DELTA_CHUNK`] tokens.
//!
//! A head's state is `[key_dim][value_dim]` here, values side by side in lanes, so that nothing is summed across lanes.
//! In blocks (arXiv 2412.06464, section 3.3): with `G` the running sum of the logarithms `g` of the decay and
//! `D_ij = e^(G_i - G_j)`, the corrections `d` of a block's tokens solve a triangular system,
//! `d_i = beta_i (v_i - e^G_i S k_i) - beta_i sum over j < i of D_ij (k_i k_j) d_j`; then
//! `o_i = e^G_i S q_i + sum over j <= i of D_ij (q_i k_j) d_j`, and `S` becomes `e^G S + sum over j of e^(G - G_j) d_j k_j`
//! with the `G` of the last token. Exponents are never above zero.

use backend::ops::{DELTA_CHUNK, GateFn};

use super::Isa;
use super::elementwise::{exp, silu};
use super::simd::{LANES, Simd, entry};
use crate::delta::{SOFTPLUS_LINEAR, UNIT_EPS};

/// Tokens of a block.
const C: usize = DELTA_CHUNK;

/// Rows of a product that one pass over the other matrix serves.
const TILE: usize = 4;

/// `out = silu(sum over j of taps[j] inputs[j])`, the oldest input first; `taps` is `[inputs][out]`.
///
/// # Panics
/// When the lengths differ or are not a multiple of 16.
pub fn convolve(isa: Isa, inputs: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    assert!(out.len().is_multiple_of(LANES) && taps.len() == inputs.len() * out.len(), "{} taps", taps.len());
    assert!(inputs.iter().all(|input| input.len() == out.len()), "{} channels", out.len());
    // SAFETY: the lengths are asserted.
    unsafe { convolve_on(isa, inputs, taps, out) }
}

/// Brings a head to unit length, times `scale`.
///
/// # Panics
/// When its length is not a multiple of 16.
pub fn unit(isa: Isa, head: &mut [f32], scale: f32) {
    assert!(head.len().is_multiple_of(LANES), "{} values", head.len());
    // SAFETY: the length is asserted.
    unsafe { unit_on(isa, head, scale) }
}

/// `out = gate(z) x`
///
/// # Panics
/// When the lengths differ or are not a multiple of 16.
pub fn gate(isa: Isa, function: GateFn, z: &[f32], x: &[f32], out: &mut [f32]) {
    assert!(z.len().is_multiple_of(LANES) && z.len() == x.len() && z.len() == out.len(), "{} values", z.len());
    // SAFETY: the lengths are asserted.
    unsafe { gate_on(isa, function, z, x, out) }
}

/// `beta = sigmoid(beta)` and `alpha = decay ln(1 + e^(alpha + bias))`, the logarithm of the decay.
pub fn gates(decay: &[f32], bias: &[f32], beta: &mut [f32], alpha: &mut [f32]) {
    beta.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    for ((x, decay), bias) in alpha.iter_mut().zip(decay).zip(bias) {
        let at = *x + bias;
        *x = decay * if at > SOFTPLUS_LINEAR { at } else { at.exp().ln_1p() };
    }
}

/// One head's tokens: where they lie in rows of `stride` numbers.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub key_dim: usize,
    pub value_dim: usize,
    /// From the first token's q, k, and v.
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub stride: usize,
    /// From the first token's beta and logarithm of the decay, in rows of `gate_stride`.
    pub beta: &'a [f32],
    pub log_decay: &'a [f32],
    pub gate_stride: usize,
}

impl Head<'_> {
    fn check(&self, tokens: usize, state: &[f32], out: &[f32]) {
        let (keys, values) = (self.key_dim, self.value_dim);
        assert!(keys.is_multiple_of(LANES) && values.is_multiple_of(LANES), "a state of {keys} by {values}");
        assert!(state.len() == keys * values && out.len() == tokens * values && tokens > 0, "{tokens} tokens");
        let last = (tokens - 1) * self.stride;
        assert!(
            self.q.len() >= last + keys && self.k.len() >= last + keys && self.v.len() >= last + values,
            "a short row"
        );
        let last = (tokens - 1) * self.gate_stride;
        assert!(self.beta.len() > last && self.log_decay.len() > last, "few gates");
    }
}

/// One token: moves the state on and gives `o`.
///
/// # Panics
/// When a length does not fit, or a dimension is no multiple of 16.
pub fn token(isa: Isa, head: &Head<'_>, state: &mut [f32], out: &mut [f32]) {
    head.check(1, state, out);
    // SAFETY: the lengths are checked.
    unsafe { token_on(isa, head, state, out) }
}

/// A block of [`DELTA_CHUNK`] tokens: moves the state on and gives `o`, a row for each token.
///
/// # Panics
/// When a length does not fit, or a dimension is no multiple of 16.
pub fn block(isa: Isa, head: &Head<'_>, state: &mut [f32], out: &mut [f32], scratch: &mut [f32]) {
    head.check(C, state, out);
    assert!(scratch.len() >= block_scratch(head.key_dim, head.value_dim), "{} numbers to work with", scratch.len());
    // SAFETY: the lengths are checked.
    unsafe { block_on(isa, head, state, out, scratch) }
}

/// Numbers that [`block`] works with.
pub fn block_scratch(key_dim: usize, value_dim: usize) -> usize {
    2 * C * key_dim + 2 * C * C + C * value_dim + 3 * C
}

entry!(unsafe fn convolve_on = convolve_all(inputs: &[&[f32]], taps: &[f32], out: &mut [f32]));
entry!(unsafe fn unit_on = unit_all(head: &mut [f32], scale: f32));
entry!(unsafe fn gate_on = gate_all(function: GateFn, z: &[f32], x: &[f32], out: &mut [f32]));
entry!(unsafe fn token_on = token_all(head: &Head<'_>, state: &mut [f32], out: &mut [f32]));
entry!(unsafe fn block_on = block_all(head: &Head<'_>, state: &mut [f32], out: &mut [f32], scratch: &mut [f32]));

/// # Safety
/// The processor has `S`; the lengths are as [`convolve`] asserts.
#[inline(always)]
unsafe fn convolve_all<S: Simd>(inputs: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    for at in (0..out.len()).step_by(LANES) {
        // SAFETY: the caller's promises.
        unsafe {
            let mut sum = S::splat(0.0);
            for (input, taps) in inputs.iter().zip(taps.chunks_exact(out.len())) {
                sum = S::fma(S::load(input.as_ptr().add(at)), S::load(taps.as_ptr().add(at)), sum);
            }
            S::store(out.as_mut_ptr().add(at), silu::<S>(sum));
        }
    }
}

/// # Safety
/// The processor has `S`; the length is a multiple of 16.
#[inline(always)]
unsafe fn unit_all<S: Simd>(head: &mut [f32], scale: f32) {
    // SAFETY: the caller's promises.
    unsafe {
        let scale = S::splat(scale / (dot::<S>(head, head) + UNIT_EPS).sqrt());
        for at in (0..head.len()).step_by(LANES) {
            let at = head.as_mut_ptr().add(at);
            S::store(at, S::mul(S::load(at), scale));
        }
    }
}

/// # Safety
/// The processor has `S`; the lengths are equal multiples of 16.
#[inline(always)]
unsafe fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sum = S::splat(0.0);
        for at in (0..a.len()).step_by(LANES) {
            sum = S::fma(S::load(a.as_ptr().add(at)), S::load(b.as_ptr().add(at)), sum);
        }
        S::sum(sum)
    }
}

/// # Safety
/// The processor has `S`; the lengths are equal multiples of 16.
#[inline(always)]
unsafe fn gate_all<S: Simd>(function: GateFn, z: &[f32], x: &[f32], out: &mut [f32]) {
    for at in (0..z.len()).step_by(LANES) {
        // SAFETY: the caller's promises.
        unsafe {
            let z = S::load(z.as_ptr().add(at));
            let one = S::splat(1.0);
            let through = match function {
                GateFn::Silu => silu::<S>(z),
                GateFn::Sigmoid => S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), z)))),
            };
            S::store(out.as_mut_ptr().add(at), S::mul(through, S::load(x.as_ptr().add(at))));
        }
    }
}

/// Both `S k` and `S q` of the old state in one pass; `o` is put together from them.
///
/// # Safety
/// The processor has `S`; the lengths are as [`Head::check`] asserts for one token.
#[inline(always)]
unsafe fn token_all<S: Simd>(head: &Head<'_>, state: &mut [f32], out: &mut [f32]) {
    let (keys, values) = (head.key_dim, head.value_dim);
    let (q, k) = (&head.q[..keys], &head.k[..keys]);
    // SAFETY: the caller's promises.
    unsafe {
        let (decay, beta) = (S::splat(head.log_decay[0].exp()), S::splat(head.beta[0]));
        let both = S::splat(dot::<S>(q, k));
        let mut at = 0;
        while at + TILE * LANES <= values {
            token_columns::<S, TILE>((q, k), head.v, values, at, state, (decay, beta, both), out);
            at += TILE * LANES;
        }
        while at < values {
            token_columns::<S, 1>((q, k), head.v, values, at, state, (decay, beta, both), out);
            at += LANES;
        }
    }
}

/// The columns `at .. at + 16 N` of a state of rows of `values`.
///
/// # Safety
/// The processor has `S`; the columns exist.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads")]
unsafe fn token_columns<S: Simd, const N: usize>(
    (q, k): (&[f32], &[f32]),
    v: &[f32],
    values: usize,
    at: usize,
    state: &mut [f32],
    (decay, beta, both): (S::F, S::F, S::F),
    out: &mut [f32],
) {
    // SAFETY: the caller's promises.
    unsafe {
        let (mut by_k, mut by_q) = ([S::splat(0.0); N], [S::splat(0.0); N]);
        for (row, (&q, &k)) in q.iter().zip(k).enumerate() {
            let (q, k, from) = (S::splat(q), S::splat(k), state.as_ptr().add(row * values + at));
            for n in 0..N {
                let s = S::load(from.add(n * LANES));
                by_k[n] = S::fma(s, k, by_k[n]);
                by_q[n] = S::fma(s, q, by_q[n]);
            }
        }
        let mut change = [S::splat(0.0); N];
        for n in 0..N {
            let v = S::load(v.as_ptr().add(at + n * LANES));
            change[n] = S::mul(beta, S::sub(v, S::mul(decay, by_k[n])));
            S::store(out.as_mut_ptr().add(at + n * LANES), S::fma(change[n], both, S::mul(decay, by_q[n])));
        }
        for (row, &k) in k.iter().enumerate() {
            let (k, place) = (S::splat(k), state.as_mut_ptr().add(row * values + at));
            for (n, &change) in change.iter().enumerate() {
                let s = S::mul(decay, S::load(place.add(n * LANES)));
                S::store(place.add(n * LANES), S::fma(change, k, s));
            }
        }
    }
}

/// # Safety
/// The processor has `S`; the lengths are as [`Head::check`] asserts for a block, and the scratch as long as
/// [`block_scratch`] says.
#[inline(always)]
unsafe fn block_all<S: Simd>(head: &Head<'_>, state: &mut [f32], out: &mut [f32], scratch: &mut [f32]) {
    let (keys, values) = (head.key_dim, head.value_dim);
    // `[key_dim][C]`, `[C][C]` twice, `[C][value_dim]`, and numbers of each token.
    let (columns, rest) = scratch.split_at_mut(C * keys);
    let (late, rest) = rest.split_at_mut(C * keys);
    let (among_k, rest) = rest.split_at_mut(C * C);
    let (with_q, rest) = rest.split_at_mut(C * C);
    let (changes, rest) = rest.split_at_mut(C * values);
    let (sums, rest) = rest.split_at_mut(C);
    let (grown, left) = rest.split_at_mut(C);
    let mut total = 0.0;
    for (sum, log_decay) in sums.iter_mut().zip(head.log_decay.iter().step_by(head.gate_stride)) {
        total += log_decay;
        *sum = total;
    }
    for i in 0..C {
        (grown[i], left[i]) = (sums[i].exp(), (total - sums[i]).exp());
        for (d, &k) in head.k[i * head.stride..][..keys].iter().enumerate() {
            columns[d * C + i] = k;
            late[d * C + i] = k * left[i];
        }
    }
    among_k.fill(0.0);
    with_q.fill(0.0);
    changes.fill(0.0);
    out.fill(0.0);
    // SAFETY: every matrix is as long as its rows and columns say.
    unsafe {
        add_product::<S>(C, (head.k, head.stride), keys, (columns, C), among_k, C);
        add_product::<S>(C, (head.q, head.stride), keys, (columns, C), with_q, C);
        add_product::<S>(C, (head.k, head.stride), keys, (state, values), changes, values);
        add_product::<S>(C, (head.q, head.stride), keys, (state, values), out, values);
        for i in 0..C {
            let beta = head.beta[i * head.gate_stride];
            fade::<S>(&mut among_k[i * C..(i + 1) * C], sums, i, i, -beta);
            fade::<S>(&mut with_q[i * C..(i + 1) * C], sums, i, i + 1, 1.0);
            let v = &head.v[i * head.stride..][..values];
            corrected::<S>(v, &mut changes[i * values..(i + 1) * values], beta, grown[i]);
            scale::<S>(&mut out[i * values..(i + 1) * values], grown[i]);
        }
        solve::<S>(among_k, changes, values);
        add_product::<S>(C, (with_q, C), C, (changes, values), out, values);
        scale::<S>(state, total.exp());
        add_product::<S>(keys, (late, C), C, (changes, values), state, values);
    }
}

/// `row[j] = factor e^(sums[i] - sums[j]) row[j]` for `j < count`, 0 for the others.
///
/// # Safety
/// The processor has `S`; the row has `C` numbers.
#[inline(always)]
unsafe fn fade<S: Simd>(row: &mut [f32], sums: &[f32], i: usize, count: usize, factor: f32) {
    // SAFETY: the caller's promises; `C` is a multiple of 16.
    unsafe {
        let (from, factor) = (S::splat(sums[i]), S::splat(factor));
        for at in (0..C).step_by(LANES) {
            let place = row.as_mut_ptr().add(at);
            let fading = exp::<S>(S::sub(from, S::load(sums.as_ptr().add(at))));
            let faded = S::mul(S::mul(factor, fading), S::load(place));
            S::store(place, S::keep_first(faded, count.saturating_sub(at), S::splat(0.0)));
        }
    }
}

/// `x = beta (v - grown x)`
///
/// # Safety
/// The processor has `S`; the lengths are equal multiples of 16.
#[inline(always)]
unsafe fn corrected<S: Simd>(v: &[f32], x: &mut [f32], beta: f32, grown: f32) {
    // SAFETY: the caller's promises.
    unsafe {
        let (beta, grown) = (S::splat(beta), S::splat(grown));
        for at in (0..x.len()).step_by(LANES) {
            let place = x.as_mut_ptr().add(at);
            let error = S::sub(S::load(v.as_ptr().add(at)), S::mul(grown, S::load(place)));
            S::store(place, S::mul(beta, error));
        }
    }
}

/// `x = factor x`
///
/// # Safety
/// The processor has `S`; the length is a multiple of 16.
#[inline(always)]
unsafe fn scale<S: Simd>(x: &mut [f32], factor: f32) {
    // SAFETY: the caller's promises.
    unsafe {
        let factor = S::splat(factor);
        for at in (0..x.len()).step_by(LANES) {
            let place = x.as_mut_ptr().add(at);
            S::store(place, S::mul(factor, S::load(place)));
        }
    }
}

/// `x_i = x_i + sum over j < i of below_ij x_j`, from the first row on. What lies on the diagonal and above is 0.
///
/// # Safety
/// The processor has `S`; `below` is `[C][C]` and `x` is `[C][values]`, `values` a multiple of 16.
#[inline(always)]
unsafe fn solve<S: Simd>(below: &[f32], x: &mut [f32], values: usize) {
    for first in (0..C).step_by(TILE) {
        let (done, rest) = x.split_at_mut(first * values);
        // SAFETY: the caller's promises; `C` is a multiple of `TILE`.
        unsafe {
            add_product::<S>(TILE, (&below[first * C..], C), first, (done, values), rest, values);
            for i in 1..TILE {
                let (before, own) = rest.split_at_mut(i * values);
                let row = &below[(first + i) * C + first..];
                for at in (0..values).step_by(LANES) {
                    let place = own.as_mut_ptr().add(at);
                    let mut sum = S::load(place);
                    for (j, &factor) in row[..i].iter().enumerate() {
                        sum = S::fma(S::splat(factor), S::load(before.as_ptr().add(j * values + at)), sum);
                    }
                    S::store(place, sum);
                }
            }
        }
    }
}

/// `out += a b` with `a` of `rows` by `inner` in rows of its stride, `b` of `inner` by `cols` in rows of its stride.
///
/// # Safety
/// The processor has `S`; the matrices are as long as their rows and columns say, `rows` is a multiple of [`TILE`] and
/// `cols` of 16; `out` has rows of `cols`.
#[inline(always)]
unsafe fn add_product<S: Simd>(
    rows: usize,
    a: (&[f32], usize),
    inner: usize,
    b: (&[f32], usize),
    out: &mut [f32],
    cols: usize,
) {
    debug_assert!(rows.is_multiple_of(TILE) && cols.is_multiple_of(LANES) && out.len() >= rows * cols);
    for first in (0..rows).step_by(TILE) {
        let mut at = 0;
        // SAFETY: the caller's promises.
        unsafe {
            while at + TILE * LANES <= cols {
                add_tile::<S, TILE>((&a.0[first * a.1..], a.1), inner, b, &mut out[first * cols..], cols, at);
                at += TILE * LANES;
            }
            while at < cols {
                add_tile::<S, 1>((&a.0[first * a.1..], a.1), inner, b, &mut out[first * cols..], cols, at);
                at += LANES;
            }
        }
    }
}

/// [`TILE`] rows and `16 N` columns from `at` of [`add_product`].
///
/// # Safety
/// As for [`add_product`].
#[inline(always)]
unsafe fn add_tile<S: Simd, const N: usize>(
    (a, a_stride): (&[f32], usize),
    inner: usize,
    (b, b_stride): (&[f32], usize),
    out: &mut [f32],
    cols: usize,
    at: usize,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; TILE];
        for (row, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = S::load(out.as_ptr().add(row * cols + at + n * LANES));
            }
        }
        for i in 0..inner {
            let mut columns = [S::splat(0.0); N];
            for (n, column) in columns.iter_mut().enumerate() {
                *column = S::load(b.as_ptr().add(i * b_stride + at + n * LANES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = S::splat(*a.as_ptr().add(row * a_stride + i));
                for (sum, &column) in sums.iter_mut().zip(&columns) {
                    *sum = S::fma(factor, column, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (n, &sum) in sums.iter().enumerate() {
                S::store(out.as_mut_ptr().add(row * cols + at + n * LANES), sum);
            }
        }
    }
}
