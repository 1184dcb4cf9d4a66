//! Weights in the order in which the kernels read them.

use std::sync::Arc;

use backend::BackendError;
use backend::blocks::{CodeBlock, code_block};
use backend::weights::{Weight, WeightType};
use half::{bf16, f16};

use super::buffer::Buffer;
use super::formats::{ScaleForm, Spec};
use super::tile::TilePtr;
use super::{BLOCK, RowForms, TILE_ROWS};

/// A weight in tiles of [`TILE_ROWS`] outputs; see [`super::formats`]. Plain floats are `[tile][input][output]`.
pub struct PackedWeight {
    name: Arc<str>,
    ty: WeightType,
    rows: usize,
    cols: usize,
    layout: Layout,
    data: Buffer,
}

/// Bytes of each section of a tile, each in whole cache lines.
#[derive(Clone, Copy, Debug)]
struct Layout {
    codes: usize,
    planes: usize,
    scales: usize,
    supers: usize,
}

impl Layout {
    fn of(ty: WeightType, cols: usize) -> Self {
        let whole_lines = |bytes: usize| bytes.next_multiple_of(64);
        let blocks = cols / BLOCK;
        match Spec::of(ty) {
            Some(spec) => Self {
                codes: blocks * spec.code_bytes(),
                planes: blocks * spec.plane_bytes(),
                scales: whole_lines(blocks * spec.scale_bytes()),
                supers: whole_lines(blocks.div_ceil(8) * spec.super_bytes()),
            },
            None => Self { codes: whole_lines(cols * TILE_ROWS * ty.block_bytes()), planes: 0, scales: 0, supers: 0 },
        }
    }

    fn tile_bytes(&self) -> usize {
        self.codes + self.planes + self.scales + self.supers
    }
}

impl PackedWeight {
    /// Repacks a weight: one pass over its bytes, without rounding.
    ///
    /// # Errors
    /// [`BackendError::Weight`] when a block format's `cols` is not a multiple of 32, or the weight is empty.
    pub fn pack(weight: &Weight) -> Result<Self, BackendError> {
        let fail = |reason: String| BackendError::Weight { name: weight.name.to_string(), reason };
        if weight.rows == 0 || weight.cols == 0 {
            return Err(fail(format!("{} by {} is empty", weight.rows, weight.cols)));
        }
        if !weight.cols.is_multiple_of(BLOCK) {
            return Err(fail(format!("{} columns; the CPU kernels need a multiple of {BLOCK}", weight.cols)));
        }
        let layout = Layout::of(weight.ty, weight.cols);
        let tiles = weight.rows.div_ceil(TILE_ROWS);
        let mut data = Buffer::zeroed(tiles * layout.tile_bytes());
        for (t, tile) in data.as_mut_slice().chunks_exact_mut(layout.tile_bytes()).enumerate() {
            for output in 0..TILE_ROWS.min(weight.rows - t * TILE_ROWS) {
                let row = weight.row(t * TILE_ROWS + output);
                match Spec::of(weight.ty) {
                    Some(spec) => pack_row(&spec, &layout, weight.ty, row, tile, output),
                    None => pack_floats(weight.ty.block_bytes(), row, tile, output),
                }
            }
        }
        Ok(Self { name: weight.name.clone(), ty: weight.ty, rows: weight.rows, cols: weight.cols, layout, data })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of memory held; also what one read of the whole weight moves.
    pub fn size_bytes(&self) -> usize {
        self.data.len()
    }

    /// The form in which this weight reads activations.
    pub fn reads(&self) -> RowForms {
        let spec = Spec::of(self.ty);
        RowForms { codes: spec.is_some(), halves: spec.is_some_and(|spec| spec.subs == 2), float: spec.is_none() }
    }

    /// Distance of tiles.
    pub(super) fn tile_bytes(&self) -> usize {
        self.layout.tile_bytes()
    }

    /// Pointers to the sections of tile `t`.
    pub(super) fn tile(&self, t: usize) -> TilePtr {
        let bytes = self.layout.tile_bytes();
        assert!((t + 1) * bytes <= self.data.len(), "tile {t} of {}", self.name);
        let codes = self.data.ptr().wrapping_add(t * bytes).cast_const();
        let planes = codes.wrapping_add(self.layout.codes);
        let scales = planes.wrapping_add(self.layout.planes);
        TilePtr { codes, planes, scales, supers: scales.wrapping_add(self.layout.scales) }
    }

    /// The values of output `row`, from the packed bytes; bit for bit those of
    /// [`super::dequant::dequantize_row`].
    ///
    /// # Panics
    /// When there is no such row or `out` is not `cols` long.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row {row}, {} values of {}", out.len(), self.name);
        let bytes = self.layout.tile_bytes();
        // SAFETY: the buffer is `len` bytes of plain memory that nobody writes after packing.
        let data = unsafe { std::slice::from_raw_parts(self.data.ptr().cast_const(), self.data.len()) };
        let tile = &data[row / TILE_ROWS * bytes..][..bytes];
        let output = row % TILE_ROWS;
        match Spec::of(self.ty) {
            Some(spec) => {
                for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
                    unpack_block(&spec, &self.layout, tile, output, block, out);
                }
            }
            None => {
                for (k, out) in out.iter_mut().enumerate() {
                    let at = k * TILE_ROWS + output;
                    *out = match self.ty {
                        WeightType::F32 => f32::from_le_bytes([0, 1, 2, 3].map(|i| tile[4 * at + i])),
                        WeightType::F16 => f16::from_bits(get(tile, 2 * at)).to_f32(),
                        _ => bf16::from_bits(get(tile, 2 * at)).to_f32(),
                    };
                }
            }
        }
    }
}

