//! Plugins whose calls are timed, and written down so that a native build can repeat them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use contract::output::{
    Channel, Constraint, EndReason, OutputEvent, OutputStage, Requirements, StageRequest, StageSession,
};
use contract::policy::{Decision, Delta, PolicyError, SchedulePolicy, Snapshot};
use contract::template::{ChatTemplate, Rendered};
use contract::{Failures, PluginError};
use plugin_host::{Kind, PluginHost, PluginStatus, TemplateModel, trace};
use serde_json::{Value, json};

/// Calls that are written down; a native build repeats these and no more.
const CALLS_MAX: usize = 100_000;

/// Nanoseconds of every call, by export.
pub(super) type Times = BTreeMap<&'static str, Vec<u64>>;

#[derive(Clone, Default)]
pub(super) struct Tape(Arc<Mutex<State>>);

/// What was written down.
#[derive(Default)]
pub(super) struct State {
    pub times: Times,
    pub work: Work,
    /// The host's own account of the plugin that was in use last.
    pub status: Option<PluginStatus>,
    /// Most memory of a store, over all that were loaded.
    pub memory_bytes_max: u64,
    /// By export: calls and fuel, over all that were loaded.
    pub fuel: BTreeMap<&'static str, (u64, u64)>,
}

/// The calls, as the native programs of `kit` read them.
#[derive(Default)]
pub(super) struct Work {
    units: Vec<Value>,
    calls: usize,
}

impl Work {
    pub fn json(self, kind: Kind, settings_json: &str) -> Value {
        let units = match kind {
            Kind::Output => "streams",
            Kind::Template => "loads",
            Kind::Scheduler => "traces",
        };
        json!({"settings": settings_json, units: self.units})
    }
}

impl Tape {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was written down since the last time.
    pub fn take(&self) -> State {
        std::mem::take(&mut *self.state())
    }

    /// Takes down how a plugin fared, before it goes: the one that was loaded last.
    fn account(&self, host: &PluginHost) {
        let Some(status) = host.status().pop() else { return };
        let mut state = self.state();
        state.memory_bytes_max = state.memory_bytes_max.max(status.memory_bytes_max);
        for (export, (calls, fuel)) in &status.fuel {
            let total = state.fuel.entry(export).or_default();
            *total = (total.0 + calls, total.1 + fuel);
        }
        state.status = Some(status);
    }

    fn time<T>(&self, export: &'static str, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = call();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.state().times.entry(export).or_default().push(ns);
        answer
    }

    /// Keeps a stream, a load or a trace while there is room for its calls.
    fn keep(&self, unit: Value, calls: usize) {
        let mut state = self.state();
        if state.work.calls + calls <= CALLS_MAX {
            state.work.calls += calls;
            state.work.units.push(unit);
        }
    }
}

pub(super) struct TapedStage {
    inner: Arc<dyn OutputStage>,
    host: Arc<PluginHost>,
    tape: Tape,
}

impl TapedStage {
    pub fn new(inner: Arc<dyn OutputStage>, host: Arc<PluginHost>, tape: Tape) -> Self {
        Self { inner, host, tape }
    }
}

impl Drop for TapedStage {
    fn drop(&mut self) {
        self.tape.account(&self.host);
    }
}

impl OutputStage for TapedStage {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn failures(&self) -> Failures {
        self.inner.failures()
    }

    fn requirements(&self) -> &Requirements {
        self.inner.requirements()
    }

    fn constrain(&self, request: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        self.inner.constrain(request)
    }

    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        let inner = self.tape.time("open", || self.inner.open(request))?;
        let tools = request.tools.iter().map(|tool| json!([tool.name, tool.schema_json.as_deref()]));
        let markers = request.markers.iter().map(|marker| json!([marker.text, marker.token]));
        let request = json!({
            "tools": tools.collect::<Vec<_>>(), "markers": markers.collect::<Vec<_>>(), "turn_prefix": request.turn_prefix,
        });
        Ok(Box::new(TapedSession { inner, tape: self.tape.clone(), request, feeds: Vec::new() }))
    }
}

struct TapedSession {
    inner: Box<dyn StageSession>,
    tape: Tape,
    request: Value,
    feeds: Vec<Value>,
}

impl StageSession for TapedSession {
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        self.feeds.push(events.iter().filter_map(event_json).collect());
        self.tape.time("feed", || self.inner.feed(events))
    }

    fn finish(&mut self, reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        let answer = self.tape.time("finish", || self.inner.finish(reason));
        let (request, feeds) = (self.request.take(), std::mem::take(&mut self.feeds));
        let calls = feeds.len() + 2;
        self.tape.keep(json!({"request": request, "feeds": feeds}), calls);
        answer
    }
}

fn event_json(event: &OutputEvent) -> Option<Value> {
    let channel = |channel: &Channel| match channel {
        Channel::Content => "content".to_owned(),
        Channel::Reasoning => "reasoning".to_owned(),
        Channel::Other(name) => name.to_string(),
    };
    Some(match event {
        OutputEvent::Text { channel: name, text, token } => json!(["text", channel(name), text, token]),
        OutputEvent::CallStart { index, name, .. } => json!(["start", index, name]),
        OutputEvent::CallArguments { index, fragment } => json!(["arguments", index, fragment]),
        OutputEvent::CallEnd { index, complete } => json!(["end", index, complete]),
        OutputEvent::Ext { .. } => return None,
    })
}

pub(super) struct TapedTemplate {
    inner: Arc<dyn ChatTemplate>,
    host: Arc<PluginHost>,
    tape: Tape,
    model: Value,
    requests: Mutex<Vec<String>>,
}

impl TapedTemplate {
    pub fn new(inner: Arc<dyn ChatTemplate>, model: &TemplateModel, host: Arc<PluginHost>, tape: Tape) -> Self {
        let model = json!({"source": model.template_source, "special_tokens": model.special_tokens});
        Self { inner, host, tape, model, requests: Mutex::default() }
    }
}

impl ChatTemplate for TapedTemplate {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn failures(&self) -> Failures {
        self.inner.failures()
    }

    fn render(&self, request_json: &str) -> Result<Rendered, PluginError> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request_json.to_owned());
        self.tape.time("render", || self.inner.render(request_json))
    }
}

impl Drop for TapedTemplate {
    fn drop(&mut self) {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner));
        let calls = requests.len();
        let mut unit = self.model.take();
        unit["requests"] = requests.into();
        self.tape.keep(unit, calls);
        self.tape.account(&self.host);
    }
}

pub(super) struct TapedPolicy {
    inner: Box<dyn SchedulePolicy>,
    host: Arc<PluginHost>,
    tape: Tape,
    calls: Vec<Value>,
}

impl TapedPolicy {
    pub fn boxed(inner: Box<dyn SchedulePolicy>, host: Arc<PluginHost>, tape: Tape) -> Box<dyn SchedulePolicy> {
        Box::new(Self { inner, host, tape, calls: Vec::new() })
    }
}

impl SchedulePolicy for TapedPolicy {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError> {
        self.calls.push(trace::resync_json(full));
        self.tape.time("resync", || self.inner.resync(full))
    }

    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError> {
        self.calls.push(trace::step_json(delta));
        self.tape.time("step", || self.inner.step(delta))
    }
}

impl Drop for TapedPolicy {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        let count = calls.len();
        self.tape.keep(calls.into(), count);
        self.tape.account(&self.host);
    }
}
