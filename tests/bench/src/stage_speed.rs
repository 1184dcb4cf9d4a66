//! What output stages cost a token, as components: each stage alone, and many streams through a chain of two.
//!
//! A stage gets prose (328 characters) and two calls in its own format (each with 360 characters of code as one argument,
//! a path and a number), four characters a token and one token a step, as the host hands them over: while a stage rests
//! many go by without a call. So there are two medians, of all tokens, which the limit is for, and of those that the
//! component was called for. The chain runs as a server runs it, inside the output pipeline: there the figure is
//! processor time a token, detokenizing and stop strings included.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use contract::TokenId;
use contract::output::{CallKind, Channel, Marker, OutputEvent, OutputStage, StageRequest, Tool};
use plugin_host::{Grants, HostConfig, PluginHost, PluginSource};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use text::{ByteVocabToken, OutputJob, OutputPipeline, TextModel, TextModelParts, Tokenizer};

use crate::args::Args;

#[path = "../../../plugins/cases/src/render.rs"]
mod render;

use render::{Call, FORMATS, render};

const TOKEN_CHARS: usize = 4;
/// A stage may take this long for a token, half of the time.
const TOKEN_NS_MAX: u64 = 1_500;
const STREAMS: usize = 256;
const TOKENS_PER_S: f64 = 100.0;
/// All streams together may take this share of one core.
const CORE_SHARE_MAX: f64 = 0.08;
const CHAIN: [&str; 2] = ["qwen3", "hermes"];

pub fn run(args: &Args) -> Result<Value> {
    let host = PluginHost::new(HostConfig::default(), &mut Registry::default())?;
    let head = ["tokens", "p50 ns", "p99 ns", "called", "p50 ns", "p99 ns"].map(|word| format!(" {word:>8}")).concat();
    println!("{:<28}{head}", "stage");
    let mut rows = Vec::new();
    let (mut slowest, mut slowest_called) = (0, 0);
    for format in FORMATS {
        let speed = alone(&host, *format, args.rounds)?;
        let Speed { all, called } = speed;
        slowest = slowest.max(all.p50_ns);
        slowest_called = slowest_called.max(called.p50_ns);
        let cells = [all.tokens as u64, all.p50_ns, all.p99_ns, called.tokens as u64, called.p50_ns, called.p99_ns];
        let cells = cells.map(|cell| format!(" {cell:>8}")).concat();
        println!("{:<28}{cells}", format!("{} {}", format.0, format.1));
        rows.push(json!({
            "stage": format.0, "form": format.1, "tokens": all.tokens, "p50_ns": all.p50_ns, "p99_ns": all.p99_ns,
            "called": called.tokens, "called_p50_ns": called.p50_ns, "called_p99_ns": called.p99_ns,
        }));
    }
    let Together { tokens, parts, calls, ns } = together(&host, args)?;
    let share = ns * 1e-9 * TOKENS_PER_S * STREAMS as f64;
    let verdict = |kept: bool| if kept { "kept" } else { "EXCEEDED" };
    println!("slowest median {slowest} ns; the limit of {TOKEN_NS_MAX} is {}", verdict(slowest < TOKEN_NS_MAX));
    println!("slowest median of the tokens with a call {slowest_called} ns");
    println!(
        "{STREAMS} streams at {TOKENS_PER_S} tokens/s through {}: {ns:.0} ns and {calls:.2} calls a token, {:.2} % of a core; \
         the limit of {} % is {}",
        CHAIN.join(" + "),
        share * 100.0,
        CORE_SHARE_MAX * 100.0,
        verdict(share < CORE_SHARE_MAX)
    );
    Ok(json!({
        "stages": rows,
        "slowest_p50_ns": slowest,
        "p50_ns_max": TOKEN_NS_MAX,
        "slowest_called_p50_ns": slowest_called,
        "chain": {
            "stages": CHAIN, "streams": STREAMS, "tokens_per_s": TOKENS_PER_S, "tokens": tokens,
            "tokens_of_a_stream": {"thought": parts[0], "answer": parts[1], "calls": parts[2]},
            "calls_per_token": (calls * 1e3).round() / 1e3,
            "cpu_ns_per_token": ns.round(), "core_percent": (share * 1e4).round() / 100.0,
            "core_percent_max": CORE_SHARE_MAX * 100.0,
        },
    }))
}

