//! The config file as it is written: TOML, every unknown key an error. `docs/configuration.md` explains each key.
//!
//! Tables that have flags too are read by both: one field is the flag and the key, so neither can lag behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use clap::value_parser;
use plugin_host::{Capability, LimitOverrides};
use serde::Deserialize;

use crate::oci::OciPlugin;

/// A config is a page of text; a larger file is a mistake.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest context that may be asked for; positions are 32-bit and pages are counted in them.
const TOKENS_MAX: i64 = 1 << 30;
/// A step of more rows would keep every stream waiting for seconds on any device.
const ROWS_MAX: i64 = 65_536;
/// Seats have 16-bit numbers; thousands of running sequences are beyond any one device.
const SEATS_MAX: i64 = 4096;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    #[serde(default)]
    pub server: ServerTable,
    #[serde(default)]
    pub engine: BTreeMap<String, EngineTable>,
    #[serde(default)]
    pub model: Vec<ModelTable>,
    #[serde(default)]
    pub plugin: BTreeMap<String, PluginTable>,
}

/// `[server]`, and the flags of the whole server.
#[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerTable {
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<String>,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub port: Option<u16>,
    /// API keys: a TOML file of [[key]] tables with sha256, tenant and weight.
    #[arg(long = "api-key-file", value_name = "FILE.toml")]
    pub keys_file: Option<PathBuf>,
    #[arg(skip)]
    pub require_digest: Option<bool>,
    /// Refuse plugin files that no key of `plugin_keys` has signed.
    #[arg(skip)]
    pub require_signature: Option<bool>,
    /// Public keys of those whose plugins are trusted, by any name.
    #[arg(skip)]
    pub plugin_keys: Option<BTreeMap<String, String>>,
    /// Time in which a plugin must be compiled.
    #[arg(skip)]
    pub compile_timeout_s: Option<u32>,
    /// Folder for compiled plugins; an empty path keeps none.
    #[arg(skip)]
    pub plugin_cache: Option<PathBuf>,
    /// Folder of components that may be exchanged while serving.
    #[arg(skip)]
    pub plugins_dir: Option<PathBuf>,
    /// Logins for registries, as container tools write them.
    #[arg(skip)]
    pub registry_logins: Option<PathBuf>,
    #[arg(skip)]
    pub component_mib_max: Option<u32>,
    #[arg(skip)]
    pub strict_fields: Option<bool>,
    #[arg(skip)]
    pub body_mib_max: Option<u32>,
    #[arg(skip)]
    pub sequences_max: Option<u32>,
    /// Where `hf:` models are fetched from.
    #[arg(skip)]
    pub hub_endpoint: Option<String>,
    /// Folder for fetched models.
    #[arg(skip)]
    pub hub_cache: Option<PathBuf>,
    /// Origin whose pages may read answers in a browser; an empty text allows none.
    #[arg(skip)]
    pub cors_origin: Option<String>,
    #[arg(skip)]
    pub shutdown_grace_s: Option<u32>,
    #[arg(skip)]
    pub keep_alive_s: Option<u32>,
    /// File of kept responses; without one they are kept in memory.
    #[arg(skip)]
    pub responses_file: Option<PathBuf>,
    #[arg(skip)]
    pub responses_mib_max: Option<u32>,
}

/// `[engine.NAME]`, and the flags of one engine.
#[derive(Clone, Debug, Default, PartialEq, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineTable {
    #[arg(skip)]
    pub source: Option<String>,
    /// Where the model runs.
    #[arg(long, value_name = "cpu|cuda|cuda:N")]
    pub device: Option<String>,
    /// Scheduling policy: a scheduler plugin, or `native` for first come, first served inside the host.
    #[arg(long, value_name = "NAME|FILE.wasm")]
    pub scheduler: Option<String>,
    #[arg(skip)]
    pub scheduler_settings: Option<toml::Table>,
    /// Write every call of the scheduler to this file, for `tokenloom plugin replay`.
    #[arg(long, value_name = "FILE")]
    pub scheduler_trace: Option<PathBuf>,
    /// Longest sequence, prompt and output together, in tokens.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..=TOKENS_MAX))]
    pub max_model_len: Option<u32>,
    /// Sequences that run at the same time.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u16).range(1..=SEATS_MAX))]
    pub max_num_seqs: Option<u16>,
    /// Token rows in one step.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..=ROWS_MAX))]
    pub max_num_batched_tokens: Option<u32>,
    /// Tokens in the KV pool.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..=TOKENS_MAX))]
    pub kv_cache_tokens: Option<u32>,
    /// Requests that may wait for a seat; one more is answered with 429.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(0..=1_000_000))]
    pub max_num_queued_reqs: Option<u32>,
    /// Worker threads of the CPU backend.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Share of a GPU's memory for weights, workspace and KV pool; the CPU backend has no use for it.
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub gpu_memory_utilization: Option<f32>,
    /// Run every step on a GPU launch by launch, without captured graphs: for finding faults.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enforce_eager: Option<bool>,
    /// A text on a GPU does not depend on what else was computed beside it; many rows take several times as long.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub batch_invariant: Option<bool>,
    /// Compile kernels as for an older card (70, 75, 80, 89): for checking their code paths.
    #[arg(long, value_name = "CC", allow_negative_numbers = true, value_parser = value_parser!(u32).range(70..=120))]
    pub cuda_arch: Option<u32>,
    /// Type of cached keys and values; `auto` is what the backend does best.
    #[arg(long, value_name = "T")]
    pub kv_cache_dtype: Option<String>,
    /// Type of a hybrid's recurrent states between steps on CUDA: `float32` (`auto`), or `bfloat16`, half the bytes.
    #[arg(long, value_name = "T")]
    pub mamba_ssm_cache_dtype: Option<String>,
    /// Quantise the weights at load: `fp8`, on CUDA. GGUF files and FP8 checkpoints bring their own.
    #[arg(long, value_name = "fp8")]
    pub quantization: Option<String>,
    /// `auto` reads the weights, `dummy` makes them up.
    #[arg(long, value_name = "auto|dummy")]
    pub load_format: Option<String>,
    /// A tokenizer.json to use instead of the model's own.
    #[arg(long, value_name = "FILE.json")]
    pub tokenizer: Option<PathBuf>,
    #[arg(skip)]
    pub enable_prefix_caching: Option<bool>,
    /// Wanted time of a step that mixes prompts and answers, in milliseconds.
    #[arg(skip)]
    pub step_target_ms: Option<u32>,
}

