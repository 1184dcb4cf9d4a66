//! FP8 and f16 weights on the card against the same values on the CPU.

use anyhow::{Context, Result, ensure};
use backend::Backend;
pub use backend::fp8::quantize;
use backend::fp8::{E4M3_MAX, e4m3_to_f32, f32_to_e4m3, floats};
use backend::load::{LoadOptions, Quantization};
use backend::ops::{BlockOp, ModelSpec};
use backend::weights::{SharedBytes, Weight, WeightId, WeightType};
use half::bf16;
use model::decoder::Settings;

use crate::parity::{Check, LOGPROB_BOUND, difference, forced, on_card, options, small, spec, tokens};

pub const CHECKS: &[Check] = &[
    Check { name: "FP8 quantised at load", run: |arch| at_load(&aligned(), arch) },
    Check { name: "FP8 at load, no library path", run: |arch| at_load(&odd(), arch) },
    Check { name: "FP8 checkpoint", run: |arch| checkpoint(&aligned(), arch) },
    Check { name: "FP8 checkpoint, no library path", run: |arch| checkpoint(&odd(), arch) },
    Check { name: "FP8 graph equals eager", run: graph_equals_eager },
    Check { name: "f16 checkpoint", run: f16 },
];

/// Few rows take the weights alone as FP8; many rows take activations of three mantissa bits too.
const CUTS_FEW: [usize; 8] = [16, 1, 5, 9, 1, 16, 2, 8];
const CUTS_MANY: [usize; 6] = [64, 63, 130, 17, 33, 20];
const MANY_ROWS_BOUND: f32 = 2.0 * LOGPROB_BOUND;

/// Every width is a multiple of 128: what the library's FP8 products want.
pub fn aligned() -> Settings {
    Settings { ffn: 512, ..small(8, 2, 128, true) }
}

fn odd() -> Settings {
    small(9, 3, 64, false)
}

fn product_weights(spec: &ModelSpec) -> Vec<WeightId> {
    let parts = |op: &BlockOp| match *op {
        BlockOp::NormQkv { q, k, v, .. } => vec![q, k, v],
        // Beta and alpha stay as they are.
        BlockOp::NormDelta { qkv, z, .. } => vec![qkv, z],
        BlockOp::OutResidual { out } => vec![out],
        BlockOp::NormGateUp { gate, up, .. } => vec![gate, up],
        BlockOp::DownResidual { down } => vec![down],
        _ => Vec::new(),
    };
    spec.ops.iter().flat_map(parts).collect()
}

/// The spec with the weights of its layers' products changed.
pub fn with_products(mut spec: ModelSpec, change: impl Fn(&Weight) -> Option<Weight>) -> Result<ModelSpec> {
    for id in product_weights(&spec) {
        let slot = &mut spec.weights[id.0 as usize];
        *slot = change(slot).ok_or_else(|| anyhow::anyhow!("{slot:?} is no float weight"))?;
    }
    Ok(spec)
}

/// What quantising at load makes of a weight, as bf16: a scale for each row.
fn by_rows(weight: &Weight) -> Option<Weight> {
    let mut bytes = Vec::new();
    for row in 0..weight.rows {
        let values = floats(weight.ty, weight.row(row))?;
        let scale = values.iter().fold(1e-12f32, |most, x| most.max(x.abs())) / E4M3_MAX;
        let back = |x: &f32| bf16::from_f32(e4m3_to_f32(f32_to_e4m3(x / scale)) * scale).to_le_bytes();
        bytes.extend(values.iter().flat_map(back));
    }
    Weight::new(weight.name.clone(), WeightType::BF16, weight.rows, weight.cols, SharedBytes::from_vec(bytes))
}

fn cuda(
    spec: &ModelSpec,
    quantization: Option<Quantization>,
    graphs: bool,
    arch: Option<u32>,
) -> Result<(Box<dyn Backend>, String)> {
    let options = LoadOptions { quantization, ..options() };
    let (backend, plan) = backend_cuda::load(spec, &options, &on_card(graphs, arch), &mut |_| {})?;
    let path = plan.lowered.first().map_or("FP8 library", String::as_str).to_owned();
    Ok((Box::new(backend), path))
}

fn compare(oracle: ModelSpec, (device, path): &mut (Box<dyn Backend>, String)) -> Result<String> {
    let mut cpu = backend_cpu::load(oracle, &options(), &mut |_| {})?.0;
    let mut worst = Vec::new();
    for (cuts, bound) in [(&CUTS_FEW[..], LOGPROB_BOUND), (&CUTS_MANY[..], MANY_ROWS_BOUND)] {
        let text = tokens(5, cuts.iter().sum());
        let difference = difference(&forced(&mut cpu, &text, cuts)?, &forced(&mut **device, &text, cuts)?)?;
        ensure!(difference < bound, "logprobs differ by {difference} over chunks of {cuts:?}, the bound is {bound}");
        worst.push(difference);
    }
    Ok(format!("worst difference {:.4} few rows, {:.4} many ({path})", worst[0], worst[1]))
}

fn at_load(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let mut device = cuda(&spec(settings)?, Some(Quantization::Fp8), true, arch)?;
    compare(with_products(spec(settings)?, by_rows)?, &mut device)
}

pub fn checkpoint(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let quantised = with_products(spec(settings)?, quantize)?;
    let mut device = cuda(&quantised, None, true, arch)?;
    compare(quantised, &mut device)
}

fn graph_equals_eager(arch: Option<u32>) -> Result<String> {
    let quantised = with_products(spec(&aligned())?, quantize)?;
    let text = tokens(6, 60);
    let cuts = [20usize, 1, 1, 1, 1, 1, 1, 1, 1];
    let mut rows = Vec::new();
    for graphs in [false, true] {
        rows.push(forced(&mut *cuda(&quantised, None, graphs, arch)?.0, &text, &cuts)?);
    }
    ensure!(rows[0] == rows[1], "logprobs differ by {}", difference(&rows[0], &rows[1])?);
    Ok(format!("{} rows equal", rows[0].len()))
}

/// A checkpoint of f16 runs in f16, on cards that also have bf16.
fn f16(arch: Option<u32>) -> Result<String> {
    let mut halved = spec(&aligned())?;
    for weight in &mut halved.weights {
        let values = (0..weight.rows).map(|row| floats(weight.ty, weight.row(row)));
        let values = values.collect::<Option<Vec<_>>>().context("dummy weights are floats")?.concat();
        let bytes = values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
        let bytes = SharedBytes::from_vec(bytes);
        let f16 = Weight::new(weight.name.clone(), WeightType::F16, weight.rows, weight.cols, bytes);
        *weight = f16.context("as many values")?;
    }
    let mut device = cuda(&halved, None, true, arch)?;
    compare(halved, &mut device)
}
