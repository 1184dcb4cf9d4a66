//! `plugin bench`: what a plugin costs a call.
//!
//! The work is the plugin's own cases, every cutting of them, through the server's own pipeline (without cases: the
//! host's conformance set). It is done three times over: on the engine that serves, for the times; on one that counts
//! fuel; and, for a project in Rust, on a native build of the same crate, which is given the very calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use contract::output::OutputStage;
use contract::template::ChatTemplate;
use plugin_host::{Grants, HostConfig, Kind, PluginHost, PluginSource, TemplateModel};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use text::cases::{Chain, run_jsonl};
use text::conform;

use super::host_config;
use super::schedule;
use super::tape::{Tape, TapedPolicy, TapedStage, TapedTemplate};
use super::test::{component_of, kind_of, provided_by, read_cases};
use crate::wire::OnlyTemplate;

/// The case file of a plugin's own folder.
const OWN_CASES: &str = "cases.jsonl";
/// The work is repeated for about this long, and at least so often.
const TIME_MIN: Duration = Duration::from_millis(1500);
const ROUNDS_MIN: usize = 3;
const ROUNDS_MAX: usize = 200;

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// A bundled name, a component, or a project's folder.
    pub plugin: String,
    /// In place of the project's own.
    pub cases: Option<PathBuf>,
    /// The Rust project that is built natively; a folder in Rust is its own.
    pub native: Option<PathBuf>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Figures {
    pub plugin: String,
    pub kind: Kind,
    pub component_bytes: u64,
    /// From the component's bytes to a plugin that may be called, with nothing in a cache.
    pub load: Duration,
    pub rounds: usize,
    pub rows: Vec<Row>,
    /// Most linear memory that one store has used, and its limit.
    pub memory_bytes_max: u64,
    pub memory_bytes_limit: u64,
}

/// One export.
#[derive(Clone, Debug)]
pub struct Row {
    pub export: String,
    pub calls: usize,
    pub ns: Quantiles,
    /// The mean of a call.
    pub fuel: Option<u64>,
    pub native_ns: Option<Quantiles>,
}

#[derive(Clone, Copy, Debug)]
pub struct Quantiles {
    pub p50: u64,
    pub p99: u64,
    pub mean: u64,
}

impl Quantiles {
    fn of(mut ns: Vec<u64>) -> Option<Self> {
        ns.sort_unstable();
        let at = |share: f64| ns.get(((ns.len().saturating_sub(1)) as f64 * share) as usize).copied();
        let mean = ns.iter().sum::<u64>().checked_div(ns.len() as u64)?;
        Some(Self { p50: at(0.5)?, p99: at(0.99)?, mean })
    }

    fn json(self) -> Value {
        json!({"p50": self.p50, "p99": self.p99, "mean": self.mean})
    }
}