/// `[[model]]`: a name clients use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTable {
    pub name: String,
    pub engine: Option<String>,
    pub output: Option<Vec<String>>,
    pub chat_template: Option<String>,
    pub template_kwargs: Option<toml::Table>,
    pub generation_config: Option<String>,
    pub sampling: Option<SamplingTable>,
    pub reasoning_field: Option<String>,
    pub max_model_len: Option<u32>,
}

/// Sampling defaults; what is left out is the generation config's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingTable {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
}

/// `[plugin.NAME]`: the operator's word on one plugin.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginTable {
    #[serde(default)]
    pub grant: Vec<Capability>,
    /// Where the plugin of this name is: a file, or a reference to a registry.
    pub component: Option<String>,
    pub sha256: Option<String>,
    #[serde(default)]
    pub settings: toml::Table,
    #[serde(default)]
    pub limits: LimitOverrides,
}

impl ConfigFile {
    /// Reads a file. Paths in it are relative to its folder.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let read = || -> anyhow::Result<Self> {
            let size = std::fs::metadata(path)?.len();
            ensure!(size <= FILE_BYTES_MAX, "{size} bytes, the limit is {FILE_BYTES_MAX}");
            let mut config: Self = toml::from_str(&std::fs::read_to_string(path)?)?;
            config.rebase(path.parent().unwrap_or(Path::new("")));
            Ok(config)
        };
        read().with_context(|| format!("config file {}", path.display()))
    }

    fn rebase(&mut self, base: &Path) {
        let server = &mut self.server;
        let paths = [
            &mut server.keys_file,
            &mut server.plugin_cache,
            &mut server.plugins_dir,
            &mut server.registry_logins,
            &mut server.hub_cache,
        ];
        for path in paths {
            if let Some(path) = path.as_mut().filter(|path| !path.as_os_str().is_empty()) {
                *path = base.join(&path);
            }
        }
        for engine in self.engine.values_mut() {
            if let Some(source) = &mut engine.source {
                *source = crate::source::rebase(base, source);
            }
            for path in [&mut engine.tokenizer, &mut engine.scheduler_trace].into_iter().flatten() {
                *path = base.join(&path);
            }
            if let Some(name) = &mut engine.scheduler {
                *name = rebase_file(base, name);
            }
        }
        for component in self.plugin.values_mut().filter_map(|table| table.component.as_mut()) {
            if !OciPlugin::is_reference(component) {
                *component = rebase_file(base, component);
            }
        }
        for model in &mut self.model {
            for name in model.output.iter_mut().flatten().chain(&mut model.chat_template) {
                *name = rebase_file(base, name);
            }
            if let Some(name) = &mut model.generation_config {
                *name = rebase_file(base, name);
            }
        }
    }
}

/// Plugins and templates are names, or files by their ending.
fn rebase_file(base: &Path, name: &str) -> String {
    let is_file = [".wasm", ".jinja", ".json"].iter().any(|ending| name.ends_with(ending));
    if is_file { base.join(name).display().to_string() } else { name.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<ConfigFile> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("tokenloom.toml");
        std::fs::write(&path, text)?;
        ConfigFile::read(&path)
    }

    #[test]
    fn the_documented_example_is_read() {
        let config = read(
            r#"
            [server]
            host = "127.0.0.1"
            port = 8000
            keys_file = "keys.toml"
            require_digest = true
            [engine.main]
            source = "models/m.gguf"
            scheduler = "stall-free"
            [engine.main.scheduler_settings]
            itl_target_ms = 30
            [[model]]
            name = "qwen"
            engine = "main"
            output = ["qwen3", "parsers/mine.wasm"]
            [plugin.mine]
            grant = ["log"]
            [plugin.mine.limits]
            memory_mib = 32
            "#,
        )
        .unwrap();
        let source = config.engine["main"].source.clone().unwrap();
        assert!(source.ends_with("models/m.gguf") && Path::new(&source).is_absolute(), "{source}");
        let output = config.model[0].output.clone().unwrap();
        assert_eq!(output[0], "qwen3");
        assert!(output[1].ends_with("parsers/mine.wasm") && Path::new(&output[1]).is_absolute());
    }

    #[test]
    fn mistakes_name_the_key_and_the_file() {
        for (text, needle) in [
            ("[server]\nprot = 1", "unknown field `prot`"),
            ("[engine.a]\nsorce = \"x\"", "unknown field `sorce`"),
            ("[[model]]\nname = \"a\"\nparser = \"x\"", "unknown field `parser`"),
            ("[plugin.a]\ngrants = []", "unknown field `grants`"),
            ("[engine.a]\nmax_num_seqs = -1", "max_num_seqs"),
            ("[plugin.a]\ngrant = [\"files\"]", "unknown variant `files`"),
            ("[server", "TOML parse error"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(needle) && error.contains("tokenloom.toml"), "{text}: {error}");
        }
    }
}
