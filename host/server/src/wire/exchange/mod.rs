//! Exchanging plugins while streams run: the gate, the switch, and the way back.
//!
//! A candidate is a file below the operator's plugin folder with its digest. It is loaded beside the live plugin, must
//! pass its own cases and the host's conformance set, runs beside the live one for a shadow period in which differences
//! are counted, and then takes its place: a request keeps what it began with, the next one gets the new. Three failures
//! within a minute bring the one before it back. Whatever goes wrong, the live plugin goes on.

mod policy;
mod shadow_policy;

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use api::exchange::{ExchangeError, ExchangeOrder, Place};
use api::{ApiState, WeakState};
use contract::output::OutputStage;
use contract::template::ChatTemplate;
use plugin_host::{PluginState, SchedulerPlugin, TemplateModel};
use serde_json::{Value, json};
use text::cases::{CasePlugins, CaseResult, Chain, Outcome, Summary, run_jsonl};
use text::shadow::{Resolve, ShadowCounts, ShadowStage, ShadowTemplate};
use text::{TextModel, TextModelParts, Tokenizer};

use super::plugins::Plugins;

/// How often a shadow period and a watched plugin are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// A candidate's cases are a page of text.
const CASES_BYTES_MAX: u64 = 16 << 20;

/// The text side of one name, in parts that can be exchanged.
pub struct ModelPlace {
    pub name: String,
    pub tokenizer: Tokenizer,
    pub grammars: Arc<grammar::Compiler>,
    /// What templates are told of the model's files.
    pub files: TemplateModel,
    pub template: Option<Arc<dyn ChatTemplate>>,
    pub stages: Vec<Arc<dyn OutputStage>>,
}

pub struct EnginePlace {
    pub name: String,
    pub handle: engine::Handle,
    /// What decides, as far as exchanges say; `None`: native.
    pub scheduler: Option<SchedulerPlugin>,
}

/// What is live of a name, and what was before.
struct TextSide {
    place: ModelPlace,
    before: Vec<Before>,
}

/// The way back.
enum Before {
    Template(Option<Arc<dyn ChatTemplate>>),
    Stages(Vec<Arc<dyn OutputStage>>),
}

struct EngineSide {
    place: EnginePlace,
    /// The way back, whatever became of the files.
    before: Vec<Option<SchedulerPlugin>>,
}

/// Everything that can be exchanged.
pub struct Exchange {
    plugins: Arc<Plugins>,
    state: WeakState,
    folder: Option<PathBuf>,
    models: HashMap<String, Mutex<TextSide>>,
    engines: HashMap<String, Mutex<EngineSide>>,
    /// One sentence per place: what the last exchange came to.
    states: Mutex<HashMap<(String, String), Value>>,
    own: Weak<Exchange>,
}

impl Exchange {
    pub fn new(
        plugins: Arc<Plugins>,
        state: &ApiState,
        folder: Option<PathBuf>,
        models: Vec<ModelPlace>,
        engines: Vec<EnginePlace>,
    ) -> Arc<Self> {
        let text = |place: ModelPlace| (place.name.clone(), Mutex::new(TextSide { place, before: Vec::new() }));
        let engine = |place: EnginePlace| (place.name.clone(), Mutex::new(EngineSide { place, before: Vec::new() }));
        Arc::new_cyclic(|own| Self {
            plugins,
            state: state.downgrade(),
            folder,
            models: models.into_iter().map(text).collect(),
            engines: engines.into_iter().map(engine).collect(),
            states: Mutex::new(HashMap::new()),
            own: own.clone(),
        })
    }

