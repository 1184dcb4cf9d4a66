//! What the routes share: the served models, the keys, the registry of metrics, the options.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use contract::TokenId;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};
use text::TextModel;

use crate::admission::Admission;
use crate::auth::Keys;
use crate::error::{ApiError, Code, quoted};
use crate::exchange::{ExchangeError, ExchangeOrder, Place};
use crate::ids::Ids;
use crate::metrics::HttpMetrics;
use crate::responses::Store;
use crate::running::Running;

/// Under which name reasoning text is sent. Both names are always accepted in a request's history.
///
/// The default is both: older clients read only `reasoning_content`, newer ones only `reasoning`, and no client is
/// known to fail on the field that it does not read. The price is that reasoning text is sent twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningField {
    Reasoning,
    ReasoningContent,
    #[default]
    Both,
}

impl ReasoningField {
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Reasoning => &["reasoning"],
            Self::ReasoningContent => &["reasoning_content"],
            Self::Both => &["reasoning", "reasoning_content"],
        }
    }
}

/// Sampling values of requests that do not give their own: the model's `generation_config.json`, then these.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingDefaults {
    pub temperature: f32,
    pub top_p: f32,
    /// 0 means off.
    pub top_k: u32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// A model that reports another prompt length than the one it was given, or refuses some prompts: the scripted one.
pub trait PromptRule: Send + Sync {
    /// The length to report and to check limits against (`None`: the real one), or why no answer exists.
    fn check(&self, prompt: &[TokenId]) -> Result<Option<u32>, String>;
}

/// What may differ between two names over one engine.
#[derive(Clone, Default)]
pub struct ModelOptions {
    /// Longest sequence of this name; at most the engine's own, which is what `None` means.
    pub max_model_len: Option<u32>,
    pub sampling: SamplingDefaults,
    /// Tokens that end an answer (`eos_token_id` of `generation_config.json`); empty: the tokenizer's.
    pub end_tokens: Vec<TokenId>,
    pub reasoning_field: ReasoningField,
    /// Template arguments of requests that do not give their own.
    pub template_kwargs: Map<String, Value>,
    pub prompt_rule: Option<Arc<dyn PromptRule>>,
}

/// One name that clients use: a text side over an engine.
#[derive(Clone)]
pub struct ServedModel {
    pub name: String,
    /// Where the weights came from, as `/v1/models` shows it.
    pub root: String,
    pub text: Arc<TextModel>,
    pub engine: engine::Handle,
    pub options: ModelOptions,
}

impl ServedModel {
    /// Longest sequence, prompt and output together, in tokens.
    pub fn context_len(&self) -> u32 {
        let engine = self.engine.limits().context_len;
        self.options.max_model_len.unwrap_or(engine).min(engine)
    }
}

/// Rows of `GET /plugins`, and what of the plugins makes the server degraded.
pub trait PluginRows: Send + Sync {
    /// One JSON object per loaded plugin: name, version, kind, digest, calls, traps, strikes, fallbacks, state.
    fn rows(&self) -> Vec<Value>;
    /// One sentence per fallback that runs.
    fn degraded(&self) -> Vec<String>;
    /// Loads a plugin, puts it through the gate, and lets it take its place at the next stream; blocks until that is
    /// decided. The answer says what is live now, and what the gate saw.
    fn exchange(&self, order: &ExchangeOrder) -> Result<Value, ExchangeError> {
        Err(ExchangeError::NotFound(format!("there are no plugins at {}", order.place.target)))
    }
    /// Goes back to what was live before the last exchange.
    fn roll_back(&self, place: &Place) -> Result<Value, ExchangeError> {
        Err(ExchangeError::NotFound(format!("there are no plugins at {}", place.target)))
    }
}

/// A server without plugins.
pub struct NoPlugins;

