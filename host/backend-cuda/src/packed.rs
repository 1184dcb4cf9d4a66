//! GGUF's block formats in the order in which the kernels read them: units of 16 rows and 256 columns, as
//! `kernels/src/cu/packed.cuh` draws them. Repacked once at load, without rounding; a unit has the bytes of its blocks.

use backend::blocks::{CodeBlock, code_block};
use backend::weights::WeightType;

/// Rows and columns of a unit.
pub const TILE_ROWS: usize = 16;
pub const UNIT_COLS: usize = 256;
/// Columns that a code block has.
const GROUP: usize = 32;
const GROUPS: usize = UNIT_COLS / GROUP;

/// A format with a kernel, counted as the kernels count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the field's own names")]
pub enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl Format {
    pub const ALL: [Self; 10] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    pub fn of(ty: WeightType) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.weight_type() == ty)
    }

    pub fn weight_type(self) -> WeightType {
        match self {
            Self::Q4_0 => WeightType::Q4_0,
            Self::Q4_1 => WeightType::Q4_1,
            Self::Q5_0 => WeightType::Q5_0,
            Self::Q5_1 => WeightType::Q5_1,
            Self::Q8_0 => WeightType::Q8_0,
            Self::Q4_K => WeightType::Q4_K,
            Self::Q5_K => WeightType::Q5_K,
            Self::Q6_K => WeightType::Q6_K,
            Self::IQ4_NL => WeightType::IQ4_NL,
            Self::IQ4_XS => WeightType::IQ4_XS,
        }
    }

    /// Values of codes are looked up in a table.
    pub fn has_table(self) -> bool {
        matches!(self, Self::IQ4_NL | Self::IQ4_XS)
    }

    /// Codes count from zero or 32, and scales and minima of sub-blocks are whole numbers.
    pub fn is_k(self) -> bool {
        matches!(self, Self::Q4_K | Self::Q5_K | Self::Q6_K)
    }

    fn planes(self) -> usize {
        match self {
            Self::Q6_K => 2,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => 1,
            _ => 0,
        }
    }

    fn planes_at(self) -> usize {
        if self == Self::Q8_0 { 4096 } else { 2048 }
    }

    fn scales_at(self) -> usize {
        self.planes_at() + 512 * self.planes()
    }

    /// Bytes of one row's scales.
    fn row_scales(self) -> usize {
        match self {
            Self::Q4_1 | Self::Q5_1 => 32,
            Self::IQ4_XS => 8,
            _ => 16,
        }
    }

    fn supers_at(self) -> usize {
        self.scales_at() + TILE_ROWS * self.row_scales()
    }

    pub fn unit_bytes(self) -> usize {
        self.supers_at() + if matches!(self, Self::Q6_K | Self::IQ4_XS) { 2 * TILE_ROWS } else { 0 }
    }

    /// Bytes of a tile of 16 rows.
    pub fn tile_bytes(self, cols: usize) -> usize {
        cols.div_ceil(UNIT_COLS) * self.unit_bytes()
    }

    /// Where column `col` of a group lies: its lane among the row's four, the place of its pair among the lane's four, and
    /// which of the pair it is.
    fn place(self, col: usize) -> (usize, usize, usize) {
        match self {
            // One scale covers 16 columns: a mask leaves those of either half.
            Self::Q6_K => (col % 16 / 4, col / 16 + col % 4 / 2 * 2, col % 2),
            _ => (col / 8, col % 8 / 2, col % 2),
        }
    }
}

fn or_word(unit: &mut [u8], at: usize, bits: u32) {
    let word: &mut [u8; 4] = (&mut unit[at..at + 4]).try_into().expect("four bytes");
    *word = (u32::from_le_bytes(*word) | bits).to_le_bytes();
}

fn word(unit: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(unit[at..at + 4].try_into().expect("four bytes"))
}

/// Packs a tile: `rows` gives each row's stored bytes, or none, of `cols` columns. `out` is zeros on entry.
pub fn pack_tile<'a>(format: Format, cols: usize, row: impl Fn(usize) -> Option<&'a [u8]>, out: &mut [u8]) {
    for r in 0..TILE_ROWS {
        let Some(bytes) = row(r) else { continue };
        for (index, unit) in out.chunks_exact_mut(format.unit_bytes()).enumerate() {
            for group in 0..GROUPS.min(cols / GROUP - index * GROUPS) {
                let block = code_block(format.weight_type(), bytes, index * GROUPS + group);
                pack_codes(format, unit, r, group, &block.codes);
                pack_scales(format, unit, r, group, &block);
            }
            if matches!(format, Format::Q4_K | Format::Q5_K) {
                // d, dmin and twelve bytes of sub-scales stay as they are.
                let from = &bytes[index * format.weight_type().block_bytes()..][..16];
                unit[format.scales_at() + r * 16..][..16].copy_from_slice(from);
            }
        }
    }
}

/// Which bit of which word (by its byte) a code's low four bits, or eight, go to.
fn code_place(format: Format, row: usize, group: usize, col: usize) -> (usize, usize) {
    let (t, pair, odd) = format.place(col);
    let lane = row % 8 * 4 + t;
    if format == Format::Q8_0 {
        let n = row / 8 * 4 + pair;
        return ((group * 32 + lane) * 16 + n / 2 * 4, n % 2 * 8 + odd * 16);
    }
    let at = ((group / 2 * 32 + lane) * 2 + group % 2) * 8 + row / 8 * 4;
    let bit = match format {
        _ if format.has_table() => 8 * pair + 4 * odd + 7,
        Format::Q6_K => 4 * pair + 16 * odd + 2,
        _ => 4 * pair + 16 * odd,
    };
    (at, bit % 32)
}

