//! Many short streams through stages that trap, run late, eat memory and answer too much, at random: no text is lost, no
//! memory is left, and every counter adds up. A seed makes the same streams again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use contract::output::OutputStage;
use plugin_host::{Catalogue, CatalogueEntry, Grants, HostConfig, PluginHost, PluginSource, PluginStatus};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use text::{Delta, EndOfStream, OutputJob, TextModel, TextModelParts, Tokenizer};

use crate::args::Args;
use crate::memory::rss_bytes;
use crate::platform::round;

const STREAMS: u64 = 200_000;
const SEED: u64 = 8;
const THREADS: u64 = 2;
const FEEDS_MAX: u64 = 40;
/// What allocators may keep back at the end, beyond the first tenth of the streams.
const LEFT_BYTES_MAX: u64 = 32 << 20;
/// Of a hundred streams so many are dropped before their end, as when a client goes away.
const CANCELLED_PERCENT: u64 = 4;
/// Calls of a stage at load: instantiate, configure, describe, requires, and a trial stream.
const LOAD_CALLS: u64 = 5;
/// Calls of a stream before its first text: instantiate, configure, open.
const OPEN_CALLS: u64 = 3;

/// A stage that fails at the n-th feed of a store; 0: never.
struct Kind {
    fault: &'static str,
    at: u64,
    /// What its manifest says beside its name.
    manifest: &'static str,
    /// Of a thousand streams.
    weight: u64,
}

const KINDS: [Kind; 10] = [
    Kind { fault: "", at: 0, manifest: "", weight: 640 },
    Kind { fault: "trap", at: 1, manifest: "", weight: 40 },
    Kind { fault: "trap", at: 9, manifest: "", weight: 80 },
    Kind { fault: "trap", at: 30, manifest: "", weight: 60 },
    Kind { fault: "recurse", at: 5, manifest: "", weight: 20 },
    Kind { fault: "memory", at: 7, manifest: "[limits]\nmemory_mib = 4\n", weight: 20 },
    Kind { fault: "huge", at: 4, manifest: "", weight: 20 },
    Kind { fault: "loop", at: 6, manifest: "[limits]\ncall_ms = 2\n", weight: 15 },
    Kind { fault: "trap", at: 12, manifest: "[failure]\npolicy = \"error\"\n", weight: 45 },
    // Here the count is over all streams of a store.
    Kind { fault: "trap", at: 500, manifest: "[limits]\nstreams_per_store = 16\n", weight: 60 },
];

impl Kind {
    fn is_shared(&self) -> bool {
        self.manifest.contains("streams_per_store")
    }

    fn ends_with_error(&self) -> bool {
        self.manifest.contains("\"error\"")
    }
}

pub fn run(args: &Args) -> Result<Value> {
    let streams = if args.quick { STREAMS / 100 } else { STREAMS };
    let found = soak(streams, SEED)?;
    println!("{}", found.text());
    Ok(found.json())
}

/// What a soak came to.
struct Soak {
    streams: u64,
    seconds: f64,
    cancelled: u64,
    errors: u64,
    feeds: u64,
    traps: BTreeMap<&'static str, u64>,
    replays: u64,
    fallbacks: u64,
    /// After each tenth of the streams.
    rss_mib: Vec<f64>,
}

/// What the streams of one kind did, by their own account.
#[derive(Default)]
struct Counts {
    streams: AtomicU64,
    feeds: AtomicU64,
    finishes: AtomicU64,
    cancelled: AtomicU64,
    errors: AtomicU64,
    /// Streams long enough to reach the fault in a store of their own.
    reached: AtomicU64,
}

struct Loaded {
    kind: &'static Kind,
    model: TextModel,
    counts: Counts,
}