impl PluginRows for NoPlugins {
    fn rows(&self) -> Vec<Value> {
        Vec::new()
    }

    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Settings of the HTTP side.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiOptions {
    /// Largest request body, in bytes. A million token ids as JSON are below 8 MB.
    pub body_bytes_max: usize,
    /// Sequences that may be open at once, queued ones included, over all models; one more is a 429.
    pub sequences_max: usize,
    /// A silent stream gets a comment this often, so that proxies and clients do not take it for dead.
    pub keep_alive: Duration,
    /// A streamed answer waits this long for its first event, so that an early failure still gets its own status.
    pub first_event_wait: Duration,
    /// Unknown request fields are a 400 instead of a warning header.
    pub strict_fields: bool,
    /// Origin whose pages may read answers in a browser; `None`: no page but our own. `*` is what other servers send.
    pub cors_origin: Option<String>,
    /// `version` of `/version`.
    pub version: String,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            body_bytes_max: 16 * 1024 * 1024,
            // Above the default queue and seats of an engine: the engine's own limit speaks first for one model.
            sequences_max: 4096,
            // Below the 30 s after which the most impatient proxies give up.
            keep_alive: Duration::from_secs(15),
            first_event_wait: Duration::from_secs(2),
            strict_fields: false,
            cors_origin: Some("*".to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// What is known only once the models are loaded.
pub struct Loaded {
    pub models: Vec<ServedModel>,
    /// All metrics of the process; the API adds its own and serves them at `/metrics`.
    pub registry: Registry,
    pub plugins: Arc<dyn PluginRows>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("model name `{0}` is served twice; give each [[model]] its own name")]
    DuplicateModel(String),
    #[error("no model is served; give --model or a [[model]] table")]
    NoModel,
    #[error("the models were already opened")]
    AlreadyOpen,
    #[error("model `{name}`: max_model_len is {value}, but the engine's context is {context_len} tokens")]
    ContextTooLong { name: String, value: u32, context_len: u32 },
}

/// The models and everything that came with them, once they are there.
pub(crate) struct Open {
    models: RwLock<Vec<Arc<ServedModel>>>,
    pub registry: Registry,
    pub plugins: Arc<dyn PluginRows>,
    pub since: u64,
}

impl Open {
    /// The models as new requests find them. A request keeps the one that it began with.
    pub fn models(&self) -> Vec<Arc<ServedModel>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) struct Shared {
    pub options: ApiOptions,
    pub keys: Keys,
    pub admission: Admission,
    pub metrics: HttpMetrics,
    pub ids: Ids,
    pub running: Running,
    pub responses: Arc<Store>,
    open: OnceLock<Open>,
}

/// The state behind [`crate::router`]; clones share it.
///
/// It may serve before the models are loaded: until [`ApiState::open`], `/health` answers, `/ready` and every model
/// route say 503.
#[derive(Clone)]
pub struct ApiState(pub(crate) Arc<Shared>);

impl ApiState {
    /// Responses are kept in `store`.
    pub fn new(options: ApiOptions, keys: Keys, store: Store) -> Self {
        let metrics = HttpMetrics::default();
        let admission = Admission::new(options.sequences_max, metrics.clone());
        let (ids, running) = (Ids::default(), Running::default());
        let responses = Arc::new(store);
        Self(Arc::new(Shared { options, keys, admission, metrics, ids, running, responses, open: OnceLock::new() }))
    }

    /// From now on new requests are a 503, while those that run go on.
    pub fn drain(&self) {
        self.0.admission.drain();
    }

    /// Waits until no request runs; to be called after [`ApiState::drain`].
    pub async fn drained(&self) {
        self.0.admission.idle().await;
    }

    /// Gives the loaded models to the routes; once.
    pub fn open(&self, mut loaded: Loaded) -> Result<(), StateError> {
        let mut names = HashSet::new();
        for model in &loaded.models {
            if !names.insert(model.name.as_str()) {
                return Err(StateError::DuplicateModel(model.name.clone()));
            }
            let context_len = model.engine.limits().context_len;
            if let Some(value) = model.options.max_model_len.filter(|&value| value > context_len) {
                return Err(StateError::ContextTooLong { name: model.name.clone(), value, context_len });
            }
        }
        if loaded.models.is_empty() {
            return Err(StateError::NoModel);
        }
        self.0.metrics.register(&mut loaded.registry);
        let Loaded { models, registry, plugins } = loaded;
        let models = RwLock::new(models.into_iter().map(Arc::new).collect());
        let open = Open { models, registry, plugins, since: crate::clock::unix_seconds() };
        self.0.open.set(open).map_err(|_| StateError::AlreadyOpen)
    }

    /// From the next request on, a name's text side is this one; requests that run keep theirs.
    pub fn replace_text(&self, name: &str, text: Arc<TextModel>) {
        let Some(open) = self.0.open.get() else { return };
        let mut models = open.models.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.iter_mut().find(|model| model.name == name) {
            *model = Arc::new(ServedModel { text, ..ServedModel::clone(model) });
        }
    }

    /// For what the state itself holds: it must not keep the state alive.
    pub fn downgrade(&self) -> WeakState {
        WeakState(Arc::downgrade(&self.0))
    }

    pub(crate) fn opened(&self) -> Result<&Open, ApiError> {
        self.0.open.get().ok_or_else(|| {
            ApiError::new(Code::Loading, "the models are still loading; GET /ready says when they are there")
                .retry_after_s(5)
        })
    }

    /// The model of that name. An absent name is accepted while only one model is served.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
        let models = self.opened()?.models();
        match name {
            None if models.len() == 1 => Ok(Arc::clone(&models[0])),
            None => Err(crate::wire::fields::missing("model")),
            Some(name) => models.iter().find(|model| model.name == name).cloned().ok_or_else(|| {
                let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                let mut error = ApiError::new(
                    Code::ModelNotFound,
                    format!("model \"{}\" is not served here; the models are: {}", quoted(name), known.join(", ")),
                );
                error.param = Some("model".into());
                error
            }),
        }
    }
}

/// A state that may be gone.
#[derive(Clone)]
pub struct WeakState(Weak<Shared>);

impl WeakState {
    pub fn upgrade(&self) -> Option<ApiState> {
        self.0.upgrade().map(ApiState)
    }
}

impl fmt::Debug for ApiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiState").field("options", &self.0.options).finish_non_exhaustive()
    }
}
