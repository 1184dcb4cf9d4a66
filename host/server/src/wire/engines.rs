//! One `[engine.NAME]`: weights, memory, a scheduler, and what its model's files say about text.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use backend::Backend;
use backend::load::{LoadOptions, MemoryPlan};
use backend_script::{Script, ScriptBackend};
use engine::{EngineConfig, EngineParts};
use model::{Gguf, GgufTokenizerData};
use prometheus_client::registry::Registry;
use text::{GgufVocab, Tokenizer};

use super::plugins::Plugins;
use super::script;
use crate::progress::Progress;
use crate::settings::EngineSettings;
use crate::source::Source;

/// A started engine, and what its names need to become models.
pub struct WiredEngine {
    pub handle: engine::Handle,
    pub plan: MemoryPlan,
    pub asked: LoadOptions,
    pub files: ModelFiles,
    /// Where the weights came from.
    pub source: String,
    /// What kind of model it is, for people.
    pub family: String,
    /// The scheduler's name; `None`: native first come, first served.
    pub scheduler: Option<String>,
}

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
}

pub fn start(settings: &EngineSettings, plugins: &Plugins, registry: &mut Registry) -> anyhow::Result<WiredEngine> {
    // The scheduler first: a mistake in its name should not cost a minute of loading.
    let policy = match &settings.scheduler {
        Some(word) => {
            Some(plugins.scheduler(word, &settings.scheduler_settings).with_context(|| format!("scheduler `{word}`"))?)
        }
        None => None,
    };
    let asked = load_options(settings);
    let loaded = match &settings.source {
        Source::Script(path) => load_script(path, &asked)?,
        Source::Gguf(path) => load_gguf(path, settings, &asked)?,
        Source::Folder(path) => bail!(
            "{} is a folder; reading safetensors is not supported yet, give a GGUF file of this model",
            path.display()
        ),
    };
    let scheduler = policy.as_ref().map(|policy| policy.name().to_string());
    let parts = EngineParts { backend: loaded.backend, policy, config: engine_config(settings) };
    let handle = engine::start(parts, registry)?;
    let (plan, files, family) = (loaded.plan, loaded.files, loaded.family);
    Ok(WiredEngine { handle, plan, asked, files, source: settings.source.to_string(), family, scheduler })
}

fn load_options(settings: &EngineSettings) -> LoadOptions {
    let defaults = LoadOptions::default();
    LoadOptions {
        seats: settings.max_num_seqs.unwrap_or(defaults.seats),
        max_rows: settings.max_num_batched_tokens.unwrap_or(defaults.max_rows),
        context_len: settings.max_model_len,
        kv_tokens: settings.kv_cache_tokens,
        threads: settings.threads.map(|n| n as usize),
    }
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

fn load_script(path: &Path, asked: &LoadOptions) -> anyhow::Result<LoadedBackend> {
    let script = Arc::new(Script::from_file(path)?);
    let (backend, plan) = ScriptBackend::new(Arc::clone(&script), asked);
    let files = ModelFiles {
        tokenizer: script::tokenizer(&script),
        template: Some(script::TEMPLATE.into()),
        special_tokens: Vec::new(),
        folder: None,
        script: Some(script),
    };
    Ok(LoadedBackend { backend: Box::new(backend), plan, files, family: "scripted model".into() })
}

fn load_gguf(path: &Path, settings: &EngineSettings, asked: &LoadOptions) -> anyhow::Result<LoadedBackend> {
    let loaded = model::load(path)?;
    let gguf = loaded.gguf().context("not a GGUF file")?;
    let files = gguf_files(gguf, path, settings.tokenizer.as_deref())?;
    let vocab = loaded.spec.vocab;
    let tokens = files.tokenizer.vocab_size();
    ensure!(tokens <= vocab, "the tokenizer has {tokens} tokens, the model only {vocab}; they do not belong together");
    let family = loaded.spec.family.clone();
    let mut progress = Progress::new(&settings.name);
    let (backend, plan) = backend_cpu::load(loaded.spec, asked, &mut |done| progress.update(done))?;
    progress.finish();
    Ok(LoadedBackend { backend: Box::new(backend), plan, files, family })
}

fn gguf_files(gguf: &Gguf, path: &Path, tokenizer: Option<&Path>) -> anyhow::Result<ModelFiles> {
    let data = GgufTokenizerData::read(gguf)?;
    let text_of = |id: Option<u32>| id.and_then(|id| data.tokens.get(id as usize).cloned());
    let special = [("bos_token", data.bos), ("eos_token", data.eos), ("pad_token", data.padding)];
    let special_tokens = special.into_iter().filter_map(|(name, id)| Some((name.to_string(), text_of(id)?))).collect();
    let template = data.chat_template.clone();
    let tokenizer = match tokenizer {
        Some(file) => tokenizer_json(file, &data)?,
        None => Tokenizer::from_gguf(vocab(data))?,
    };
    let folder = path.parent().map(Path::to_path_buf);
    Ok(ModelFiles { tokenizer, template, special_tokens, folder, script: None })
}

/// A `tokenizer.json` says how to split text; which tokens begin and end it is in the GGUF file.
fn tokenizer_json(file: &Path, data: &GgufTokenizerData) -> anyhow::Result<Tokenizer> {
    /// The largest vocabularies have files of 35 MB.
    const BYTES_MAX: u64 = 128 << 20;
    let read = || -> anyhow::Result<Tokenizer> {
        let size = std::fs::metadata(file)?.len();
        ensure!(size <= BYTES_MAX, "{size} bytes, the limit is {BYTES_MAX}");
        let tokenizer = Tokenizer::from_json(&std::fs::read(file)?)?;
        Ok(tokenizer.with_special(data.bos, data.eos.into_iter().chain(data.eot).collect()))
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
