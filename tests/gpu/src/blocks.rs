//! GGUF's block formats on the card against the same blocks on the CPU, in plain f32.

use anyhow::{Context, Result, ensure};
use backend::Backend;
use backend::ops::{BlockOp, GateFn, ModelSpec};
use backend::weights::{WeightId, WeightType};
use backend_cpu::{CpuOptions, Numerics};
use backend_cuda::CudaOptions;
use contract::sampling::SamplingParams;
use model::decoder::Settings;
use model::dummy::{Mix, quantised};

use crate::drive::{Driver, Part};
use crate::hybrid::hybrid;
use crate::parity::{Check, LOGPROB_BOUND, difference, forced, on_card, options, small, spec, tokens};

pub const CHECKS: &[Check] = &[
    Check { name: "Q4_0", run: |arch| parity(&odd(), Mix::Only(WeightType::Q4_0), arch) },
    Check { name: "Q4_1", run: |arch| parity(&odd(), Mix::Only(WeightType::Q4_1), arch) },
    Check { name: "Q5_0", run: |arch| parity(&odd(), Mix::Only(WeightType::Q5_0), arch) },
    Check { name: "Q5_1", run: |arch| parity(&odd(), Mix::Only(WeightType::Q5_1), arch) },
    Check { name: "Q8_0", run: |arch| parity(&odd(), Mix::Only(WeightType::Q8_0), arch) },
    Check { name: "Q4_K", run: |arch| parity(&whole(), Mix::Only(WeightType::Q4_K), arch) },
    Check { name: "Q5_K", run: |arch| parity(&whole(), Mix::Only(WeightType::Q5_K), arch) },
    Check { name: "Q6_K", run: |arch| parity(&whole(), Mix::Only(WeightType::Q6_K), arch) },
    Check { name: "IQ4_NL", run: |arch| parity(&odd(), Mix::Only(WeightType::IQ4_NL), arch) },
    Check { name: "IQ4_XS", run: |arch| parity(&whole(), Mix::Only(WeightType::IQ4_XS), arch) },
    Check { name: "Q4_K_M, tied head", run: |arch| parity(&tied(), Mix::Q4KM, arch) },
    Check { name: "IQ4_XS mix, odd width", run: |arch| parity(&odd(), Mix::Iq4Xs, arch) },
    Check { name: "gate and up differ", run: gate_and_up_differ },
    Check { name: "block graph equals eager", run: |arch| graph_equals_eager(&whole(), arch) },
    Check { name: "block rows equal in any batch", run: |arch| rows_equal(&whole(), arch) },
    Check { name: "hybrid, Q4_K_M", run: |arch| parity(&twice(), Mix::Q4KM, arch) },
    Check { name: "hybrid, IQ4_XS mix", run: |arch| parity(&twice(), Mix::Iq4Xs, arch) },
    Check { name: "hybrid, Q8_0, heads of 64", run: |arch| parity(&thrice(), Mix::Only(WeightType::Q8_0), arch) },
    Check { name: "hybrid, inputs in three formats", run: inputs_differ },
    Check { name: "hybrid, gates in 16 bits", run: gates_in_16_bits },
    Check { name: "hybrid, block graph equals eager", run: |arch| graph_equals_eager(&twice(), arch) },
    Check { name: "hybrid, block rows equal", run: |arch| rows_equal(&twice(), arch) },
];

/// Few rows, then many: through a panel in 16 bits.
const CUTS: [usize; 14] = [16, 1, 5, 9, 1, 16, 2, 8, 64, 63, 130, 17, 33, 20];

/// Every width is whole blocks of 256.
fn whole() -> Settings {
    Settings { ffn: 512, ..small(8, 2, 128, true) }
}

/// 544 and 576 columns.
fn odd() -> Settings {
    small(9, 3, 64, false)
}

fn tied() -> Settings {
    Settings { tied_head: Some(true), layers: 8, ..whole() }
}

