//! Step times of a full-size random model, with the share of the card's floor beside each.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use backend::Backend;
use backend::load::{LoadOptions, Quantization};
use backend::ops::{AttentionShape, ModelSpec, Rope};
use backend::weights::Weight;
use backend_cuda::{CudaOptions, StateType};
use contract::TokenId;
use contract::sampling::SamplingParams;
use model::HfFolder;
use model::decoder::Settings;
use model::dummy::Mix;

use crate::drive::{Driver, Part};

/// Bytes a second that count as 100 % of this card's memory.
const BANDWIDTH: f64 = 4.2e12;

/// Qwen3-8B: 36 layers, untied head.
fn qwen3_8b() -> Settings {
    Settings {
        family: "qwen3",
        hidden: 4096,
        ffn: 12_288,
        layers: 36,
        attention: AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, gated: false },
        context_len: 40_960,
        norm_eps: 1e-6,
        rope: Rope::plain(128, 1e6),
        qk_norm: true,
        interleaved_qk: false,
        tied_head: Some(false),
        hybrid: None,
        used_tensors: Vec::new(),
    }
}

const VOCAB: usize = 151_936;

/// What the random weights are.
pub enum Weights {
    Half,
    Fp8,
    /// Random blocks of a GGUF mix, with its name.
    Blocks(String, Mix),
}

impl Weights {
    /// The model, what loading makes of it, and a name for people.
    fn model(&self, plain: ModelSpec) -> (ModelSpec, Option<Quantization>, &str) {
        match self {
            Self::Half => (plain, None, "bf16"),
            Self::Fp8 => (plain, Some(Quantization::Fp8), "FP8"),
            Self::Blocks(name, mix) => (model::dummy::quantised(plain, *mix), None, name.as_str()),
        }
    }
}

/// Whose steps are timed: Qwen3-8B's, unless it says otherwise.
#[derive(Default)]
pub struct Shape {
    /// Of its config.json.
    pub folder: Option<PathBuf>,
    /// So many, the first.
    pub layers: Option<u32>,
    pub states: StateType,
}

impl Shape {
    /// Random weights.
    fn plain(&self, qwen3: Settings) -> Result<ModelSpec> {
        let (mut settings, vocab) = match &self.folder {
            Some(folder) => {
                let config = HfFolder::open(folder)?.config;
                (config.settings, config.vocab)
            }
            None => (qwen3, VOCAB),
        };
        if let Some(layers) = self.layers {
            settings.layers = layers.min(settings.layers);
            if let Some(hybrid) = &mut settings.hybrid {
                hybrid.attends.truncate(settings.layers as usize);
            }
        }
        Ok(model::dummy::spec(&settings, vocab, 1)?)
    }

    fn name(&self) -> String {
        let name = self.folder.as_ref().map_or("Qwen3-8B".into(), |folder| folder.display().to_string());
        let layers = self.layers.map_or_else(String::new, |layers| format!(", {layers} layers"));
        let states = if self.states == StateType::Bf16 { ", states in bf16" } else { "" };
        format!("{name}{layers}{states}")
    }
}

/// `few`: only decodes of few rows. `only`: only cells with this in their name.
pub fn run(weights: &Weights, shape: &Shape, few: bool, only: &str) -> Result<()> {
    let started = Instant::now();
    let (spec, quantization, format) = weights.model(shape.plain(qwen3_8b())?);
    let options =
        LoadOptions { seats: 128, max_rows: 8192, context_len: Some(40_960), quantization, ..LoadOptions::default() };
    let cuda = CudaOptions { state_type: shape.states, ..CudaOptions::default() };
    let (mut backend, plan) = backend_cuda::load(&spec, &options, &cuda, &mut |_| {})?;
    println!("{}: {format}, random weights: ready in {:.1} s, {plan:?}", shape.name(), started.elapsed().as_secs_f64());
    // Of the embedding a step reads a row for each token.
    let vocab = spec.weights.iter().map(|weight| weight.rows).max().unwrap_or(0);
    let embedding = spec.weights.iter().find(|weight| weight.rows == vocab).map_or(0, Weight::size_bytes);
    let weights = plan.weights as f64 - embedding as f64;
    println!("{:<28} {:>10} {:>12} {:>8}", "cell", "ms", "tok/s", "floor");
    let cells =
        [(200, 1), (200, 2), (200, 4), (200, 8), (200, 16), (200, 32), (200, 64), (200, 128), (8000, 1), (8000, 8)];
    for &(prompt, rows) in if few { &cells[..4] } else { &cells } {
        let name = format!("decode {prompt} x {rows}");
        if !name.contains(only) {
            continue;
        }
        let millis = decode(&mut backend, prompt, rows)?;
        let bytes = weights + f64::from(rows as u32) * f64::from(prompt as u32 + 64) * plan.kv_bytes_per_token as f64;
        let share = bytes / BANDWIDTH / (millis / 1e3);
        let rate = rows as f64 / millis * 1e3;
        println!("{name:<28} {millis:>10.3} {rate:>12.1} {:>7.0} %", share * 100.0);
    }
    for &prompt in if few { &[][..] } else { &[200, 2000, 8000, 28_000] } {
        let name = format!("prefill {prompt}");
        if !name.contains(only) {
            continue;
        }
        let millis = prefill(&mut backend, prompt, 8192)?;
        let rate = prompt as f64 / millis * 1e3;
        println!("{name:<28} {millis:>10.3} {rate:>12.1}");
    }
    Ok(())
}

