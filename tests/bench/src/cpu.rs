//! Tokens a second of the CPU backend through the engine: no API, no tokenizer, no plugin.
//!
//! Prefill is the prompt's length over the time to the first token. Decode begins when the last stream has its first
//! token and counts what all streams get from then on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use backend::load::LoadOptions;
use backend::ops::{BlockOp, ModelSpec};
use backend::weights::WeightId;
use contract::PAGE_TOKENS;
use contract::generation::{Request, Tenant, TokenEvent};
use contract::sampling::SamplingParams;
use engine::{EngineConfig, EngineParts, Generation, Handle};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::args::{Args, Cell};
use crate::peak::{amx_gop_per_s, read_gb_per_s, vnni_gop_per_s};

pub fn run(args: &Args) -> Result<Value> {
    let mut rows = Vec::new();
    let columns = ["threads", "what", "streams", "context", "tokens/s"];
    let [threads, what, streams, context, rate] = columns;
    eprintln!("{threads:<8} {what:<8} {streams:>8} {context:>8} {rate:>12}  share of the ceiling");
    for &threads in &args.threads {
        let (mut bandwidth, mut peak) = (None, None);
        for &cell in &args.cells {
            let (what, streams, context) = cell.shape();
            let mut row = json!({"threads": threads, "what": what, "streams": streams, "context": context});
            match Bench::open(args, threads, cell)? {
                Ok(bench) => {
                    let rates = bench.rates(args.rounds)?;
                    let rate = rates[rates.len() / 2];
                    row["tokens_per_s"] = json!(rate);
                    row["rounds"] = json!(rates);
                    if matches!(cell, Cell::Decode { .. }) {
                        let bytes = bench.weight_bytes;
                        let reads = *bandwidth.get_or_insert_with(|| read_gb_per_s(bytes, threads));
                        // Each step reads every weight once for all streams together, and each stream its keys and values.
                        let weights = bytes as f64 * rate / streams as f64 / 1e9;
                        let tokens = f64::from(context) + args.timed_tokens() as f64 / 2.0;
                        let kv = bench.kv_bytes_per_token as f64 * tokens * rate / 1e9;
                        row["weights_gb_per_s"] = json!(tenth(weights));
                        row["kv_gb_per_s"] = json!(tenth(kv));
                        row["memory_gb_per_s"] = json!(tenth(reads));
                        row["bandwidth_share_percent"] = json!(tenth((weights + kv) / reads * 100.0));
                    } else {
                        let (vnni, amx) =
                            *peak.get_or_insert_with(|| (vnni_gop_per_s(threads), amx_gop_per_s(threads)));
                        let share =
                            |used: f64, peak: f64| json!(if peak > 0.0 { tenth(used / peak * 100.0) } else { 0.0 });
                        let used = bench.token_operations as f64 * rate / 1e9;
                        row["products_gop_per_s"] = json!(tenth(used));
                        row["vnni_gop_per_s"] = json!(tenth(vnni));
                        // A processor with a unit for tiles may pass 100 %.
                        row["vnni_share_percent"] = share(used, vnni);
                        row["amx_gop_per_s"] = json!(tenth(amx));
                        row["amx_share_percent"] = share(used, amx);
                    }
                }
                Err(reason) => row["left_out"] = json!(reason),
            }
            let figure = row.get("tokens_per_s").or(row.get("left_out")).map(Value::to_string).unwrap_or_default();
            let of = |key: &str, ceiling: &str| row.get(key).map(|share| format!("{share} % of {ceiling}"));
            let share = of("bandwidth_share_percent", "bandwidth").or_else(|| of("vnni_share_percent", "VNNI"));
            let share = share.unwrap_or_default();
            eprintln!("{threads:<8} {what:<8} {streams:>8} {context:>8} {figure:>12}  {share}");
            rows.push(row);
        }
    }
    Ok(Value::Array(rows))
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

struct Bench {
    engine: Handle,
    cell: Cell,
    /// Output tokens that a stream may have: enough for those that start first.
    room: u32,
    timed: usize,
    weight_bytes: u64,
    kv_bytes_per_token: u64,
    /// Multiplications and additions in the products of one token of a prompt; attention and the head, which only the
    /// last token needs, are left out.
    token_operations: usize,
}

impl Bench {
    /// The inner error says why the model cannot run this cell.
    fn open(args: &Args, threads: usize, cell: Cell) -> Result<Result<Self, String>> {
        let spec = spec_of(args)?;
        let token_operations = token_operations(&spec);
        let timed = args.timed_tokens();
        let (_, streams, prompt) = cell.shape();
        // The first stream decodes while the others are prefilled, at worst a few tokens of prompt a step.
        let wanted = timed as u32 + if streams > 1 { prompt * (streams as u32 - 1) / 4 } else { 8 };
        let limit = spec.context_len;
        let Some(room) = limit.checked_sub(prompt).map(|left| left.min(wanted)).filter(|room| *room > timed as u32)
        else {
            return Ok(Err(format!("{prompt} tokens and {timed} more do not fit into the context of {limit}")));
        };
        let pages = (prompt + room).div_ceil(PAGE_TOKENS) + 1;
        let options = LoadOptions {
            seats: u16::try_from(streams)?,
            kv_tokens: Some(pages * PAGE_TOKENS * streams as u32),
            threads: Some(threads),
            ..LoadOptions::default()
        };
        let (backend, plan) = backend_cpu::load(spec, &options, &mut |_| {})?;
        ensure!(plan.seats as usize >= streams, "{} of {streams} seats fit into memory", plan.seats);
        let config = EngineConfig { prefix_cache: false, ..EngineConfig::new("bench") };
        let parts = EngineParts { backend: Box::new(backend), policy: None, config };
        let engine = engine::start(parts, &mut Registry::default())?;
        Ok(Ok(Self {
            engine,
            cell,
            room,
            timed,
            weight_bytes: plan.weights,
            kv_bytes_per_token: plan.kv_bytes_per_token,
            token_operations,
        }))
    }

    /// Tokens a second of every round, in order of size.
    fn rates(&self, rounds: usize) -> Result<Vec<f64>> {
        // One round that is not counted: weights are paged in, the cost model has seen steps.
        self.round(0)?;
        let mut rates = (1..=rounds).map(|number| self.round(number).map(tenth)).collect::<Result<Vec<f64>>>()?;
        self.engine.shutdown();
        rates.sort_by(f64::total_cmp);
        Ok(rates)
    }

    /// Tokens a second.
    fn round(&self, number: usize) -> Result<f64> {
        match self.cell {
            Cell::Prefill { tokens } => self.prefill(tokens, number),
            Cell::Decode { streams, context } => self.decode(streams, context, number),
        }
    }

    fn prefill(&self, tokens: u32, number: usize) -> Result<f64> {
        let started = Instant::now();
        let mut generation = self.engine.submit(self.request(tokens, number, 1))?;
        loop {
            match generation.blocking_next().context("the engine ended")? {
                TokenEvent::Tokens { .. } => break Ok(f64::from(tokens) / started.elapsed().as_secs_f64()),
                TokenEvent::Started { .. } => {}
                other => bail!("no token came: {other:?}"),
            }
        }
    }

    fn decode(&self, streams: usize, context: u32, number: usize) -> Result<f64> {
        let (sender, events) = channel();
        for stream in 0..streams {
            let generation = self.engine.submit(self.request(context, number * streams + stream, self.room))?;
            let sender = sender.clone();
            std::thread::spawn(move || pass_on(stream, generation, &sender));
        }
        drop(sender);
        // Returning drops the receiver; each thread then drops its generation, and the engine ends it.
        time(&events, streams, self.timed)
    }

    fn request(&self, prompt: u32, seed: usize, max_new_tokens: u32) -> Request {
        let vocab = self.engine.limits().vocab;
        Request {
            id: "bench".into(),
            prompt: prompt_tokens(prompt, seed as u32, vocab),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            seed: 0,
            max_new_tokens,
            priority: 0,
            tenant: Tenant::default(),
            deadline: None,
            namespace: 0,
            group: seed as u64,
            constraint: None,
            prompt_logprobs: None,
        }
    }
}

/// Random weights are the same at every start.
const DUMMY_SEED: u64 = 1;

pub fn spec_of(args: &Args) -> Result<ModelSpec> {
    let loaded = if args.dummy { model::load_dummy(&args.model, DUMMY_SEED)? } else { model::load(&args.model)? };
    Ok(loaded.spec)
}

fn token_operations(spec: &ModelSpec) -> usize {
    let size = |id: &WeightId| 2 * spec.weight(*id).rows * spec.weight(*id).cols;
    let of = |op: &BlockOp| match op {
        BlockOp::NormQkv { q, k, v, .. } => [q, k, v].map(size).iter().sum(),
        BlockOp::NormDelta { qkv, z, beta, alpha, .. } => [qkv, z, beta, alpha].map(size).iter().sum(),
        BlockOp::OutResidual { out } => size(out),
        BlockOp::NormGateUp { gate, up, .. } => size(gate) + size(up),
        BlockOp::DownResidual { down } => size(down),
        _ => 0,
    };
    spec.ops.iter().map(of).sum()
}

/// Any tokens that differ from stream to stream: the time does not depend on which they are.
fn prompt_tokens(count: u32, seed: u32, vocab: u32) -> Arc<[u32]> {
    let mix = |i: u32| (i + 1).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 8;
    (0..count).map(|i| mix(i) % vocab).collect()
}

struct Arrived {
    stream: usize,
    at: Instant,
    tokens: usize,
}

fn pass_on(stream: usize, mut generation: Generation, sender: &Sender<Result<Arrived, String>>) {
    while let Some(event) = generation.blocking_next() {
        let message = match event {
            TokenEvent::Started { .. } => continue,
            TokenEvent::Tokens { tokens, .. } => Ok(Arrived { stream, at: Instant::now(), tokens: tokens.len() }),
            other => Err(format!("stream {stream} ended before it was timed: {other:?}")),
        };
        if sender.send(message).is_err() {
            return;
        }
    }
}

/// Tokens a second between two tokens of the stream that begins last, this many tokens apart. All streams are counted
/// in between: they advance by the same steps.
fn time(events: &Receiver<Result<Arrived, String>>, streams: usize, timed: usize) -> Result<f64> {
    let mut begun = vec![false; streams];
    let mut from = None;
    let (mut counted, mut own) = (0, 0);
    loop {
        let arrived = events.recv().context("the engine ended")?.map_err(anyhow::Error::msg)?;
        let Some((last, since)) = from else {
            begun[arrived.stream] = true;
            from = begun.iter().all(|begun| *begun).then_some((arrived.stream, arrived.at));
            continue;
        };
        counted += arrived.tokens;
        if arrived.stream == last {
            own += arrived.tokens;
            if own >= timed {
                return Ok(counted as f64 / arrived.at.duration_since(since).as_secs_f64());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Two streams, the second beginning two steps later: 2 tokens a step of 10 ms.
    #[test]
    fn the_window_begins_with_the_last_stream() {
        let (sender, events) = channel();
        let start = Instant::now();
        for step in 0..8 {
            for stream in [0, 1].into_iter().filter(|stream| *stream == 0 || step >= 2) {
                let at = start + Duration::from_millis(10 * step);
                sender.send(Ok(Arrived { stream, at, tokens: 1 })).expect("the receiver lives");
            }
        }
        let rate = time(&events, 2, 4).expect("a rate");
        assert!((rate - 200.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn an_early_end_is_an_error() {
        let (sender, events) = channel();
        sender.send(Err("stream 0 ended before it was timed".to_owned())).expect("the receiver lives");
        assert!(time(&events, 1, 4).is_err());
    }
}
