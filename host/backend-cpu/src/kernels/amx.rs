//! Products on the tile unit of x86 (AMX): up to 16 rows by 16 outputs of one block of 32 inputs at once.
//!
//! The unit sums bytes exactly in 32 bits, as the vector kernels do. What follows, from sums to floats, is their
//! arithmetic operation by operation, so a row has the same bits whoever served it.
//!
//! A group's codes are the unit's first operand as they lie: 64 bytes a row, the high parts of a block and the low ones.
//! Where 16 times a weight's code is a byte too, one product takes both: its second operand is the block's codes times
//! 16, then the codes ([`expand_twice`]). Other formats are expanded as for the vector kernels, and take two products.
//!
//! A product takes the unit 19 cycles for 16 rows and its sums 16 more on their way out; the floats take the vector units
//! 32. Both units share a port, so they can overlap in part only: docs/decisions/0032-tiles-share-a-port.md. Reading
//! sums later, or in batches, changes nothing.

use std::arch::asm;
use std::arch::x86_64::*;

use super::formats::Spec;
use super::rows::{CODE_BYTES, Group};
use super::simd::{Avx512, LANES, Simd, unroll};
use super::tile::{Block, Blocks, Format, PackedTile, Target};
use super::{BLOCK, GROUP_ROWS};

/// Rows from which on it pays to expand a tile and fill the unit.
pub(super) const ROWS_MIN: usize = 9;
/// Products whose sums are kept.
const FLIGHT: usize = 4;
/// So many turns after a product was begun, its sums are read.
const LAG: usize = 2;

/// Sums of one product.
#[repr(C, align(64))]
struct Sums([i32; GROUP_ROWS * LANES]);

/// How a tile was expanded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By [`expand_twice`]: a block is one product.
    Twice,
    /// As for the vector kernels: a block is a product of the high parts and one of the low parts.
    Once,
    /// As `Once`, with a scale for each half of a block, which are products of their own.
    Halves,
}

impl Form {
    /// The one for a format.
    pub(super) fn of(spec: &Spec) -> Self {
        if spec.subs == 2 {
            Self::Halves
        } else if spec.mins && spec.planes == 0 {
            Self::Twice
        } else {
            Self::Once
        }
    }
}