    /// What exchanges came to, by place.
    pub fn states(&self) -> Vec<Value> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<(&(String, String), &Value)> = states.iter().collect();
        rows.sort_by_key(|(place, _)| *place);
        rows.into_iter().map(|(_, state)| state.clone()).collect()
    }

    pub fn exchange(&self, order: &ExchangeOrder) -> Result<Value, ExchangeError> {
        let file = self.file(&order.file)?;
        let outcome = match order.place.kind.as_str() {
            "output" => self.exchange_stage(order, &file),
            "template" => self.exchange_template(order, &file),
            "scheduler" => self.exchange_scheduler(order, &file),
            other => Err(unknown_kind(other)),
        };
        self.plugins.forget_unused();
        if let Err(ExchangeError::Refused(why)) = &outcome {
            self.note(&order.place, json!({"state": "refused", "file": order.file, "why": why}));
        }
        outcome
    }

    pub fn roll_back(&self, place: &Place) -> Result<Value, ExchangeError> {
        match place.kind.as_str() {
            "output" | "template" => {
                let mut side = enter(self.model(place)?)?;
                self.restore(&mut side, place)?;
            }
            "scheduler" => self.restore_scheduler(place)?,
            other => return Err(unknown_kind(other)),
        }
        Ok(self.note(place, json!({"state": "rolled-back", "why": "asked for"})))
    }

    fn note(&self, place: &Place, mut state: Value) -> Value {
        state["target"] = json!(place.target);
        state["kind"] = json!(place.kind);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.insert((place.target.clone(), place.kind.clone()), state.clone());
        state
    }

    /// A file below the plugin folder, whatever links and dots the name holds.
    fn file(&self, name: &str) -> Result<PathBuf, ExchangeError> {
        let Some(folder) = &self.folder else {
            let message = "the server has no plugin folder: set `plugins_dir` in the config's [server]";
            return Err(ExchangeError::Forbidden(message.into()));
        };
        let path = Path::new(name);
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || path.extension().is_none_or(|extension| extension != "wasm") {
            return Err(ExchangeError::Refused(format!(
                "file `{name}`: the name of a .wasm file below the plugin folder is needed"
            )));
        }
        let inside = |path: &Path| Some(path.canonicalize().ok()?.starts_with(folder.canonicalize().ok()?));
        let full = folder.join(path);
        match inside(&full) {
            Some(true) => Ok(full),
            Some(false) => Err(ExchangeError::Refused(format!("file `{name}` leads out of the plugin folder"))),
            None => Err(ExchangeError::NotFound(format!("there is no file `{name}` in the plugin folder"))),
        }
    }

    fn model(&self, place: &Place) -> Result<&Mutex<TextSide>, ExchangeError> {
        self.models.get(&place.target).ok_or_else(|| unknown_target("model", &place.target, self.models.keys()))
    }

    fn engine(&self, place: &Place) -> Result<&Mutex<EngineSide>, ExchangeError> {
        self.engines.get(&place.target).ok_or_else(|| unknown_target("engine", &place.target, self.engines.keys()))
    }

    fn exchange_stage(&self, order: &ExchangeOrder, file: &Path) -> Result<Value, ExchangeError> {
        let mut side = enter(self.model(&order.place)?)?;
        let load = || self.plugins.candidate_stage(file, &side.place.tokenizer, &order.sha256, order.settings.as_ref());
        let candidate = load().map_err(refused)?;
        let at = position(&side.place.stages, candidate.name(), order.replaces.as_deref())?;
        let chain = Chain::Given { stages: vec![candidate.clone()], provides: vec![candidate.name().to_owned()] };
        self.gate(order, || {
            let mut results = run_jsonl(&own_cases(file)?, &chain, &mut NoOthers);
            own_cases_passed(&results)?;
            results.extend(text::conform::stage(candidate.as_ref()));
            Ok(results)
        })?;
        let tokenizer = side.place.tokenizer.clone();
        let resolve: Resolve = Arc::new(move |text: &str| tokenizer.added_token(text));
        let live = side.place.stages[at].clone();
        let (shadow, counts) = ShadowStage::new(live, candidate.clone(), resolve);
        let mut beside = side.place.stages.clone();
        beside[at] = Arc::new(shadow);
        self.serve(&side.place, side.place.template.clone(), beside)?;
        let verdict = self.shadow(order, &counts);
        let mut after = side.place.stages.clone();
        after[at] = candidate;
        let switched = verdict.and_then(|seen| {
            self.serve(&side.place, side.place.template.clone(), after.clone())?;
            Ok(seen)
        });
        let seen = match switched {
            Ok(seen) => seen,
            Err(error) => {
                self.serve(&side.place, side.place.template.clone(), side.place.stages.clone())?;
                return Err(error);
            }
        };
        let before = std::mem::replace(&mut side.place.stages, after);
        side.before.push(Before::Stages(before));
        Ok(self.promoted(order, seen))
    }

    fn exchange_template(&self, order: &ExchangeOrder, file: &Path) -> Result<Value, ExchangeError> {
        let mut side = enter(self.model(&order.place)?)?;
        let load = |files: &TemplateModel| {
            self.plugins.candidate_template(file, &side.place.tokenizer, files, &order.sha256, order.settings.as_ref())
        };
        let candidate = load(&side.place.files).map_err(refused)?;
        self.gate(order, || {
            let mut plugins = OnlyTemplate(&load);
            let mut results = run_jsonl(&own_cases(file)?, &Chain::None, &mut plugins);
            own_cases_passed(&results)?;
            results.extend(text::conform::template(candidate.as_ref()));
            Ok(results)
        })?;
        let stages = || side.place.stages.clone();
        let seen = match side.place.template.clone() {
            None => json!({"compared": 0}),
            Some(live) => {
                let (shadow, counts) = ShadowTemplate::new(live.clone(), candidate.clone());
                self.serve(&side.place, Some(Arc::new(shadow)), stages())?;
                match self.shadow(order, &counts) {
                    Ok(seen) => seen,
                    Err(error) => {
                        self.serve(&side.place, Some(live), stages())?;
                        return Err(error);
                    }
                }
            }
        };
        self.serve(&side.place, Some(candidate.clone()), stages())?;
        let before = side.place.template.replace(candidate);
        side.before.push(Before::Template(before));
        Ok(self.promoted(order, seen))
    }

    fn spawn_watch(&self, watch: impl FnOnce() + Send + 'static) {
        if let Err(error) = std::thread::Builder::new().name("plugin-watch".into()).spawn(watch) {
            tracing::error!("no thread to watch a new plugin: {error}; it is not taken back by itself");
        }
    }

    /// Runs the checks of the gate; the first that fails is the answer.
    fn gate(
        &self,
        order: &ExchangeOrder,
        checks: impl FnOnce() -> Result<Vec<CaseResult>, ExchangeError>,
    ) -> Result<(), ExchangeError> {
        self.note(&order.place, json!({"state": "checking", "file": order.file, "sha256": order.sha256}));
        let results = checks()?;
        let failed = results.iter().find_map(|result| match &result.outcome {
            Outcome::Failed(why) => Some(format!("case `{}` ({}) failed: {why}", result.id, result.title)),
            Outcome::Passed | Outcome::Skipped(_) => None,
        });
        failed.map_or(Ok(()), |why| Err(ExchangeError::Refused(why)))
    }

    /// Waits for the end of the shadow period.
    fn shadow(&self, order: &ExchangeOrder, counts: &ShadowCounts) -> Result<Value, ExchangeError> {
        let end = Instant::now() + order.shadow_time;
        loop {
            let seen = json!({
                "compared": counts.compared.load(Relaxed), "different": counts.different.load(Relaxed),
                "failed": counts.failed.load(Relaxed), "skipped": counts.skipped.load(Relaxed),
                "first_difference": counts.first_difference(),
            });
            let why = counts.first_difference().unwrap_or_default();
            if counts.failed.load(Relaxed) > 0 {
                return Err(ExchangeError::Refused(format!("it failed in the shadow period: {why}")));
            }
            let different = counts.different.load(Relaxed);
            let allowed = order.differences_max.unwrap_or(if is_scheduler(order) { u64::MAX } else { 0 });
            if different > allowed {
                let what = if is_scheduler(order) { "decisions" } else { "streams" };
                let message = format!(
                    "{different} {what} came out differently in the shadow period, {allowed} are allowed; the first: {why}"
                );
                return Err(ExchangeError::Refused(message));
            }
            if counts.compared.load(Relaxed) >= order.shadow_streams || Instant::now() >= end {
                return Ok(seen);
            }
            self.note(
                &order.place,
                json!({"state": "shadow", "file": order.file, "sha256": order.sha256, "shadow": seen}),
            );
            std::thread::sleep(LOOK);
        }
    }

    fn promoted(&self, order: &ExchangeOrder, shadow: Value) -> Value {
        tracing::info!("{}/{}: `{}` is live now", order.place.target, order.place.kind, order.file);
        self.watch(order);
        self.note(&order.place, json!({"state": "live", "file": order.file, "sha256": order.sha256, "shadow": shadow}))
    }

    /// Brings the plugin before it back when the new one fails three times within a minute.
    fn watch(&self, order: &ExchangeOrder) {
        let (own, place, sha256) = (self.own.clone(), order.place.clone(), order.sha256.clone());
        let watch = move || {
            while let Some(exchange) = own.upgrade() {
                match exchange.plugins.state_of(&sha256) {
                    // Exchanged again, and the last stream on it is over.
                    None => return,
                    Some(PluginState::Healthy) => {}
                    Some(PluginState::Failing) => return exchange.take_back(&place),
                }
                drop(exchange);
                std::thread::sleep(LOOK);
            }
        };
        self.spawn_watch(watch);
    }

    fn take_back(&self, place: &Place) {
        const WHY: &str = "three failures within a minute";
        let restored = self.model(place).and_then(|side| {
            let mut side = side.lock().unwrap_or_else(PoisonError::into_inner);
            self.restore(&mut side, place)
        });
        match restored {
            Ok(()) => {
                tracing::error!("{}/{}: {WHY}; the plugin before it is back", place.target, place.kind);
                self.note(place, json!({"state": "rolled-back", "why": WHY}));
            }
            Err(error) => tracing::error!("{}/{}: {WHY}, and no way back: {error:?}", place.target, place.kind),
        }
    }

    fn restore(&self, side: &mut TextSide, place: &Place) -> Result<(), ExchangeError> {
        let wants_stages = place.kind == "output";
        let found = side.before.iter().rposition(|before| matches!(before, Before::Stages(_)) == wants_stages);
        let at = found.ok_or_else(|| nothing_before(place))?;
        match side.before.remove(at) {
            Before::Stages(stages) => side.place.stages = stages,
            Before::Template(template) => side.place.template = template,
        }
        self.serve(&side.place, side.place.template.clone(), side.place.stages.clone())
    }

    /// From the next request on the name is made of these parts.
    fn serve(
        &self,
        place: &ModelPlace,
        template: Option<Arc<dyn ChatTemplate>>,
        stages: Vec<Arc<dyn OutputStage>>,
    ) -> Result<(), ExchangeError> {
        let parts = TextModelParts { tokenizer: place.tokenizer.clone(), template, stages };
        let text = TextModel::new(parts).and_then(|text| text.with_grammars(Arc::clone(&place.grammars)));
        let text = text.map_err(|e| ExchangeError::Refused(e.to_string()))?;
        if let Some(state) = self.state.upgrade() {
            state.replace_text(&place.name, Arc::new(text));
        }
        Ok(())
    }
}

