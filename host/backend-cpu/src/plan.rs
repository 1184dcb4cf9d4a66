//! What a load costs, and what had to be lowered to make it fit.

use backend::BackendError;
use backend::load::{LoadOptions, MemoryPlan, STATES_PER_SEAT, state_note};
use backend::ops::{DELTA_CHUNK, ModelSpec};
use backend::step::Caps;
use contract::PAGE_TOKENS;

use crate::CpuOptions;
use crate::cores::{Cores, Placement};

/// The sizes that everything else is made for.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub caps: Caps,
    pub threads: usize,
    pub placement: Placement,
    pub plan: MemoryPlan,
}

/// Rows that a step may have at most: far above what a CPU computes in a useful time.
const ROWS_MAX: u32 = 8_192;
/// More threads than any machine has cores.
const THREADS_MAX: usize = 1_024;
/// A sequence needs its prompt and one answer.
const CONTEXT_MIN: u32 = 2;

/// Decides seats, context and pool. `kv_element_bytes` is the size of one stored key or value element.
pub fn sizes(
    spec: &ModelSpec,
    options: &LoadOptions,
    kv_element_bytes: u64,
    cpu: &CpuOptions,
) -> Result<Sizes, BackendError> {
    let kv_bytes_max = cpu.kv_bytes_max;
    let mut lowered = Vec::new();
    let mut at_most = |what: &str, asked: u32, limit: u32, why: &str| {
        if asked > limit {
            lowered.push(format!("{what} lowered from {asked} to {limit}: {why}"));
        }
        asked.min(limit)
    };
    let asked_context = options.context_len.unwrap_or(spec.context_len).max(CONTEXT_MIN);
    let context_len = at_most("context length", asked_context, spec.context_len.max(CONTEXT_MIN), "the model's own");
    let max_rows = at_most("rows per step", options.max_rows.max(1), ROWS_MAX, "the backend's limit");
    let seats = options.seats.max(1);
    let elements = 2 * spec.attention.kv_width() as u64 * spec.kv_layers as u64;
    let kv_bytes_per_token = elements * kv_element_bytes;
    let page_bytes = kv_bytes_per_token * u64::from(PAGE_TOKENS);
    let most_pages = u32::try_from(kv_bytes_max / page_bytes.max(1)).unwrap_or(u32::MAX);
    let wanted = match options.kv_tokens {
        Some(tokens) => u64::from(tokens.div_ceil(PAGE_TOKENS)),
        None => u64::from(context_len.div_ceil(PAGE_TOKENS)) * u64::from(seats),
    };
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).max(1);
    let why = format!("a page takes {page_bytes} bytes and the pool may take {kv_bytes_max}");
    let pages = at_most("KV pages of 64 tokens", wanted, most_pages, &why);
    if pages == 0 {
        let fix = "raise the memory for the KV pool".to_owned();
        let what = "one KV page".to_owned();
        return Err(BackendError::Memory { what, needed: page_bytes, available: kv_bytes_max, fix });
    }
    let pool_tokens = u32::try_from(u64::from(pages) * u64::from(PAGE_TOKENS)).unwrap_or(u32::MAX);
    let context_len = at_most("context length", context_len, pool_tokens, "the KV pool holds no more");
    let cores = Cores::detect();
    let every_core = || match &cores {
        Some(cores) => cores.physical(),
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let threads = options.threads.unwrap_or_else(every_core).clamp(1, THREADS_MAX);
    let placement = cores.as_ref().map_or(Placement::Anywhere, |cores| cores.place(threads));
    let vocab = spec.vocab as u32;
    let recurrent = spec.delta.is_some();
    let state_bytes = spec.state_bytes(4);
    let state_slots = state_slots(state_bytes, seats, cpu.state_bytes_max);
    let caps = Caps {
        vocab,
        context_len,
        seats,
        pages,
        page_tokens: PAGE_TOKENS,
        recurrent,
        state_slots,
        adapters: 0,
        max_rows,
        max_query: 1,
        in_flight: 1,
        resume_align: if recurrent { DELTA_CHUNK as u32 } else { 1 },
        rows_tile: 1,
        large_rows_tile: 1,
        mask_words: vocab.div_ceil(32),
        graphs: Vec::new(),
    };
    let plan = MemoryPlan {
        weights: spec.weights.iter().map(|weight| weight.size_bytes() as u64).sum(),
        kv_pool: u64::from(pages) * page_bytes,
        kv_bytes_per_token,
        pages,
        seats,
        state: state_bytes * (u64::from(seats) + u64::from(state_slots)),
        lowered,
        notes: if recurrent { vec![state_note(state_bytes, seats, state_slots)] } else { Vec::new() },
        ..MemoryPlan::default()
    };
    Ok(Sizes { caps, threads, placement, plan })
}

/// Slots for saved states: what the limit holds, and no more than some for each seat.
fn state_slots(state_bytes: u64, seats: u16, bytes_max: u64) -> u32 {
    let fit = bytes_max.checked_div(state_bytes).unwrap_or(0);
    fit.min(u64::from(seats) * u64::from(STATES_PER_SEAT)) as u32
}
