//! What output stages cost a token, as components: each stage alone, and many streams through a chain of two.
//!
//! A stage gets its own format, four characters a token and one token a call, and is called for every one of them: that
//! it may rest is not made use of. The chain runs as a server runs it, inside the output pipeline, which calls no stage
//! that rests: there the figure is processor time a token, detokenizing and stop strings included.

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
    println!("{:<28} {:>8} {:>8} {:>8}", "stage", "tokens", "p50 ns", "p99 ns");
    let mut rows = Vec::new();
    let mut slowest = 0;
    for format in FORMATS {
        let (tokens, p50, p99) = alone(&host, *format, args.rounds)?;
        slowest = slowest.max(p50);
        println!("{:<28} {tokens:>8} {p50:>8} {p99:>8}", format!("{} {}", format.0, format.1));
        rows.push(json!({"stage": format.0, "form": format.1, "tokens": tokens, "p50_ns": p50, "p99_ns": p99}));
    }
    let (tokens, ns) = together(&host, args)?;
    let share = ns * 1e-9 * TOKENS_PER_S * STREAMS as f64;
    let verdict = |kept: bool| if kept { "kept" } else { "EXCEEDED" };
    println!("slowest median {slowest} ns; the limit of {TOKEN_NS_MAX} is {}", verdict(slowest < TOKEN_NS_MAX));
    println!(
        "{STREAMS} streams at {TOKENS_PER_S} tokens/s through {}: {ns:.0} ns a token, {:.2} % of a core; the limit of {} % is {}",
        CHAIN.join(" + "),
        share * 100.0,
        CORE_SHARE_MAX * 100.0,
        verdict(share < CORE_SHARE_MAX)
    );
    Ok(json!({
        "stages": rows,
        "slowest_p50_ns": slowest,
        "p50_ns_max": TOKEN_NS_MAX,
        "chain": {
            "stages": CHAIN, "streams": STREAMS, "tokens_per_s": TOKENS_PER_S, "tokens": tokens,
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

/// Tokens of one text, and nanoseconds a call.
fn alone(host: &PluginHost, format: (&str, &str), rounds: usize) -> Result<(usize, u64, u64)> {
    let stage = load(host, format.0)?;
    let markers = stage.requirements().markers.iter().zip(1000..);
    let markers: Vec<Marker> = markers.map(|(text, token)| Marker { text: text.clone(), token: Some(token) }).collect();
    let written = render(format, &calls()).context("every listed format can be written")?;
    // These two know a call only at the start of an answer.
    let starts = matches!(format, ("pythonic" | "llama3_json", ""));
    let text = if starts { written } else { prose() + &written };
    let pieces = pieces(&text, &markers);
    let request = StageRequest { tools: tools(), parallel_calls: true, markers, ..StageRequest::default() };
    let mut times = Vec::new();
    for _ in 0..rounds * 20 {
        let mut session = stage.open(&request)?;
        for (text, token) in &pieces {
            let event = OutputEvent::Text { channel: Channel::Content, text: text.clone(), token: *token };
            let start = Instant::now();
            let events = session.feed(vec![event])?;
            times.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            drop(events);
        }
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok((pieces.len(), at(0.5), at(0.99)))
}

/// Tokens, and processor nanoseconds a token, of all streams by turns.
fn together(host: &PluginHost, args: &Args) -> Result<(usize, f64)> {
    let stages = CHAIN.iter().map(|name| load(host, name)).collect::<Result<Vec<_>>>()?;
    let texts: Vec<String> = stages.iter().flat_map(|stage| stage.requirements().markers.clone()).collect();
    let call = render(("hermes", ""), &calls()).context("hermes can be written")?;
    // A thought, an answer and two calls: the shares of an agent's turn.
    let text = format!("<think>\n{}</think>\n\n{}{call}", prose().repeat(4), prose().repeat(2));
    let markers: Vec<Marker> = texts.iter().map(|text| Marker { text: text.clone(), token: Some(0) }).collect();
    let mut words: Vec<ByteVocabToken> =
        texts.iter().map(|text| ByteVocabToken { bytes: text.clone().into_bytes(), added: true }).collect();
    let mut tokens: Vec<TokenId> = Vec::new();
    for (piece, token) in pieces(&text, &markers) {
        let word = ByteVocabToken { bytes: piece.into_bytes(), added: token.is_some() };
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
    let mut spent_ns = 0;
    for _ in 0..args.rounds {
        let open = (0..STREAMS).map(|_| model.open_output(&job).map_err(anyhow::Error::from));
        let mut streams = open.collect::<Result<Vec<OutputPipeline>>>()?;
        let start = thread_cpu_ns()?;
        for token in &tokens {
            for stream in &mut streams {
                stream.push(std::slice::from_ref(token), Vec::new())?;
            }
        }
        spent_ns += thread_cpu_ns()? - start;
        ensure!(streams.iter().all(|stream| stream.usage().complete_calls == 2), "a stream lost a call");
    }
    let count = tokens.len() * STREAMS * args.rounds;
    Ok((count, spent_ns as f64 / count as f64))
}

/// Processor time of this thread, which other programs do not lengthen as they do the clock's.
fn thread_cpu_ns() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").context("processor time of this thread")?;
    text.split(' ').next().and_then(|ns| ns.parse().ok()).context("processor time of this thread")
}
