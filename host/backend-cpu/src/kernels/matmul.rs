//! Products of a packed weight with activation rows.

use std::ops::Range;

use backend::weights::WeightType;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::formats::Spec;
#[cfg(target_arch = "x86_64")]
use super::isa::Level;
use super::simd::{LANES, Simd, entry};
use super::tile::{
    Bf16, EXPANDED_BYTES, ExpandedTile, F16, F32, Float, FloatTiles, Format, PackedTile, Target, dot_group, expand,
};
use super::{BLOCK, GROUP_ROWS, Isa, OutCols, PackedWeight, QuantRows, Scratch};

/// What happens to the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// `out = W x`
    Set,
    /// `out += W x`
    Add,
}

/// Codes of activations that one pass over a weight's tiles keeps in the second-level cache, in bytes: half of the 2 MiB
/// that processors with tiles have. Others have less, and wait longer for their arithmetic than for the third level.
const PASS_BYTES: usize = 1 << 20;

/// Bytes of scratch that [`matmul`] needs.
pub fn scratch_bytes(weight: &PackedWeight) -> usize {
    if weight.reads().codes { (weight.cols() / BLOCK) * EXPANDED_BYTES } else { 0 }
}

struct Job<'a> {
    weight: &'a PackedWeight,
    acts: &'a QuantRows,
    outputs: Range<usize>,
    out: *mut f32,
    stride: usize,
    store: Store,
    scratch: *mut u8,
}

impl Job<'_> {
    /// Where the outputs of tile `t` go, for the group that starts at row `first`.
    fn target(&self, t: usize, first: usize) -> Target {
        let output = t * LANES;
        Target {
            at: self.out.wrapping_add(first * self.stride + output - self.outputs.start),
            stride: self.stride,
            outputs: (self.outputs.end - output).min(LANES),
            add: self.store == Store::Add,
        }
    }

    fn tiles(&self) -> Range<usize> {
        self.outputs.start / LANES..self.outputs.end.div_ceil(LANES)
    }
}

/// `out[m][i] = sum_k w[outputs.start + i][k] x[m][k]` for all rows `m` of `acts`, or added to what is there.
///
/// Threads call it at the same time for disjoint `outputs`; each brings its own scratch. A row's result does not depend
/// on the other rows nor on the range.
///
/// # Panics
/// When `outputs` lies outside the weight or does not start at a multiple of [`super::TILE_ROWS`], ends neither there
/// nor with the weight, when `out` has another number of rows or columns, or when `acts` has other columns than the
/// weight or lacks the form that it reads.
pub fn matmul(
    isa: Isa,
    weight: &PackedWeight,
    acts: &QuantRows,
    outputs: Range<usize>,
    out: &mut OutCols<'_>,
    store: Store,
    scratch: &mut Scratch,
) {
    let (rows, cols) = (weight.rows(), weight.cols());
    assert!(outputs.start <= outputs.end && outputs.end <= rows, "outputs {outputs:?} of {weight:?}");
    assert!(outputs.start.is_multiple_of(LANES), "outputs {outputs:?} do not start on a tile");
    assert!(outputs.end.is_multiple_of(LANES) || outputs.end == rows, "outputs {outputs:?} end inside a tile");
    assert_eq!(acts.cols(), cols, "activation columns for {weight:?}");
    assert_eq!((out.rows(), out.cols()), (acts.rows(), outputs.len()), "output rows and columns for {weight:?}");
    let (reads, has) = (weight.reads(), acts.forms());
    assert!(
        (has.codes || !reads.codes) && (has.halves || !reads.halves) && (has.float || !reads.float),
        "{weight:?} reads {reads:?}, rows are {has:?}"
    );
    if outputs.is_empty() || acts.rows() == 0 {
        return;
    }
    let scratch = scratch.get(scratch_bytes(weight));
    let (out, stride) = out.raw();
    let job = Job { weight, acts, outputs, out, stride, store, scratch };
    // SAFETY: tiles and groups exist by the assertions above, the output columns are borrowed exclusively, and the
    // scratch holds an expanded tile.
    unsafe { run(isa, &job) }
}