fn tools() -> Vec<Tool> {
    let properties = json!({"path": {"type": "string"}, "text": {"type": "string"}, "line": {"type": "integer"}});
    let schema = json!({"type": "object", "properties": properties}).to_string();
    vec![Tool { name: "write_file".into(), kind: CallKind::Json, schema_json: Some(schema.into()), strict: false }]
}

fn calls() -> Vec<Call> {
    let text = "fn main() {\n    println!(\"Hello, world!\");\n}\n".repeat(8);
    let arguments = json!({"path": "src/main.rs", "text": text, "line": 12});
    let call = Call { name: "write_file".into(), arguments: arguments.as_object().cloned().unwrap_or_default() };
    vec![call.clone(), call]
}

fn prose() -> String {
    "I will write the file, and say so first. ".repeat(8)
}

fn load(host: &PluginHost, name: &str) -> Result<Arc<dyn OutputStage>> {
    let stage = host.load_stage(&PluginSource::Bundled(name.to_owned()), &Grants::default(), None);
    stage.with_context(|| format!("output stage `{name}`"))
}

/// Pieces of a text: markers whole, with ids, and the rest cut.
fn pieces(text: &str, markers: &[Marker]) -> Vec<(String, Option<TokenId>)> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let here = markers.iter().filter(|marker| rest.starts_with(&marker.text));
        let (len, token) = match here.max_by_key(|marker| marker.text.len()) {
            Some(marker) => (marker.text.len(), marker.token),
            None => {
                let until = markers.iter().filter_map(|marker| rest.find(&marker.text)).min().unwrap_or(rest.len());
                let cut = rest.char_indices().nth(TOKEN_CHARS).map_or(rest.len(), |(at, _)| at);
                (cut.min(until), None)
            }
        };
        pieces.push((rest[..len].to_owned(), token));
        rest = &rest[len..];
    }
    pieces
}

/// One stage on one text.
struct Speed {
    all: Times,
    /// Of the tokens that the component was called for; the others went by while it rested.
    called: Times,
}

struct Times {
    tokens: usize,
    p50_ns: u64,
    p99_ns: u64,
}

impl Times {
    fn new(tokens: usize, mut times_ns: Vec<u64>) -> Self {
        times_ns.sort_unstable();
        let at = |share: f64| times_ns[((times_ns.len() - 1) as f64 * share) as usize];
        Self { tokens, p50_ns: at(0.5), p99_ns: at(0.99) }
    }
}

fn alone(host: &PluginHost, format: (&str, &str), rounds: usize) -> Result<Speed> {
    let stage = load(host, format.0)?;
    let markers = stage.requirements().markers.iter().zip(1000..);
    let markers: Vec<Marker> = markers.map(|(text, token)| Marker { text: text.clone(), token: Some(token) }).collect();
    let written = render(format, &calls()).context("every listed format can be written")?;
    // These two know a call only at the start of an answer.
    let starts = matches!(format, ("pythonic" | "llama3_json", ""));
    let text = if starts { written } else { prose() + &written };
    let pieces = pieces(&text, &markers);
    let request = StageRequest { tools: tools(), parallel_calls: true, markers, ..StageRequest::default() };
    let event = |(text, token): &(String, Option<TokenId>)| OutputEvent::Text {
        channel: Channel::Content,
        text: text.clone(),
        token: *token,
    };
    let mut session = stage.open(&request)?;
    let mut called = Vec::new();
    for piece in &pieces {
        let before = calls_so_far(host);
        session.feed(vec![event(piece)])?;
        called.push(calls_so_far(host) > before);
    }
    let (mut all, mut with_call) = (Vec::new(), Vec::new());
    for _ in 0..rounds * 20 {
        let mut session = stage.open(&request)?;
        for (piece, called) in pieces.iter().zip(&called) {
            let event = event(piece);
            let start = Instant::now();
            let events = session.feed(vec![event])?;
            let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            drop(events);
            all.push(ns);
            with_call.extend(called.then_some(ns));
        }
    }
    let count = called.iter().filter(|called| **called).count();
    Ok(Speed { all: Times::new(pieces.len(), all), called: Times::new(count, with_call) })
}

