//! Sixteen lanes of f32, and 64 bytes of codes, on each instruction set.
//!
//! Kernels are generic over [`Simd`] and marked `#[inline(always)]`; [`entry`] makes one function per instruction set
//! around them, inside which everything is inlined and compiled with that set's features.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

use super::BLOCK;

/// Lanes of an f32 register.
pub(super) const LANES: usize = 16;

/// `1.5 * 2^23`: adding it to a small number rounds that to an integer, nearest even, in the low mantissa bits.
pub(super) const ROUNDING: f32 = 12_582_912.0;

/// Operations of one instruction set.
///
/// # Safety
/// Every function requires that the processor has the instruction set, and that pointers are valid for what the
/// function reads or writes (stated per function, in elements); no alignment is required.
pub(super) trait Simd: Copy + 'static {
    /// 16 f32.
    type F: Copy;
    /// 64 bytes: of 16 outputs, 4 codes each.
    type W: Copy;
    /// Activation rows whose sums of one tile fit in registers: 16, 8, 4, 2 or 1.
    const TILE_M: usize;
    /// Query rows whose 64 scores fit in registers: up to 6.
    const ATTEND_ROWS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    /// Reads 16.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Writes 16.
    unsafe fn store(to: *mut f32, x: Self::F);
    /// Reads 16 f16.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// Writes 16 f16, nearest even; magnitudes of at most 65504.
    unsafe fn store_f16(to: *mut u16, x: Self::F);
    /// Reads 16 bf16.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// Reads 16 i8.
    unsafe fn load_i8(from: *const i8) -> Self::F;
    /// Writes 16 i8; lanes hold integers of -127 to 127.
    unsafe fn store_i8(to: *mut i8, x: Self::F);

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b` within 2 units of the last place, for `b` of 1 to 2^126, and tiny beyond: division is slow.
    #[inline(always)]
    unsafe fn div_near(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { Self::div(a, b) }
    }
    /// `a * b + c`, fused where the set can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` when either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` when either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(x: Self::F) -> Self::F;
    /// Sum of the lanes, in an order that is the same for every call.
    unsafe fn sum(x: Self::F) -> f32;
    /// The bits of the largest magnitude of the lanes of both: those of infinity for one, more for NaN.
    unsafe fn max_abs_bits(a: Self::F, b: Self::F) -> u32;
    /// Largest lane.
    unsafe fn max_lanes(x: Self::F) -> f32;
    /// `x` in the first `count` lanes, `other` in the rest; `count` may exceed 16.
    unsafe fn keep_first(x: Self::F, count: usize, other: Self::F) -> Self::F;
    /// `2^n` where `n` is the integer in the low mantissa bits of `x`, of -126 to 127; see [`ROUNDING`].
    unsafe fn power_of_two(x: Self::F) -> Self::F;

    /// Asks for a cache line that will be read soon; any address will do.
    unsafe fn prefetch(at: *const u8);
    /// Reads 64 bytes.
    unsafe fn bytes(from: *const u8) -> Self::W;
    /// Writes 64 bytes.
    unsafe fn store_bytes(to: *mut u8, x: Self::W);
    /// The low and the high half of each byte.
    unsafe fn nibbles(x: Self::W) -> (Self::W, Self::W);
    /// `table[x]` for bytes of 0 to 15.
    unsafe fn lookup(table: &[u8; 16], x: Self::W) -> Self::W;
    /// Adds `value` to the bytes whose bit in `mask` is set.
    unsafe fn add_where(x: Self::W, mask: u64, value: u8) -> Self::W;
    /// For each output: the exact integer `16 bias + sum over g and i < 4 of w[g][4 output + i] x[4 g + i]`, as f32,
    /// where an activation is `x[k] = 16 high[k] + low[k]`: the highs lie at `x`, the lows [`BLOCK`] bytes further.
    /// With `OFFSET` the codes count from 128, and `16 bias` is minus 128 times the sum of the activations; without it
    /// they are below 64 and `bias` is 0. Reads `4 w.len()` of each, all at least -127.
    unsafe fn dot<const OFFSET: bool>(w: &[Self::W], x: *const i8, bias: i32) -> Self::F;

    /// Rounds to nearest even; for magnitudes up to 2^22.
    #[inline(always)]
    unsafe fn round(x: Self::F) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe {
            let magic = Self::splat(ROUNDING);
            Self::sub(Self::add(x, magic), magic)
        }
    }
}

/// `unroll!(COUNT, i, { .. })` repeats the block for `i` of 0 to `COUNT - 1`, at most 16, as straight code: arrays of
/// registers that are indexed by a loop's counter end up in memory when the loop is long.
macro_rules! unroll {
    ($count:expr, $i:ident, $body:block) => {
        $crate::kernels::simd::unroll!(@ 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; $count, $i, $body)
    };
    (@ $($n:literal)+; $count:expr, $i:ident, $body:block) => {
        $(
            if const { $n < $count } {
                // The remainder changes nothing here; it keeps indices in bounds where the block is never reached.
                let $i: usize = $n % $count;
                $body
            }
        )+
    };
}
pub(super) use unroll;

/// `entry!(unsafe fn name = generic(arg: Type, ..) -> Type)` defines `name(isa, arg, ..)`, which runs
/// `generic::<S>(arg, ..)` compiled for `isa`. Safety: that of the generic function, less the instruction set, which an
/// [`super::Isa`] proves.
macro_rules! entry {
    ($vis:vis unsafe fn $name:ident = $generic:ident ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        #[allow(clippy::too_many_arguments, reason = "kernels take what they read")]
        $vis unsafe fn $name(isa: $crate::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function's caller has the features; the rest is the entry's caller's promise.
                unsafe { $generic::<$crate::kernels::simd::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments, reason = "as above")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic::<$crate::kernels::simd::Avx2>($($arg),*) }
            }
            match isa.0 {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` exists only for what the processor has; the rest is the caller's promise.
                $crate::kernels::isa::Level::Amx | $crate::kernels::isa::Level::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::kernels::isa::Level::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: plain Rust needs no features.
                _ => unsafe { $generic::<$crate::kernels::simd::Portable>($($arg),*) },
            }
        }
    };
}
pub(super) use entry;