/// Defines a marker type, its spec, and entries for each block format; and the dispatch over them.
macro_rules! formats {
    ($($ty:ident $marker:ident $direct:literal $name:ident),+ $(,)?) => {
        $(
            struct $marker;
            impl Format for $marker {
                const SPEC: Spec = match Spec::of(WeightType::$ty) {
                    Some(spec) => spec,
                    None => panic!("not a block format"),
                };
                const DIRECT_ROWS: usize = $direct;
            }
            mod $name {
                use super::*;

                /// # Safety
                /// As [`direct`].
                #[inline(always)]
                unsafe fn direct_on<S: Simd>(job: &Job<'_>) {
                    // SAFETY: the caller's promises.
                    unsafe { super::direct::<S, $marker, $direct>(job) }
                }
                entry!(pub(super) unsafe fn direct = direct_on(job: &Job<'_>));

                /// # Safety
                /// The processor has `S`; the job's tile `t` exists and its scratch holds it expanded.
                #[inline(always)]
                unsafe fn expand_on<S: Simd>(job: &Job<'_>, t: usize) {
                    let tile = PackedTile::<$marker>::new(job.weight, t);
                    // SAFETY: the caller's promises.
                    unsafe { expand::<S, _>(&tile, job.weight.cols() / BLOCK, job.scratch) }
                }
                entry!(unsafe fn expand_tile = expand_on(job: &Job<'_>, t: usize));

                /// # Safety
                /// As `expand_on`; `twice` only for the tile unit.
                pub(super) unsafe fn expand_to(isa: Isa, job: &Job<'_>, t: usize, twice: bool) {
                    #[cfg(target_arch = "x86_64")]
                    if twice {
                        let tile = PackedTile::<$marker>::new(job.weight, t);
                        // SAFETY: the caller's promises; the tile unit comes with AVX-512.
                        return unsafe { amx::expand_twice(&tile, job.weight.cols() / BLOCK, job.scratch) };
                    }
                    let _ = twice;
                    // SAFETY: the caller's promises.
                    unsafe { expand_tile(isa, job, t) }
                }
            }
        )+

        /// # Safety
        /// The job's tiles, groups, output and scratch are valid for it.
        unsafe fn run(isa: Isa, job: &Job<'_>) {
            let rows = job.acts.rows();
            // SAFETY: the caller's promises.
            unsafe {
                match job.weight.ty() {
                    $(
                        WeightType::$ty if rows <= $marker::DIRECT_ROWS.min(direct_rows(isa)) => {
                            $name::direct(isa, job)
                        }
                        WeightType::$ty => expanded(isa, job, $marker::SPEC, $name::expand_to),
                    )+
                    WeightType::F32 => f32_tiles(isa, job),
                    WeightType::F16 => f16_tiles(isa, job),
                    WeightType::BF16 => bf16_tiles(isa, job),
                    WeightType::F8_E4M3 => unreachable!("loaded as bf16"),
                }
            }
        }
    };
}

// The number is how many rows read the packed tile directly. Expanding costs about as much as one and a half rows, so
// it pays from three rows on where the program is not to grow; Q4_1 has a kernel for each number, and so has Q8_0, whose
// expanded tiles would be copies.
formats! {
    Q4_0 Q40 2 q4_0,
    Q4_1 Q41 16 q4_1,
    Q5_0 Q50 2 q5_0,
    Q5_1 Q51 2 q5_1,
    Q8_0 Q80 16 q8_0,
    Q4_K Q4K 2 q4_k,
    Q5_K Q5K 2 q5_k,
    Q6_K Q6K 2 q6_k,
    IQ4_NL Iq4Nl 2 iq4_nl,
    IQ4_XS Iq4Xs 2 iq4_xs,
    MXFP4 Mxfp4 2 mxfp4,
}

/// One group of rows against the packed tiles.
///
/// # Safety
/// The processor has `S`; the job's tiles, groups and output are valid for it.
#[inline(always)]
unsafe fn direct<S: Simd, F: Format, const MOST: usize>(job: &Job<'_>) {
    let blocks = job.weight.cols() / BLOCK;
    for t in job.tiles() {
        let tile = PackedTile::<F>::new(job.weight, t);
        // SAFETY: the caller's promises.
        unsafe { dot_group::<S, _, MOST>(&tile, blocks, &job.acts.group(0), &job.target(t, 0)) }
    }
}

/// Tiles expanded in the scratch, in passes whose activations stay in cache.
///
/// # Safety
/// The job's tiles, groups, output and scratch are valid for it; `expand` is its format's.
unsafe fn expanded(isa: Isa, job: &Job<'_>, spec: Spec, expand: unsafe fn(Isa, &Job<'_>, usize, bool)) {
    let rows = job.acts.rows();
    let pass = (PASS_BYTES / (2 * job.weight.cols()) / GROUP_ROWS).max(1) * GROUP_ROWS;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: such an `Isa` exists only where the unit does.
    let unit =
        (isa.0 == Level::Amx && rows >= amx::ROWS_MIN).then(|| unsafe { amx::Unit::new(rows, amx::Form::of(&spec)) });
    for start in (0..rows).step_by(pass) {
        let rows = start..rows.min(start + pass);
        for t in job.tiles() {
            // SAFETY: the caller's promises.
            unsafe {
                #[cfg(target_arch = "x86_64")]
                if let Some(unit) = &unit {
                    expand(isa, job, t, unit.form == amx::Form::Twice);
                    if spec.mins {
                        unit_rows::<true>(unit, job, t, rows.clone());
                    } else {
                        unit_rows::<false>(unit, job, t, rows.clone());
                    }
                    continue;
                }
                expand(isa, job, t, false);
                match (spec.subs, spec.mins) {
                    (2, _) => two_scales(isa, job, t, rows.clone()),
                    (_, true) => with_minima(isa, job, t, rows.clone()),
                    _ => plain(isa, job, t, rows.clone()),
                }
            }
        }
    }
}

/// Rows that are better served by packed tiles, whatever the format.
fn direct_rows(isa: Isa) -> usize {
    #[cfg(target_arch = "x86_64")]
    if isa.0 == Level::Amx {
        return amx::ROWS_MIN - 1;
    }
    let _ = isa;
    usize::MAX
}

/// # Safety
/// The job is valid; its scratch holds tile `t` expanded in the unit's form; `rows` starts with a group; the unit is set
/// up for as many.
#[cfg(target_arch = "x86_64")]
unsafe fn unit_rows<const MINS: bool>(unit: &amx::Unit, job: &Job<'_>, t: usize, rows: Range<usize>) {
    let blocks = job.weight.cols() / BLOCK;
    for first in rows.step_by(GROUP_ROWS) {
        let (group, target) = (job.acts.group(first), job.target(t, first));
        // SAFETY: the caller's promises; rows are kept with what the unit reads beyond them.
        unsafe { unit.group::<MINS>(job.scratch, blocks, &group, &target) }
    }
}

entry!(unsafe fn plain = plain_on(job: &Job<'_>, t: usize, rows: Range<usize>));
entry!(unsafe fn with_minima = with_minima_on(job: &Job<'_>, t: usize, rows: Range<usize>));
entry!(unsafe fn two_scales = two_scales_on(job: &Job<'_>, t: usize, rows: Range<usize>));

/// # Safety
/// As [`expanded_rows`], for one scale without minima.
#[inline(always)]
unsafe fn plain_on<S: Simd>(job: &Job<'_>, t: usize, rows: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { expanded_rows::<S, 1, false>(job, t, rows) }
}

/// # Safety
/// As [`expanded_rows`], for one scale with minima.
#[inline(always)]
unsafe fn with_minima_on<S: Simd>(job: &Job<'_>, t: usize, rows: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { expanded_rows::<S, 1, true>(job, t, rows) }
}

/// # Safety
/// As [`expanded_rows`], for two scales.
#[inline(always)]
unsafe fn two_scales_on<S: Simd>(job: &Job<'_>, t: usize, rows: Range<usize>) {
    // SAFETY: the caller's promises.
    unsafe { expanded_rows::<S, 2, false>(job, t, rows) }
}

/// # Safety
/// The processor has `S`; the job is valid; its scratch holds tile `t` expanded; `rows` starts with a group.
#[inline(always)]
unsafe fn expanded_rows<S: Simd, const SUBS: usize, const MINS: bool>(job: &Job<'_>, t: usize, rows: Range<usize>) {
    let blocks = job.weight.cols() / BLOCK;
    let tile = ExpandedTile::<SUBS, MINS> { at: job.scratch.cast_const(), blocks };
    for first in rows.step_by(GROUP_ROWS) {
        // SAFETY: the caller's promises.
        unsafe { dot_group::<S, _, GROUP_ROWS>(&tile, blocks, &job.acts.group(first), &job.target(t, first)) }
    }
}

entry!(unsafe fn f32_tiles = f32_on(job: &Job<'_>));
entry!(unsafe fn f16_tiles = f16_on(job: &Job<'_>));
entry!(unsafe fn bf16_tiles = bf16_on(job: &Job<'_>));

/// # Safety
/// As [`floats`].
#[inline(always)]
unsafe fn f32_on<S: Simd>(job: &Job<'_>) {
    // SAFETY: the caller's promises.
    unsafe { floats::<S, F32>(job) }
}

/// # Safety
/// As [`floats`].
#[inline(always)]
unsafe fn f16_on<S: Simd>(job: &Job<'_>) {
    // SAFETY: the caller's promises.
    unsafe { floats::<S, F16>(job) }
}

/// # Safety
/// As [`floats`].
#[inline(always)]
unsafe fn bf16_on<S: Simd>(job: &Job<'_>) {
    // SAFETY: the caller's promises.
    unsafe { floats::<S, Bf16>(job) }
}

/// # Safety
/// The processor has `S`; the job's tiles, groups and output are valid for it, and its tiles are of type `T`.
#[inline(always)]
unsafe fn floats<S: Simd, T: Float>(job: &Job<'_>) {
    let cols = job.weight.cols();
    let tiles = job.tiles();
    let mut t = tiles.start;
    while t < tiles.end {
        let wide = t + 4 <= tiles.end;
        for first in (0..job.acts.rows()).step_by(GROUP_ROWS) {
            let group = job.acts.group(first);
            // SAFETY: the caller's promises; four tiles are left when `wide`.
            unsafe {
                if wide {
                    let four = [t, t + 1, t + 2, t + 3];
                    let (tiles, targets) = (four.map(|t| job.weight.tile(t).codes), four.map(|t| job.target(t, first)));
                    FloatTiles { tiles, targets, cols }.group::<S, T>(&group);
                } else {
                    let (tiles, targets) = ([job.weight.tile(t).codes], [job.target(t, first)]);
                    FloatTiles { tiles, targets, cols }.group::<S, T>(&group);
                }
            }
        }
        t += if wide { 4 } else { 1 };
    }
}
