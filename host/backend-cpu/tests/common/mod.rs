//! Drives a backend as the engine does, one step at a time.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::PathBuf;

use backend::load::LoadOptions;
use backend::ops::ModelSpec;
use backend::step::{Emit, Feed, Run, SeatInit, Step, StepOut, Table};
use backend::{Backend, BackendError};
use backend_cpu::{CpuBackend, CpuOptions, Numerics, load_with};
use contract::sampling::SamplingParams;
use contract::{PAGE_TOKENS, PageId, Seat, TokenId};

pub const SEATS: u16 = 6;

pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/data").join(name)
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
    runs: Vec<Run>,
    tokens: Vec<TokenId>,
}

impl Built {
    pub fn try_forward(&self, backend: &mut CpuBackend) -> Result<backend::step::Ticket, BackendError> {
        // At most one table per seat, so that a launch itself allocates nothing.
        let mut tables = [const { Table::Append { seat: Seat(0), at: 0, pages: &[] } }; SEATS as usize];
        for (table, (seat, at, pages)) in tables.iter_mut().zip(&self.appended) {
            *table = Table::Append { seat: *seat, at: *at, pages };
        }
        let step = Step { tables: &tables[..self.appended.len()], runs: &self.runs, tokens: &self.tokens };
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
}

impl Driver {
    pub fn new(backend: CpuBackend) -> Self {
        let seats = usize::from(SEATS);
        Self { backend, lens: vec![0; seats], pages: vec![0; seats], next_page: 0 }
    }

    pub fn bind(&mut self, seat: u16, sampling: &SamplingParams, seed: u64, prompt: &[TokenId]) {
        let init = SeatInit { sampling, seed, adapter: None, start: 0, prompt, generated: &[] };
        self.backend.bind(Seat(seat), &init).expect("a free seat");
        self.lens[usize::from(seat)] = 0;
        self.pages[usize::from(seat)] = 0;
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
        Built { appended, runs: step_runs, tokens }
    }

    pub fn step(&mut self, runs: &[Go]) -> StepOut {
        let ticket = self.forward(runs).expect("a valid step");
        self.backend.sample(ticket, &[]).expect("an open step");
        self.backend.collect(ticket, true).expect("a sampled step").expect("a step is over when it was sampled")
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
