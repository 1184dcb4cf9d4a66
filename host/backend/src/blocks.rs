//! GGUF's block formats, taken apart: what a backend repacks, and random blocks where no weights are at hand.

use half::f16;

use crate::rng::splitmix;
use crate::weights::WeightType;

/// A block of 32 inputs of one output, whatever its format.
#[derive(Clone, Copy, Debug)]
pub struct CodeBlock {
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
pub fn k_scales(s: &[u8], j: usize) -> (u8, u8) {
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
pub fn code_block(ty: WeightType, row: &[u8], block: usize) -> CodeBlock {
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

/// Rows of random codes whose values have about this standard deviation and mean zero. `None` for plain floats, and for
/// columns that are not whole blocks.
pub fn random_rows(ty: WeightType, (rows, cols): (usize, usize), seed: u64, deviation: f32) -> Option<Vec<u8>> {
    // Root mean squares of a code less its centre, and of a sub-scale; where the minimum's centre lies.
    let (codes, sub, centre) = match ty {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 | WeightType::F8_E4M3 => return None,
        WeightType::Q4_0 => (4.6, 1.0, 0.0),
        WeightType::Q4_1 => (4.6, 1.0, 7.5),
        WeightType::Q5_0 => (9.2, 1.0, 0.0),
        WeightType::Q5_1 => (9.2, 1.0, 15.5),
        WeightType::Q8_0 => (73.9, 1.0, 0.0),
        WeightType::Q4_K => (4.6, 36.5, 7.5),
        WeightType::Q5_K => (9.2, 36.5, 15.5),
        WeightType::Q6_K => (18.5, 73.9, 0.0),
        WeightType::IQ4_NL => (72.0, 1.0, 0.0),
        WeightType::IQ4_XS => (72.0, 18.5, 0.0),
        WeightType::MXFP4 => (5.9, 1.0, 0.0),
    };
    let d = deviation / (codes * sub);
    let mut bytes: Vec<u8> = Vec::with_capacity(rows * ty.row_bytes(cols)? + 8);
    for i in 0..(rows * ty.row_bytes(cols)?).div_ceil(8) {
        bytes.extend(splitmix(seed, i as u64).to_le_bytes());
    }
    bytes.truncate(rows * ty.row_bytes(cols)?);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let mut put = |at: usize, x: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
        match ty {
            // The power of two next to it.
            WeightType::MXFP4 => block[0] = (128.0 + d.log2().round()) as u8,
            WeightType::Q6_K => put(208, d),
            _ => put(0, d),
        }
        match ty {
            WeightType::Q4_1 | WeightType::Q5_1 => {
                block[2..4].copy_from_slice(&f16::from_f32(-centre * d).to_le_bytes())
            }
            WeightType::Q4_K | WeightType::Q5_K => {
                block[2..4].copy_from_slice(&f16::from_f32(centre * d).to_le_bytes());
                // Sub-scales and sub-minima are equal, so that no sub-block leans to one side.
                block.copy_within(4..8, 8);
                block[12..16].iter_mut().for_each(|byte| *byte = (*byte & 15) * 17);
            }
            _ => {}
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean is near zero and the deviation near what was asked, in every format.
    #[test]
    fn random_rows_have_the_deviation() {
        for ty in [
            WeightType::Q8_0,
            WeightType::Q4_0,
            WeightType::Q4_1,
            WeightType::Q5_0,
            WeightType::Q5_1,
            WeightType::Q4_K,
            WeightType::Q5_K,
        ] {
            let (rows, cols) = (16, 1024);
            let bytes = random_rows(ty, (rows, cols), 3, 0.02).expect("a block format");
            let mut values = Vec::new();
            for row in bytes.chunks_exact(ty.row_bytes(cols).expect("whole blocks")) {
                for block in 0..cols / 32 {
                    let from = code_block(ty, row, block);
                    let (d, m) = (f16::from_bits(from.d).to_f32(), f16::from_bits(from.m).to_f32());
                    let (sub, min) = match ty {
                        WeightType::Q4_K | WeightType::Q5_K => (f32::from(from.subs[0]), f32::from(from.subs[1])),
                        _ => (1.0, 1.0),
                    };
                    let zero = match ty {
                        WeightType::Q8_0 => 128.0,
                        WeightType::Q4_0 => 8.0,
                        WeightType::Q5_0 => 16.0,
                        _ => 0.0,
                    };
                    values.extend(from.codes.iter().map(|&c| d * sub * (f32::from(c) - zero) + m * min));
                }
            }
            let count = values.len() as f32;
            let mean = values.iter().sum::<f32>() / count;
            let deviation = (values.iter().map(|x| x * x).sum::<f32>() / count).sqrt();
            assert!(mean.abs() < 0.003 && (0.017..0.023).contains(&deviation), "{ty:?}: {mean} and {deviation}");
        }
        assert_eq!(random_rows(WeightType::F16, (1, 32), 0, 1.0), None);
        assert_eq!(random_rows(WeightType::Q4_K, (1, 32), 0, 1.0), None);
    }
}
