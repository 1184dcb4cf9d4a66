//! Against other implementations: transformers for whole models, gguf-py for stored formats. The scripts beside the
//! data made them.

mod common;

use backend::weights::WeightType;
use backend_cpu::Numerics;
use backend_cpu::kernels::dequant::dequantize_row;

use common::{against_transformers, data, floats, spec};

const MODELS: [&str; 3] = ["tiny-llama", "tiny-llama3-rope", "tiny-qwen3"];
/// Feeds a model the tokens in chunks.
fn check(name: &str, numerics: Numerics, chunks: &[usize], sigmas_max: f64) {
    against_transformers(name, spec(name), numerics, chunks, sigmas_max);
}

const POSITIONS: usize = 150;

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
