//! FP8 weights: e4m3 codes (OCP 8-bit floating point, no infinities, largest 448) with an f32 scale for each block of
//! 128 x 128 values, as `quant_method: fp8` checkpoints hold them.

use std::sync::Arc;

use half::{bf16, f16};

use crate::weights::{SharedBytes, Weight, WeightType};

/// Rows, and columns, that share a scale.
pub const SCALE_BLOCK: usize = 128;

/// The largest e4m3 value.
pub const E4M3_MAX: f32 = 448.0;

/// The value of a code; 0x7f and 0xff are NaN.
pub fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, mantissa) => mantissa as f32 / 512.0,
        (exponent, mantissa) => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest code, ties to even; values beyond the largest become the largest.
pub fn f32_to_e4m3(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs().min(E4M3_MAX);
    if magnitude < 1.0 / 64.0 {
        return sign | (magnitude * 512.0).round_ties_even() as u8;
    }
    let bits = magnitude.to_bits();
    // Rounded to three mantissa bits; the exponent's bias of 127 becomes 7.
    sign | (((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)) as u8
}

/// Quantises a float weight: each block's scale is its largest magnitude over 448. `None` for other types.
pub fn quantize(weight: &Weight) -> Option<Weight> {
    let (rows, cols) = (weight.rows, weight.cols);
    let blocks = cols.div_ceil(SCALE_BLOCK);
    let mut scales = vec![0f32; rows.div_ceil(SCALE_BLOCK) * blocks];
    let values = (0..rows).map(|row| floats(weight.ty, weight.row(row))).collect::<Option<Vec<_>>>()?;
    for (row, values) in values.iter().enumerate() {
        for (block, part) in values.chunks(SCALE_BLOCK).enumerate() {
            let scale = &mut scales[row / SCALE_BLOCK * blocks + block];
            *scale = part.iter().fold(*scale, |most, x| most.max(x.abs()));
        }
    }
    // A block of zeros keeps a scale that can be divided by.
    scales.iter_mut().for_each(|scale| *scale = if *scale == 0.0 { 1.0 } else { *scale / E4M3_MAX });
    let code = |row: usize, col: usize, x: f32| f32_to_e4m3(x / scales[row / SCALE_BLOCK * blocks + col / SCALE_BLOCK]);
    let codes = values.iter().enumerate().flat_map(|(row, values)| {
        let code = &code;
        values.iter().enumerate().map(move |(col, &x)| code(row, col, x))
    });
    let bytes = SharedBytes::from_vec(codes.collect());
    Weight::new(Arc::clone(&weight.name), WeightType::F8_E4M3, rows, cols, bytes)?.with_scales(scales.into())
}

/// The same values as bf16, which holds a code exactly but rounds its product with the scale. Other types stay.
pub fn dequantized(weight: &Weight) -> Weight {
    let Some(scales) = weight.scales() else { return weight.clone() };
    let blocks = weight.cols.div_ceil(SCALE_BLOCK);
    let mut bytes = Vec::with_capacity(weight.rows * weight.cols * 2);
    for row in 0..weight.rows {
        let scales = &scales[row / SCALE_BLOCK * blocks..][..blocks];
        for (codes, scale) in weight.row(row).chunks(SCALE_BLOCK).zip(scales) {
            bytes.extend(codes.iter().flat_map(|&code| bf16::from_f32(e4m3_to_f32(code) * scale).to_le_bytes()));
        }
    }
    let bytes = SharedBytes::from_vec(bytes);
    Weight::new(Arc::clone(&weight.name), WeightType::BF16, weight.rows, weight.cols, bytes).expect("as many values")
}

/// Plain floats as f32; `None` for any other type.
pub fn floats(ty: WeightType, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    Some(match ty {
        WeightType::BF16 => pairs().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        WeightType::F16 => pairs().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        WeightType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code survives the way to f32 and back.
    #[test]
    fn codes_are_exact() {
        for code in 0..=255u8 {
            let value = e4m3_to_f32(code);
            if code & 0x7f == 0x7f {
                assert!(value.is_nan());
            } else {
                assert_eq!(f32_to_e4m3(value), code, "{value}");
            }
        }
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x01), 2f32.powi(-9));
    }

    #[test]
    fn rounding_is_to_nearest_even_and_saturates() {
        let half_way = |a: u8| (e4m3_to_f32(a) + e4m3_to_f32(a + 1)) / 2.0;
        for code in 0..0x7d {
            assert_eq!(f32_to_e4m3(half_way(code)), code + code % 2, "between {code} and its successor");
            assert_eq!(f32_to_e4m3(half_way(code) * 1.001), code + 1);
            assert_eq!(f32_to_e4m3(-half_way(code) * 0.999), code | 0x80);
        }
        assert_eq!((f32_to_e4m3(1e9), f32_to_e4m3(-500.0)), (0x7e, 0xfe));
    }

    /// A value comes back within half a step of three mantissa bits, whatever its block's scale.
    #[test]
    fn blocks_keep_their_values() {
        let (rows, cols) = (200, 300);
        let value = |row: usize, col: usize| {
            let x = ((row * 31 + col * 17) % 101) as f32 / 50.0 - 1.0;
            x * if row < 128 { 1e-3 } else { 50.0 } * if col < 256 { 1.0 } else { 8.0 }
        };
        let bytes = (0..rows * cols).flat_map(|i| value(i / cols, i % cols).to_le_bytes()).collect();
        let weight = Weight::new("w", WeightType::F32, rows, cols, SharedBytes::from_vec(bytes)).expect("whole rows");
        let quantized = quantize(&weight).expect("floats");
        assert_eq!(quantized.scales().map(<[f32]>::len), Some(6));
        let back = dequantized(&quantized);
        for row in 0..rows {
            for (col, x) in floats(back.ty, back.row(row)).expect("bf16").into_iter().enumerate() {
                let (expected, block_max) = (value(row, col), value(row, col).abs().max(1e-4));
                assert!((x - expected).abs() <= 0.0665 * block_max, "{row},{col}: {x} for {expected}");
            }
        }
    }
}
