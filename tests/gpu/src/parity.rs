//! Small random models on both backends.

use anyhow::{Context, Result, ensure};
use backend::Backend;
use backend::load::LoadOptions;
use backend::ops::{AttentionShape, ModelSpec, Rope};
use backend::step::{Emit, StepOut};
use backend_cuda::{CudaOptions, DeviceOptions};
use contract::TokenId;
use contract::sampling::SamplingParams;
use model::decoder::Settings;

use crate::drive::{Driver, Part};

pub struct Check {
    pub name: &'static str,
    /// The argument is the compute capability times ten whose code paths run; `None`: the card's.
    pub run: fn(Option<u32>) -> Result<String>,
}

pub const CHECKS: &[Check] = &[
    Check { name: "logprobs, 4 heads of 64", run: |arch| logprobs(&small(4, 2, 64, false), arch) },
    Check { name: "logprobs, 9 heads of 64", run: |arch| logprobs(&small(9, 3, 64, false), arch) },
    Check { name: "logprobs, 8 heads of 128, norms", run: |arch| logprobs(&small(8, 2, 128, true), arch) },
    Check { name: "logprobs, 16 heads over 1", run: |arch| logprobs(&small(16, 1, 64, true), arch) },
    Check { name: "logprobs, 6 heads of 96", run: |arch| logprobs(&small(6, 2, 96, true), arch) },
    Check { name: "logprobs, 8 heads of 256, norms", run: |arch| logprobs(&small(8, 2, 256, true), arch) },
    Check { name: "among others, 8 heads of 128", run: |arch| among_others(&small(8, 2, 128, true), arch) },
    Check { name: "among others, 8 heads of 256", run: |arch| among_others(&small(8, 2, 256, true), arch) },
    Check { name: "many rows through the library", run: many_rows },
    Check { name: "chunks behind a deep prefix", run: deep_prefix },
    Check { name: "graph equals eager", run: graph_equals_eager },
    Check { name: "batch equals alone", run: batch_equals_alone },
    Check { name: "one row behind a chunk", run: one_row_behind },
    Check { name: "two steps in flight", run: two_in_flight },
    Check { name: "prompt logprobs and pooling", run: prompts },
    Check { name: "sampling equals the reference", run: sampling },
];

const VOCAB: usize = 1000;

pub fn small(heads: usize, kv_heads: usize, head_dim: usize, qk_norm: bool) -> Settings {
    Settings {
        family: "check",
        hidden: 256,
        ffn: 544,
        layers: 3,
        attention: AttentionShape { heads, kv_heads, head_dim, gated: false },
        context_len: 2048,
        norm_eps: 1e-5,
        rope: Rope::plain(head_dim, 1e4),
        qk_norm,
        interleaved_qk: false,
        tied_head: Some(false),
        hybrid: None,
        used_tensors: Vec::new(),
    }
}

pub fn spec(settings: &Settings) -> Result<ModelSpec> {
    Ok(model::dummy::spec(settings, VOCAB, 42)?)
}

pub fn options() -> LoadOptions {
    LoadOptions {
        seats: 20,
        max_rows: 1024,
        context_len: Some(2048),
        kv_tokens: Some(32_768),
        ..LoadOptions::default()
    }
}

pub fn cuda(settings: &Settings, graphs: bool, arch: Option<u32>) -> Result<Box<dyn Backend>> {
    let (spec, cuda) = (spec(settings)?, on_card(graphs, arch));
    Ok(Box::new(backend_cuda::load(&spec, &options(), &cuda, &mut |_| {})?.0))
}

/// How checks load a model: beside another one, and with kernels that earlier ones compiled.
pub fn on_card(graphs: bool, arch: Option<u32>) -> CudaOptions {
    let kernel_cache = Some(std::env::temp_dir().join("gpu-check-kernels"));
    let device = DeviceOptions { arch, kernel_cache, ..DeviceOptions::default() };
    CudaOptions { graphs, memory_fraction: 0.5, device, ..CudaOptions::default() }
}

pub fn cpu(settings: &Settings) -> Result<Box<dyn Backend>> {
    Ok(Box::new(backend_cpu::load(spec(settings)?, &options(), &mut |_| {})?.0))
}

/// A fixed pseudo-random token sequence.
pub fn tokens(seed: u32, count: usize) -> Vec<TokenId> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % VOCAB as u32
    };
    (0..count).map(|_| next()).collect()
}

pub fn greedy(logprobs: Option<u8>) -> SamplingParams {
    SamplingParams { temperature: 0.0, logprobs, ..SamplingParams::default() }
}