/// Hybrids whose gates are whole tiles of rows: qkv, z, beta and alpha are one product.
fn twice() -> Settings {
    hybrid(4, 8, 128, GateFn::Silu)
}

fn thrice() -> Settings {
    hybrid(8, 24, 64, GateFn::Sigmoid)
}

fn cuda(spec: &ModelSpec, graphs: bool, arch: Option<u32>) -> Result<Box<dyn Backend>> {
    Ok(Box::new(backend_cuda::load(spec, &options(), &on_card(graphs, arch), &mut |_| {})?.0))
}

fn compare(spec: ModelSpec, arch: Option<u32>) -> Result<String> {
    let text = tokens(5, CUTS.iter().sum());
    let found = forced(&mut *cuda(&spec, true, arch)?, &text, &CUTS)?;
    let exact = CpuOptions { numerics: Numerics::Exact, ..CpuOptions::default() };
    let mut cpu = backend_cpu::load_with(spec, &options(), &exact, &mut |_| {})?.0;
    let worst = difference(&forced(&mut cpu, &text, &CUTS)?, &found)?;
    ensure!(worst < LOGPROB_BOUND, "logprobs differ by {worst}, the bound is {LOGPROB_BOUND}");
    Ok(format!("worst difference {worst:.4}"))
}

fn parity(settings: &Settings, mix: Mix, arch: Option<u32>) -> Result<String> {
    compare(quantised(spec(settings)?, mix), arch)
}

/// Products whose parts have two and three formats, in one launch and in two.
fn gate_and_up_differ(arch: Option<u32>) -> Result<String> {
    let formats = [Mix::Only(WeightType::Q4_K), Mix::Only(WeightType::Q6_K), Mix::Only(WeightType::Q8_0)];
    let made: Vec<ModelSpec> = formats.iter().map(|&mix| Ok(quantised(spec(&whole())?, mix))).collect::<Result<_>>()?;
    let mut mixed = made[0].clone();
    for (index, weight) in mixed.weights.iter_mut().enumerate() {
        *weight = made[index % 3].weights[index].clone();
    }
    compare(mixed, arch)
}

/// The weights of a hybrid's linear layers: qkv, z, beta and alpha.
fn delta_inputs(spec: &ModelSpec) -> Vec<[WeightId; 4]> {
    let inputs = spec.ops.iter().map(|op| match *op {
        BlockOp::NormDelta { qkv, z, beta, alpha, .. } => Some([qkv, z, beta, alpha]),
        _ => None,
    });
    inputs.flatten().collect()
}

/// One matrix of parts in Q4_K, Q6_K and Q8_0: more than one launch has.
fn inputs_differ(arch: Option<u32>) -> Result<String> {
    let mut mixed = quantised(spec(&twice())?, Mix::Only(WeightType::Q4_K));
    let other = |ty| Ok::<_, anyhow::Error>(quantised(spec(&twice())?, Mix::Only(ty)));
    let (six, eight) = (other(WeightType::Q6_K)?, other(WeightType::Q8_0)?);
    for [_, z, beta, alpha] in delta_inputs(&mixed) {
        for (id, from) in [(z, &six), (beta, &eight), (alpha, &eight)] {
            mixed.weights[id.0 as usize] = from.weights[id.0 as usize].clone();
        }
    }
    compare(mixed, arch)
}

/// Files that leave beta and alpha as they are: a product of their own.
fn gates_in_16_bits(arch: Option<u32>) -> Result<String> {
    let plain = spec(&twice())?;
    let mut mixed = quantised(plain.clone(), Mix::Q4KM);
    for id in delta_inputs(&plain).into_iter().flat_map(|[_, _, beta, alpha]| [beta, alpha]) {
        mixed.weights[id.0 as usize] = plain.weights[id.0 as usize].clone();
    }
    compare(mixed, arch)
}

