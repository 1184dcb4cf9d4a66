//! AVX2 with FMA: two registers are one value.

use std::arch::x86_64::*;

use super::{BLOCK, Simd};

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2;

/// 16 f32.
type F = [__m256; 2];
/// 64 bytes: outputs 0 to 7, and 8 to 15.
type W = [__m256i; 2];

/// `f` on both halves.
macro_rules! both {
    ($f:expr, $a:expr) => {
        [$f($a[0]), $f($a[1])]
    };
    ($f:expr, $a:expr, $b:expr) => {
        [$f($a[0], $b[0]), $f($a[1], $b[1])]
    };
}

// SAFETY notes: every block below holds because the trait's callers promise the instruction set and, for pointers, as
// many elements as the function's documentation says; all loads and stores are the unaligned forms.
impl Simd for Avx2 {
    type F = F;
    type W = W;
    const TILE_M: usize = 4;
    const ATTEND_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: F) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))] }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: F) {
        // SAFETY: see above.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> F {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())));
            let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast())));
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> F {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast::<__m128i>()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast::<__m128i>()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: F) {
        let mut lanes = [0.0f32; 16];
        // SAFETY: see above; `lanes` has 16 elements.
        unsafe {
            Self::store(lanes.as_mut_ptr(), x);
            to.cast::<[i8; 16]>().write_unaligned(lanes.map(|x| x as i8));
        }
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { both!(_mm256_add_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { both!(_mm256_sub_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { both!(_mm256_mul_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { both!(_mm256_div_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { both!(_mm256_max_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { both!(_mm256_min_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn abs(x: F) -> F {
        // SAFETY: see above.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, x[0]), _mm256_andnot_ps(sign, x[1])]
        }
    }
    #[inline(always)]
    unsafe fn sum(x: F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(x[0], x[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(a: F, b: F) -> u32 {
        // SAFETY: see above.
        unsafe {
            let (a, b) = (Self::abs(a), Self::abs(b));
            let (a, b) = (both!(_mm256_castps_si256, a), both!(_mm256_castps_si256, b));
            let most = both!(_mm256_max_epu32, a, b);
            let eight = _mm256_max_epu32(most[0], most[1]);
            let four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32::<1>(two))) as u32
        }
    }
    #[inline(always)]
    unsafe fn max_lanes(x: F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_max_ps(x[0], x[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn keep_first(x: F, count: usize, other: F) -> F {
        let count = count.min(16) as i32;
        // SAFETY: see above.
        unsafe {
            let count = _mm256_set1_epi32(count);
            let low = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let high = _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
            [
                _mm256_blendv_ps(other[0], x[0], _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(other[1], x[1], _mm256_castsi256_ps(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn power_of_two(x: F) -> F {
        // SAFETY: see above.
        unsafe {
            let one = _mm256_castps_si256(_mm256_set1_ps(1.0));
            let low = _mm256_add_epi32(_mm256_slli_epi32::<23>(_mm256_castps_si256(x[0])), one);
            let high = _mm256_add_epi32(_mm256_slli_epi32::<23>(_mm256_castps_si256(x[1])), one);
            [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: see above; prefetching never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> W {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: W) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(to.cast(), x[0]);
            _mm256_storeu_si256(to.add(32).cast(), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn nibbles(x: W) -> (W, W) {
        // SAFETY: see above.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let low = [_mm256_and_si256(x[0], mask), _mm256_and_si256(x[1], mask)];
            let shifted = both!(_mm256_srli_epi16::<4>, x);
            (low, [_mm256_and_si256(shifted[0], mask), _mm256_and_si256(shifted[1], mask)])
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: W) -> W {
        // SAFETY: see above; the table is 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
    }
    #[inline(always)]
    unsafe fn add_where(x: W, mask: u64, value: u8) -> W {
        // SAFETY: see above.
        unsafe {
            // Byte i of a half looks at bit i % 8 of mask byte i / 8.
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
            let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let value = _mm256_set1_epi8(value as i8);
            let mut sum = x;
            for (i, sum) in sum.iter_mut().enumerate() {
                let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((mask >> (32 * i)) as i32), spread);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
                *sum = _mm256_add_epi8(*sum, _mm256_and_si256(set, value));
            }
            sum
        }
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: bool>(w: &[W], x: *const i8, _bias: i32) -> F {
        // SAFETY: see above; group g reads the activations 4 g to 4 g + 3. Pair sums stay inside i16: codes below 64
        // give at most 2 * 63 * 127, and codes with an offset are made signed first, at most 2 * 128 * 127 = 32,512.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let offset = _mm256_set1_epi8(-128);
            let mut sums = [_mm256_setzero_si256(); 2];
            for plane in 0..2 {
                if plane == 1 {
                    sums = both!(_mm256_slli_epi32::<4>, sums);
                }
                for (g, w) in w.iter().enumerate() {
                    let x = _mm256_set1_epi32(x.add(BLOCK * plane + 4 * g).cast::<i32>().read_unaligned());
                    for (sum, &w) in sums.iter_mut().zip(w) {
                        let pairs = if OFFSET {
                            let signed = _mm256_xor_si256(w, offset);
                            _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
                        } else {
                            _mm256_maddubs_epi16(w, x)
                        };
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            both!(_mm256_cvtepi32_ps, sums)
        }
    }
}