/// One sequence through chunks of prefill and forced decode steps; the top logprobs of every emitted row.
pub fn forced(backend: &mut dyn Backend, text: &[TokenId], cuts: &[usize]) -> Result<Vec<Vec<(TokenId, f32)>>> {
    forced_among(backend, text, cuts, 0)
}

/// The same while `others` sequences of several lengths decode beside it.
fn forced_among(
    backend: &mut dyn Backend,
    text: &[TokenId],
    cuts: &[usize],
    others: u16,
) -> Result<Vec<Vec<(TokenId, f32)>>> {
    let mut driver = Driver::new(backend);
    for seat in 1..=others {
        let prompt = tokens(200 + u32::from(seat), 15 * usize::from(seat));
        driver.bind(seat, &greedy(None), &prompt)?;
        driver.step(&[Part { seat, tokens: &prompt, emit: true }])?;
    }
    driver.bind(0, &greedy(Some(20)), text)?;
    let mut rows = Vec::new();
    let mut at = 0;
    for &cut in cuts {
        let own = Part { seat: 0, tokens: &text[at..at + cut], emit: true };
        let beside = (1..=others).map(|seat| Part { seat, tokens: &[], emit: true });
        let out = driver.step(&std::iter::once(own).chain(beside).collect::<Vec<_>>())?;
        rows.push(out.logprobs.first().context("an emitting run gave no logprobs")?.top.clone());
        at += cut;
    }
    Ok(rows)
}

/// Largest difference of a logprob that both lists hold, over the rows.
pub fn difference(a: &[Vec<(TokenId, f32)>], b: &[Vec<(TokenId, f32)>]) -> Result<f32> {
    ensure!(a.len() == b.len(), "{} rows against {}", a.len(), b.len());
    let mut worst = 0f32;
    for (x, y) in a.iter().zip(b) {
        let mut shared = 0;
        for (token, value) in x {
            if let Some((_, other)) = y.iter().find(|(t, _)| t == token) {
                ensure!(value.is_finite() && other.is_finite(), "token {token}: {value} against {other}");
                worst = worst.max((value - other).abs());
                shared += 1;
            }
        }
        ensure!(shared >= x.len() / 2, "only {shared} of {} top tokens agree", x.len());
    }
    Ok(worst)
}

/// bf16 activations over three layers of unit-variance weights, against fp32: measured on correct code at a third of it.
/// Of the length of a pooled state: bf16 rows of three layers.
const POOLED_BOUND: f64 = 0.03;

pub const LOGPROB_BOUND: f32 = 0.25;

/// What a check says whose logprobs are those of the reference.
pub fn within_bound(reference: &[Vec<(TokenId, f32)>], found: &[Vec<(TokenId, f32)>]) -> Result<String> {
    let worst = difference(reference, found)?;
    ensure!(worst < LOGPROB_BOUND, "logprobs differ by {worst}");
    Ok(format!("worst difference {worst:.4}"))
}

fn logprobs(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let text = tokens(1, 400);
    // One page, over a page border, a long chunk, then single tokens on both sides of a split of 128 keys.
    let cuts = [64, 63, 130, 2, 1, 1, 1, 60, 1, 1, 5, 1];
    let reference = forced(&mut *cpu(settings)?, &text, &cuts)?;
    let found = forced(&mut *cuda(settings, true, arch)?, &text, &cuts)?;
    within_bound(&reference, &found)
}

/// A sequence among as many that decode as the kernels of more than 16 rows need, over the border of a split.
pub fn among_others(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let text = tokens(5, 240);
    let cuts = [&[64, 138][..], &[1; 38]].concat();
    let reference = forced(&mut *cpu(settings)?, &text, &cuts)?;
    let found = forced_among(&mut *cuda(settings, true, arch)?, &text, &cuts, options().seats - 1)?;
    within_bound(&reference, &found)
}

fn many_rows(arch: Option<u32>) -> Result<String> {
    let settings = small(8, 2, 128, true);
    let text = tokens(2, 1200);
    let cuts = [700, 65, 100, 64, 17, 1, 33];
    let reference = forced(&mut *cpu(&settings)?, &text, &cuts)?;
    let found = forced(&mut *cuda(&settings, true, arch)?, &text, &cuts)?;
    within_bound(&reference, &found)
}