fn soak(streams: u64, seed: u64) -> Result<Soak> {
    let wasm: Arc<[u8]> = std::fs::read(testkit::repository().join("plugins/fixtures/dist/output.wasm"))
        .context("the hostile stage")?
        .into();
    let mut hosts = Vec::new();
    let mut registry = Registry::default();
    let mut all = Vec::new();
    for kind in &KINDS {
        // A host each: they share the registry, whose totals must be the sums of the parts.
        let host = host(&wasm, kind, &mut registry)?;
        all.push(Loaded { kind, model: model(&host, kind)?, counts: Counts::default() });
        hosts.push(host);
    }
    let started = Instant::now();
    let mut rss = Vec::new();
    for tenth in 0..10 {
        let numbers = streams * tenth / 10..streams * (tenth + 1) / 10;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (all, numbers) = (&all, numbers.clone());
                    let own = move |number: &u64| number % THREADS == thread;
                    scope.spawn(move || numbers.filter(own).try_for_each(|number| stream(all, seed, number)))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        rss.push(rss_bytes()?);
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut found = Soak {
        streams,
        seconds,
        cancelled: 0,
        errors: 0,
        feeds: 0,
        traps: BTreeMap::new(),
        replays: 0,
        fallbacks: 0,
        rss_mib: rss.iter().map(|bytes| *bytes as f64 / 1048576.0).collect(),
    };
    for (host, loaded) in hosts.iter().zip(&all) {
        let status = host.status().pop().context("the stage is loaded")?;
        check(loaded, &status).with_context(|| format!("seed {seed}, `{}@{}`", loaded.kind.fault, loaded.kind.at))?;
        found.add(&loaded.counts, &status);
    }
    found.check_registry(&registry)?;
    let left = rss[9].saturating_sub(rss[0]);
    ensure!(left < LEFT_BYTES_MAX, "{} MiB were left since the first tenth", left >> 20);
    let total: u64 = all.iter().map(|loaded| loaded.counts.streams.load(Relaxed)).sum();
    ensure!(total == streams, "{total} of {streams} streams were counted");
    Ok(found)
}

fn host(wasm: &Arc<[u8]>, kind: &Kind, registry: &mut Registry) -> Result<PluginHost> {
    let manifest = format!(
        "name = \"hostile-output\"\nversion = \"0.1.0\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n{}",
        kind.manifest
    );
    let entry = CatalogueEntry::new(wasm.to_vec(), manifest);
    let config = HostConfig { catalogue: Catalogue::new(vec![entry]), ..HostConfig::default() };
    Ok(PluginHost::new(config, registry.sub_registry_with_label(label(kind)))?)
}

fn label(kind: &Kind) -> (std::borrow::Cow<'static, str>, std::borrow::Cow<'static, str>) {
    ("kind".into(), format!("{}@{} {}", kind.fault, kind.at, kind.manifest.len()).into())
}

fn model(host: &PluginHost, kind: &Kind) -> Result<TextModel> {
    let faults = match kind.at {
        0 => String::new(),
        at => format!("{{\"faults\":\"feed={}@{at}\"}}", kind.fault),
    };
    let settings = Some(faults.as_str()).filter(|faults| !faults.is_empty());
    let source = PluginSource::Bundled("hostile-output".into());
    let stage: Arc<dyn OutputStage> = host.load_stage(&source, &Grants::default(), settings)?;
    let tokenizer = Tokenizer::from_bytes_vocab(Vec::new());
    Ok(TextModel::new(TextModelParts { tokenizer, template: None, stages: vec![stage] })?)
}

/// One stream, all of which follows from its number.
fn stream(all: &[Loaded], seed: u64, number: u64) -> Result<()> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
    let mut chosen = random.below(KINDS.iter().map(|kind| kind.weight).sum());
    let at = KINDS.iter().position(|kind| match chosen.checked_sub(kind.weight) {
        Some(left) => {
            chosen = left;
            false
        }
        None => true,
    });
    let Loaded { kind, model, counts } = &all[at.context("the weights are of all kinds")?];
    let feeds = 1 + random.below(FEEDS_MAX);
    let cancelled = random.below(100) < CANCELLED_PERCENT;
    let (mut sent, mut came) = (String::new(), String::new());
    let mut take = |deltas: Vec<Delta>| {
        deltas.into_iter().try_for_each(|delta| match delta {
            Delta::Content(text) => {
                came.push_str(&text);
                Ok(())
            }
            other => bail!("stream {number}: {other:?} out of nothing"),
        })
    };
    counts.streams.fetch_add(1, Relaxed);
    let mut pipeline = model.open_output(&OutputJob::default())?;
    let mut failed = false;
    for _ in 0..feeds {
        let piece: String = (0..1 + random.below(6)).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
        let tokens: Vec<u32> = piece.bytes().map(u32::from).collect();
        counts.feeds.fetch_add(1, Relaxed);
        match pipeline.push(&tokens, Vec::new()) {
            Ok(out) => take(out.deltas)?,
            Err(_) if kind.ends_with_error() => {
                failed = true;
                break;
            }
            Err(error) => bail!("stream {number}: {error}"),
        }
        sent.push_str(&piece);
    }
    if kind.at > 0 && feeds >= kind.at && !kind.is_shared() {
        counts.reached.fetch_add(1, Relaxed);
    }
    if failed {
        counts.errors.fetch_add(1, Relaxed);
    } else if cancelled {
        counts.cancelled.fetch_add(1, Relaxed);
    } else {
        counts.finishes.fetch_add(1, Relaxed);
        take(pipeline.finish(EndOfStream::Length)?.deltas)?;
    }
    ensure!(sent == came, "stream {number}: {sent:?} came out as {came:?}");
    Ok(())
}

