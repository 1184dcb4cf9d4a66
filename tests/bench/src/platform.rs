//! What the plugin platform costs: a stream's start and memory, a cold start, a sandbox beside no sandbox, and what a
//! plugin that misbehaves does to everybody else ([`crate::hostile`]).

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use contract::output::{CallKind, OutputStage, StageRequest, Tool};
use plugin_host::{Catalogue, Grants, HostConfig, Kind, PluginHost, PluginSource, TemplateModel};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use server::plugin_cmd::bench::{Order, measure};
use text::{OutputJob, OutputPipeline, TextModel, TextModelParts, Tokenizer};

use crate::args::Args;
use crate::memory::resident_bytes;

const TOOLS: usize = 20;
const SCHEMA_BYTES: usize = 2 << 10;
const STREAMS: usize = 4096;
/// The limits that are kept or exceeded.
const OPEN_US_MAX: f64 = 200.0;
const STREAM_KIB_MAX: f64 = 96.0;
const ALL_MIB_MAX: f64 = 400.0;
const COLD_MS_MAX: f64 = 5.0;

/// The second stage of the one takes names only, of the other types too.
const CHAINS: [[&str; 2]; 2] = [["qwen3", "hermes"], ["qwen3", "qwen3_coder"]];

pub fn run(args: &Args) -> Result<Value> {
    if let Some(number) = args.chain {
        let host = PluginHost::new(HostConfig::default(), &mut Registry::default())?;
        return chain(&host, CHAINS[number % CHAINS.len()], args);
    }
    println!(
        "{:<22} {:>8} {:>8} {:>12} {:>10} {:>10} {:>9} {:>9}",
        "chain", "p50 us", "p99 us", "KiB a stream", "of its own", "MiB", "mappings", "left MiB"
    );
    let chains = (0..CHAINS.len()).map(|number| in_a_process_of_its_own(number, args)).collect::<Result<Vec<_>>>()?;
    let kept = chains.iter().all(|chain| chain["kept"] == true);
    println!(
        "limits ({OPEN_US_MAX} us, {STREAM_KIB_MAX} KiB, {ALL_MIB_MAX} MiB for {STREAMS} streams): {}\n",
        verdict(kept)
    );
    let (cold, slowest_ms) = cold_starts(args)?;
    println!(
        "slowest cold start {slowest_ms:.2} ms; the limit of {COLD_MS_MAX} is {}\n",
        verdict(slowest_ms < COLD_MS_MAX)
    );
    let root = testkit::repository();
    let order = Order {
        plugin: "hermes".into(),
        cases: Some(root.join("tests/cases/cases.jsonl")),
        native: Some(root.join("plugins/stages/hermes")),
    };
    let hermes = measure(&order)?;
    println!("{}", hermes.text());
    Ok(json!({
        "chains": chains,
        "chain_limits": {
            "open_us": OPEN_US_MAX, "kib_per_stream": STREAM_KIB_MAX, "streams": STREAMS, "mib": ALL_MIB_MAX, "kept": kept,
        },
        "cold_starts": cold,
        "cold_start_ms_max": COLD_MS_MAX,
        "cold_start_slowest_ms": round(slowest_ms),
        "hermes": hermes.json(),
    }))
}

pub fn verdict(kept: bool) -> &'static str {
    if kept { "kept" } else { "EXCEEDED" }
}