/// Milliseconds of steps with 16 decodes and a chunk, by the chunk's rows and the tokens before it.
pub fn steps(weights: &Weights, depths: &[u32]) -> Result<()> {
    let settings = Settings { context_len: 131_072, ..qwen3_8b() };
    let (spec, quantization, _) = weights.model(Shape::default().plain(settings)?);
    let options = LoadOptions { seats: 32, max_rows: 8192, quantization, ..LoadOptions::default() };
    let started = Instant::now();
    let (mut backend, _) = backend_cuda::load(&spec, &options, &CudaOptions::default(), &mut |_| {})?;
    println!("ready in {:.1} s", started.elapsed().as_secs_f64());
    let mut driver = Driver::new(&mut backend);
    for &depth in depths {
        for rows in [48, 112, 176, 200, 240, 304, 368, 432, 496, 624, 752, 1008, 1264, 2032] {
            let long = beside_decodes(&mut driver, depth)?;
            let mut millis = f64::INFINITY;
            for _ in 0..3 {
                let out = driver.step(&mixed(&long[..rows]))?;
                millis = millis.min(out.device.as_secs_f64() * 1e3);
            }
            println!(
                "depth {depth:>6}  chunk {rows:>5}  {millis:>8.3} ms  {:>7.2} us a row",
                millis * 1e3 / rows as f64
            );
        }
    }
    Ok(())
}

/// A few steps for a profiler: one stream, eight, 128; of two layers of Qwen3-8B also a prefill of 8,000, and last, three
/// times, 16 decodes with a chunk of 304 rows behind 50,000.
pub fn profile(weights: &Weights, shape: &Shape) -> Result<()> {
    let settings = Settings { layers: 2, context_len: 131_072, ..qwen3_8b() };
    let (spec, quantization, _) = weights.model(shape.plain(settings)?);
    let options =
        LoadOptions { seats: 128, max_rows: 8192, kv_tokens: Some(120_000), quantization, ..LoadOptions::default() };
    let cuda = CudaOptions { graphs: false, state_type: shape.states, ..CudaOptions::default() };
    let (mut backend, _) = backend_cuda::load(&spec, &options, &cuda, &mut |_| {})?;
    for rows in [1, 8, 128] {
        decode(&mut backend, 200, rows)?;
    }
    if shape.folder.is_some() {
        return Ok(());
    }
    prefill(&mut backend, 8000, 8192)?;
    let mut driver = Driver::new(&mut backend);
    let long = beside_decodes(&mut driver, 50_000)?;
    for _ in 0..3 {
        driver.step(&mixed(&long[..304]))?;
    }
    Ok(())
}

const DECODES: u16 = 16;

/// 16 sequences that decode, and one of `depth` tokens; the tokens that may follow it.
fn beside_decodes(driver: &mut Driver<'_>, depth: u32) -> Result<Vec<TokenId>> {
    driver.clear();
    for seat in 0..DECODES {
        fill(driver, seat, &text(usize::from(seat), 1000), 8192)?;
    }
    let mut tokens = text(99, depth as usize + 8192);
    let rest = tokens.split_off(depth as usize);
    fill(driver, DECODES, &tokens, 8192)?;
    Ok(rest)
}

fn mixed(chunk: &[TokenId]) -> Vec<Part<'_>> {
    let decodes = (0..DECODES).map(|seat| Part { seat, tokens: &[], emit: true });
    decodes.chain([Part { seat: DECODES, tokens: chunk, emit: false }]).collect()
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

fn text(seed: usize, count: usize) -> Vec<TokenId> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729 + 1000) % 150_000) as TokenId).collect()
}

fn fill(driver: &mut Driver<'_>, seat: u16, prompt: &[TokenId], chunk: usize) -> Result<()> {
    driver.bind(seat, &greedy(), prompt)?;
    let mut chunks = prompt.chunks(chunk).peekable();
    while let Some(tokens) = chunks.next() {
        driver.step(&[Part { seat, tokens, emit: chunks.peek().is_none() }])?;
    }
    Ok(())
}

/// Milliseconds of a decode step of `rows` sequences, two in flight, over 64 steps.
fn decode(backend: &mut dyn Backend, prompt: usize, rows: usize) -> Result<f64> {
    let mut driver = Driver::new(backend);
    driver.clear();
    for seat in 0..rows {
        fill(&mut driver, seat as u16, &text(seat, prompt), 8192)?;
    }
    let parts: Vec<Part<'_>> = (0..rows).map(|seat| Part { seat: seat as u16, tokens: &[], emit: true }).collect();
    let mut oldest = driver.launch(&parts)?;
    let mut started = Instant::now();
    const STEPS: usize = 64;
    for step in 0..STEPS + 4 {
        if step == 4 {
            started = Instant::now();
        }
        let newer = driver.launch(&parts)?;
        driver.backend.collect(oldest, true)?.context("a waiting collect gave nothing")?;
        oldest = newer;
    }
    let millis = started.elapsed().as_secs_f64() * 1e3 / STEPS as f64;
    driver.backend.collect(oldest, true)?;
    Ok(millis)
}

/// Milliseconds to the first token of a prompt, median of three.
fn prefill(backend: &mut dyn Backend, prompt: usize, chunk: usize) -> Result<f64> {
    let mut times = Vec::new();
    for round in 0..4 {
        let mut driver = Driver::new(backend);
        driver.clear();
        let tokens = text(round, prompt);
        let started = Instant::now();
        fill(&mut driver, 0, &tokens, chunk)?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    // The first round asks the library for its algorithms.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[1])
}
