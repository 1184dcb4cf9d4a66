//! The innermost loops of [`super::matmul`]: one tile of 16 outputs against up to 16 activation rows.

use super::formats::{ScaleForm, Spec};
use super::rows::{CODE_BYTES, Group};
use super::simd::{LANES, Simd, unroll};
use super::{BLOCK, PackedWeight};

/// Where the sections of one tile start; see [`super::formats`].
#[derive(Clone, Copy)]
pub(super) struct TilePtr {
    pub codes: *const u8,
    pub planes: *const u8,
    pub scales: *const u8,
    pub supers: *const u8,
}

/// A block format known at compile time.
pub(super) trait Format {
    const SPEC: Spec;
    /// Up to so many rows read the packed tile directly; more read it expanded.
    const DIRECT_ROWS: usize;
}

/// One block of 32 inputs of a tile in registers.
pub(super) struct Block<S: Simd> {
    /// Codes of inputs `4 g` to `4 g + 3`.
    pub w: [S::W; 8],
    /// Scale of the first 16 inputs and of the last, or of all.
    pub d: [S::F; 2],
    pub m: S::F,
}

/// Something that gives blocks: a packed tile, or an expanded one.
pub(super) trait Blocks {
    const SUBS: usize;
    const MINS: bool;

    /// # Safety
    /// The processor has `S` and the tile has block `block`.
    unsafe fn block<S: Simd>(&self, block: usize) -> Block<S>;
}

/// A tile as it is packed.
pub(super) struct PackedTile<F> {
    at: TilePtr,
    /// How far ahead codes and scales are fetched, in bytes: the processor's own prefetching stops at each 4 KiB page
    /// and lets the arithmetic wait. One tile, or a part of a long one that the first-level cache holds.
    ahead: (usize, usize),
    format: std::marker::PhantomData<F>,
}

/// Blocks that are fetched ahead in tiles longer than this: 16 KiB of 4-bit codes.
const AHEAD_BLOCKS: usize = 64;

impl<F: Format> PackedTile<F> {
    pub(super) fn new(weight: &PackedWeight, t: usize) -> Self {
        let ahead = if weight.cols() / BLOCK > AHEAD_BLOCKS {
            (AHEAD_BLOCKS * F::SPEC.code_bytes(), AHEAD_BLOCKS * F::SPEC.scale_bytes())
        } else {
            (weight.tile_bytes(), weight.tile_bytes())
        };
        Self { at: weight.tile(t), ahead, format: std::marker::PhantomData }
    }
}

impl<F: Format> Blocks for PackedTile<F> {
    const SUBS: usize = F::SPEC.subs;
    const MINS: bool = F::SPEC.mins;

    #[inline(always)]
    unsafe fn block<S: Simd>(&self, block: usize) -> Block<S> {
        // SAFETY: the caller's promises; the sections hold what `Spec` says for every block.
        unsafe {
            let ahead = self.at.codes.wrapping_add(self.ahead.0 + block * F::SPEC.code_bytes());
            for line in 0..F::SPEC.code_bytes() / 64 {
                S::prefetch(ahead.wrapping_add(64 * line));
            }
            S::prefetch(self.at.scales.wrapping_add(self.ahead.1 + block * F::SPEC.scale_bytes()));
            let w = codes::<S, F>(&self.at, block);
            let scales = self.at.scales.add(block * F::SPEC.scale_bytes());
            let zero = S::splat(0.0);
            let (d, m) = match F::SPEC.scale {
                ScaleForm::F16 => {
                    let d = S::load_f16(scales.cast());
                    ([d, d], if F::SPEC.mins { S::load_f16(scales.add(32).cast()) } else { zero })
                }
                ScaleForm::Bf16 => {
                    let d = S::load_bf16(scales.cast());
                    ([d, d], zero)
                }
                ScaleForm::Super => {
                    let supers = self.at.supers.add(block / 8 * F::SPEC.super_bytes());
                    let d = S::load_f16(supers.cast());
                    let first = S::mul(d, S::load_i8(scales.cast()));
                    if F::SPEC.subs == 2 {
                        ([first, S::mul(d, S::load_i8(scales.add(16).cast()))], zero)
                    } else if F::SPEC.mins {
                        let m = S::load_f16(supers.add(32).cast());
                        ([first, first], S::mul(m, S::load_i8(scales.add(16).cast())))
                    } else {
                        ([first, first], zero)
                    }
                }
            };
            Block { w, d, m }
        }
    }
}

