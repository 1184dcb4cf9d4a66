//! Drives a backend as the engine does, one step at a time.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;

use backend::load::LoadOptions;
use backend::ops::ModelSpec;
use backend::step::{Emit, Feed, Run, SeatInit, StateSlot, Step, StepOut, Table};
use backend::{Backend, BackendError};
use backend_cpu::{CpuBackend, CpuOptions, Numerics, load_with};
use contract::sampling::SamplingParams;
use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

pub const SEATS: u16 = 6;

pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/data").join(name)
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Of the tiny models that the scripts in `tests/reference` make.
pub const TINY_VOCAB: usize = 256;

/// The token sequence that their logits are of.
pub fn tiny_tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (37 * i + 11) % TINY_VOCAB as u32).collect()
}

pub fn sigma(x: &[f32]) -> f64 {
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
    (x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

pub fn argmax(x: &[f32]) -> usize {
    (0..x.len()).max_by(|&a, &b| x[a].total_cmp(&x[b])).expect("logits")
}

pub fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// Feeds the tokens in chunks and compares the logits after each chunk with those of transformers: the largest difference
/// in sigmas of all logits, and the best token.
pub fn against_transformers(name: &str, spec: ModelSpec, numerics: Numerics, chunks: &[usize], sigmas_max: f64) {
    let expected = floats(&std::fs::read(data(&format!("{name}.logits"))).expect("committed logits"));
    let (tokens, sigma) = (tiny_tokens(expected.len() / TINY_VOCAB), sigma(&expected));
    let mut driver = Driver::new(load(spec, numerics, 2));
    driver.bind(0, &greedy(), 0, &tokens);
    let mut at = 0;
    for &chunk in chunks {
        let logits = driver.logits(feed(0, &tokens[at..at + chunk], Emit::Next));
        at += chunk;
        let expected = &expected[(at - 1) * TINY_VOCAB..at * TINY_VOCAB];
        let worst = largest_difference(&logits, expected);
        assert!(worst <= sigmas_max * sigma, "{name} {numerics:?} position {}: {worst} of sigma {sigma}", at - 1);
        assert_eq!(argmax(&logits), argmax(expected), "{name} {numerics:?} position {}", at - 1);
    }
    assert_eq!(at, tokens.len(), "the chunks are the whole sequence");
}

pub fn spec(name: &str) -> ModelSpec {
    model::load(&data(&format!("{name}.gguf"))).expect("a committed model").spec
}

pub fn load(spec: ModelSpec, numerics: Numerics, threads: usize) -> CpuBackend {
    let options = LoadOptions { seats: SEATS, threads: Some(threads), max_rows: 256, ..LoadOptions::default() };
    let cpu = CpuOptions { numerics, ..CpuOptions::default() };
    load_with(spec, &options, &cpu, &mut |_| {}).expect("a loadable model").0
}

pub fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

/// One run of a step, in short.
#[derive(Clone, Debug)]
pub struct Go {
    pub seat: u16,
    /// `None`: the last sampled token.
    pub tokens: Option<Vec<TokenId>>,
    pub emit: Emit,
}

pub fn feed(seat: u16, tokens: &[TokenId], emit: Emit) -> Go {
    Go { seat, tokens: Some(tokens.to_vec()), emit }
}

pub fn next(seat: u16) -> Go {
    Go { seat, tokens: None, emit: Emit::Next }
}

/// A step with what it refers to.
pub struct Built {
    appended: Vec<(Seat, u32, Vec<PageId>)>,
    states: Vec<Table<'static>>,
    runs: Vec<Run>,
    tokens: Vec<TokenId>,
}

impl Built {
    pub fn try_forward(&self, backend: &mut CpuBackend) -> Result<backend::step::Ticket, BackendError> {
        // At most two tables per seat, so that a launch itself allocates nothing.
        let mut tables = [const { Table::Append { seat: Seat(0), at: 0, pages: &[] } }; 2 * SEATS as usize];
        let appended = self.appended.iter().map(|(seat, at, pages)| Table::Append { seat: *seat, at: *at, pages });
        let count = self.appended.len() + self.states.len();
        for (table, change) in tables.iter_mut().zip(self.states.iter().cloned().chain(appended)) {
            *table = change;
        }
        let step = Step { tables: &tables[..count], runs: &self.runs, tokens: &self.tokens };
        backend.forward(&step)
    }

    pub fn forward(&self, backend: &mut CpuBackend) -> backend::step::Ticket {
        self.try_forward(backend).expect("a valid step")
    }
}

/// A backend with the host's side of its seats: lengths and pages.
pub struct Driver {
    pub backend: CpuBackend,
    lens: Vec<u32>,
    pages: Vec<u32>,
    next_page: u32,
    /// Saves and loads of the next step.
    states: Vec<Table<'static>>,
}

impl Driver {
    pub fn new(backend: CpuBackend) -> Self {
        let seats = usize::from(SEATS);
        Self { backend, lens: vec![0; seats], pages: vec![0; seats], next_page: 0, states: Vec::new() }
    }

    pub fn bind(&mut self, seat: u16, sampling: &SamplingParams, seed: u64, prompt: &[TokenId]) {
        let init = SeatInit { sampling, seed, adapter: None, start: 0, prompt, generated: &[] };
        self.backend.bind(Seat(seat), &init).expect("a free seat");
        self.lens[usize::from(seat)] = 0;
        self.pages[usize::from(seat)] = 0;
    }

    /// A seat that begins behind `start` tokens that the pool's first pages hold, with a saved state of them.
    pub fn bind_behind(&mut self, seat: u16, start: u32, slot: u32, prompt: &[TokenId]) {
        let sampling = greedy();
        let init = SeatInit { sampling: &sampling, seed: 0, adapter: None, start, prompt, generated: &[] };
        self.backend.bind(Seat(seat), &init).expect("a free seat");
        self.lens[usize::from(seat)] = start;
        let pages: Vec<PageId> = (0..start.div_ceil(PAGE_TOKENS)).map(PageId).collect();
        self.pages[usize::from(seat)] = pages.len() as u32;
        self.states.push(Table::Append { seat: Seat(seat), at: 0, pages: pages.leak() });
        self.states.push(Table::Load { seat: Seat(seat), from: StateSlot(slot) });
    }

    /// The next step saves the state that the seat has after `at` tokens.
    pub fn save(&mut self, seat: u16, at: u32, slot: u32) {
        self.states.push(Table::Save { seat: Seat(seat), at, to: StateSlot(slot) });
    }

    pub fn release(&mut self, seat: u16) {
        self.backend.release(Seat(seat));
        // Pages are handed out anew from the first on; callers that release use one seat at a time.
        self.next_page = 0;
    }

    /// Forward only; the caller samples.
    pub fn forward(&mut self, runs: &[Go]) -> Result<backend::step::Ticket, BackendError> {
        self.build(runs).try_forward(&mut self.backend)
    }

    /// A step, to be launched later.
    pub fn build(&mut self, runs: &[Go]) -> Built {
        let (mut tokens, mut step_runs, mut appended) = (Vec::new(), Vec::new(), Vec::new());
        for go in runs {
            let seat = usize::from(go.seat);
            let start = tokens.len() as u32;
            tokens.extend(go.tokens.iter().flatten());
            let (feed, rows) = match &go.tokens {
                Some(own) => (Feed::Tokens(start..tokens.len() as u32), own.len() as u32),
                None => (Feed::Last, 1),
            };
            self.lens[seat] += rows;
            let end_max = self.lens[seat];
            let new: Vec<PageId> = (self.pages[seat]..end_max.div_ceil(PAGE_TOKENS))
                .map(|_| {
                    self.next_page += 1;
                    PageId(self.next_page - 1)
                })
                .collect();
            appended.push((Seat(go.seat), self.pages[seat], new));
            self.pages[seat] = end_max.div_ceil(PAGE_TOKENS).max(self.pages[seat]);
            step_runs.push(Run { seat: Seat(go.seat), feed, rows, end_max, emit: go.emit, masked: false });
        }
        Built { appended, states: std::mem::take(&mut self.states), runs: step_runs, tokens }
    }

    pub fn step(&mut self, runs: &[Go]) -> StepOut {
        let ticket = self.forward(runs).expect("a valid step");
        self.backend.sample(ticket, &[]).expect("an open step");
        self.backend.collect(ticket, true).expect("a sampled step").expect("a step is over when it was sampled")
    }

    /// Logits after a prompt on seat 0.
    pub fn first_logits(&mut self, prompt: &[TokenId]) -> Vec<f32> {
        self.bind(0, &greedy(), 0, prompt);
        self.logits(feed(0, prompt, Emit::Next))
    }

    /// Logits after the last row of one run.
    pub fn logits(&mut self, run: Go) -> Vec<f32> {
        let ticket = self.forward(&[run]).expect("a valid step");
        let logits = self.backend.logits(0).expect("the run emits").to_vec();
        self.backend.sample(ticket, &[]).expect("an open step");
        self.backend.collect(ticket, true).expect("a sampled step");
        logits
    }
}