/// Holds the host's counters against what the streams did.
fn check(loaded: &Loaded, status: &PluginStatus) -> Result<()> {
    let Loaded { kind, counts, .. } = loaded;
    let of = |counter: &AtomicU64| counter.load(Relaxed);
    let stops: u64 = status.traps.values().sum();
    let (replays, fallbacks) = (status.replays, status.fallbacks);
    if kind.is_shared() {
        // A trap takes its neighbours' store along, and each of them is replayed; nobody falls back.
        ensure!(fallbacks == 0 && replays >= stops, "{stops} stops, {replays} replays, {fallbacks} fallbacks");
        return Ok(());
    }
    // Every failure is followed by one of the two.
    ensure!(stops == replays + fallbacks, "{stops} stops, {replays} replays, {fallbacks} fallbacks");
    // A stream fails in its first store and in the one that it is replayed into, and at no other time; only a deadline of
    // two milliseconds may also pass because the machine had other things to do.
    let reached = of(&counts.reached);
    let exact = kind.fault != "loop";
    ensure!(fallbacks == reached || !exact && fallbacks >= reached, "{fallbacks} fallbacks, {reached} streams");
    ensure!(of(&counts.errors) == if kind.ends_with_error() { fallbacks } else { 0 }, "{} errors", of(&counts.errors));
    if kind.at == 0 {
        let expected = LOAD_CALLS + of(&counts.streams) * OPEN_CALLS + of(&counts.feeds) + of(&counts.finishes);
        ensure!(status.calls == expected, "{} calls, {expected} were made", status.calls);
    }
    Ok(())
}

impl Soak {
    fn add(&mut self, counts: &Counts, status: &PluginStatus) {
        self.cancelled += counts.cancelled.load(Relaxed);
        self.errors += counts.errors.load(Relaxed);
        self.feeds += counts.feeds.load(Relaxed);
        self.replays += status.replays;
        self.fallbacks += status.fallbacks;
        for (cause, count) in &status.traps {
            *self.traps.entry(cause).or_default() += count;
        }
    }

    /// The totals of `/metrics` are those of `GET /plugins`.
    fn check_registry(&self, registry: &Registry) -> Result<()> {
        let mut text = String::new();
        encode(&mut text, registry)?;
        let total = |name: &str| -> u64 {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        let traps: u64 = self.traps.values().sum();
        for (name, wanted) in [("traps", traps), ("replays", self.replays), ("fallbacks", self.fallbacks)] {
            let found = total(&format!("tokenloom_plugin_{name}_total"));
            ensure!(found == wanted, "/metrics counts {found} {name}, GET /plugins {wanted}");
        }
        Ok(())
    }

    fn text(&self) -> String {
        let traps: Vec<String> = self.traps.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
        let (first, last) = (self.rss_mib[0], self.rss_mib[9]);
        format!(
            "{} streams, {} feeds in {:.0} s: {}; {} replays, {} fallbacks, {} ended with an error, {} cancelled; no text \
             lost, every counter adds up; {first:.1} MiB after the first tenth, {last:.1} at the end",
            self.streams,
            self.feeds,
            self.seconds,
            traps.join(", "),
            self.replays,
            self.fallbacks,
            self.errors,
            self.cancelled,
        )
    }

    fn json(&self) -> Value {
        json!({
            "streams": self.streams, "seed": SEED, "threads": THREADS, "seconds": round(self.seconds), "feeds": self.feeds,
            "traps": self.traps, "replays": self.replays, "fallbacks": self.fallbacks, "errors": self.errors,
            "cancelled": self.cancelled, "rss_mib": self.rss_mib.iter().map(|mib| round(*mib)).collect::<Vec<_>>(),
        })
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The small form of the soak: every kind of failure, and the same books.
    #[test]
    fn a_thousand_streams() {
        let found = soak(1000, 1).unwrap_or_else(|error| panic!("{error:#}"));
        for cause in ["late", "memory", "output", "stack", "trap"] {
            assert!(found.traps.get(cause).is_some_and(|count| *count > 0), "no stream met {cause}: {}", found.text());
        }
    }
}