/// One exchange of a place at a time; the others are told so.
fn enter<T>(side: &Mutex<T>) -> Result<MutexGuard<'_, T>, ExchangeError> {
    match side.try_lock() {
        Ok(side) => Ok(side),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => {
            Err(ExchangeError::Conflict("another exchange of this target runs; wait for its answer".into()))
        }
    }
}

fn is_scheduler(order: &ExchangeOrder) -> bool {
    order.place.kind == "scheduler"
}

/// Which stage of the chain gives way.
fn position(stages: &[Arc<dyn OutputStage>], name: &str, asked: Option<&str>) -> Result<usize, ExchangeError> {
    let wanted = asked.unwrap_or(name);
    let found = stages.iter().position(|stage| stage.name() == wanted);
    match (found, asked, stages.len()) {
        (Some(at), ..) => Ok(at),
        (None, None, 1) => Ok(0),
        (None, ..) => {
            let chain: Vec<&str> = stages.iter().map(|stage| stage.name()).collect();
            let message = format!(
                "no stage is called `{wanted}`; the chain is: {}; say which one in `replaces`",
                chain.join(", ")
            );
            Err(ExchangeError::NotFound(message))
        }
    }
}

/// `FILE.cases.jsonl`, or `cases.jsonl` of its folder.
fn own_cases(file: &Path) -> Result<String, ExchangeError> {
    let beside = [file.with_extension("cases.jsonl"), file.with_file_name("cases.jsonl")];
    let Some(path) = beside.iter().find(|path| path.is_file()) else {
        let names = beside.map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        return Err(ExchangeError::Refused(format!(
            "it has no cases of its own: put {} beside it",
            names.join(" or ")
        )));
    };
    let fault = |why: String| ExchangeError::Refused(format!("{}: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| fault(e.to_string()))?.len();
    if size > CASES_BYTES_MAX {
        return Err(fault(format!("{size} bytes, the limit is {CASES_BYTES_MAX}")));
    }
    std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))
}

