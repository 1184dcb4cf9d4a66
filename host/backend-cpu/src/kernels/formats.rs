//! What a block format is once packed: codes of 4 bits (or 8), up to two planes of one more bit each, and scales.
//!
//! A packed weight is cut into tiles of 16 outputs. Each section of a tile runs over the blocks of 32 inputs:
//!
//! | section | bytes for one block of 16 outputs | holds |
//! |---|---|---|
//! | codes | 256 or 512 | 4-bit codes: byte `[i][output][j]` has input `4 i + j` low and `16 + 4 i + j` high, `i, j < 4`; or 8-bit codes `[i][output][j]`, `i < 8` |
//! | planes | 64 per plane | bit `4 output + j` of word `i` is the next bit of input `4 i + j` |
//! | scales | 32, 64, or 16 or 32 | f16 or bf16 `d[16]`, and `m[16]` for formats with a minimum; or i8 sub-scales `[1 or 2][16]` |
//! | supers | 32 or 64 for 256 inputs | f16 `d[16]`, and minus `dmin[16]`, for K formats and IQ4_XS |
//!
//! The value of a code `c` is `d (table[c & 15] + 16 bit4 + 32 bit5 - 128)`, or without a table `d c + m`. Nothing is
//! rounded when packing: unpacking gives the file's values to the bit.

use backend::weights::WeightType;

/// How scales are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleForm {
    /// One f16 for 32 inputs.
    F16,
    /// One bf16 for 32 inputs: holds every power of two that MXFP4 has.
    Bf16,
    /// One f16 for 256 inputs times an i8 for 32 (or 16).
    Super,
}

/// The packed form of a block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// 8-bit codes, which count from 128; otherwise 4-bit.
    pub bytes: bool,
    /// Further one-bit planes.
    pub planes: usize,
    /// Values of the low four bits, plus 128.
    pub table: Option<[u8; 16]>,
    pub scale: ScaleForm,
    /// Values have a minimum: `d c + m`.
    pub mins: bool,
    /// Scales per 32 inputs.
    pub subs: usize,
}

/// Values of IQ4 codes, plus 128 (GGUF: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113).
const IQ4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Twice the values of E2M1 codes, plus 128.
const E2M1: [u8; 16] = [128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116];

/// `c - zero + 128`.
const fn centred(zero: u8) -> [u8; 16] {
    let mut table = [0; 16];
    let mut c = 0;
    while c < 16 {
        table[c] = c as u8 + 128 - zero;
        c += 1;
    }
    table
}

impl Spec {
    const NIBBLES: Self = Self { bytes: false, planes: 0, table: None, scale: ScaleForm::F16, mins: false, subs: 1 };

    /// `None` for plain floats.
    pub const fn of(ty: WeightType) -> Option<Self> {
        use ScaleForm::{Bf16, Super};
        let base = Self::NIBBLES;
        Some(match ty {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 | WeightType::F8_E4M3 => return None,
            WeightType::Q4_0 => Self { table: Some(centred(8)), ..base },
            WeightType::Q4_1 => Self { mins: true, ..base },
            WeightType::Q5_0 => Self { planes: 1, table: Some(centred(16)), ..base },
            WeightType::Q5_1 => Self { planes: 1, mins: true, ..base },
            WeightType::Q8_0 => Self { bytes: true, ..base },
            WeightType::Q4_K => Self { scale: Super, mins: true, ..base },
            WeightType::Q5_K => Self { planes: 1, scale: Super, mins: true, ..base },
            WeightType::Q6_K => Self { planes: 2, table: Some(centred(32)), scale: Super, subs: 2, ..base },
            WeightType::IQ4_NL => Self { table: Some(IQ4), ..base },
            WeightType::IQ4_XS => Self { table: Some(IQ4), scale: Super, ..base },
            WeightType::MXFP4 => Self { table: Some(E2M1), scale: Bf16, ..base },
        })
    }

    pub const fn code_bytes(&self) -> usize {
        if self.bytes { 512 } else { 256 }
    }

    pub const fn plane_bytes(&self) -> usize {
        64 * self.planes
    }

    /// i8 sub-scales, or f16 and bf16 scales.
    pub const fn scale_bytes(&self) -> usize {
        match self.scale {
            ScaleForm::Super => 16 * (self.subs + self.mins as usize),
            _ => 32 * (1 + self.mins as usize),
        }
    }

    pub const fn super_bytes(&self) -> usize {
        match self.scale {
            ScaleForm::Super => 32 * (1 + self.mins as usize),
            _ => 0,
        }
    }
}

