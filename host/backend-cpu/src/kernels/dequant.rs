//! Values of stored rows, in the arithmetic of the GGUF reference: the oracle for packing, and the embedding lookup.

use backend::blocks::k_scales;
use backend::fp8::e4m3_to_f32;
use backend::weights::WeightType;
use half::{bf16, f16};

/// Values of IQ4 codes.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of E2M1 codes.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Writes the values of a stored row, bit for bit those of gguf-py's `dequantize`.
///
/// # Panics
/// When `bytes` are not the whole blocks of `out.len()` values.
pub fn dequantize_row(ty: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(ty.row_bytes(out.len()), Some(bytes.len()), "{ty:?} row of {} values", out.len());
    for (block, out) in bytes.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block_len())) {
        dequantize_block(ty, block, out);
    }
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn dequantize_block(ty: WeightType, b: &[u8], out: &mut [f32]) {
    match ty {
        WeightType::F32 => out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        WeightType::F16 => out[0] = half_at(b, 0),
        // Without the block's scale, which is not part of the row.
        WeightType::F8_E4M3 => out[0] = e4m3_to_f32(b[0]),
        WeightType::BF16 => out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        WeightType::Q8_0 => {
            let d = half_at(b, 0);
            for (out, &q) in out.iter_mut().zip(&b[2..]) {
                *out = f32::from(q as i8) * d;
            }
        }
        WeightType::Q4_0 | WeightType::Q5_0 => {
            let d = half_at(b, 0);
            let five = ty == WeightType::Q5_0;
            let (qh, qs) = if five { (&b[2..6], &b[6..]) } else { (&b[..0], &b[2..]) };
            let zero = if five { 16 } else { 8 };
            for (j, out) in out.iter_mut().enumerate() {
                *out = d * (i16::from(code(qs, qh, j)) - zero) as f32;
            }
        }
        WeightType::Q4_1 | WeightType::Q5_1 => {
            let (d, m) = (half_at(b, 0), half_at(b, 2));
            let (qh, qs) = if ty == WeightType::Q5_1 { (&b[4..8], &b[8..]) } else { (&b[..0], &b[4..]) };
            for (j, out) in out.iter_mut().enumerate() {
                *out = d * f32::from(code(qs, qh, j)) + m;
            }
        }
        WeightType::IQ4_NL => table(half_at(b, 0), &IQ4, &b[2..], out),
        WeightType::MXFP4 => {
            let e = u32::from(b[0]);
            let scale = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 });
            table(scale, &E2M1, &b[1..], out);
        }
        WeightType::IQ4_XS => {
            let d = half_at(b, 0);
            let high = u16::from_le_bytes([b[2], b[3]]);
            for (i, out) in out.chunks_exact_mut(32).enumerate() {
                let scale = i32::from(b[4 + i / 2] >> (4 * (i & 1)) & 15) | i32::from(high >> (2 * i) & 3) << 4;
                table(d * (scale - 32) as f32, &IQ4, &b[8 + 16 * i..], out);
            }
        }
        WeightType::Q4_K | WeightType::Q5_K => k_block(ty, b, out),
        WeightType::Q6_K => q6_block(b, out),
    }
}

/// Element `j` of 32: half `j / 16` of byte `j % 16`, and bit `j` of `qh` where there is one.
fn code(qs: &[u8], qh: &[u8], j: usize) -> u8 {
    let low = if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 };
    if qh.is_empty() { low } else { low | (qh[j / 8] >> (j % 8) & 1) << 4 }
}

fn table(d: f32, values: &[i8; 16], qs: &[u8], out: &mut [f32]) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(values[usize::from(code(qs, &[], j))]);
    }
}

fn k_block(ty: WeightType, b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let qs = if ty == WeightType::Q5_K { &b[48..] } else { &b[16..] };
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scales(&b[4..16], j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, out) in out.iter_mut().enumerate() {
            let low = qs[32 * (j / 2) + l] >> (4 * (j & 1)) & 15;
            let high = if ty == WeightType::Q5_K { (b[16 + l] >> j & 1) << 4 } else { 0 };
            *out = scale * f32::from(low | high) - min;
        }
    }
}

fn q6_block(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 208);
    for (e, out) in out.iter_mut().enumerate() {
        let (half, l, quarter) = (e / 128, e % 32, e / 32 % 4);
        let low = b[64 * half + 32 * (quarter & 1) + l] >> (4 * (quarter / 2)) & 15;
        let high = b[128 + 32 * half + l] >> (2 * quarter) & 3;
        *out = d * f32::from(b[192 + e / 16] as i8) * (i16::from(low | high << 4) - 32) as f32;
    }
}