/// Calls into all components that are loaded.
fn calls_so_far(host: &PluginHost) -> u64 {
    host.status().iter().map(|plugin| plugin.calls).sum()
}

struct Together {
    tokens: usize,
    /// Tokens of a stream's thought, answer and calls.
    parts: [usize; 3],
    /// Into components, a token.
    calls: f64,
    /// Of processor time, a token.
    ns: f64,
}

/// All streams by turns.
fn together(host: &PluginHost, args: &Args) -> Result<Together> {
    let stages = CHAIN.iter().map(|name| load(host, name)).collect::<Result<Vec<_>>>()?;
    let texts: Vec<String> = stages.iter().flat_map(|stage| stage.requirements().markers.clone()).collect();
    let call = render(("hermes", ""), &calls()).context("hermes can be written")?;
    // The shares of an agent's turn.
    let turn = [format!("<think>\n{}</think>\n\n", prose().repeat(4)), prose().repeat(2), call];
    let markers: Vec<Marker> = texts.iter().map(|text| Marker { text: text.clone(), token: Some(0) }).collect();
    let mut words: Vec<ByteVocabToken> =
        texts.iter().map(|text| ByteVocabToken { bytes: text.clone().into_bytes(), added: true }).collect();
    let mut tokens: Vec<TokenId> = Vec::new();
    let parts = turn.map(|text| pieces(&text, &markers));
    for (piece, token) in parts.iter().flatten() {
        let word = ByteVocabToken { bytes: piece.clone().into_bytes(), added: token.is_some() };
        let at = words.iter().position(|other| *other == word).unwrap_or_else(|| {
            words.push(word);
            words.len() - 1
        });
        // Bytes and the end token come first.
        tokens.push(257 + u32::try_from(at)?);
    }
    let tokenizer = Tokenizer::from_bytes_vocab(words);
    let model = TextModel::new(TextModelParts { tokenizer, template: None, stages })?;
    let job = OutputJob {
        stage_request: StageRequest { tools: tools(), parallel_calls: true, ..StageRequest::default() },
        stop: vec!["STOP".to_owned()],
        ..OutputJob::default()
    };
    let (mut spent_ns, mut calls) = (0, 0);
    for _ in 0..args.rounds {
        let open = (0..STREAMS).map(|_| model.open_output(&job).map_err(anyhow::Error::from));
        let mut streams = open.collect::<Result<Vec<OutputPipeline>>>()?;
        let (start, calls_before) = (thread_cpu_ns()?, calls_so_far(host));
        for token in &tokens {
            for stream in &mut streams {
                stream.push(std::slice::from_ref(token), Vec::new())?;
            }
        }
        spent_ns += thread_cpu_ns()? - start;
        calls += calls_so_far(host) - calls_before;
        ensure!(streams.iter().all(|stream| stream.usage().complete_calls == 2), "a stream lost a call");
    }
    let count = tokens.len() * STREAMS * args.rounds;
    Ok(Together {
        tokens: count,
        parts: parts.map(|part| part.len()),
        calls: calls as f64 / count as f64,
        ns: spent_ns as f64 / count as f64,
    })
}

/// Processor time of this thread, which other programs do not lengthen as they do the clock's.
fn thread_cpu_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").context("processor time of this thread")?;
    text.split(' ').next().and_then(|ns| ns.parse().ok()).context("processor time of this thread")
}