/// Greedy tokens of several sequences that decode together; their prompts go one by one.
pub fn together(backend: &mut dyn Backend, seats: &[u16], steps: usize) -> Result<Vec<Vec<TokenId>>> {
    let mut driver = Driver::new(backend);
    let prompts: Vec<Vec<TokenId>> =
        seats.iter().map(|&seat| tokens(100 + u32::from(seat), 20 + usize::from(seat) * 4)).collect();
    let mut streams = vec![Vec::new(); seats.len()];
    for ((&seat, prompt), stream) in seats.iter().zip(&prompts).zip(&mut streams) {
        driver.bind(seat, &greedy(None), prompt)?;
        stream.extend_from_slice(&driver.step(&[Part { seat, tokens: prompt, emit: true }])?.tokens);
    }
    let mut collect = |out: &StepOut| {
        for (stream, run) in streams.iter_mut().zip(&out.runs) {
            stream.extend_from_slice(&out.tokens[run.tokens.start as usize..run.tokens.end as usize]);
        }
    };
    let parts: Vec<Part<'_>> = seats.iter().map(|&seat| Part { seat, tokens: &[], emit: true }).collect();
    for _ in 0..steps {
        collect(&driver.step(&parts)?);
    }
    Ok(streams)
}

/// Few rows far from a prompt's beginning: on Hopper the keys of their tiles are split.
fn deep_prefix(arch: Option<u32>) -> Result<String> {
    let settings = Settings { context_len: 8192, ..small(8, 2, 128, true) };
    let options = LoadOptions { context_len: Some(8192), ..options() };
    let text = tokens(3, 7100);
    let cuts = [1000, 1000, 1000, 1000, 300, 40, 200, 1, 33, 1000, 1000, 2, 300];
    let mut cpu = backend_cpu::load(spec(&settings)?, &options, &mut |_| {})?.0;
    let reference = forced(&mut cpu, &text, &cuts)?;
    let mut cuda = backend_cuda::load(&spec(&settings)?, &options, &on_card(true, arch), &mut |_| {})?.0;
    let worst = difference(&reference, &forced(&mut cuda, &text, &cuts)?)?;
    ensure!(worst < LOGPROB_BOUND, "logprobs differ by {worst}");
    Ok(format!("worst difference {worst:.4}"))
}

fn graph_equals_eager(arch: Option<u32>) -> Result<String> {
    let settings = small(8, 2, 128, true);
    let seats: Vec<u16> = (0..5).collect();
    let eager = together(&mut *cuda(&settings, false, arch)?, &seats, 150)?;
    let graph = together(&mut *cuda(&settings, true, arch)?, &seats, 150)?;
    ensure!(eager == graph, "greedy tokens differ");
    Ok(format!("{} tokens", eager.iter().map(Vec::len).sum::<usize>()))
}

fn batch_equals_alone(arch: Option<u32>) -> Result<String> {
    let settings = small(8, 2, 128, true);
    // As many as take one path through the products: there a row does not depend on its neighbours.
    let seats: Vec<u16> = (0..16).collect();
    let batch = together(&mut *cuda(&settings, true, arch)?, &seats, 100)?;
    for &seat in &[0u16, 8, 15] {
        let alone = together(&mut *cuda(&settings, true, arch)?, &[seat], 100)?;
        let same = alone[0].iter().zip(&batch[usize::from(seat)]).take_while(|(a, b)| a == b).count();
        ensure!(same == alone[0].len(), "seat {seat} parts ways after {same} tokens");
    }
    Ok("303 tokens equal".into())
}

/// A prompt of one token behind a longer run, and one that emits nothing, leave their neighbours as they are.
fn one_row_behind(arch: Option<u32>) -> Result<String> {
    let settings = small(8, 2, 128, true);
    let mut found = Vec::new();
    for mut backend in [cuda(&settings, true, arch)?, cpu(&settings)?] {
        let mut driver = Driver::new(&mut *backend);
        let (long, short) = (tokens(20, 90), tokens(21, 3));
        for seat in 0..3 {
            driver.bind(seat, &greedy(Some(20)), &long)?;
        }
        driver.step(&[Part { seat: 0, tokens: &long, emit: true }])?;
        let mixed = driver.step(&[
            Part { seat: 0, tokens: &short[..1], emit: true },
            Part { seat: 1, tokens: &long, emit: true },
            Part { seat: 2, tokens: &short[..1], emit: false },
        ])?;
        let lone = driver.step(&[
            Part { seat: 0, tokens: &short[1..2], emit: true },
            Part { seat: 2, tokens: &short[1..2], emit: false },
        ])?;
        let last = driver.step(&[Part { seat: 2, tokens: &short[2..], emit: true }])?;
        found.push([mixed, lone, last].into_iter().flat_map(|out| out.logprobs).map(|row| row.top).collect::<Vec<_>>());
    }
    within_bound(&found[0], &found[1])
}

