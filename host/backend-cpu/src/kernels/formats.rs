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
