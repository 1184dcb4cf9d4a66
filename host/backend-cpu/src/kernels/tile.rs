//! The innermost loops of [`super::matmul`]: one tile of 16 outputs against up to 16 activation rows.

use super::BLOCK;
use super::formats::{ScaleForm, Spec};
use super::rows::Group;
use super::simd::{LANES, Simd};

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
}

/// One block of 32 inputs of a tile in registers.
pub(super) struct Block<S: Simd> {
    /// Codes of inputs `4 g` to `4 g + 3`.
    w: [S::W; 8],
    /// Scale of the first 16 inputs and of the last, or of all.
    d: [S::F; 2],
    m: S::F,
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
    pub at: TilePtr,
    pub format: std::marker::PhantomData<F>,
}

impl<F: Format> Blocks for PackedTile<F> {
    const SUBS: usize = F::SPEC.subs;
    const MINS: bool = F::SPEC.mins;

    #[inline(always)]
    unsafe fn block<S: Simd>(&self, block: usize) -> Block<S> {
        // SAFETY: the caller's promises; the sections hold what `Spec` says for every block.
        unsafe {
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
        if F::SPEC.bytes {
            return [0, 1, 2, 3, 4, 5, 6, 7].map(|g| S::bytes(at.add(64 * g)));
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| S::nibbles(S::bytes(at.add(64 * i))));
        let mut w = [a.0, b.0, c.0, d.0, a.1, b.1, c.1, d.1];
        if let Some(table) = &F::SPEC.table {
            w = w.map(|x| S::lookup(table, x));
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

/// A tile with 8-bit codes and f32 scales, made once for many rows.
pub(super) struct ExpandedTile<F> {
    at: *mut u8,
    blocks: usize,
    format: std::marker::PhantomData<F>,
}

impl<F: Format> ExpandedTile<F> {
    const SCALES: usize = F::SPEC.subs + F::SPEC.mins as usize;

    /// Bytes of an expanded tile of so many blocks.
    pub(super) const fn size_bytes(blocks: usize) -> usize {
        blocks * (512 + 64 * Self::SCALES)
    }

    /// # Safety
    /// The processor has `S`, the tile has `blocks` blocks, and `to` is valid for `size_bytes(blocks)`.
    #[inline(always)]
    pub(super) unsafe fn new<S: Simd>(tile: &PackedTile<F>, blocks: usize, to: *mut u8) -> Self {
        let expanded = Self { at: to, blocks, format: std::marker::PhantomData };
        for block in 0..blocks {
            // SAFETY: the caller's promises.
            unsafe {
                let Block { w, d, m } = tile.block::<S>(block);
                for (g, w) in w.into_iter().enumerate() {
                    S::store_bytes(to.add(512 * block + 64 * g), w);
                }
                let scales = expanded.scales(block);
                S::store(scales, d[0]);
                if F::SPEC.subs == 2 {
                    S::store(scales.add(LANES), d[1]);
                } else if F::SPEC.mins {
                    S::store(scales.add(LANES), m);
                }
            }
        }
        expanded
    }

    #[inline(always)]
    fn scales(&self, block: usize) -> *mut f32 {
        self.at.wrapping_add(512 * self.blocks + 64 * Self::SCALES * block).cast()
    }
}

impl<F: Format> Blocks for ExpandedTile<F> {
    const SUBS: usize = F::SPEC.subs;
    const MINS: bool = F::SPEC.mins;

    #[inline(always)]
    unsafe fn block<S: Simd>(&self, block: usize) -> Block<S> {
        // SAFETY: the caller's promises and `new`'s.
        unsafe {
            let at = self.at.add(512 * block);
            let w = [0, 1, 2, 3, 4, 5, 6, 7].map(|g| S::bytes(at.add(64 * g)));
            let scales = self.scales(block).cast_const();
            let first = S::load(scales);
            let second = if Self::SCALES == 2 { S::load(scales.add(LANES)) } else { first };
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
    unsafe fn put<S: Simd>(&self, m: usize, x: S::F) {
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

/// All rows of a group, in pieces of 16, 8, 4, 2 and 1: the arithmetic of a row is the same in each.
///
/// # Safety
/// The processor has `S`, the tile and the group have `blocks` blocks, and the target has the group's rows.
#[inline(always)]
pub(super) unsafe fn dot_group<S: Simd, B: Blocks>(tile: &B, blocks: usize, group: &Group, target: &Target) {
    let mut first = 0;
    while first < group.rows {
        // SAFETY: the caller's promises; each piece fits in what is left.
        unsafe {
            first += match (group.rows - first).min(S::TILE_M) {
                16.. => dot_rows::<S, B, 16>(tile, blocks, group, first, target),
                8.. => dot_rows::<S, B, 8>(tile, blocks, group, first, target),
                4.. => dot_rows::<S, B, 4>(tile, blocks, group, first, target),
                2.. => dot_rows::<S, B, 2>(tile, blocks, group, first, target),
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
            for (m, sum) in sums.iter_mut().enumerate() {
                let codes = group.codes.add((at + m) * BLOCK);
                let scale = S::splat(*group.scales.add(at + m));
                let bias = group.biases.add((at + m) * 3);
                if B::MINS {
                    let dot = S::dot::<false>(&w, codes, 0);
                    *sum = S::fma(dot, S::mul(d[0], scale), *sum);
                    *sum = S::fma(minimum, S::splat(*group.sums.add(at + m)), *sum);
                } else if B::SUBS == 1 {
                    let dot = S::dot::<true>(&w, codes, *bias);
                    *sum = S::fma(dot, S::mul(d[0], scale), *sum);
                } else {
                    let dot = S::dot::<true>(&w[..4], codes, *bias.add(1));
                    *sum = S::fma(dot, S::mul(d[0], scale), *sum);
                    let dot = S::dot::<true>(&w[4..], codes.add(16), *bias.add(2));
                    *sum = S::fma(dot, S::mul(d[1], scale), *sum);
                }
            }
        }
        for (m, sum) in sums.into_iter().enumerate() {
            target.put::<S>(first + m, sum);
        }
    }
    M
}

/// A plain float type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatType {
    F32,
    F16,
    Bf16,
}

/// `N` neighbouring tiles of floats against rows `first .. first + M` of a group; answers `M`. Several tiles hide the
/// latency of the additions, whose order is that of the inputs.
///
/// # Safety
/// The processor has `S`; the tiles have `cols` inputs of type `ty`, the group too; the targets have the group's rows.
#[inline(always)]
unsafe fn float_rows<S: Simd, const M: usize, const N: usize>(
    load: impl Fn(*const u8, usize) -> S::F,
    tiles: &[*const u8; N],
    cols: usize,
    group: &Group,
    first: usize,
    targets: &[Target; N],
) -> usize {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; M];
        for k in 0..cols {
            let w = tiles.map(|tile| load(tile, k));
            let x = group.floats.add(k * group.rows + first);
            for (m, sums) in sums.iter_mut().enumerate() {
                let x = S::splat(*x.add(m));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = S::fma(w, x, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (sum, target) in sums.into_iter().zip(targets) {
                target.put::<S>(first + m, sum);
            }
        }
    }
    M
}

/// All rows of a group against `N` neighbouring tiles of floats.
///
/// # Safety
/// As [`float_rows`].
#[inline(always)]
pub(super) unsafe fn float_group<S: Simd, const N: usize>(
    ty: FloatType,
    tiles: &[*const u8; N],
    cols: usize,
    group: &Group,
    targets: &[Target; N],
) {
    // SAFETY: the caller's promises; input k of a tile is 16 values from 16 k on.
    unsafe {
        match ty {
            FloatType::F32 => {
                float_pieces::<S, N>(|tile, k| S::load(tile.cast::<f32>().add(LANES * k)), tiles, cols, group, targets)
            }
            FloatType::F16 => float_pieces::<S, N>(
                |tile, k| S::load_f16(tile.cast::<u16>().add(LANES * k)),
                tiles,
                cols,
                group,
                targets,
            ),
            FloatType::Bf16 => float_pieces::<S, N>(
                |tile, k| S::load_bf16(tile.cast::<u16>().add(LANES * k)),
                tiles,
                cols,
                group,
                targets,
            ),
        }
    }
}

/// # Safety
/// As [`float_rows`].
#[inline(always)]
unsafe fn float_pieces<S: Simd, const N: usize>(
    load: impl Fn(*const u8, usize) -> S::F + Copy,
    tiles: &[*const u8; N],
    cols: usize,
    group: &Group,
    targets: &[Target; N],
) {
    let mut first = 0;
    while first < group.rows {
        // SAFETY: the caller's promises; each piece fits in what is left.
        unsafe {
            first += match group.rows - first {
                6.. => float_rows::<S, 6, N>(load, tiles, cols, group, first, targets),
                2.. => float_rows::<S, 2, N>(load, tiles, cols, group, first, targets),
                _ => float_rows::<S, 1, N>(load, tiles, cols, group, first, targets),
            };
        }
    }
}
