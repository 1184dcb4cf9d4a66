//! Counting what plugins do: Prometheus families for `/metrics`, plain numbers for `GET /plugins`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use contract::Failures;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::clean::cut;
use crate::sandbox::{Cause, Stopped};
use crate::status::PluginState;

type Labels = Vec<(&'static str, String)>;

/// What of a plugin is called, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Export {
    Instantiate,
    Describe,
    Configure,
    Requires,
    Constrain,
    Open,
    Feed,
    Finish,
    Close,
    Load,
    Render,
    Construct,
    Resync,
    Step,
}

impl Export {
    const ALL: [Self; 14] = [
        Self::Instantiate,
        Self::Describe,
        Self::Configure,
        Self::Requires,
        Self::Constrain,
        Self::Open,
        Self::Feed,
        Self::Finish,
        Self::Close,
        Self::Load,
        Self::Render,
        Self::Construct,
        Self::Resync,
        Self::Step,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiate",
            Self::Describe => "describe",
            Self::Configure => "configure",
            Self::Requires => "requires",
            Self::Constrain => "constrain",
            Self::Open => "open",
            Self::Feed => "feed",
            Self::Finish => "finish",
            Self::Close => "close",
            Self::Load => "load",
            Self::Render => "render",
            Self::Construct => "construct",
            Self::Resync => "resync",
            Self::Step => "step",
        }
    }
}

/// The families, once per process.
#[derive(Clone)]
pub(crate) struct Families {
    latency: Family<Labels, Histogram, fn() -> Histogram>,
    traps: Family<Labels, Counter>,
    replays: Family<Labels, Counter>,
    fallbacks: Family<Labels, Counter>,
    memory: Family<Labels, Gauge>,
    own_totals: Family<Labels, Counter<f64, AtomicU64>>,
    own_values: Family<Labels, Histogram, fn() -> Histogram>,
}

/// From half a microsecond to half a second, by fours.
fn latency_histogram() -> Histogram {
    Histogram::new(exponential_buckets(5e-7, 4.0, 11))
}

/// Nobody knows a plugin's unit, so decades.
fn value_histogram() -> Histogram {
    Histogram::new(exponential_buckets(1e-3, 10.0, 10))
}

impl Families {
    pub fn register(registry: &mut Registry) -> Self {
        let families = Self {
            latency: Family::new_with_constructor(latency_histogram as fn() -> Histogram),
            traps: Family::default(),
            replays: Family::default(),
            fallbacks: Family::default(),
            memory: Family::default(),
            own_totals: Family::default(),
            own_values: Family::new_with_constructor(value_histogram as fn() -> Histogram),
        };
        let f = &families;
        registry.register("tokenloom_plugin_call_seconds", "Duration of calls into a plugin", f.latency.clone());
        registry.register("tokenloom_plugin_traps", "Plugin calls that failed, by cause", f.traps.clone());
        registry.register("tokenloom_plugin_replays", "Streams continued in a fresh store", f.replays.clone());
        registry.register("tokenloom_plugin_fallbacks", "Failure policies applied", f.fallbacks.clone());
        registry.register("tokenloom_plugin_memory_bytes_max", "Most memory one store has used", f.memory.clone());
        registry.register("tokenloom_plugin_own", "Counters of plugins' own", f.own_totals.clone());
        registry.register("tokenloom_plugin_own_value", "Observations of plugins' own", f.own_values.clone());
        families
    }
}

/// Names a plugin may invent; each is a time series.
const OWN_NAMES_MAX: usize = 32;
const OWN_NAME_BYTES_MAX: usize = 64;
/// This many failures within [`FAILING_WINDOW`] make a plugin `failing`.
const FAILING_COUNT: usize = 3;
const FAILING_WINDOW: Duration = Duration::from_secs(60);
/// For so long after a late call the next ones are made one at a time, and where they hold up nobody.
const SUSPECT_MS: u64 = 60_000;

/// The numbers of one loaded plugin. Loading the same plugin twice shares its time series, not its status.
pub(crate) struct Meters {
    families: Families,
    labels: Labels,
    latency: Vec<Histogram>,
    traps: Vec<(Counter, AtomicU64)>,
    replays: (Counter, AtomicU64),
    fallbacks: (Counter, AtomicU64),
    memory: Gauge,
    memory_bytes_max: AtomicU64,
    calls: AtomicU64,
    nanos: AtomicU64,
    nanos_max: AtomicU64,
    /// When a call was late, in milliseconds of `since`, plus one; 0: never.
    late_at: AtomicU64,
    since: Instant,
    /// Calls and fuel, by export.
    fuel: Vec<(AtomicU64, AtomicU64)>,
    /// When the last [`FAILING_COUNT`] calls failed.
    failed_at: Mutex<Vec<Instant>>,
    failures: Mutex<Failures>,
    own_names: Mutex<BTreeSet<String>>,
}