/// A block of 32 inputs of one output, as it will be packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeBlock {
    /// Codes; 8-bit ones with their offset of 128.
    pub codes: [u8; 32],
    /// f16 (MXFP4: bf16) bits of the scale, which K formats share over 256 inputs.
    pub d: u16,
    /// f16 bits of the minimum; for K formats minus the scale of minima.
    pub m: u16,
    /// i8 factors of `d`: one or two; for K formats with minima the second is the factor of `m`.
    pub subs: [i8; 2],
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Sub-scale and sub-minimum `j` of Q4_K and Q5_K: 6 bits each in 12 bytes.
pub(super) fn k_scales(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4))
    }
}

/// Half `j / 16` of bytes whose low halves are the first 16 elements and whose high halves the last 16.
fn split_nibbles(qs: &[u8], high: [u8; 32]) -> [u8; 32] {
    std::array::from_fn(|j| (if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 }) | high[j])
}

fn fifth_bits(qh: &[u8]) -> [u8; 32] {
    std::array::from_fn(|j| (qh[j / 8] >> (j % 8) & 1) << 4)
}

/// Block `block` of 32 inputs of a stored row; see the tables of the GGUF specification.
pub(super) fn code_block(ty: WeightType, row: &[u8], block: usize) -> CodeBlock {
    let size = ty.block_bytes();
    let per_block = ty.block_len() / 32;
    let (outer, j) = (block / per_block.max(1), block % per_block.max(1));
    let b = &row[outer * size..(outer + 1) * size];
    let none = [0; 32];
    let (codes, d, m, subs) = match ty {
        WeightType::Q4_0 | WeightType::IQ4_NL => (split_nibbles(&b[2..], none), word(b, 0), 0, [0, 0]),
        WeightType::Q4_1 => (split_nibbles(&b[4..], none), word(b, 0), word(b, 2), [0, 0]),
        WeightType::Q5_0 => (split_nibbles(&b[6..], fifth_bits(&b[2..6])), word(b, 0), 0, [0, 0]),
        WeightType::Q5_1 => (split_nibbles(&b[8..], fifth_bits(&b[4..8])), word(b, 0), word(b, 2), [0, 0]),
        WeightType::Q8_0 => (std::array::from_fn(|i| b[2 + i] ^ 0x80), word(b, 0), 0, [0, 0]),
        WeightType::MXFP4 => (split_nibbles(&b[1..], none), mx_scale(b[0]), 0, [0, 0]),
        WeightType::Q4_K | WeightType::Q5_K => k_block(ty, b, j),
        WeightType::Q6_K => q6_block(b, j),
        WeightType::IQ4_XS => {
            let low = b[4 + j / 2] >> (4 * (j & 1)) & 15;
            let high = (word(b, 2) >> (2 * j) & 3) as u8;
            let scale = (low | high << 4) as i8 - 32;
            (split_nibbles(&b[8 + 16 * j..], none), word(b, 0), 0, [scale, 0])
        }
        WeightType::F32 | WeightType::F16 | WeightType::BF16 | WeightType::F8_E4M3 => {
            unreachable!("plain floats have no blocks")
        }
    };
    CodeBlock { codes, d, m, subs }
}

/// bf16 bits of `2^(e - 128)`, the scale for doubled E2M1 values.
fn mx_scale(e: u8) -> u16 {
    if e < 2 { 0x20 << e } else { (u16::from(e) - 1) << 7 }
}

type Parts = ([u8; 32], u16, u16, [i8; 2]);

fn k_block(ty: WeightType, b: &[u8], j: usize) -> Parts {
    let (scale, min) = k_scales(&b[4..16], j);
    let qs = if ty == WeightType::Q4_K { &b[16..] } else { &b[48..] };
    let codes = std::array::from_fn(|l| {
        let byte = qs[32 * (j / 2) + l];
        let low = if j.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        let high = if ty == WeightType::Q5_K { (b[16 + l] >> j & 1) << 4 } else { 0 };
        low | high
    });
    // The sign bit turns `- dmin m` into `+ (-dmin) m`, which is the same number.
    (codes, word(b, 0), word(b, 2) ^ 0x8000, [scale as i8, min as i8])
}

fn q6_block(b: &[u8], j: usize) -> Parts {
    let (half, quarter) = (j / 4, j % 4);
    let codes = std::array::from_fn(|l| {
        let byte = b[64 * half + 32 * (quarter % 2) + l];
        let low = if quarter < 2 { byte & 15 } else { byte >> 4 };
        low | (b[128 + 32 * half + l] >> (2 * quarter) & 3) << 4
    });
    let scales = &b[192..208];
    (codes, word(b, 208), 0, [scales[2 * j] as i8, scales[2 * j + 1] as i8])
}