fn graph_equals_eager(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let spec = quantised(spec(settings)?, Mix::Q4KM);
    let text = tokens(6, 60);
    let cuts = [20usize, 1, 1, 1, 1, 1, 1, 1, 1];
    let eager = forced(&mut *cuda(&spec, false, arch)?, &text, &cuts)?;
    let graph = forced(&mut *cuda(&spec, true, arch)?, &text, &cuts)?;
    ensure!(eager == graph, "logprobs differ by {}", difference(&eager, &graph)?);
    Ok(format!("{} rows equal", eager.len()))
}

/// One and two rows, and three to 16, are summed the same way each: a row does not depend on what stands beside it. From one
/// to 16 where that is asked for.
fn rows_equal(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let spec = quantised(spec(settings)?, Mix::Q4KM);
    let sampling = SamplingParams { temperature: 0.0, logprobs: Some(20), ..SamplingParams::default() };
    for (batch_invariant, counts) in [(false, &[1u16, 2][..]), (false, &[3, 8, 16]), (true, &[1, 3, 8, 16])] {
        let card = CudaOptions { batch_invariant, ..on_card(true, arch) };
        let mut backend = backend_cuda::load(&spec, &options(), &card, &mut |_| {})?.0;
        let mut found = Vec::new();
        for &seats in counts {
            let mut driver = Driver::new(&mut backend);
            for seat in 0..seats {
                let text = tokens(60 + u32::from(seat), 40);
                driver.bind(seat, &sampling, &text)?;
                driver.step(&[Part { seat, tokens: &text, emit: true }])?;
            }
            let parts: Vec<Part<'_>> = (0..seats).map(|seat| Part { seat, tokens: &[], emit: true }).collect();
            let mut first = Vec::new();
            for _ in 0..20 {
                first.push(driver.step(&parts)?.logprobs.first().context("the first seat's logprobs")?.top.clone());
            }
            found.push(first);
        }
        ensure!(found.iter().all(|rows| *rows == found[0]), "the first seat's logprobs depend on its neighbours");
    }
    Ok("1 and 2 rows a step; 3, 8 and 16; all of them where batches are to make no difference".into())
}

#[cfg(test)]
mod tests {
    use backend::blocks::random_rows;
    use backend::rng::splitmix;
    use backend_cpu::kernels::dequant::dequantize_row;
    use backend_cuda::packed::{Format, TILE_ROWS, pack_tile, unpack_row};

    /// Unpacking a packed tile gives the file's values to the bit, whatever the bytes are.
    #[test]
    fn packing_loses_nothing() {
        for format in Format::ALL {
            let ty = format.weight_type();
            for cols in [256, 512, if ty.block_len() == 32 { 352 } else { 768 }] {
                let bytes = ty.row_bytes(cols).expect("whole blocks");
                let sane = random_rows(ty, (TILE_ROWS, cols), 5, 0.02).expect("a block format");
                let wild: Vec<u8> = (0..sane.len()).map(|i| splitmix(9, i as u64) as u8).collect();
                for stored in [sane, wild] {
                    let row = |r: usize| (r < 13).then(|| &stored[r * bytes..(r + 1) * bytes]);
                    let mut tile = vec![0; format.tile_bytes(cols)];
                    pack_tile(format, cols, row, &mut tile);
                    for r in 0..TILE_ROWS {
                        let (mut found, mut expected) = (vec![1.0; cols], vec![0.0; cols]);
                        unpack_row(format, &tile, r, &mut found);
                        if let Some(bytes) = row(r) {
                            dequantize_row(ty, bytes, &mut expected);
                        }
                        for (col, (a, b)) in found.iter().zip(&expected).enumerate() {
                            let same =
                                a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) || (r >= 13 && *a == 0.0);
                            assert!(same, "{ty:?} row {r} column {col}: {a} for {b}");
                        }
                    }
                }
            }
        }
    }
}