pub fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Memory that one chain's streams gave back to the allocator would be the next one's for nothing.
fn in_a_process_of_its_own(chain: usize, args: &Args) -> Result<Value> {
    let mut words = vec!["platform".to_owned(), "--chain".to_owned(), chain.to_string(), "--stdout".to_owned()];
    words.extend(args.quick.then(|| "--quick".to_owned()));
    let output = Command::new(std::env::current_exe()?).args(words).output()?;
    ensure!(output.status.success(), "chain {chain}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let record: Value = serde_json::from_str(text.lines().last().unwrap_or_default()).context("a chain's record")?;
    let found = record["figures"].clone();
    let number = |key: &str| found[key].as_f64().unwrap_or_default();
    println!(
        "{:<22} {:>8.1} {:>8.1} {:>12.1} {:>10.1} {:>10.1} {:>9} {:>9.1}",
        CHAINS[chain].join(" + "),
        number("open_p50_us"),
        number("open_p99_us"),
        number("kib_per_stream"),
        number("own_kib"),
        number("mib"),
        number("mappings"),
        number("left_mib")
    );
    Ok(found)
}

/// One chain, with its tools.
fn chain(host: &PluginHost, names: [&'static str; 2], args: &Args) -> Result<Value> {
    let model = model(host, &names)?;
    let job = OutputJob { stage_request: request()?, ..OutputJob::default() };
    let count = if args.quick { 256 } else { STREAMS };
    let streams = |count: usize, times: &mut Vec<f64>| -> Result<Vec<OutputPipeline>> {
        let open = |_| {
            let start = Instant::now();
            let mut stream = model.open_output(&job)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            say(&mut stream)?;
            Ok(stream)
        };
        (0..count).map(open).collect()
    };
    // The first ones fill allocators and wasmtime's own tables, which later ones share.
    drop(streams(64, &mut Vec::new())?);
    let (before, before_own) = resident_bytes()?;
    let mut times = Vec::new();
    let open = streams(count, &mut times)?;
    let (all, own) = resident_bytes()?;
    // A Linux process may have 65,530 of these unless told otherwise.
    let mappings = std::fs::read_to_string("/proc/self/maps").context("the mappings of this process")?.lines().count();
    drop(open);
    let left = resident_bytes()?.0.saturating_sub(before);
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let kib = |bytes: u64| bytes as f64 / 1024.0 / count as f64;
    let per_stream = kib(all.saturating_sub(before));
    let mib = per_stream * STREAMS as f64 / 1024.0;
    Ok(json!({
        "stages": names, "open_p50_us": round(at(0.5)), "open_p99_us": round(at(0.99)),
        "kib_per_stream": round(per_stream), "own_kib": round(kib(own.saturating_sub(before_own))),
        "streams": count, "mib": round(mib), "mappings": mappings, "left_mib": round(left as f64 / 1048576.0),
        "kept": at(0.5) < OPEN_US_MAX && per_stream < STREAM_KIB_MAX && mib < ALL_MIB_MAX,
    }))
}

fn model(host: &PluginHost, names: &[&str]) -> Result<TextModel> {
    let load = |name: &&str| -> Result<Arc<dyn OutputStage>> {
        let source = PluginSource::Bundled((*name).to_owned());
        host.load_stage(&source, &Grants::default(), None).with_context(|| format!("output stage `{name}`"))
    };
    let stages = names.iter().map(load).collect::<Result<Vec<_>>>()?;
    let tokenizer = Tokenizer::from_bytes_vocab(Vec::new());
    Ok(TextModel::new(TextModelParts { tokenizer, template: None, stages })?)
}

/// Twenty tools with schemas of 2 KiB, as an agent sends them.
fn request() -> Result<StageRequest> {
    let tool = |number: usize| {
        let mut properties = serde_json::Map::new();
        let mut schema = String::new();
        while schema.len() < SCHEMA_BYTES {
            let about = "what this parameter is for, in the words of whoever wrote the tool";
            let kind = ["string", "integer", "boolean", "array"][properties.len() % 4];
            properties.insert(format!("parameter_{}", properties.len()), json!({"type": kind, "description": about}));
            schema = json!({"type": "object", "properties": properties}).to_string();
        }
        Tool { name: format!("tool_{number}"), kind: CallKind::Json, schema_json: Some(schema.into()), strict: false }
    };
    let tools: Vec<Tool> = (0..TOOLS).map(tool).collect();
    let names: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    ensure!(names.len() == TOOLS, "tools have names of their own");
    Ok(StageRequest { tools, parallel_calls: true, ..StageRequest::default() })
}

/// Some text and the beginning of a call: every stage has been called and holds something.
fn say(stream: &mut OutputPipeline) -> Result<()> {
    for text in ["<think>", "First", " this", "</think>", "\n\n", "I will call it.\n", "<tool_call>\n", "{\"name\": "] {
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        stream.push(&tokens, Vec::new())?;
    }
    Ok(())
}

/// Each bundled plugin, loaded by a fresh host from code that an earlier one compiled.
fn cold_starts(args: &Args) -> Result<(Value, f64)> {
    let folder = tempfile::tempdir()?;
    let config = HostConfig { cache_dir: Some(folder.path().join("cache")), ..HostConfig::default() };
    let load = |name: &str, kind: Kind, config: &HostConfig| -> Result<f64> {
        let host = PluginHost::new(config.clone(), &mut Registry::default())?;
        let (source, grants) = (PluginSource::Bundled(name.to_owned()), Grants::default());
        let start = Instant::now();
        match kind {
            Kind::Output => drop(host.load_stage(&source, &grants, None)?),
            Kind::Template => drop(host.load_template(&source, &grants, None, &TemplateModel::default())?),
            Kind::Scheduler => drop(host.load_scheduler(&source, &grants, None)?),
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    println!("{:<24} {:>10} {:>12} {:>12}", "cold start", "KiB", "compile ms", "cached ms");
    let (mut rows, mut slowest) = (Vec::new(), 0.0_f64);
    for manifest in Catalogue::bundled().manifests()? {
        // What needs settings to be anything cannot be loaded without.
        let (name, kind) = (manifest.name.as_str(), manifest.kind);
        let Ok(compiled) = load(name, kind, &config) else { continue };
        let mut cached = (0..args.rounds.max(5)).map(|_| load(name, kind, &config)).collect::<Result<Vec<_>>>()?;
        cached.sort_unstable_by(f64::total_cmp);
        let ms = cached[cached.len() / 2];
        slowest = slowest.max(ms);
        let kib = size_kib(&testkit::repository().join("plugins/dist").join(format!("{name}.wasm")))?;
        println!("{name:<24} {kib:>10} {compiled:>12.1} {ms:>12.2}");
        rows.push(json!({"plugin": name, "component_kib": kib, "compile_ms": round(compiled), "cached_ms": round(ms)}));
    }
    Ok((rows.into(), slowest))
}

fn size_kib(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).with_context(|| path.display().to_string())?.len() >> 10)
}
