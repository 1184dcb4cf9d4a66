//! Plain Rust in arrays of 16, which compilers turn into whatever vectors they have.

use half::{bf16, f16};

use super::{BLOCK, LANES, Simd};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

type F = [f32; LANES];
type W = [u8; 64];

#[inline(always)]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
unsafe fn read<T: Copy, const N: usize>(from: *const T) -> [T; N] {
    // SAFETY: the caller promises N readable elements; arrays have the alignment of their element, and the read
    // asks for none.
    unsafe { from.cast::<[T; N]>().read_unaligned() }
}

impl Simd for Portable {
    type F = F;
    type W = W;
    const TILE_M: usize = 1;
    const ATTEND_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        // SAFETY: the caller's promise.
        unsafe { read(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: F) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { to.cast::<F>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> F {
        // SAFETY: the caller's promise.
        unsafe { read::<u16, LANES>(from) }.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: F) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(x.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> F {
        // SAFETY: the caller's promise.
        unsafe { read::<u16, LANES>(from) }.map(|bits| bf16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> F {
        // SAFETY: the caller's promise.
        unsafe { read::<i8, LANES>(from) }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: F) {
        // SAFETY: the caller promises 16 writable elements.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(x.map(|x| x as i8)) }
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        // Not `mul_add`: without the instruction that is a function call per lane.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(x: F) -> F {
        x.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn sum(x: F) -> f32 {
        let mut x = x;
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                x[i] += x[i + width];
            }
            width /= 2;
        }
        x[0]
    }
    #[inline(always)]
    unsafe fn max_abs_bits(a: F, b: F) -> u32 {
        a.iter().chain(&b).map(|x| x.abs().to_bits()).fold(0, u32::max)
    }
    #[inline(always)]
    unsafe fn max_lanes(x: F) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    unsafe fn keep_first(x: F, count: usize, other: F) -> F {
        std::array::from_fn(|i| if i < count { x[i] } else { other[i] })
    }
    #[inline(always)]
    unsafe fn power_of_two(x: F) -> F {
        x.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(1.0f32.to_bits())))
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> W {
        // SAFETY: the caller's promise.
        unsafe { read(from) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: W) {
        // SAFETY: the caller promises 64 writable bytes.
        unsafe { to.cast::<W>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn nibbles(x: W) -> (W, W) {
        (x.map(|x| x & 15), x.map(|x| x >> 4))
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], x: W) -> W {
        x.map(|x| table[usize::from(x & 15)])
    }
    #[inline(always)]
    unsafe fn add_where(x: W, mask: u64, value: u8) -> W {
        std::array::from_fn(|i| x[i].wrapping_add(if mask >> i & 1 == 1 { value } else { 0 }))
    }
    #[inline(always)]
    unsafe fn dot<const OFFSET: bool>(w: &[W], x: *const i8, bias: i32) -> F {
        let mut sums = [16 * bias; LANES];
        for (g, w) in w.iter().enumerate() {
            // SAFETY: the caller promises 4 activations per group.
            let (high, low): ([i8; 4], [i8; 4]) = unsafe { (read(x.add(4 * g)), read(x.add(BLOCK + 4 * g))) };
            for (lane, sum) in sums.iter_mut().enumerate() {
                for (i, (&high, &low)) in high.iter().zip(&low).enumerate() {
                    *sum += i32::from(w[4 * lane + i]) * (16 * i32::from(high) + i32::from(low));
                }
            }
        }
        sums.map(|sum| sum as f32)
    }
}
