//! Row operations: norm, activation, rotary embedding, and reductions over logits.

use super::Isa;
use super::simd::{LANES, ROUNDING, Simd, entry};

/// `out = weight x / sqrt(mean(x^2) + eps)`
///
/// # Panics
/// When the lengths differ or are not a multiple of 16.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len().is_multiple_of(LANES), "{} values", x.len());
    assert!(weight.len() == x.len() && out.len() == x.len(), "{} weights for {}", weight.len(), x.len());
    // SAFETY: the lengths are asserted.
    unsafe { rms_norm_on(isa, x, weight, eps, out) }
}

/// `out = silu(gate) up`, `silu(x) = x / (1 + e^-x)`
///
/// # Panics
/// When the lengths differ or are not a multiple of 16.
pub fn silu_mul(isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len().is_multiple_of(LANES), "{} values", gate.len());
    assert!(up.len() == gate.len() && out.len() == gate.len(), "{} and {}", gate.len(), up.len());
    // SAFETY: the lengths are asserted.
    unsafe { silu_mul_on(isa, gate, up, out) }
}

/// Cosines and sines of `position inv_freq[j]`, the angle in f32 as transformers computes it; once for all heads and
/// layers of a row.
///
/// # Panics
/// When the lengths differ.
pub fn rope_angles(inv_freq: &[f32], position: u32, cos: &mut [f32], sin: &mut [f32]) {
    assert!(cos.len() == inv_freq.len() && sin.len() == inv_freq.len(), "{} frequencies", inv_freq.len());
    for (j, &freq) in inv_freq.iter().enumerate() {
        (sin[j], cos[j]) = (position as f32 * freq).sin_cos();
    }
}

/// Rotates the half-split pairs `(j, j + cos.len())` of a head: `(a, b)` to `(a cos - b sin, b cos + a sin)`. Elements
/// beyond the pairs pass through.
///
/// # Panics
/// When there are fewer elements than pairs need.
pub fn rope(isa: Isa, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    assert!(cos.len() == sin.len() && head.len() >= 2 * cos.len(), "{} pairs in {}", cos.len(), head.len());
    // SAFETY: the lengths are asserted.
    unsafe { rope_on(isa, head, cos, sin) }
}

/// Index and value of the largest, the lowest index of several; NaN is never the largest. `None` when there is none.
pub fn argmax(isa: Isa, x: &[f32]) -> Option<(usize, f32)> {
    // One pass finds the largest of each chunk, a second looks for it in one chunk only.
    const CHUNK: usize = 512;
    let mut best = (0, f32::NEG_INFINITY);
    for (i, chunk) in x.chunks(CHUNK).enumerate() {
        let largest = max(isa, chunk);
        if largest > best.1 {
            best = (i, largest);
        }
    }
    let first = best.0 * CHUNK;
    let chunk = &x[first..x.len().min(first + CHUNK)];
    chunk.iter().position(|&x| x == best.1).map(|at| (first + at, best.1))
}

/// The largest value; NaN is skipped; negative infinity when there is none.
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    // SAFETY: no conditions beyond the instruction set.
    unsafe { max_on(isa, x) }
}

/// `ln sum e^x`; NaN if any value is, negative infinity for no values.
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> f32 {
    let largest = max(isa, x);
    if largest == f32::NEG_INFINITY {
        return if x.iter().any(|x| x.is_nan()) { f32::NAN } else { largest };
    }
    // SAFETY: no conditions beyond the instruction set.
    largest + unsafe { sum_exp_on(isa, x, largest) }.ln()
}

/// `x = softmax(x)` in place.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    let total = log_sum_exp(isa, x);
    // SAFETY: no conditions beyond the instruction set.
    unsafe { exp_sub_on(isa, x, total) }
}

entry!(unsafe fn rms_norm_on = rms_norm_all(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]));
entry!(unsafe fn silu_mul_on = silu_mul_all(gate: &[f32], up: &[f32], out: &mut [f32]));
entry!(unsafe fn rope_on = rope_all(head: &mut [f32], cos: &[f32], sin: &[f32]));
entry!(unsafe fn max_on = max_all(x: &[f32]) -> f32);
entry!(unsafe fn sum_exp_on = sum_exp(x: &[f32], largest: f32) -> f32);
entry!(unsafe fn exp_sub_on = exp_sub(x: &mut [f32], total: f32));