impl std::fmt::Debug for PackedWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} [{}, {}] packed", self.name, self.ty, self.rows, self.cols)
    }
}

fn get(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, bits: u16) {
    bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
}

fn pack_floats(size: usize, row: &[u8], tile: &mut [u8], output: usize) {
    for (k, value) in row.chunks_exact(size).enumerate() {
        let at = (k * TILE_ROWS + output) * size;
        tile[at..at + size].copy_from_slice(value);
    }
}

fn pack_row(spec: &Spec, layout: &Layout, ty: WeightType, row: &[u8], tile: &mut [u8], output: usize) {
    let blocks = layout.codes / spec.code_bytes();
    let (codes, rest) = tile.split_at_mut(layout.codes);
    let (planes, rest) = rest.split_at_mut(layout.planes);
    let (scales, supers) = rest.split_at_mut(layout.scales);
    for block in 0..blocks {
        let from = code_block(ty, row, block);
        pack_codes(spec, &from, &mut codes[block * spec.code_bytes()..], output);
        for plane in 0..spec.planes {
            let words = &mut planes[block * spec.plane_bytes() + 64 * plane..][..64];
            for (k, code) in from.codes.iter().enumerate() {
                let bit = 4 * output + k % 4;
                words[k / 4 * 8 + bit / 8] |= (code >> (4 + plane) & 1) << (bit % 8);
            }
        }
        let scales = &mut scales[block * spec.scale_bytes()..];
        let whole = if spec.scale == ScaleForm::Super {
            for (i, &sub) in from.subs.iter().enumerate().take(spec.scale_bytes() / 16) {
                scales[16 * i + output] = sub as u8;
            }
            &mut supers[block / 8 * spec.super_bytes()..]
        } else {
            scales
        };
        put(whole, 2 * output, from.d);
        if spec.mins {
            put(whole, 32 + 2 * output, from.m);
        }
    }
}

fn pack_codes(spec: &Spec, from: &CodeBlock, codes: &mut [u8], output: usize) {
    for (k, code) in from.codes.iter().enumerate() {
        if spec.bytes {
            codes[k / 4 * 64 + 4 * output + k % 4] = *code;
        } else {
            let shift = if k < 16 { 0 } else { 4 };
            codes[k % 16 / 4 * 64 + 4 * output + k % 4] |= (code & 15) << shift;
        }
    }
}

fn unpack_block(spec: &Spec, layout: &Layout, tile: &[u8], output: usize, block: usize, out: &mut [f32]) {
    let codes = &tile[block * spec.code_bytes()..];
    let planes = &tile[layout.codes + block * spec.plane_bytes()..];
    let scales = &tile[layout.codes + layout.planes + block * spec.scale_bytes()..];
    let supers = &tile[layout.codes + layout.planes + layout.scales + block / 8 * spec.super_bytes()..];
    let sub = |i: usize| f32::from(scales[16 * i + output] as i8);
    let float = |at: &[u8], i: usize| f16::from_bits(get(at, 32 * i + 2 * output)).to_f32();
    let (d, m) = match spec.scale {
        ScaleForm::F16 => ([float(scales, 0); 2], if spec.mins { float(scales, 1) } else { 0.0 }),
        ScaleForm::Bf16 => ([bf16::from_bits(get(scales, 2 * output)).to_f32(); 2], 0.0),
        ScaleForm::Super => {
            let d = float(supers, 0);
            let second = if spec.subs == 2 { sub(1) } else { sub(0) };
            ([d * sub(0), d * second], if spec.mins { float(supers, 1) * sub(1) } else { 0.0 })
        }
    };
    for (k, out) in out.iter_mut().enumerate() {
        let lane = 4 * output + k % 4;
        let mut code = if spec.bytes {
            i32::from(codes[k / 4 * 64 + lane])
        } else {
            let byte = codes[k % 16 / 4 * 64 + lane];
            let nibble = if k < 16 { byte & 15 } else { byte >> 4 };
            i32::from(spec.table.map_or(nibble, |table| table[usize::from(nibble)]))
        };
        for plane in 0..spec.planes {
            code += i32::from(planes[64 * plane + k / 4 * 8 + lane / 8] >> (lane % 8) & 1) << (4 + plane);
        }
        *out = if spec.mins { d[k / 16] * code as f32 + m } else { d[k / 16] * (code - 128) as f32 };
    }
}