pub(super) fn bench(order: &Order, as_json: bool) -> anyhow::Result<ExitCode> {
    let figures = measure(order)?;
    if as_json {
        println!("{}", figures.json());
    } else {
        print!("{}", figures.text());
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures one plugin.
pub fn measure(order: &Order) -> anyhow::Result<Figures> {
    let job = Job::new(order)?;
    let tape = Tape::default();
    let timed = Loaded::new(&job, false)?;
    // The first round warms caches up and shows how long one takes; it also says which calls the native build repeats.
    let started = Instant::now();
    timed.round(&job, &tape)?;
    let one = started.elapsed().max(Duration::from_micros(1));
    let work = tape.take().work;
    let rounds = (TIME_MIN.as_nanos() / one.as_nanos()) as usize;
    let rounds = rounds.clamp(ROUNDS_MIN, ROUNDS_MAX);
    for _ in 0..rounds {
        timed.round(&job, &tape)?;
    }
    let taken = tape.take();
    ensure!(!taken.times.is_empty(), "none of the cases calls the plugin");
    let status = taken.status.context("the plugin was loaded")?;
    let fuel = fuel(&job)?;
    let mut native = match &job.native {
        None => BTreeMap::new(),
        Some(folder) => kit::native::times(folder, &work.json(job.kind, &status.settings_json).to_string(), rounds)?,
    };
    let row = |(export, ns): (&'static str, Vec<u64>)| {
        Some(Row {
            export: export.to_owned(),
            calls: ns.len(),
            ns: Quantiles::of(ns)?,
            fuel: fuel.get(export).copied(),
            native_ns: native.remove(export).and_then(Quantiles::of),
        })
    };
    Ok(Figures {
        plugin: status.name,
        kind: job.kind,
        component_bytes: status.size_bytes,
        load: timed.load,
        rounds,
        rows: taken.times.into_iter().filter_map(row).collect(),
        memory_bytes_max: taken.memory_bytes_max,
        memory_bytes_limit: status.limits.memory_bytes,
    })
}

/// Fuel of a call of each export, on average. A stage's `open` is everything that a new stream pays for.
fn fuel(job: &Job) -> anyhow::Result<BTreeMap<&'static str, u64>> {
    let tape = Tape::default();
    Loaded::new(job, true)?.round(job, &tape)?;
    let fuel = tape.take().fuel;
    let mean = |export: &str| fuel.get(export).map_or(0, |(calls, fuel)| fuel / calls.max(&1));
    let mut means: BTreeMap<&'static str, u64> = fuel.keys().map(|export| (*export, mean(export))).collect();
    if let Some(open) = means.get_mut("open") {
        *open += mean("instantiate") + mean("configure");
    }
    Ok(means)
}

/// What is to be done, found out once.
struct Job {
    source: PluginSource,
    word: String,
    kind: Kind,
    /// `None`: the conformance set.
    cases: Option<String>,
    native: Option<PathBuf>,
}

impl Job {
    fn new(order: &Order) -> anyhow::Result<Self> {
        let folder = Path::new(&order.plugin);
        let (word, beside, native) = match folder.is_dir() {
            true => {
                let rust = folder.join("Cargo.toml").is_file().then(|| folder.to_path_buf());
                (component_of(folder)?.display().to_string(), Some(folder.join(OWN_CASES)), rust)
            }
            false => (order.plugin.clone(), None, None),
        };
        let host = PluginHost::new(host_config(), &mut Registry::default())?;
        let kind = kind_of(&word, &host)?.with_context(|| format!("`{word}` is no plugin of this server's kinds"))?;
        let file = order.cases.clone().or(beside);
        let cases = match (&file, kind) {
            (Some(file), _) => Some(read_cases(file)?),
            (None, Kind::Scheduler) => Some(schedule::EXAMPLE.to_owned()),
            (None, _) => None,
        };
        let native = order.native.clone().or(native);
        Ok(Self { source: PluginSource::parse(&word), word, kind, cases, native })
    }
}

/// The plugin in a host of its own, which holds its code.
struct Loaded {
    host: Arc<PluginHost>,
    load: Duration,
}

impl Loaded {
    fn new(job: &Job, meter_all: bool) -> anyhow::Result<Self> {
        let config = HostConfig { cache_dir: None, meter_all, ..host_config() };
        let host = Arc::new(PluginHost::new(config, &mut Registry::default())?);
        let started = Instant::now();
        match job.kind {
            Kind::Output => drop(host.load_stage(&job.source, &Grants::default(), None)?),
            Kind::Template => {
                drop(host.load_template(&job.source, &Grants::default(), None, &TemplateModel::default())?);
            }
            Kind::Scheduler => drop(host.load_scheduler(&job.source, &Grants::default(), None)?),
        }
        Ok(Self { load: started.elapsed(), host })
    }

    /// Does the work once. What a case comes to is not looked at: that is what `plugin test` is for.
    fn round(&self, job: &Job, tape: &Tape) -> anyhow::Result<()> {
        let load = |model: &TemplateModel| {
            let template = self.host.load_template(&job.source, &Grants::default(), None, model)?;
            let taped: Arc<dyn ChatTemplate> =
                Arc::new(TapedTemplate::new(template, model, Arc::clone(&self.host), tape.clone()));
            Ok(taped)
        };
        let mut templates = OnlyTemplate(&load);
        match (job.kind, &job.cases) {
            (Kind::Output, cases) => {
                let stage = self.host.load_stage(&job.source, &Grants::default(), None)?;
                let taped: Arc<dyn OutputStage> =
                    Arc::new(TapedStage::new(stage, Arc::clone(&self.host), tape.clone()));
                let Some(cases) = cases else {
                    conform::stage(taped.as_ref());
                    return Ok(());
                };
                let chain = Chain::Given { stages: vec![taped], provides: provided_by(&job.word, &self.host)? };
                run_jsonl(cases, &chain, &mut templates);
            }
            (Kind::Template, Some(cases)) => drop(run_jsonl(cases, &Chain::None, &mut templates)),
            (Kind::Template, None) => drop(conform::template(load(&TemplateModel::default())?.as_ref())),
            (Kind::Scheduler, cases) => {
                let load = || {
                    let policy = self.host.load_scheduler(&job.source, &Grants::default(), None);
                    let policy = policy.map_err(|e| e.to_string())?;
                    Ok(TapedPolicy::boxed(policy, Arc::clone(&self.host), tape.clone()))
                };
                schedule::run_jsonl(cases.as_deref().unwrap_or_default(), load);
            }
        }
        Ok(())
    }
}

impl Figures {
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "export": row.export, "calls": row.calls, "ns": row.ns.json(), "fuel_mean": row.fuel,
                "native_ns": row.native_ns.map(Quantiles::json),
            })
        };
        json!({
            "plugin": self.plugin,
            "kind": self.kind.as_str(),
            "component_bytes": self.component_bytes,
            "load_ms": (self.load.as_secs_f64() * 1e5).round() / 100.0,
            "rounds": self.rounds,
            "exports": self.rows.iter().map(row).collect::<Vec<_>>(),
            "memory_bytes_max": self.memory_bytes_max,
            "memory_bytes_limit": self.memory_bytes_limit,
        })
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<10} {:>9} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n",
            "export", "calls", "ns p50", "ns p99", "ns mean", "fuel mean", "native p50", "native mean"
        );
        let or_dash = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        for row in &self.rows {
            let Row { export, calls, ns, fuel, native_ns } = row;
            text += &format!(
                "{export:<10} {calls:>9} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n",
                ns.p50,
                ns.p99,
                ns.mean,
                or_dash(*fuel),
                or_dash(native_ns.map(|ns| ns.p50)),
                or_dash(native_ns.map(|ns| ns.mean)),
            );
        }
        text + &format!(
            "{} `{}`: a component of {} KiB, {:.0} ms to load and compile; a store used {} KiB of its {} MiB\n",
            self.kind,
            self.plugin,
            self.component_bytes >> 10,
            self.load.as_secs_f64() * 1e3,
            self.memory_bytes_max >> 10,
            self.memory_bytes_limit >> 20,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(plugin: &str) -> Figures {
        measure(&Order { plugin: plugin.into(), ..Order::default() }).unwrap()
    }

    /// Every kind has its exports' rows, with fuel, and memory within its limit.
    #[test]
    fn every_kind_is_measured() {
        for (plugin, exports) in [
            ("hermes", ["feed", "finish", "open"].as_slice()),
            ("jinja", ["render"].as_slice()),
            ("fcfs", ["resync", "step"].as_slice()),
        ] {
            let found = figures(plugin);
            let names: Vec<&str> = found.rows.iter().map(|row| row.export.as_str()).collect();
            assert_eq!(names, exports, "{plugin}");
            for row in &found.rows {
                assert!(row.calls > 0 && row.ns.p50 > 0 && row.fuel.is_some_and(|fuel| fuel > 0), "{plugin}: {row:?}");
            }
            assert!((1..=found.memory_bytes_limit).contains(&found.memory_bytes_max), "{plugin}");
            assert!(found.text().contains(&format!("`{plugin}`")));
        }
    }

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let found = Quantiles::of((1..=100).rev().collect()).unwrap();
        assert_eq!((found.p50, found.p99, found.mean), (50, 99, 50));
        assert!(Quantiles::of(Vec::new()).is_none());
    }
}