/// The same of the bits above the low four.
fn plane_place(format: Format, row: usize, group: usize, col: usize) -> (usize, usize) {
    let (t, pair, odd) = format.place(col);
    let lane = row % 8 * 4 + t;
    // In the byte that a mask leaves of the code: a field for its group, row and half of the places.
    let field = row / 8 * 2 + pair % 2;
    let (word, bit) = match format.planes() {
        1 => (group / 2, group % 2 * 4 + field),
        _ => (group, 2 * field),
    };
    (format.planes_at() + (word / 4 * 32 + lane) * 16 + word % 4 * 4, pair / 2 * 8 + odd * 16 + bit)
}

/// The bits of a code above its low four, as planes have them: Q6_K's are codes of signed numbers.
fn plane_bits(format: Format, code: u8) -> u8 {
    if format == Format::Q6_K { code >> 4 ^ 2 } else { code >> 4 }
}

fn pack_codes(format: Format, unit: &mut [u8], row: usize, group: usize, codes: &[u8; 32]) {
    for (col, &code) in codes.iter().enumerate() {
        let (at, bit) = code_place(format, row, group, col);
        if format == Format::Q8_0 {
            // Counted from 128 in a code block, from zero in the file.
            or_word(unit, at, u32::from(code ^ 0x80) << bit);
            continue;
        }
        or_word(unit, at, u32::from(code & 15).rotate_left(bit as u32));
        if format.planes() > 0 {
            let (at, bit) = plane_place(format, row, group, col);
            or_word(unit, at, u32::from(plane_bits(format, code)) << bit);
        }
    }
}

fn pack_scales(format: Format, unit: &mut [u8], row: usize, group: usize, block: &CodeBlock) {
    let at = format.scales_at() + row * format.row_scales();
    let mut put = |at: usize, bytes: &[u8]| unit[at..at + bytes.len()].copy_from_slice(bytes);
    match format {
        Format::Q4_K | Format::Q5_K => {}
        Format::Q6_K => {
            put(at + 2 * group, &block.subs.map(|sub| sub as u8));
            put(format.supers_at() + 2 * row, &block.d.to_le_bytes());
        }
        Format::IQ4_XS => {
            put(at + group, &[(block.subs[0] + 32) as u8]);
            put(format.supers_at() + 2 * row, &block.d.to_le_bytes());
        }
        _ => {
            put(at + 2 * group, &block.d.to_le_bytes());
            if matches!(format, Format::Q4_1 | Format::Q5_1) {
                put(at + 16 + 2 * group, &block.m.to_le_bytes());
            }
        }
    }
}

/// The values of row `row` of a packed tile, in GGUF's arithmetic: what the kernels must compute, and the proof that
/// packing loses nothing.
pub fn unpack_row(format: Format, tile: &[u8], row: usize, out: &mut [f32]) {
    for (index, unit) in tile.chunks_exact(format.unit_bytes()).enumerate() {
        let left = &mut out[index * UNIT_COLS..];
        for (group, out) in left.chunks_mut(GROUP).take(GROUPS).enumerate() {
            for (col, out) in out.iter_mut().enumerate() {
                *out = value(format, unit, row, group, col);
            }
        }
    }
}

const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn value(format: Format, unit: &[u8], row: usize, group: usize, col: usize) -> f32 {
    let half = |at: usize| half::f16::from_le_bytes([unit[at], unit[at + 1]]).to_f32();
    let (at, bit) = code_place(format, row, group, col);
    let low = (word(unit, at).rotate_right(bit as u32) & 15) as i16;
    let high = match format.planes() {
        0 => 0,
        planes => {
            let (at, bit) = plane_place(format, row, group, col);
            i16::from(plane_bits(format, ((word(unit, at) >> bit & ((1 << planes) - 1)) << 4) as u8))
        }
    };
    let code = low | high << 4;
    let scales = format.scales_at() + row * format.row_scales();
    let d = || half(scales + 2 * group);
    let minimum = || half(scales + 16 + 2 * group);
    let super_d = || half(format.supers_at() + 2 * row);
    match format {
        Format::Q8_0 => f32::from((word(unit, at) >> bit) as u8 as i8) * d(),
        Format::Q4_0 => d() * f32::from(code - 8),
        Format::Q5_0 => d() * f32::from(code - 16),
        Format::Q4_1 | Format::Q5_1 => d() * f32::from(code) + minimum(),
        Format::Q4_K | Format::Q5_K => {
            let (scale, min) = backend::blocks::k_scales(&unit[scales + 4..scales + 16], group);
            half(scales) * f32::from(scale) * f32::from(code) - half(scales + 2) * f32::from(min)
        }
        Format::Q6_K => {
            let sub = unit[scales + 2 * group + col / 16] as i8;
            super_d() * f32::from(sub) * f32::from(code - 32)
        }
        Format::IQ4_NL => d() * f32::from(IQ4[code as usize]),
        Format::IQ4_XS => super_d() * (f32::from(unit[scales + group]) - 32.0) * f32::from(IQ4[code as usize]),
    }
}