/// # Safety
/// The processor has `S`; the lengths are equal multiples of 16.
#[inline(always)]
unsafe fn rms_norm_all<S: Simd>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: the caller's promises.
    unsafe {
        let scale = S::splat(inverse_rms::<S>(x, eps));
        for at in (0..x.len()).step_by(LANES) {
            let scaled = S::mul(S::load(x.as_ptr().add(at)), scale);
            S::store(out.as_mut_ptr().add(at), S::mul(scaled, S::load(weight.as_ptr().add(at))));
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`
///
/// # Safety
/// The processor has `S`; the length is a multiple of 16.
#[inline(always)]
pub(super) unsafe fn inverse_rms<S: Simd>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: the caller's promises.
    unsafe {
        let mut squares = S::splat(0.0);
        for at in (0..x.len()).step_by(LANES) {
            let x = S::load(x.as_ptr().add(at));
            squares = S::fma(x, x, squares);
        }
        1.0 / (S::sum(squares) / x.len() as f32 + eps).sqrt()
    }
}

/// # Safety
/// The processor has `S`; the lengths are equal multiples of 16.
#[inline(always)]
unsafe fn silu_mul_all<S: Simd>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for at in (0..gate.len()).step_by(LANES) {
        // SAFETY: the caller's promises.
        unsafe {
            let x = silu::<S>(S::load(gate.as_ptr().add(at)));
            S::store(out.as_mut_ptr().add(at), S::mul(x, S::load(up.as_ptr().add(at))));
        }
    }
}

/// `x / (1 + e^-x)`
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(super) unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { S::div_near(x, S::add(S::splat(1.0), exp::<S>(S::sub(S::splat(0.0), x)))) }
}

/// `e^x` with a relative error below 1e-6 from -87 on; below that it stays at e^-87, above 88 at e^88; NaN stays NaN.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(super) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        // The second operand wins over NaN: keep x there.
        let x = S::max(S::splat(-87.0), S::min(S::splat(88.0), x));
        let rounded = S::add(S::mul(x, S::splat(std::f32::consts::LOG2_E)), S::splat(ROUNDING));
        let n = S::sub(rounded, S::splat(ROUNDING));
        // ln 2 in two parts, the first with so few bits that its multiples are exact (Cody and Waite).
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let terms = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
        S::mul(polynomial::<S>(r, terms), S::power_of_two(rounded))
    }
}

/// `2^x` with a relative error below 1e-6 from -126 on; below that it stays at 2^-126; for x of at most 127.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
pub(super) unsafe fn exp2<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let x = S::max(S::splat(-126.0), x);
        let rounded = S::add(x, S::splat(ROUNDING));
        let r = S::sub(x, S::sub(rounded, S::splat(ROUNDING)));
        // (ln 2)^k / k!
        let terms =
            [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0];
        S::mul(polynomial::<S>(r, terms), S::power_of_two(rounded))
    }
}

/// Horner's rule, highest power first.
///
/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn polynomial<S: Simd>(x: S::F, terms: [f32; 7]) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sum = S::splat(terms[0]);
        for &term in &terms[1..] {
            sum = S::fma(sum, x, S::splat(term));
        }
        sum
    }
}

/// # Safety
/// The processor has `S`; `head` has at least twice as many elements as `cos`, and `sin` as many.
#[inline(always)]
unsafe fn rope_all<S: Simd>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    let whole = half / LANES * LANES;
    for j in (0..whole).step_by(LANES) {
        // SAFETY: the caller's promises; `j + 16 <= half`.
        unsafe {
            let (low, high) = (head.as_mut_ptr().add(j), head.as_mut_ptr().add(j + half));
            let (a, b) = (S::load(low), S::load(high));
            let (cos, sin) = (S::load(cos.as_ptr().add(j)), S::load(sin.as_ptr().add(j)));
            S::store(low, S::sub(S::mul(a, cos), S::mul(b, sin)));
            S::store(high, S::add(S::mul(b, cos), S::mul(a, sin)));
        }
    }
    for j in whole..half {
        let (a, b) = (head[j], head[j + half]);
        head[j] = a * cos[j] - b * sin[j];
        head[j + half] = b * cos[j] + a * sin[j];
    }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn max_all<S: Simd>(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    // SAFETY: the caller's promise; chunks are 16 long. `max` keeps its second operand when the first is NaN.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        for chunk in chunks {
            largest = S::max(S::load(chunk.as_ptr()), largest);
        }
        rest.iter().copied().fold(S::max_lanes(largest), f32::max)
    }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn sum_exp<S: Simd>(x: &[f32], largest: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    // SAFETY: the caller's promise; chunks are 16 long.
    unsafe {
        let shift = S::splat(largest);
        let mut sums = S::splat(0.0);
        for chunk in chunks {
            sums = S::add(sums, exp::<S>(S::sub(S::load(chunk.as_ptr()), shift)));
        }
        S::sum(sums) + rest.iter().map(|x| (x - largest).exp()).sum::<f32>()
    }
}

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn exp_sub<S: Simd>(x: &mut [f32], total: f32) {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        // SAFETY: the caller's promise; chunks are 16 long.
        unsafe { S::store(chunk.as_mut_ptr(), exp::<S>(S::sub(S::load(chunk.as_ptr()), S::splat(total)))) }
    }
    for x in rest {
        *x = (*x - total).exp();
    }
}
