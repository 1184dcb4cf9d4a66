//! Every kernel on small inputs and without the CPU, for compute-sanitizer.

use anyhow::Result;
use backend::load::{LoadOptions, Quantization};
use backend::ops::{GateFn, ModelSpec};
use backend::step::Emit;
use contract::sampling::SamplingParams;
use model::dummy::{Mix, quantised};

use crate::drive::{Driver, Part};
use crate::fp8::{aligned, quantize, with_products};
use crate::hybrid::hybrid;
use crate::parity::{on_card, options, spec, tokens};

/// Chunks, a batch that decodes by graph, filters and penalties, prompts that are read. `few`: no step has more rows than
/// our own products take, so that nothing of the library runs; a race checker spends minutes in its kernels.
pub fn run(arch: Option<u32>, few: bool) -> Result<()> {
    let plain = spec(&aligned())?;
    let models: [(&str, ModelSpec, Option<Quantization>); 5] = [
        ("bf16", plain.clone(), None),
        ("FP8 by rows", plain.clone(), Some(Quantization::Fp8)),
        ("FP8 blocks", with_products(plain.clone(), quantize)?, None),
        ("Q4_K_M", quantised(plain, Mix::Q4KM), None),
        ("delta rule", spec(&hybrid(2, 4, 128, GateFn::Silu))?, None),
    ];
    for (name, spec, quantization) in models {
        let limits = if few { LoadOptions { seats: 8, max_rows: 16, ..options() } } else { options() };
        let limits = LoadOptions { quantization, ..limits };
        let (mut backend, _) = backend_cuda::load(&spec, &limits, &on_card(true, arch), &mut |_| {})?;
        steps(&mut Driver::new(&mut backend), few)?;
        println!("ok    {name}");
    }
    Ok(())
}

/// States saved at the end of a run and within one, and a sequence behind each.
fn states(driver: &mut Driver<'_>, sampling: &SamplingParams, few: bool) -> Result<()> {
    let text = tokens(60, 140);
    let cuts: &[usize] = if few { &[16; 4] } else { &[128] };
    driver.bind(3, sampling, &text)?;
    let mut at = 0;
    for &cut in cuts {
        for (save, slot) in [(64, 0), (128, 1)] {
            if save > at && save <= at + cut {
                driver.save(3, save as u32, slot);
            }
        }
        driver.step(&[Part { seat: 3, tokens: &text[at..at + cut], emit: true }])?;
        at += cut;
    }
    for start in (64..=at).step_by(64) {
        driver.bind_behind(6, sampling, &text, (3, start as u32, (start / 64 - 1) as u32))?;
        driver.step(&[Part { seat: 6, tokens: &text[start..start + 12], emit: true }])?;
    }
    Ok(())
}

fn steps(driver: &mut Driver<'_>, few: bool) -> Result<()> {
    let sampling = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.2,
        logprobs: Some(2),
        ..SamplingParams::default()
    };
    let cuts: &[usize] = if few { &[16, 9, 1, 16, 3] } else { &[70, 9, 11] };
    for seat in 0..3 {
        let text = tokens(40 + u32::from(seat), cuts.iter().sum());
        driver.bind(seat, &sampling, &text)?;
        let mut rest = &text[..];
        for &cut in cuts {
            let (part, later) = rest.split_at(cut);
            driver.step(&[Part { seat, tokens: part, emit: true }])?;
            rest = later;
        }
    }
    let parts: Vec<Part<'_>> = (0..3).map(|seat| Part { seat, tokens: &[], emit: true }).collect();
    for _ in 0..3 {
        driver.step(&parts)?;
    }
    if driver.backend.caps().state_slots > 0 {
        states(driver, &sampling, few)?;
    }
    if few {
        return Ok(());
    }
    let text = tokens(50, 70);
    for (seat, emit) in [(4, Emit::Every { from: 0, top: 2, next: None }), (5, Emit::Pool { mean: true })] {
        driver.bind(seat, &sampling, &text)?;
        driver.emit(seat, &text, emit)?;
    }
    Ok(())
}
