//! One `[engine.NAME]`: weights, memory, a scheduler, and what its model's files say about text.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use backend::Backend;
use backend::load::{LoadOptions, MemoryPlan, Quantization};
use backend_script::{Script, ScriptBackend};
use contract::policy::SchedulePolicy;
use engine::{EngineConfig, EngineParts};
use model::{Gguf, GgufTokenizerData, LoadedModel};
use plugin_host::SchedulerPlugin;
use plugin_host::trace::Recorded;
use prometheus_client::registry::Registry;
use text::{GgufVocab, Tokenizer};

use super::plugins::Plugins;
use super::{backends, folder, script};
use crate::device::Device;
use crate::settings::EngineSettings;
use crate::source::Source;

/// A started engine, and what its names need to become models.
pub struct WiredEngine {
    pub handle: engine::Handle,
    pub plan: MemoryPlan,
    pub asked: LoadOptions,
    pub files: ModelFiles,
    /// Compiles what answers are held to, over the tokenizer of these files.
    pub grammars: Arc<grammar::Compiler>,
    /// Where the weights came from.
    pub source: String,
    /// What kind of model it is, for people.
    pub family: String,
    /// The scheduler's name; `None`: native first come, first served.
    pub scheduler: Option<String>,
    pub scheduler_plugin: Option<SchedulerPlugin>,
    /// Row counts of captured decode steps; empty on devices that capture none.
    pub graphs: Vec<u16>,
    pub warnings: Vec<String>,
}

/// Dummy weights are the same at every start.
const DUMMY_SEED: u64 = 1;

/// The text side of a model's files.
pub struct ModelFiles {
    pub tokenizer: Tokenizer,
    /// Jinja source.
    pub template: Option<String>,
    pub special_tokens: Vec<(String, String)>,
    /// Where a `generation_config.json` would be.
    pub folder: Option<PathBuf>,
    pub script: Option<Arc<Script>>,
}

struct LoadedBackend {
    backend: Box<dyn Backend>,
    plan: MemoryPlan,
    files: ModelFiles,
    family: String,
    warnings: Vec<String>,
}

pub fn start(settings: &EngineSettings, plugins: &Plugins, registry: &mut Registry) -> anyhow::Result<WiredEngine> {
    // The scheduler first: a mistake in its name should not cost a minute of loading.
    let (scheduler_plugin, policy) = match &settings.scheduler {
        Some(word) => {
            let load = || {
                let plugin = plugins.scheduler(word, &settings.scheduler_settings)?;
                let policy = plugins.policy(&plugin)?;
                anyhow::Ok((plugin, policy))
            };
            let (plugin, policy) = load().with_context(|| format!("scheduler `{word}`"))?;
            let policy = match &settings.scheduler_trace {
                Some(file) => Box::new(Recorded::new(policy, file)?) as Box<dyn SchedulePolicy>,
                None => policy,
            };
            (Some(plugin), Some(policy))
        }
        None => (None, None),
    };
    let asked = backends::load_options(settings);
    let loaded = match &settings.source {
        Source::Script(path) => load_script(path, settings, &asked)?,
        Source::Gguf(path) | Source::Folder(path) => load_model(path, settings, &asked)?,
        Source::Hub(model) => load_model(&model.fetch(&settings.hub, !settings.dummy)?, settings, &asked)?,
    };
    let scheduler = policy.as_ref().map(|policy| policy.name().to_string());
    let LoadedBackend { backend, plan, files, family, mut warnings } = loaded;
    let caps = backend.caps();
    if settings.prefix_caching && caps.recurrent && caps.state_slots == 0 {
        let why = "the model has a recurrent state, and this device has no room for saved ones";
        warnings.push(format!("prefix_caching is off: {why}; every prompt is computed whole"));
    }
    let graphs = backend.caps().graphs.iter().map(|&(rows, _)| rows).collect();
    let handle = engine::start(EngineParts { backend, policy, config: engine_config(settings) }, registry)?;
    let source = settings.source.to_string();
    let grammars = grammars(&settings.name, &files.tokenizer, registry)?;
    Ok(WiredEngine {
        handle,
        plan,
        asked,
        files,
        grammars,
        source,
        family,
        scheduler,
        scheduler_plugin,
        graphs,
        warnings,
    })
}

fn engine_config(settings: &EngineSettings) -> EngineConfig {
    let defaults = EngineConfig::new(&settings.name);
    EngineConfig {
        max_queued: settings.max_num_queued_reqs.map_or(defaults.max_queued, |n| n as usize),
        step_target: settings.step_target_ms.map_or(defaults.step_target, |ms| Duration::from_millis(ms.into())),
        prefix_cache: settings.prefix_caching,
        ..defaults
    }
}

