//! Whether a text depends on its company: the probe of `tests/probe` through the engine, on the card.

use anyhow::{Result, ensure};
use backend::Backend;
use backend::load::{LoadOptions, Quantization};
use backend::ops::{GateFn, ModelSpec};
use backend_cuda::CudaOptions;
use model::dummy::{Mix, quantised};
use probe::{Arm, CONTEXT};

use crate::fp8::{aligned, quantize, with_products};
use crate::hybrid::hybrid;
use crate::parity::{Check, LOGPROB_BOUND, on_card, small, spec};

pub const CHECKS: &[Check] = &[
    Check { name: "invariant, heads of 128", run: |arch| invariant(&spec(&aligned())?, None, arch) },
    Check { name: "invariant, 9 heads of 64", run: |arch| invariant(&spec(&small(9, 3, 64, false))?, None, arch) },
    Check { name: "invariant, heads of 256", run: |arch| invariant(&spec(&small(8, 2, 256, true))?, None, arch) },
    Check { name: "invariant, FP8 by rows", run: |arch| invariant(&spec(&aligned())?, Some(Quantization::Fp8), arch) },
    Check {
        name: "invariant, FP8 checkpoint",
        run: |arch| invariant(&with_products(spec(&aligned())?, quantize)?, None, arch),
    },
    Check { name: "invariant, Q4_K_M", run: |arch| invariant(&quantised(spec(&aligned())?, Mix::Q4KM), None, arch) },
    Check { name: "invariant, hybrid", run: |arch| invariant(&spec(&linear())?, None, arch) },
    Check {
        name: "invariant, hybrid in Q4_K_M",
        run: |arch| invariant(&quantised(spec(&linear())?, Mix::Q4KM), None, arch),
    },
    Check { name: "company without the switch", run: |arch| company(&spec(&aligned())?, arch) },
    Check { name: "a hybrid's company without it", run: |arch| company(&spec(&linear())?, arch) },
];

/// Each prompt so often in the arm of all together: more rows than one way of the products takes.
const COPIES: usize = 5;
const SEATS: u16 = 40;
/// Where a state that an answer left may let a text part: the products of a chunk are in 16 bits, the recurrence is not.
const OTHER_FORM_MARGIN: f32 = LOGPROB_BOUND;

fn linear() -> model::decoder::Settings {
    hybrid(4, 8, 128, GateFn::Silu)
}

fn arms(spec: &ModelSpec, quantization: Option<Quantization>, cuda: &CudaOptions) -> Result<Vec<Arm>> {
    let mut open = |opening: probe::Opening| {
        let options = LoadOptions {
            seats: SEATS,
            max_rows: opening.max_rows,
            kv_tokens: Some(opening.kv_tokens),
            context_len: Some(CONTEXT),
            quantization,
            ..LoadOptions::default()
        };
        Ok(Box::new(backend_cuda::load(spec, &options, cuda, &mut |_| {})?.0) as Box<dyn Backend>)
    };
    let arms = probe::probe(&mut open, spec.vocab_used as u32, COPIES)?;
    for line in probe::table(&arms).lines() {
        println!("        {line}");
    }
    for arm in &arms {
        let hit = arm.cached_tokens > 0 || !["prompt again", "next turn", "parted again"].contains(&arm.name);
        ensure!(hit, "{}: nothing was in the prefix cache", arm.name);
    }
    Ok(arms)
}

/// With the switch texts are equal, and so is every logprob, to the bit.
fn invariant(spec: &ModelSpec, quantization: Option<Quantization>, arch: Option<u32>) -> Result<String> {
    let cuda = CudaOptions { batch_invariant: true, ..on_card(true, arch) };
    let arms = arms(spec, quantization, &cuda)?;
    for arm in &arms {
        let margin = arm.margin().unwrap_or(0.0);
        if spec.delta.is_some() && arm.behind_an_answer() {
            ensure!(margin <= OTHER_FORM_MARGIN, "{}: texts part at a margin of {margin}", arm.name);
        } else {
            ensure!(arm.moved == 0, "{}: {} of {} texts moved, margin {margin}", arm.name, arm.moved, arm.texts);
        }
    }
    Ok(format!("{} texts equal to the bit", arms.iter().map(|arm| arm.texts - arm.moved).sum::<usize>()))
}

/// Without it rounding shows, and nothing but rounding.
fn company(spec: &ModelSpec, arch: Option<u32>) -> Result<String> {
    let arms = arms(spec, None, &on_card(true, arch))?;
    let margin = arms.iter().filter_map(Arm::margin).fold(0.0, f32::max);
    ensure!(margin < LOGPROB_BOUND, "texts part at a margin of {margin}");
    let (moved, texts) = arms.iter().fold((0, 0), |(moved, texts), arm| (moved + arm.moved, texts + arm.texts));
    ensure!(moved > 0, "no text moved: these prompts do not show what the switch is for");
    Ok(format!("{moved} of {texts} texts moved, largest margin where texts part {margin:.4}"))
}