/// # Safety
/// As [`Blocks::block`].
#[inline(always)]
unsafe fn codes<S: Simd, F: Format>(tile: &TilePtr, block: usize) -> [S::W; 8] {
    // SAFETY: the caller's promises.
    unsafe {
        let at = tile.codes.add(block * F::SPEC.code_bytes());
        // Loops, not `map`: closures are functions of their own and may be compiled without the instruction set.
        let mut w = [S::bytes(at); 8];
        if F::SPEC.bytes {
            for (g, w) in w.iter_mut().enumerate() {
                *w = S::bytes(at.add(64 * g));
            }
            return w;
        }
        for i in 0..4 {
            (w[i], w[i + 4]) = S::nibbles(S::bytes(at.add(64 * i)));
        }
        if let Some(table) = &F::SPEC.table {
            for w in &mut w {
                *w = S::lookup(table, *w);
            }
        }
        let planes = tile.planes.add(block * F::SPEC.plane_bytes());
        for plane in 0..F::SPEC.planes {
            let words = planes.add(64 * plane).cast::<u64>();
            for (g, w) in w.iter_mut().enumerate() {
                *w = S::add_where(*w, u64::from_le(words.add(g).read_unaligned()), 16 << plane);
            }
        }
        w
    }
}

/// A tile with 8-bit codes and two f32 scales a block (second sub-scale, minimum, or nothing), made once for many rows.
pub(super) struct ExpandedTile<const SUBS: usize, const MINS: bool> {
    pub at: *const u8,
    pub blocks: usize,
}

/// Room for one block of an expanded tile: its codes, for the tile unit twice, and two floats of each output.
pub(super) const EXPANDED_BYTES: usize = 2 * 512 + 2 * 64;

/// Expands a tile of `blocks` blocks.
///
/// # Safety
/// The processor has `S`, the tile has `blocks` blocks, and `to` is valid for as many times `EXPANDED_BYTES`.
#[inline(always)]
pub(super) unsafe fn expand<S: Simd, F: Format>(tile: &PackedTile<F>, blocks: usize, to: *mut u8) {
    for block in 0..blocks {
        // SAFETY: the caller's promises.
        unsafe {
            let Block { w, d, m } = tile.block::<S>(block);
            for (g, w) in w.into_iter().enumerate() {
                S::store_bytes(to.add(512 * block + 64 * g), w);
            }
            let scales = to.add(512 * blocks + 128 * block).cast::<f32>();
            S::store(scales, d[0]);
            S::store(scales.add(LANES), if F::SPEC.mins { m } else { d[1] });
        }
    }
}

impl<const SUBS: usize, const MINS: bool> Blocks for ExpandedTile<SUBS, MINS> {
    const SUBS: usize = SUBS;
    const MINS: bool = MINS;

    #[inline(always)]
    unsafe fn block<S: Simd>(&self, block: usize) -> Block<S> {
        // SAFETY: the caller's promises and `new`'s.
        unsafe {
            let at = self.at.add(512 * block);
            let mut w = [S::bytes(at); 8];
            for (g, w) in w.iter_mut().enumerate() {
                *w = S::bytes(at.add(64 * g));
            }
            let scales = self.at.add(512 * self.blocks + 128 * block).cast::<f32>();
            let (first, second) = (S::load(scales), S::load(scales.add(LANES)));
            Block { w, d: [first, second], m: second }
        }
    }
}

/// Where the 16 outputs of a tile go.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub at: *mut f32,
    /// Distance of rows.
    pub stride: usize,
    /// Outputs that exist: 1 to 16.
    pub outputs: usize,
    /// Add to what is there.
    pub add: bool,
}

impl Target {
    /// # Safety
    /// The processor has `S`, and row `m` has `outputs` writable elements.
    #[inline(always)]
    pub(super) unsafe fn put<S: Simd>(&self, m: usize, x: S::F) {
        // SAFETY: the caller's promises; a part of a tile goes through a whole one on the stack.
        unsafe {
            let to = self.at.add(m * self.stride);
            if self.outputs == LANES {
                S::store(to, if self.add { S::add(S::load(to), x) } else { x });
                return;
            }
            let mut lanes = [0.0; LANES];
            S::store(lanes.as_mut_ptr(), x);
            for (i, lane) in lanes.iter().enumerate().take(self.outputs) {
                let to = to.add(i);
                *to = if self.add { *to + lane } else { *lane };
            }
        }
    }
}

/// All rows of a group, in pieces of 16, 8, 4, 2 and 1 up to `MOST`: the arithmetic of a row is the same in each.
///
/// # Safety
/// The processor has `S`, the tile and the group have `blocks` blocks, and the target has the group's rows.
#[inline(always)]
pub(super) unsafe fn dot_group<S: Simd, B: Blocks, const MOST: usize>(
    tile: &B,
    blocks: usize,
    group: &Group,
    target: &Target,
) {
    let mut first = 0;
    while first < group.rows {
        // SAFETY: the caller's promises; each piece fits in what is left.
        unsafe {
            let most = if MOST < S::TILE_M { MOST } else { S::TILE_M };
            first += match (group.rows - first).min(most) {
                16.. if const { MOST >= 16 && S::TILE_M >= 16 } => {
                    dot_rows::<S, B, 16>(tile, blocks, group, first, target)
                }
                8.. if const { MOST >= 8 && S::TILE_M >= 8 } => dot_rows::<S, B, 8>(tile, blocks, group, first, target),
                4.. if const { MOST >= 4 && S::TILE_M >= 4 } => dot_rows::<S, B, 4>(tile, blocks, group, first, target),
                2.. if const { MOST >= 2 && S::TILE_M >= 2 } => dot_rows::<S, B, 2>(tile, blocks, group, first, target),
                _ => dot_rows::<S, B, 1>(tile, blocks, group, first, target),
            };
        }
    }
}