fn two_in_flight(arch: Option<u32>) -> Result<String> {
    let settings = small(8, 2, 128, true);
    let mut backend = cuda(&settings, true, arch)?;
    let one = together(&mut *backend, &[3], 60)?;
    let mut driver = Driver::new(&mut *backend);
    let prompt = tokens(103, 20 + 12);
    driver.bind(3, &greedy(None), &prompt)?;
    let mut found = driver.step(&[Part { seat: 3, tokens: &prompt, emit: true }])?.tokens;
    let next = [Part { seat: 3, tokens: &[], emit: true }];
    let mut oldest = driver.launch(&next)?;
    for _ in 0..59 {
        let newer = driver.launch(&next)?;
        found.extend(driver.backend.collect(oldest, true)?.context("nothing")?.tokens);
        oldest = newer;
    }
    found.extend(driver.backend.collect(oldest, true)?.context("nothing")?.tokens);
    ensure!(found == one[0], "tokens differ with two steps in flight");
    Ok(format!("{} tokens", found.len()))
}

/// Logprobs of a prompt's own tokens over a border of row tiles, and hidden states of the last row and of all.
fn prompts(arch: Option<u32>) -> Result<String> {
    let settings = small(8, 2, 128, true);
    let text = tokens(30, 200);
    let mut found = Vec::new();
    for mut backend in [cuda(&settings, true, arch)?, cpu(&settings)?] {
        let mut driver = Driver::new(&mut *backend);
        let mut logprobs = Vec::new();
        for (seat, from) in [(0, 0), (1, 150)] {
            driver.bind(seat, &greedy(Some(20)), &text)?;
            let out = driver.emit(seat, &text, Emit::Every { from, top: 20, next: None })?;
            ensure!(out.logprobs.len() == 200 - from as usize, "{} logprobs from {from}", out.logprobs.len());
            logprobs.extend(out.logprobs.into_iter().map(|row| row.top));
        }
        let mut pooled = Vec::new();
        for (seat, mean) in [(2, true), (3, false)] {
            driver.bind(seat, &greedy(None), &text)?;
            pooled.extend(driver.emit(seat, &text, Emit::Pool { mean })?.pooled);
        }
        ensure!(pooled.len() == 2 * settings.hidden, "{} pooled values", pooled.len());
        found.push((logprobs, pooled));
    }
    let worst = difference(&found[0].0, &found[1].0)?;
    ensure!(worst < LOGPROB_BOUND, "logprobs differ by {worst}");
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let apart = norm(&mut found[0].1.iter().zip(&found[1].1).map(|(a, b)| a - b));
    let share = apart / norm(&mut found[1].1.iter().copied());
    ensure!(share < POOLED_BOUND, "pooled states differ by {share} of their length");
    Ok(format!("worst difference {worst:.4}, pooled {share:.4}"))
}

/// The device's sampler against the reference one, on the device's own logits: greedy top is not enough, so this draws
/// with every filter and penalty and compares with what the CPU backend draws. Rounding may flip a draw now and then.
fn sampling(arch: Option<u32>) -> Result<String> {
    let settings = small(4, 2, 64, false);
    let base = SamplingParams { temperature: 0.9, ..SamplingParams::default() };
    let table = [
        base.clone(),
        SamplingParams { top_k: 5, ..base.clone() },
        SamplingParams { top_p: 0.7, ..base.clone() },
        SamplingParams { min_p: 0.2, ..base.clone() },
        SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.01, ..base.clone() },
        SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.5, repetition_penalty: 1.3, ..base.clone() },
        SamplingParams { logit_bias: vec![(5, 8.0), (6, -50.0)], ..base.clone() },
        SamplingParams { stop_tokens: vec![7], min_tokens: 1000, ..base },
    ];
    let mut agree = 0;
    let mut total = 0;
    let (mut device, mut host) = (cuda(&settings, true, arch)?, cpu(&settings)?);
    for params in &table {
        let mut draws = Vec::new();
        for backend in [&mut device, &mut host] {
            let mut driver = Driver::new(&mut **backend);
            let prompt = tokens(9, 50);
            driver.bind(0, params, &prompt)?;
            let mut found = driver.step(&[Part { seat: 0, tokens: &prompt, emit: true }])?.tokens;
            // Forced along one sequence, so that one flipped draw does not change all that follow.
            for &token in &tokens(10, 40) {
                found.extend(driver.step(&[Part { seat: 0, tokens: &[token], emit: true }])?.tokens);
            }
            draws.push(found);
        }
        ensure!(draws[0].len() == draws[1].len(), "{params:?}: {} draws against {}", draws[0].len(), draws[1].len());
        agree += draws[0].iter().zip(&draws[1]).filter(|(a, b)| a == b).count();
        total += draws[0].len();
    }
    ensure!(agree * 100 >= total * 80, "{agree} of {total} draws agree");
    Ok(format!("{agree} of {total} draws agree"))
}