impl Meters {
    pub fn new(families: &Families, plugin: &str) -> Self {
        let labels: Labels = vec![("plugin", plugin.to_string())];
        let with = |key, value: &str| -> Labels { labels.iter().cloned().chain([(key, value.to_string())]).collect() };
        let latency = Export::ALL.iter().map(|e| families.latency.get_or_create_owned(&with("export", e.as_str())));
        let traps = Cause::ALL.iter().map(|c| families.traps.get_or_create_owned(&with("cause", c.as_str())));
        Self {
            latency: latency.collect(),
            traps: traps.map(|counter| (counter, AtomicU64::new(0))).collect(),
            replays: (families.replays.get_or_create_owned(&labels), AtomicU64::new(0)),
            fallbacks: (families.fallbacks.get_or_create_owned(&labels), AtomicU64::new(0)),
            memory: families.memory.get_or_create_owned(&labels),
            memory_bytes_max: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            nanos_max: AtomicU64::new(0),
            late_at: AtomicU64::new(0),
            since: Instant::now(),
            fuel: Export::ALL.iter().map(|_| Default::default()).collect(),
            failed_at: Mutex::new(Vec::new()),
            failures: Mutex::default(),
            own_names: Mutex::new(BTreeSet::new()),
            families: families.clone(),
            labels,
        }
    }

    pub fn called(&self, export: Export, took: Duration, memory_bytes: u64) {
        self.latency[export as usize].observe(took.as_secs_f64());
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.calls.fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
        self.nanos_max.fetch_max(nanos, Relaxed);
        if self.memory_bytes_max.fetch_max(memory_bytes, Relaxed) < memory_bytes {
            self.memory.set(i64::try_from(memory_bytes).unwrap_or(i64::MAX));
        }
    }

    fn since_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A call was late within the last minute.
    pub fn is_suspect(&self) -> bool {
        let late_at = self.late_at.load(Relaxed);
        late_at > 0 && self.since_ms() < late_at.saturating_add(SUSPECT_MS)
    }

    pub fn spent(&self, export: Export, fuel: u64) {
        let (calls, total) = &self.fuel[export as usize];
        calls.fetch_add(1, Relaxed);
        total.fetch_add(fuel, Relaxed);
    }

    pub fn stopped(&self, stopped: &Stopped) {
        let cause = stopped.cause;
        let (counter, number) = &self.traps[cause as usize];
        counter.inc();
        number.fetch_add(1, Relaxed);
        if cause == Cause::Late {
            self.late_at.store(self.since_ms() + 1, Relaxed);
        }
        // A typed error is an answer (a template's `raise_exception`), and a neighbour's trap was counted there.
        if matches!(cause, Cause::Refused | Cause::Neighbour) {
            return;
        }
        self.note_failure(stopped);
        let mut failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if failed_at.len() == FAILING_COUNT {
            failed_at.remove(0);
        }
        failed_at.push(Instant::now());
    }

    /// Keeps what a person is told of it.
    pub fn note_failure(&self, stopped: &Stopped) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.count += 1;
        failures.last = Some(format!("{}: {}", stopped.export.as_str(), stopped.message));
    }

    pub fn failures(&self) -> Failures {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn replayed(&self) {
        self.replays.0.inc();
        self.replays.1.fetch_add(1, Relaxed);
    }

    pub fn fell_back(&self) {
        self.fallbacks.0.inc();
        self.fallbacks.1.fetch_add(1, Relaxed);
    }

    pub fn own_add(&self, name: &str, value: f64) {
        if let Some(labels) = self.own_labels(name) {
            self.families.own_totals.get_or_create_owned(&labels).inc_by(value);
        }
    }

    pub fn own_observe(&self, name: &str, value: f64) {
        if let Some(labels) = self.own_labels(name) {
            self.families.own_values.get_or_create_owned(&labels).observe(value);
        }
    }

    /// `None` once a plugin has used up its names.
    fn own_labels(&self, name: &str) -> Option<Labels> {
        let name = cut(name, OWN_NAME_BYTES_MAX);
        let mut names = self.own_names.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(&name) {
            if names.len() >= OWN_NAMES_MAX {
                return None;
            }
            names.insert(name.clone());
        }
        Some(self.labels.iter().cloned().chain([("name", name)]).collect())
    }

    pub fn state(&self) -> PluginState {
        if self.strikes() as usize >= FAILING_COUNT { PluginState::Failing } else { PluginState::Healthy }
    }

    /// Failures within the last minute; no more than [`FAILING_COUNT`] are kept.
    pub fn strikes(&self) -> u32 {
        let failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed_at.iter().filter(|at| at.elapsed() < FAILING_WINDOW).count() as u32
    }

    pub fn traps(&self) -> BTreeMap<&'static str, u64> {
        let counts = Cause::ALL.iter().map(|c| (c.as_str(), self.traps[*c as usize].1.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    pub fn latency_mean(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed) / self.calls().max(1))
    }

    pub fn latency_max(&self) -> Duration {
        Duration::from_nanos(self.nanos_max.load(Relaxed))
    }

    pub fn replays(&self) -> u64 {
        self.replays.1.load(Relaxed)
    }

    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.1.load(Relaxed)
    }

    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max.load(Relaxed)
    }

    pub fn fuel(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let of = |export: &Export| {
            let (calls, fuel) = &self.fuel[*export as usize];
            (export.as_str(), (calls.load(Relaxed), fuel.load(Relaxed)))
        };
        Export::ALL.iter().map(of).filter(|(_, (calls, _))| *calls > 0).collect()
    }
}
