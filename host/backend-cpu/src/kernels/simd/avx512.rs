//! AVX-512 with VNNI: one register is one value.

use std::arch::x86_64::*;

use super::{BLOCK, Simd};

/// AVX-512 with VNNI.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512;

// SAFETY notes: every block below holds because the trait's callers promise the instruction set and, for pointers, as
// many elements as the function's documentation says; all loads and stores are the unaligned forms.
impl Simd for Avx512 {
    type F = __m512;
    type W = __m512i;
    const TILE_M: usize = 16;
    const ATTEND_ROWS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: __m512) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: __m512) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x))) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div_near(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe {
            // 14 bits, then twice as many (Newton).
            let inverse = _mm512_rcp14_ps(b);
            let error = _mm512_fnmadd_ps(b, inverse, _mm512_set1_ps(1.0));
            _mm512_mul_ps(a, _mm512_fmadd_ps(inverse, error, inverse))
        }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(x: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_abs_ps(x) }
    }
    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(x) }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(a: __m512, b: __m512) -> u32 {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
            _mm512_reduce_max_epu32(_mm512_max_epu32(a, b))
        }
    }
    #[inline(always)]
    unsafe fn max_lanes(x: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(x) }
    }
    #[inline(always)]
    unsafe fn keep_first(x: __m512, count: usize, other: __m512) -> __m512 {
        let mask = ((1u32 << count.min(16)) - 1) as u16;
        // SAFETY: see above.
        unsafe { _mm512_mask_mov_ps(other, mask, x) }
    }
    #[inline(always)]
    unsafe fn power_of_two(x: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(x));
            _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_castps_si512(_mm512_set1_ps(1.0))))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: see above; prefetching never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: __m512i) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.cast(), x) }
    }
    #[inline(always)]
    unsafe fn nibbles(x: __m512i) -> (__m512i, __m512i) {
        // SAFETY: see above.
        unsafe {
            let low = _mm512_set1_epi8(15);
            (_mm512_and_si512(x, low), _mm512_and_si512(_mm512_srli_epi16::<4>(x), low))
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: __m512i) -> __m512i {
        // SAFETY: see above; the table is 16 bytes.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x) }
    }
    #[inline(always)]
    unsafe fn add_where(x: __m512i, mask: u64, value: u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_mask_add_epi8(x, mask, x, _mm512_set1_epi8(value as i8)) }
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: bool>(w: &[__m512i], x: *const i8, bias: i32) -> __m512 {
        // SAFETY: see above; group g reads the activations 4 g to 4 g + 3.
        unsafe {
            let mut sum = if OFFSET { _mm512_set1_epi32(bias) } else { _mm512_setzero_si512() };
            for (g, &w) in w.iter().enumerate() {
                let high = _mm512_set1_epi32(x.add(4 * g).cast::<i32>().read_unaligned());
                sum = _mm512_dpbusd_epi32(sum, w, high);
            }
            sum = _mm512_slli_epi32::<4>(sum);
            for (g, &w) in w.iter().enumerate() {
                let low = _mm512_set1_epi32(x.add(BLOCK + 4 * g).cast::<i32>().read_unaligned());
                sum = _mm512_dpbusd_epi32(sum, w, low);
            }
            _mm512_cvtepi32_ps(sum)
        }
    }
}