/// Rows `first .. first + M` of a group; answers `M`.
///
/// # Safety
/// As [`dot_group`].
#[inline(always)]
unsafe fn dot_rows<S: Simd, B: Blocks, const M: usize>(
    tile: &B,
    blocks: usize,
    group: &Group,
    first: usize,
    target: &Target,
) -> usize {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [S::splat(0.0); M];
        for block in 0..blocks {
            let Block { w, d, m: minimum } = tile.block::<S>(block);
            let at = block * group.rows + first;
            unroll!(M, m, {
                let codes = group.codes.add((at + m) * CODE_BYTES);
                let scale = S::splat(*group.scales.add(at + m));
                let bias = group.biases.add((at + m) * 3);
                if B::MINS {
                    let dot = S::dot::<false>(&w, codes, 0);
                    sums[m] = S::fma(dot, S::mul(d[0], scale), sums[m]);
                    sums[m] = S::fma(minimum, S::splat(*group.sums.add(at + m)), sums[m]);
                } else if B::SUBS == 1 {
                    let dot = S::dot::<true>(&w, codes, *bias);
                    sums[m] = S::fma(dot, S::mul(d[0], scale), sums[m]);
                } else {
                    let dot = S::dot::<true>(&w[..4], codes, *bias.add(1));
                    sums[m] = S::fma(dot, S::mul(d[0], scale), sums[m]);
                    let dot = S::dot::<true>(&w[4..], codes.add(16), *bias.add(2));
                    sums[m] = S::fma(dot, S::mul(d[1], scale), sums[m]);
                }
            });
        }
        unroll!(M, m, { target.put::<S>(first + m, sums[m]) });
    }
    M
}

/// A plain float type; a tile of it holds 16 values for each input.
pub(super) trait Float {
    /// The values of input `k`.
    ///
    /// # Safety
    /// The processor has `S` and the tile has input `k`.
    unsafe fn load<S: Simd>(tile: *const u8, k: usize) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Float for F32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(tile: *const u8, k: usize) -> S::F {
        // SAFETY: the caller's promises.
        unsafe { S::load(tile.cast::<f32>().add(LANES * k)) }
    }
}

impl Float for F16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(tile: *const u8, k: usize) -> S::F {
        // SAFETY: the caller's promises.
        unsafe { S::load_f16(tile.cast::<u16>().add(LANES * k)) }
    }
}

impl Float for Bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(tile: *const u8, k: usize) -> S::F {
        // SAFETY: the caller's promises.
        unsafe { S::load_bf16(tile.cast::<u16>().add(LANES * k)) }
    }
}

/// `N` neighbouring tiles of floats.
pub(super) struct FloatTiles<const N: usize> {
    pub tiles: [*const u8; N],
    pub targets: [Target; N],
    pub cols: usize,
}

impl<const N: usize> FloatTiles<N> {
    /// All rows of a group.
    ///
    /// # Safety
    /// The processor has `S`; the tiles have `cols` inputs of type `T`, the group too; the targets have its rows.
    #[inline(always)]
    pub(super) unsafe fn group<S: Simd, T: Float>(&self, group: &Group) {
        let mut first = 0;
        while first < group.rows {
            // SAFETY: the caller's promises; each piece fits in what is left.
            unsafe {
                first += match group.rows - first {
                    6.. if const { S::TILE_M >= 16 } => self.rows::<S, T, 6>(group, first),
                    2.. => self.rows::<S, T, 2>(group, first),
                    _ => self.rows::<S, T, 1>(group, first),
                };
            }
        }
    }

    /// Rows `first .. first + M` of a group; answers `M`. Several tiles hide the latency of the additions, whose order
    /// is that of the inputs.
    ///
    /// # Safety
    /// As `group`.
    #[inline(always)]
    unsafe fn rows<S: Simd, T: Float, const M: usize>(&self, group: &Group, first: usize) -> usize {
        // SAFETY: the caller's promises.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; M];
            for k in 0..self.cols {
                let mut w = [S::splat(0.0); N];
                unroll!(N, n, { w[n] = T::load::<S>(self.tiles[n], k) });
                let x = group.floats.add(k * group.rows + first);
                unroll!(M, m, {
                    let x = S::splat(*x.add(m));
                    unroll!(N, n, { sums[m][n] = S::fma(w[n], x, sums[m][n]) });
                });
            }
            unroll!(M, m, {
                unroll!(N, n, { self.targets[n].put::<S>(first + m, sums[m][n]) });
            });
        }
        M
    }
}
