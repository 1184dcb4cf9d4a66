//! Fast kernels against their plain forms, on every instruction set that the processor has.

mod attention;
mod delta;
mod elementwise;
mod formats;
mod matmul;

use backend::weights::{SharedBytes, Weight, WeightType};
use half::f16;

/// All types, in the order of the enum.
const TYPES: [WeightType; 14] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::BF16,
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q5_0,
    WeightType::Q5_1,
    WeightType::Q4_K,
    WeightType::Q5_K,
    WeightType::Q6_K,
    WeightType::IQ4_NL,
    WeightType::IQ4_XS,
    WeightType::MXFP4,
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Roughly normal: mean 0, variance 1.
    fn normal(&mut self) -> f32 {
        let sum: f32 = (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum();
        sum - 6.0
    }

    fn normals(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.normal()).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A weight of random codes whose scales are of the size that real ones have.
fn random_weight(ty: WeightType, rows: usize, cols: usize, random: &mut Random) -> Weight {
    let row_bytes = ty.row_bytes(cols).expect("test shapes are whole blocks");
    let mut bytes = match ty {
        WeightType::F32 => random.normals(rows * cols).into_iter().flat_map(f32::to_le_bytes).collect(),
        WeightType::F16 => {
            random.normals(rows * cols).into_iter().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect()
        }
        WeightType::BF16 => {
            random.normals(rows * cols).into_iter().flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect()
        }
        _ => random.bytes(rows * row_bytes),
    };
    let scales: &[usize] = match ty {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => &[],
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[0, 2],
        WeightType::Q6_K => &[208],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &at in scales {
            if ty == WeightType::MXFP4 {
                block[at] = 120 + random.below(5) as u8;
            } else {
                block[at..at + 2].copy_from_slice(&f16::from_f32(0.01 * random.normal()).to_le_bytes());
            }
        }
    }
    Weight::new("test", ty, rows, cols, SharedBytes::from_vec(bytes)).expect("the bytes are whole rows")
}

/// `|a - b| / |b|`
fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    let size: f64 = b.iter().map(|&b| f64::from(b).powi(2)).sum();
    (difference / size.max(1e-30)).sqrt()
}

fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{what}: element {i} is {a}, not {b}");
    }
}
