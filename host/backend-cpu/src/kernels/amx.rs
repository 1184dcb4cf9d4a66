//! Products on the tile unit of x86 (AMX): up to 16 rows by 16 outputs of one block of 32 inputs at once.
//!
//! The unit sums bytes exactly in 32 bits, as the vector kernels do. What follows, from sums to floats, is their
//! arithmetic operation by operation, so a row has the same bits whoever served it. The unit reads what is there
//! already: an expanded tile is its second operand as it lies, a group's codes are its first.
//!
//! A block takes 16 cycles of the unit beside 16 vector cycles or so for the floats; without it the sums alone take 64.

use std::arch::asm;
use std::arch::x86_64::*;

use super::rows::Group;
use super::simd::{Avx512, LANES, Simd, unroll};
use super::tile::{EXPANDED_BYTES, Target};
use super::{BLOCK, GROUP_ROWS};

/// Rows from which on it pays to expand a tile and fill the unit.
pub(super) const ROWS_MIN: usize = 9;

/// Products that are on their way at once, each in a register of its own.
const FLIGHT: usize = 4;

/// Sums of one product.
#[repr(C, align(64))]
struct Sums([i32; GROUP_ROWS * LANES]);

/// What LDTILECFG reads: bytes in a row from byte 16 on (u16 each), rows from byte 48 on.
#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    /// Registers 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights. `subs`: scales in a block, 1 or 2.
    fn new(rows: usize, subs: usize) -> Self {
        let mut config = [0; 64];
        config[0] = 1;
        for register in 0..8 {
            let (row_bytes, rows) = match register {
                0..4 => (4 * LANES, rows),
                4..6 => (BLOCK / subs, rows),
                _ => (4 * LANES, BLOCK / subs / 4),
            };
            config[16 + 2 * register] = row_bytes as u8;
            config[48 + register] = rows as u8;
        }
        Self(config)
    }
}

/// The calling thread's unit, set up for groups of one kind until it is dropped.
pub(super) struct Unit {
    /// 8 or 16: rows that are computed, whether they are there or not.
    rows: usize,
    /// It belongs to the thread that set it up.
    thread: std::marker::PhantomData<*const ()>,
}

impl Unit {
    /// For groups of up to `rows` rows, with `subs` scales in a block.
    ///
    /// # Safety
    /// The processor has the unit and this process may use it.
    pub(super) unsafe fn new(rows: usize, subs: usize) -> Self {
        let rows = if rows <= GROUP_ROWS / 2 { GROUP_ROWS / 2 } else { GROUP_ROWS };
        let config = Config::new(rows, subs);
        // SAFETY: the caller's promise; the configuration is 64 readable bytes of palette 1, whose limits of 16 rows
        // and 64 bytes hold.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
        Self { rows, thread: std::marker::PhantomData }
    }