fn own_cases_passed(results: &[CaseResult]) -> Result<(), ExchangeError> {
    let summary = Summary::of(results);
    if summary.passed == 0 && summary.failed == 0 {
        return Err(ExchangeError::Refused(format!("none of its own cases was run: {summary}")));
    }
    Ok(())
}

fn refused(error: anyhow::Error) -> ExchangeError {
    ExchangeError::Refused(format!("{error:#}"))
}

fn unknown_kind(kind: &str) -> ExchangeError {
    ExchangeError::NotFound(format!("there is no plugin kind `{kind}`; there are output, template and scheduler"))
}

fn unknown_target<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> ExchangeError {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    ExchangeError::NotFound(format!("there is no {what} `{name}`; there are: {}", known.join(", ")))
}

fn nothing_before(place: &Place) -> ExchangeError {
    ExchangeError::Conflict(format!(
        "nothing was exchanged at {}/{}, so there is no way back",
        place.target, place.kind
    ))
}

/// A candidate's cases are about the candidate alone.
struct NoOthers;

impl CasePlugins for NoOthers {}

/// Cases about a template alone, loaded for each case's model.
pub(crate) struct OnlyTemplate<'a>(pub &'a dyn Fn(&TemplateModel) -> anyhow::Result<Arc<dyn ChatTemplate>>);

impl CasePlugins for OnlyTemplate<'_> {
    fn template(
        &mut self,
        source: &str,
        special_tokens: &[(String, String)],
    ) -> Result<Option<Arc<dyn ChatTemplate>>, String> {
        let files = TemplateModel { template_source: Some(source.to_owned()), special_tokens: special_tokens.to_vec() };
        (self.0)(&files).map(Some).map_err(|e| format!("{e:#}"))
    }
}
