//! Against other implementations: transformers for whole models, gguf-py for stored formats. The scripts beside the
//! data made them.

mod common;

use backend::step::Emit;
use backend::weights::WeightType;
use backend_cpu::Numerics;
use backend_cpu::kernels::dequant::dequantize_row;

use common::{Driver, data, feed, greedy, load, spec};

const MODELS: [&str; 3] = ["tiny-llama", "tiny-llama3-rope", "tiny-qwen3"];
const VOCAB: usize = 256;
const POSITIONS: usize = 150;

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn tokens() -> Vec<u32> {
    (0..POSITIONS as u32).map(|i| (37 * i + 11) % VOCAB as u32).collect()
}

fn sigma(x: &[f32]) -> f64 {
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
    (x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

fn argmax(x: &[f32]) -> usize {
    (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b])).expect("logits")
}

/// Feeds the tokens in chunks and compares the logits after each chunk: largest difference, in sigmas of all logits.
fn check(name: &str, numerics: Numerics, chunks: &[usize], sigmas_max: f64) {
    let expected = floats(&std::fs::read(data(&format!("{name}.logits"))).expect("committed logits"));
    assert_eq!(expected.len(), POSITIONS * VOCAB);
    let (tokens, sigma) = (tokens(), sigma(&expected));
    let mut driver = Driver::new(load(spec(name), numerics, 2));
    driver.bind(0, &greedy(), 0, &tokens);
    let mut at = 0;
    for &chunk in chunks {
        let logits = driver.logits(feed(0, &tokens[at..at + chunk], Emit::Next));
        at += chunk;
        let expected = &expected[(at - 1) * VOCAB..at * VOCAB];
        let worst = logits.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        assert!(worst <= sigmas_max * sigma, "{name} {numerics:?} position {}: {worst} of sigma {sigma}", at - 1);
        assert_eq!(argmax(&logits), argmax(expected), "{name} {numerics:?} position {}", at - 1);
    }
}

/// Every position alone, and in chunks across page borders: within 1e-3 sigma, the same best token.
#[test]
fn exact_numerics_equal_transformers() {
    for name in MODELS {
        check(name, Numerics::Exact, &[1; POSITIONS], 1e-3);
        check(name, Numerics::Exact, &[64, 37, 1, 48], 1e-3);
    }
}

/// Plain weights are computed in f32 by the fast kernels too; what is left is the f16 of keys and values.
#[test]
fn fast_numerics_stay_within_half_precision() {
    for name in MODELS {
        check(name, Numerics::Fast, &[1; POSITIONS], 1e-2);
        check(name, Numerics::Fast, &[64, 37, 1, 48], 1e-2);
    }
}

#[test]
fn every_format_is_dequantised_to_the_bit() {
    use WeightType::*;
    for ty in [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4] {
        let bytes = std::fs::read(data(&format!("quants/{ty:?}.bin"))).expect("committed blocks");
        let len = ty.row_bytes(512).expect("whole blocks");
        let expected = floats(&bytes[len..]);
        let mut found = vec![0.0; 512];
        dequantize_row(ty, &bytes[..len], &mut found);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{ty:?}");
    }
}
