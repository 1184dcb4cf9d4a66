//! Models whose layers keep a recurrent state or gated attention, on the card against the CPU.

use anyhow::{Result, ensure};
use backend::ops::{AttentionShape, DeltaShape, GateFn, HeadOrder, Rope};
use backend_cuda::{CudaOptions, StateType};
use model::decoder::{Hybrid, Settings};

use crate::fp8;
use crate::parity::{
    Check, LOGPROB_BOUND, among_others, cpu, cuda, difference, forced, on_card, options, small, spec, together, tokens,
    within_bound,
};

pub const CHECKS: &[Check] = &[
    Check { name: "hybrid, as many value heads", run: |arch| logprobs(&hybrid(2, 2, 128, GateFn::Silu), arch) },
    Check { name: "hybrid, twice the value heads", run: |arch| logprobs(&hybrid(2, 4, 128, GateFn::Silu), arch) },
    Check { name: "hybrid, three times, heads of 64", run: |arch| logprobs(&hybrid(2, 6, 64, GateFn::Sigmoid), arch) },
    Check { name: "hybrid, among others", run: |arch| among_others(&hybrid(2, 4, 128, GateFn::Silu), arch) },
    Check { name: "hybrid, cuts do not show", run: cuts },
    Check { name: "hybrid, graph equals eager", run: graph_equals_eager },
    Check { name: "hybrid, states in 16 bits", run: states_in_16_bits },
    Check { name: "hybrid, FP8 checkpoint", run: |arch| fp8::checkpoint(&hybrid(2, 4, 128, GateFn::Silu), arch) },
];

/// Three layers with the delta rule in front of one with gated attention, a quarter of whose dimensions are rotated.
pub fn hybrid(key_heads: usize, value_heads: usize, dim: usize, gate: GateFn) -> Settings {
    let order = if gate == GateFn::Silu { HeadOrder::Grouped } else { HeadOrder::Tiled };
    let delta = DeltaShape { key_heads, value_heads, key_dim: dim, value_dim: dim, conv: 4, order, gate };
    let head_dim = 2 * dim;
    Settings {
        ffn: 512,
        layers: 4,
        attention: AttentionShape { heads: 4, kv_heads: 2, head_dim, gated: true },
        rope: Rope::plain(head_dim / 4, 1e6),
        hybrid: Some(Hybrid { delta, attends: vec![false, false, false, true], as_trained: true }),
        ..small(4, 2, head_dim, true)
    }
}

/// Chunks, parts of chunks, single tokens, and a chunk again behind them.
const CUTS: [usize; 12] = [64, 200, 1, 1, 1, 61, 2, 5, 16, 17, 129, 1];

fn logprobs(settings: &Settings, arch: Option<u32>) -> Result<String> {
    let text = tokens(40, CUTS.iter().sum());
    let reference = forced(&mut *cpu(settings)?, &text, &CUTS)?;
    within_bound(&reference, &forced(&mut *cuda(settings, true, arch)?, &text, &CUTS)?)
}

/// Cuts at multiples of 64 give the same state to the bit: what follows is equal.
fn cuts(arch: Option<u32>) -> Result<String> {
    let settings = hybrid(2, 4, 128, GateFn::Silu);
    let text = tokens(41, 456);
    let mut last = Vec::new();
    for cuts in [&[448, 1, 1, 1, 1, 1, 1, 1, 1][..], &[64, 128, 256, 1, 1, 1, 1, 1, 1, 1, 1]] {
        // The products of a chunk may be summed in another order by its rows; one backend chooses alike for both.
        let rows = forced(&mut *cuda(&settings, true, arch)?, &text, cuts)?;
        last.push(rows[rows.len() - 8..].to_vec());
    }
    let worst = difference(&last[0], &last[1])?;
    ensure!(worst < LOGPROB_BOUND / 4.0, "logprobs differ by {worst}");
    Ok(format!("worst difference {worst:.5}"))
}

/// States that are rounded after every token: further from the CPU's than f32 ones, but not far.
fn states_in_16_bits(arch: Option<u32>) -> Result<String> {
    let settings = hybrid(2, 4, 128, GateFn::Silu);
    let text = tokens(42, CUTS.iter().sum());
    let reference = forced(&mut *cpu(&settings)?, &text, &CUTS)?;
    let with = |state_type| {
        let cuda = CudaOptions { state_type, ..on_card(true, arch) };
        let mut backend = backend_cuda::load(&spec(&settings)?, &options(), &cuda, &mut |_| {})?.0;
        difference(&reference, &forced(&mut backend, &text, &CUTS)?)
    };
    let (full, half) = (with(StateType::F32)?, with(StateType::Bf16)?);
    ensure!(full != half, "the type of the states changed nothing: {full}");
    ensure!(half < 1.5 * LOGPROB_BOUND, "logprobs differ by {half}");
    Ok(format!("worst difference {half:.4}, in f32 {full:.4}"))
}

fn graph_equals_eager(arch: Option<u32>) -> Result<String> {
    let settings = hybrid(2, 4, 128, GateFn::Silu);
    let seats: Vec<u16> = (0..5).collect();
    let eager = together(&mut *cuda(&settings, false, arch)?, &seats, 150)?;
    let graph = together(&mut *cuda(&settings, true, arch)?, &seats, 150)?;
    ensure!(eager == graph, "greedy tokens differ");
    Ok(format!("{} tokens", eager.iter().map(Vec::len).sum::<usize>()))
}