fn grammars(engine: &str, tokenizer: &Tokenizer, registry: &mut Registry) -> anyhow::Result<Arc<grammar::Compiler>> {
    let metrics = grammar::Metrics::register(registry, engine);
    let compiler = grammar::Compiler::new(tokenizer.vocabulary(), grammar::Limits::default(), metrics);
    Ok(Arc::new(compiler.context("the grammar compiler")?))
}

fn load_script(path: &Path, settings: &EngineSettings, asked: &LoadOptions) -> anyhow::Result<LoadedBackend> {
    ensure!(settings.device == Device::Cpu, "a scripted model has nothing to run on {}", settings.device);
    let script = Arc::new(Script::from_file(path)?);
    let (backend, plan) = ScriptBackend::new(Arc::clone(&script), asked);
    let files = ModelFiles {
        tokenizer: script::tokenizer(&script),
        template: Some(script::TEMPLATE.into()),
        special_tokens: Vec::new(),
        folder: None,
        script: Some(script),
    };
    let family = "scripted model".into();
    Ok(LoadedBackend { backend: Box::new(backend), plan, files, family, warnings: Vec::new() })
}

fn load_model(path: &Path, settings: &EngineSettings, asked: &LoadOptions) -> anyhow::Result<LoadedBackend> {
    let loaded = if settings.dummy { model::load_dummy(path, DUMMY_SEED)? } else { model::load(path)? };
    let LoadedModel { mut spec, source } = loaded;
    let tokenizer = settings.tokenizer.as_deref();
    let (files, mut warnings) = match &source {
        model::Source::Gguf(gguf) => (gguf_files(gguf, path, tokenizer)?, Vec::new()),
        model::Source::Folder(folder) => folder::files(folder, tokenizer, settings.dummy)?,
    };
    let (tokens, vocab) = (files.tokenizer.vocab_size(), spec.vocab);
    ensure!(tokens <= vocab, "the tokenizer has {tokens} tokens, the model only {vocab}; they do not belong together");
    spec.vocab_used = tokens;
    if let Some(mix) = settings.dummy_mix {
        spec = model::dummy::quantised(spec, mix);
    }
    let mut family = spec.family.clone();
    if settings.dummy {
        family += ", random weights";
        warnings.push("load_format is `dummy`: the weights are random, and so is every answer".into());
    }
    let mut asked = asked.clone();
    // Random weights are made as bf16; the folder says that its own are FP8.
    let fp8 = matches!(&source, model::Source::Folder(folder) if folder.config.fp8);
    if settings.dummy && settings.dummy_mix.is_none() && fp8 && settings.device != Device::Cpu {
        asked.quantization = Some(Quantization::Fp8);
    }
    let (backend, plan) = backends::load(spec, settings, &asked)?;
    Ok(LoadedBackend { backend, plan, files, family, warnings })
}

fn gguf_files(gguf: &Gguf, path: &Path, tokenizer: Option<&Path>) -> anyhow::Result<ModelFiles> {
    let data = GgufTokenizerData::read(gguf)?;
    let text_of = |id: Option<u32>| id.and_then(|id| data.tokens.get(id as usize).cloned());
    let special = [("bos_token", data.bos), ("eos_token", data.eos), ("pad_token", data.padding)];
    let special_tokens = special.into_iter().filter_map(|(name, id)| Some((name.to_string(), text_of(id)?))).collect();
    let template = data.chat_template.clone();
    let tokenizer = match tokenizer {
        // How text is split is in the file; which tokens begin and end it, in the GGUF file.
        Some(file) => tokenizer_file(file)?.with_special(data.bos, data.eos.into_iter().chain(data.eot).collect()),
        None => Tokenizer::from_gguf(vocab(data))?,
    };
    let folder = path.parent().map(Path::to_path_buf);
    Ok(ModelFiles { tokenizer, template, special_tokens, folder, script: None })
}

/// Reads a `tokenizer.json`.
pub fn tokenizer_file(file: &Path) -> anyhow::Result<Tokenizer> {
    /// The largest vocabularies have files of 35 MB.
    const BYTES_MAX: u64 = 128 << 20;
    let read = || -> anyhow::Result<Tokenizer> {
        let size = std::fs::metadata(file)?.len();
        ensure!(size <= BYTES_MAX, "{size} bytes, the limit is {BYTES_MAX}");
        Ok(Tokenizer::from_json(&std::fs::read(file)?)?)
    };
    read().with_context(|| format!("tokenizer {}", file.display()))
}

fn vocab(data: GgufTokenizerData) -> GgufVocab {
    GgufVocab {
        model: data.model,
        pre: data.pre.unwrap_or_default(),
        tokens: data.tokens,
        // Types are small numbers; one that does not fit is none that the tokenizer knows.
        token_types: data.token_types.into_iter().map(|ty| i32::try_from(ty).unwrap_or(0)).collect(),
        merges: data.merges,
        bos: data.bos,
        eos: data.eos,
        eot: data.eot,
        add_bos: data.add_bos,
    }
}
