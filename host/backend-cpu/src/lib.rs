//! The CPU backend, and the oracle for every kernel.
//!
//! It runs a [`ModelSpec`] as a [`backend::Backend`]: a step's rows, prefill and decode together, go through each
//! operation at once, so every weight is read once for all of them. It must not know model families, files or text.
//!
//! Start with [`load`], then [`CpuBackend`] (seats, tickets, checks), then the two interpreters: [`exact`] in plain
//! loops, and [`fast`] over [`kernels`]. A step is computed inside `forward`, so one may be open at a time
//! (`in_flight` is 1) and nothing is late: the device time of a step is measured where it is spent.
//!
//! Keys and values are kept as f16 by the fast interpreter (half the memory and half the reading; the rounding, 2^-11 of
//! each element, is that of the 12-bit activations) and as f32 by the exact one.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod batch;
pub mod cores;
mod cpu;
pub mod delta;
pub mod exact;
pub mod fast;
pub mod interpreter;
pub mod kernels;
mod plan;
pub mod pool;
pub mod program;
mod sample;
mod seats;
pub mod state;

use std::time::{Duration, Instant};

use backend::BackendError;
use backend::load::{LoadOptions, LoadProgress, MemoryPlan};
use backend::ops::ModelSpec;

pub use cpu::CpuBackend;

use crate::cpu::Widths;
use crate::exact::Exact;
use crate::fast::{Fast, FastSizes};
use crate::interpreter::Interpreter;
use crate::pool::ThreadPool;
use crate::program::{Program, check_finite};
use crate::state::States;

/// How numbers are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// The fast kernels: 12-bit activations for quantised weights, f32 for float weights; keys and values in f16.
    #[default]
    Fast,
    /// Plain fp32 loops.
    Exact,
}

/// What only this backend can be told.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuOptions {
    pub numerics: Numerics,
    /// The KV pool takes no more than this.
    pub kv_bytes_max: u64,
    /// Saved recurrent states take no more than this, beside those of the seats.
    pub state_bytes_max: u64,
}

impl Default for CpuOptions {
    /// 2 GiB for the pool: a quarter of a small machine's memory. Pages that are never used take none, and states neither.
    fn default() -> Self {
        Self { numerics: Numerics::Fast, kv_bytes_max: 2 << 30, state_bytes_max: 1 << 30 }
    }
}

/// Loads a model with the defaults of [`CpuOptions`].
pub fn load(
    spec: ModelSpec,
    options: &LoadOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(CpuBackend, MemoryPlan), BackendError> {
    load_with(spec, options, &CpuOptions::default(), progress)
}

/// Loads a model.
///
/// # Errors
/// [`BackendError::Weight`] for a weight of a wrong shape or with numbers that are not finite,
/// [`BackendError::Unsupported`] for an operation that is not for CPUs, [`BackendError::Memory`] when not even one KV
/// page fits, [`BackendError::Device`] when the system gives no threads.
pub fn load_with(
    spec: ModelSpec,
    options: &LoadOptions,
    cpu: &CpuOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(CpuBackend, MemoryPlan), BackendError> {
    if let Some(quantization) = options.quantization {
        return Err(BackendError::Unsupported {
            what: format!("with weights quantised to {quantization:?} at load"),
            fix: "leave --quantization out, or use `--device cuda`".into(),
        });
    }
    let mut spec = spec;
    spec.weights.iter_mut().for_each(|weight| {
        // There are no FP8 kernels here: twice the memory, the same values.
        if weight.scales().is_some() {
            *weight = backend::fp8::dequantized(weight);
        }
    });
    let program = Program::new(&spec)?;
    let refusal = if cpu.numerics == Numerics::Fast { fast::refusal(&spec) } else { None };
    let exact = cpu.numerics == Numerics::Exact || refusal.is_some();
    let sizes = plan::sizes(&spec, options, if exact { 4 } else { 2 }, cpu)?;
    let (caps, mut plan) = (sizes.caps, sizes.plan);
    if let Some(reason) = refusal {
        plan.lowered.push(format!("the model runs by plain fp32 loops, not by the fast kernels: {reason}"));
    }
    let device = |cause: std::io::Error| BackendError::Device { operation: "start".into(), cause: cause.to_string() };
    plan.notes.push(format!("{} threads, {}", sizes.threads, sizes.placement));
    let pool = ThreadPool::placed(sizes.threads, sizes.placement).map_err(device)?;
    let bytes_total = plan.weights;
    let mut bytes_done = 0;
    let mut done = |bytes: u64| {
        bytes_done += bytes;
        progress(LoadProgress { bytes_done, bytes_total });
    };
    let widths = Widths { hidden: spec.hidden, vocab_used: spec.vocab_used };
    spec.weights.iter().try_for_each(check_finite)?;
    let states = States::new(&spec, usize::from(caps.seats), caps.state_slots as usize);
    let interpreter: Box<dyn Interpreter> = if exact {
        let exact = Exact::new(spec, program, pool, caps.pages as usize, states);
        done(bytes_total);
        Box::new(exact)
    } else {
        let sizes = FastSizes {
            max_rows: caps.max_rows as usize,
            pages: caps.pages as usize,
            context_len: caps.context_len as usize,
        };
        let started = Instant::now();
        let fast = Fast::new(&spec, program, pool, &sizes, states, done)?;
        (plan.repacked, plan.workspace) = fast.memory();
        plan.notes.push(packing_note(&fast, plan.repacked, started.elapsed()));
        Box::new(fast)
    };
    let backend = CpuBackend::new(caps, &widths, interpreter);
    plan.workspace += backend.workspace_bytes();
    Ok((backend, plan))
}

/// The matrices' order in the file suits no kernel: read as they lie they take several times as long, so the choice is
/// always the same. What is only looked up stays in the file.
fn packing_note(fast: &Fast, bytes: u64, took: Duration) -> String {
    let (packed, mapped) = fast.packed_and_mapped();
    format!(
        "kernels {}: {packed} matrices repacked into {:.1} MiB in {:.2} s, {mapped} weights read where they are mapped",
        fast.isa().name(),
        bytes as f64 / f64::from(1 << 20),
        took.as_secs_f64()
    )
}

fn invalid(reason: impl Into<String>) -> BackendError {
    BackendError::InvalidStep(reason.into())
}
