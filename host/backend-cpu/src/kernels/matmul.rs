//! Products of a packed weight with activation rows.

use std::marker::PhantomData;
use std::ops::Range;

use backend::weights::WeightType;

use super::formats::Spec;
use super::simd::{LANES, Simd, entry};
use super::tile::{ExpandedTile, FloatType, Format, PackedTile, Target, dot_group, float_group};
use super::{BLOCK, GROUP_ROWS, Isa, OutCols, PackedWeight, QuantRows, Scratch};

/// What happens to the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// `out = W x`
    Set,
    /// `out += W x`
    Add,
}

/// Activations that one pass over a weight's tiles keeps in the second-level cache, in int8 bytes: half of the 1 MiB
/// or more that processors with AVX-512 have.
const PASS_BYTES: usize = 512 << 10;

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
    assert!((has.int8 || !reads.int8) && (has.float || !reads.float), "{weight:?} reads {reads:?}, rows are {has:?}");
    if outputs.is_empty() || acts.rows() == 0 {
        return;
    }
    let expanded = (cols / BLOCK) * (512 + 64 * 2);
    let scratch = scratch.get(if acts.rows() > GROUP_ROWS && reads.int8 { expanded } else { 0 });
    let (out, stride) = out.raw();
    let job = Job { weight, acts, outputs, out, stride, store, scratch };
    // SAFETY: tiles and groups exist by the assertions above, the output columns are borrowed exclusively, and the
    // scratch holds an expanded tile of any format (at most two scales a block).
    unsafe { run(isa, &job) }
}

/// Defines a marker type, its spec, and an entry for each block format; and the dispatch over them.
macro_rules! formats {
    ($($ty:ident $marker:ident $entry:ident $generic:ident),+ $(,)?) => {
        $(
            struct $marker;
            impl Format for $marker {
                const SPEC: Spec = match Spec::of(WeightType::$ty) {
                    Some(spec) => spec,
                    None => panic!("not a block format"),
                };
            }
            /// # Safety
            /// As [`blocks`].
            #[inline(always)]
            unsafe fn $generic<S: Simd>(job: &Job<'_>) {
                // SAFETY: the caller's promises.
                unsafe { blocks::<S, $marker>(job) }
            }
            entry!(unsafe fn $entry = $generic(job: &Job<'_>));
        )+

        /// # Safety
        /// The job's tiles, groups, output and scratch are valid for it.
        unsafe fn run(isa: Isa, job: &Job<'_>) {
            // SAFETY: the caller's promises.
            unsafe {
                match job.weight.ty() {
                    $(WeightType::$ty => $entry(isa, job),)+
                    WeightType::F32 => float(isa, FloatType::F32, job),
                    WeightType::F16 => float(isa, FloatType::F16, job),
                    WeightType::BF16 => float(isa, FloatType::Bf16, job),
                }
            }
        }
    };
}

formats! {
    Q4_0 Q40 q4_0 q4_0_on,
    Q4_1 Q41 q4_1 q4_1_on,
    Q5_0 Q50 q5_0 q5_0_on,
    Q5_1 Q51 q5_1 q5_1_on,
    Q8_0 Q80 q8_0 q8_0_on,
    Q4_K Q4K q4_k q4_k_on,
    Q5_K Q5K q5_k q5_k_on,
    Q6_K Q6K q6_k q6_k_on,
    IQ4_NL Iq4Nl iq4_nl iq4_nl_on,
    IQ4_XS Iq4Xs iq4_xs iq4_xs_on,
    MXFP4 Mxfp4 mxfp4 mxfp4_on,
}

/// Up to 16 rows read the packed tile directly; more read it expanded, in passes whose activations stay in cache.
///
/// # Safety
/// The processor has `S`; the job's tiles, groups, output and scratch are valid for it.
#[inline(always)]
unsafe fn blocks<S: Simd, F: Format>(job: &Job<'_>) {
    let blocks = job.weight.cols() / BLOCK;
    let rows = job.acts.rows();
    let pass = (PASS_BYTES / job.weight.cols() / GROUP_ROWS).max(1) * GROUP_ROWS;
    debug_assert!(ExpandedTile::<F>::size_bytes(blocks) <= blocks * (512 + 64 * 2));
    for start in (0..rows).step_by(pass) {
        for t in job.tiles() {
            let tile = PackedTile::<F> { at: job.weight.tile(t), format: PhantomData };
            // SAFETY: the caller's promises.
            unsafe {
                if rows <= GROUP_ROWS {
                    dot_group::<S, _>(&tile, blocks, &job.acts.group(0), &job.target(t, 0));
                } else {
                    let tile = ExpandedTile::new::<S>(&tile, blocks, job.scratch);
                    for first in (start..rows.min(start + pass)).step_by(GROUP_ROWS) {
                        dot_group::<S, _>(&tile, blocks, &job.acts.group(first), &job.target(t, first));
                    }
                }
            }
        }
    }
}

entry!(unsafe fn float = floats(ty: FloatType, job: &Job<'_>));

/// # Safety
/// As [`blocks`], with tiles of type `ty`.
#[inline(always)]
unsafe fn floats<S: Simd>(ty: FloatType, job: &Job<'_>) {
    debug_assert_eq!(job.weight.float_type(), Some(ty));
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
                    let at = four.map(|t| job.weight.tile(t).codes);
                    float_group::<S, 4>(ty, &at, cols, &group, &four.map(|t| job.target(t, first)));
                } else {
                    float_group::<S, 1>(ty, &[job.weight.tile(t).codes], cols, &group, &[job.target(t, first)]);
                }
            }
        }
        t += if wide { 4 } else { 1 };
    }
}