/// What LDTILECFG reads: bytes in a row from byte 16 on (u16 each), rows from byte 48 on.
#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    /// Registers 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights; `bytes` of a row enter a product.
    fn new(rows: usize, bytes: usize) -> Self {
        let mut config = [0; 64];
        config[0] = 1;
        for register in 0..8 {
            let (row_bytes, rows) = match register {
                0..4 => (4 * LANES, rows),
                4..6 => (bytes, rows),
                _ => (4 * LANES, bytes / 4),
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
    pub form: Form,
    /// It belongs to the thread that set it up.
    thread: std::marker::PhantomData<*const ()>,
}

impl Unit {
    /// For groups of up to `rows` rows.
    ///
    /// # Safety
    /// The processor has the unit and this process may use it.
    pub(super) unsafe fn new(rows: usize, form: Form) -> Self {
        let rows = if rows <= GROUP_ROWS / 2 { GROUP_ROWS / 2 } else { GROUP_ROWS };
        let bytes = match form {
            Form::Twice => CODE_BYTES,
            Form::Once => BLOCK,
            Form::Halves => BLOCK / 2,
        };
        let config = Config::new(rows, bytes);
        // SAFETY: the caller's promise; the configuration is 64 readable bytes of palette 1, whose limits of 16 rows
        // and 64 bytes hold.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
        Self { rows, form, thread: std::marker::PhantomData }
    }

    /// All rows of a group against a tile that was expanded to `tile`.
    ///
    /// # Safety
    /// The processor has AVX-512; the unit was set up for as many rows; the tile was expanded in the unit's form, with
    /// minima if `MINS`; it and the group have `blocks` blocks, the target the group's rows. After the group's codes,
    /// scales, sums and biases so many more can be read that its last block has `GROUP_ROWS` rows.
    pub(super) unsafe fn group<const MINS: bool>(
        &self,
        tile: *const u8,
        blocks: usize,
        group: &Group,
        target: &Target,
    ) {
        const HALF: usize = GROUP_ROWS / 2;
        const ONCE: u8 = Form::Once as u8;
        const TWICE: u8 = Form::Twice as u8;
        const HALVES: u8 = Form::Halves as u8;
        // SAFETY: the caller's promises.
        unsafe {
            match (self.form, self.rows == GROUP_ROWS) {
                (Form::Twice, true) => group_of::<TWICE, MINS, GROUP_ROWS>(tile, blocks, group, target),
                (Form::Twice, false) => group_of::<TWICE, MINS, HALF>(tile, blocks, group, target),
                (Form::Once, true) => group_of::<ONCE, MINS, GROUP_ROWS>(tile, blocks, group, target),
                (Form::Once, false) => group_of::<ONCE, MINS, HALF>(tile, blocks, group, target),
                (Form::Halves, true) => group_of::<HALVES, MINS, GROUP_ROWS>(tile, blocks, group, target),
                (Form::Halves, false) => group_of::<HALVES, MINS, HALF>(tile, blocks, group, target),
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

/// Expands a tile of `blocks` blocks, whose codes are below 16 and have minima: for each block the codes times 16, and
/// the codes; after all blocks the scale and the minimum of each.
///
/// # Safety
/// The processor has AVX-512, the tile has `blocks` blocks, and `to` is valid for as many times
/// [`super::tile::EXPANDED_BYTES`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn expand_twice<F: Format>(tile: &PackedTile<F>, blocks: usize, to: *mut u8) {
    for block in 0..blocks {
        // SAFETY: the caller's promises.
        unsafe {
            let Block { w, d, m } = tile.block::<Avx512>(block);
            let codes = to.add(1024 * block);
            for (g, w) in w.into_iter().enumerate() {
                // Codes are below 16, so no bit crosses into the next byte.
                Avx512::store_bytes(codes.add(64 * g), _mm512_slli_epi16::<4>(w));
                Avx512::store_bytes(codes.add(512 + 64 * g), w);
            }
            let scales = to.add(1024 * blocks + 128 * block).cast::<f32>();
            Avx512::store(scales, d[0]);
            Avx512::store(scales.add(LANES), m);
        }
    }
}

/// `sums = activations x weights` by way of three registers.
macro_rules! product {
    ($sums:literal, $acts:literal, $weights:literal, $x:expr, $w:expr, $to:expr) => {
        asm!(
            concat!("tilezero tmm", $sums),
            concat!("tileloadd tmm", $acts, ", [{x} + {row}]"),
            concat!("tileloadd tmm", $weights, ", [{w} + {row}]"),
            concat!("tdpbsud tmm", $sums, ", tmm", $acts, ", tmm", $weights),
            concat!("tilestored [{to} + {row}], tmm", $sums),
            x = in(reg) $x,
            w = in(reg) $w,
            // A row of activations and one of weights are 64 bytes apart, and so are sums.
            row = in(reg) CODE_BYTES,
            to = in(reg) $to,
            options(nostack, preserves_flags),
        )
    };
}

/// Registers of sums, activations and weights take turns.
///
/// # Safety
/// The unit is set up; `x`, `w` and `to` are valid for its rows.
#[inline(always)]
unsafe fn product(turn: usize, x: *const i8, w: *const u8, to: *mut Sums) {
    // SAFETY: the caller's promises.
    unsafe {
        match turn % 4 {
            0 => product!("0", "4", "6", x, w, to),
            1 => product!("1", "5", "7", x, w, to),
            2 => product!("2", "4", "6", x, w, to),
            _ => product!("3", "5", "7", x, w, to),
        }
    }
}

/// # Safety
/// As [`Unit::group`], with `M` rows set up for `FORM`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn group_of<const FORM: u8, const MINS: bool, const M: usize>(
    tile: *const u8,
    blocks: usize,
    group: &Group,
    target: &Target,
) {
    let twice = const { FORM == Form::Twice as u8 };
    let subs = const { if FORM == Form::Halves as u8 { 2 } else { 1 } };
    let code_bytes = if twice { 2 * BLOCK * LANES } else { BLOCK * LANES };
    let mut highs = [const { std::mem::MaybeUninit::<Sums>::uninit() }; FLIGHT];
    let mut lows = [const { std::mem::MaybeUninit::<Sums>::uninit() }; FLIGHT];
    let turns = blocks * subs;
    // SAFETY: the caller's promises; a product reads `M` rows of its block's codes and its part of the tile, and writes
    // `M` rows of sums. Sums are read `LAG` turns after they were written.
    unsafe {
        unroll!(M, m, {
            // Rows of the target are far apart and seldom in the first cache: their lines come meanwhile.
            let line = target.at.wrapping_add(m * target.stride);
            asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        });
        let scales = tile.add(code_bytes * blocks).cast::<f32>();
        let mut sums = [Avx512::splat(0.0); M];
        for turn in 0..turns + LAG {
            if turn < turns {
                let x = group.codes.add(turn / subs * group.rows * CODE_BYTES + turn % subs * (BLOCK / 2));
                let w = tile.add(turn * (code_bytes / subs));
                let slot = turn % FLIGHT;
                if twice {
                    product(turn, x, w, highs[slot].as_mut_ptr());
                } else {
                    product(2 * turn, x, w, highs[slot].as_mut_ptr());
                    product(2 * turn + 1, x.add(BLOCK), w, lows[slot].as_mut_ptr());
                }
            }
            if turn < LAG {
                continue;
            }
            let (block, sub) = ((turn - LAG) / subs, (turn - LAG) % subs);
            let slot = (turn - LAG) % FLIGHT;
            let (high, low) = (highs[slot].as_ptr().cast::<i32>(), lows[slot].as_ptr().cast::<i32>());
            let d = Avx512::load(scales.add(2 * LANES * block + LANES * sub));
            let minimum = Avx512::load(scales.add(2 * LANES * block + LANES));
            let at = block * group.rows;
            unroll!(M, m, {
                let mut dot = _mm512_loadu_si512(high.add(LANES * m).cast());
                if !MINS {
                    // Of the whole block, of its first half, of its second.
                    let bias = *group.biases.add((at + m) * 3 + if subs == 2 { 1 + sub } else { 0 });
                    dot = _mm512_add_epi32(dot, _mm512_set1_epi32(bias));
                }
                if !twice {
                    let low = _mm512_loadu_si512(low.add(LANES * m).cast());
                    dot = _mm512_add_epi32(_mm512_slli_epi32::<4>(dot), low);
                }
                let scale = Avx512::mul(d, Avx512::splat(*group.scales.add(at + m)));
                sums[m] = Avx512::fma(_mm512_cvtepi32_ps(dot), scale, sums[m]);
                if MINS {
                    sums[m] = Avx512::fma(minimum, Avx512::splat(*group.sums.add(at + m)), sums[m]);
                }
            });
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