    /// All rows of a group against a tile that was expanded to `tile`.
    ///
    /// # Safety
    /// The processor has AVX-512; the unit was set up for `SUBS` and as many rows; the tile and the group have `blocks`
    /// blocks, the target the group's rows. After the group's codes, scales, sums and biases so many more can be read
    /// that its last block has `GROUP_ROWS` rows.
    pub(super) unsafe fn group<const SUBS: usize, const MINS: bool>(
        &self,
        tile: *const u8,
        blocks: usize,
        group: &Group,
        target: &Target,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            if self.rows == GROUP_ROWS {
                group_of::<SUBS, MINS, GROUP_ROWS>(tile, blocks, group, target);
            } else {
                group_of::<SUBS, MINS, { GROUP_ROWS / 2 }>(tile, blocks, group, target);
            }
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: the unit was set up, so it is there; giving it back leaves the thread nothing to save.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// `sums = activations x weights` by way of three registers.
macro_rules! product {
    ($sums:literal, $acts:literal, $weights:literal, $x:expr, $w:expr, $to:expr) => {
        asm!(
            concat!("tilezero tmm", $sums),
            concat!("tileloadd tmm", $acts, ", [{x} + {x_row}]"),
            concat!("tileloadd tmm", $weights, ", [{w} + {row}]"),
            concat!("tdpbsud tmm", $sums, ", tmm", $acts, ", tmm", $weights),
            concat!("tilestored [{to} + {row}], tmm", $sums),
            x = in(reg) $x,
            x_row = in(reg) BLOCK,
            w = in(reg) $w,
            row = in(reg) 4 * LANES,
            to = in(reg) $to,
            options(nostack, preserves_flags),
        )
    };
}

/// # Safety
/// As [`Unit::group`], with `M` rows set up.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn group_of<const SUBS: usize, const MINS: bool, const M: usize>(
    tile: *const u8,
    blocks: usize,
    group: &Group,
    target: &Target,
) {
    let mut flight = [const { std::mem::MaybeUninit::<Sums>::uninit() }; FLIGHT];
    let products = blocks * SUBS;
    // SAFETY: the caller's promises; a product reads `M` rows of its block's codes and its part of the tile, and writes
    // `M` rows of sums. What is read as sums was written by the same turn's products.
    unsafe {
        let scales = tile.add((EXPANDED_BYTES - 2 * 4 * LANES) * blocks).cast::<f32>();
        let mut sums = [Avx512::splat(0.0); M];
        for first in (0..products).step_by(FLIGHT) {
            let here = (products - first).min(FLIGHT);
            for (i, to) in flight.iter_mut().enumerate().take(here) {
                let (block, sub) = ((first + i) / SUBS, (first + i) % SUBS);
                let x = group.codes.add(block * group.rows * BLOCK + sub * (BLOCK / 2));
                let w = tile.add((first + i) * (BLOCK / SUBS * LANES));
                let to = to.as_mut_ptr();
                match i {
                    0 => product!("0", "4", "6", x, w, to),
                    1 => product!("1", "5", "7", x, w, to),
                    2 => product!("2", "4", "6", x, w, to),
                    _ => product!("3", "5", "7", x, w, to),
                }
            }
            for (i, dots) in flight.iter().enumerate().take(here) {
                let (block, sub) = ((first + i) / SUBS, (first + i) % SUBS);
                let dots = dots.as_ptr().cast::<i32>();
                let d = Avx512::load(scales.add(2 * LANES * block + if SUBS == 2 { LANES * sub } else { 0 }));
                let minimum = Avx512::load(scales.add(2 * LANES * block + LANES));
                let at = block * group.rows;
                unroll!(M, m, {
                    let dot = _mm512_loadu_si512(dots.add(LANES * m).cast());
                    let scale = Avx512::splat(*group.scales.add(at + m));
                    if MINS {
                        sums[m] = Avx512::fma(_mm512_cvtepi32_ps(dot), Avx512::mul(d, scale), sums[m]);
                        sums[m] = Avx512::fma(minimum, Avx512::splat(*group.sums.add(at + m)), sums[m]);
                    } else {
                        // Of the whole block, of its first half, of its second.
                        let bias = *group.biases.add((at + m) * 3 + if SUBS == 2 { 1 + sub } else { 0 });
                        let dot = _mm512_add_epi32(dot, _mm512_set1_epi32(bias));
                        sums[m] = Avx512::fma(_mm512_cvtepi32_ps(dot), Avx512::mul(d, scale), sums[m]);
                    }
                });
            }
        }
        unroll!(M, m, {
            if m < group.rows {
                target.put::<Avx512>(m, sums[m]);
            }
        });
    }
}

/// Whether the processor has the unit with byte products, and the system lets this process use it from here on.
pub(super) fn available() -> bool {
    // SAFETY: every x86-64 processor has CPUID.
    let leaf = __cpuid_count(7, 0);
    const TILES_AND_BYTES: u32 = 1 << 24 | 1 << 25;
    leaf.edx & TILES_AND_BYTES == TILES_AND_BYTES && permitted()
}

/// Linux keeps a thread's tiles only for processes that ask.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call changes nothing but this process's permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}
