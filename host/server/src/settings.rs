//! What was asked: flags laid over the config file, checked, with every name resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use api::ReasoningField;
use backend::load::Quantization;
use backend_cuda::StateType;
use model::dummy::Mix;
use plugin_host::{PublicKey, PublicKeys};
use serde_json::{Map, Value};

use crate::cli::ServeArgs;
use crate::config::{ConfigFile, EngineTable, ModelTable, PluginTable, SamplingTable, ServerTable};
use crate::device::Device;
use crate::hub::{ENDPOINT_DEFAULT, HubSettings};
use crate::oci::OciPlugin;
use crate::source::Source;

/// Only this machine can reach the server unless the operator says otherwise.
const HOST_DEFAULT: &str = "127.0.0.1";
const PORT_DEFAULT: u16 = 8000;
/// The engine of a command line without a config file.
const ENGINE_DEFAULT: &str = "main";
/// Running answers get this long to end after a signal.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// Thousands of answers with their inputs; a server that keeps them in memory has it to spare.
const RESPONSES_MIB_DEFAULT: u32 = 64;

/// The scheduler of an engine that names none: a component like any other.
const SCHEDULER_DEFAULT: &str = "stall-free";
/// The word for first come, first served inside the host, which is also what an engine falls back to.
const SCHEDULER_NATIVE: &str = "native";

/// Everything `serve` needs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub server: ServerSettings,
    pub engines: Vec<EngineSettings>,
    pub models: Vec<ModelSettings>,
    /// By the plugin's name: a bundled name, or the stem of a file's name.
    pub plugins: BTreeMap<String, PluginTable>,
    /// Settings that will have no effect, one sentence each.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub address: SocketAddr,
    pub keys_file: Option<PathBuf>,
    pub require_digest: bool,
    pub require_signature: bool,
    pub plugin_keys: PublicKeys,
    /// `None`: the plugin host's default.
    pub compile_timeout: Option<Duration>,
    pub plugin_cache: Option<PathBuf>,
    pub plugins_dir: Option<PathBuf>,
    pub registry_logins: Option<PathBuf>,
    pub component_mib_max: Option<u32>,
    pub strict_fields: bool,
    pub body_mib_max: Option<u32>,
    pub sequences_max: Option<u32>,
    /// `None`: the API's default; empty: no origin.
    pub cors_origin: Option<String>,
    pub shutdown_grace: Duration,
    /// `None`: the API's default.
    pub keep_alive: Option<Duration>,
    pub responses_file: Option<PathBuf>,
    pub responses_mib_max: u32,
}

#[derive(Clone, Debug)]
pub struct EngineSettings {
    pub name: String,
    pub source: Source,
    /// Where a model of a hub comes from.
    pub hub: HubSettings,
    pub device: Device,
    /// Random weights instead of the model's.
    pub dummy: bool,
    /// `None`: the backend's own share.
    pub gpu_memory_utilization: Option<f32>,
    pub enforce_eager: bool,
    pub batch_invariant: bool,
    pub state_type: StateType,
    pub quantization: Option<Quantization>,
    /// Formats of dummy weights; `None`: bf16.
    pub dummy_mix: Option<Mix>,
    /// Kernels are compiled as for this compute capability times ten.
    pub cuda_arch: Option<u32>,
    pub scheduler: Option<String>,
    pub scheduler_settings: Map<String, Value>,
    /// Where the scheduler's calls are recorded.
    pub scheduler_trace: Option<PathBuf>,
    pub max_model_len: Option<u32>,
    pub max_num_seqs: Option<u16>,
    pub max_num_batched_tokens: Option<u32>,
    pub kv_cache_tokens: Option<u32>,
    pub max_num_queued_reqs: Option<u32>,
    pub threads: Option<u32>,
    pub tokenizer: Option<PathBuf>,
    pub prefix_caching: bool,
    pub step_target_ms: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct ModelSettings {
    pub name: String,
    /// Index into [`Settings::engines`].
    pub engine: usize,
    /// The chain of output stages.
    pub output: Vec<String>,
    /// No chain was named, not even an empty one: the model's template decides.
    pub choose_output: bool,
    pub chat_template: Option<String>,
    pub template_kwargs: Map<String, Value>,
    pub generation_config: GenerationConfig,
    pub sampling: SamplingTable,
    pub reasoning_field: ReasoningField,
    pub max_model_len: Option<u32>,
}

/// Where sampling defaults come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenerationConfig {
    /// `generation_config.json` beside the model, when there is one.
    Auto,
    None,
    File(PathBuf),
}

impl Settings {
    /// Joins flags and config file. `config` is the path from the environment; the flag wins.
    pub fn gather(args: &ServeArgs, config: Option<&Path>) -> anyhow::Result<Self> {
        let mut file = match args.config.as_deref().or(config) {
            Some(path) => ConfigFile::read(path)?,
            None => ConfigFile::default(),
        };
        lay_engine_flags(args, &mut file)?;
        let mut warnings = Vec::new();
        let server = read_server(&args.server, &file.server)?;
        let hub = read_hub(&file.server);
        let engines = file.engine.iter().map(|(name, table)| read_engine(name, table, &hub, &mut warnings));
        let engines = engines.collect::<anyhow::Result<Vec<_>>>()?;
        lay_model_flags(args, &mut file, &engines)?;
        let models = file.model.iter().map(|table| read_model(table, &engines));
        let models = models.collect::<anyhow::Result<Vec<_>>>()?;
        for (name, component) in file.plugin.iter().filter_map(|(name, table)| Some((name, table.component.as_ref()?)))
        {
            let known = component.ends_with(".wasm") || OciPlugin::parse(component).is_ok();
            ensure!(
                known,
                "plugin.{name}.component is `{component}`; a FILE.wasm or oci://HOST/REPOSITORY@sha256:DIGEST is needed"
            );
        }
        let mut settings = Self { server, engines, models, plugins: file.plugin, warnings };
        settings.warn_about_unused();
        Ok(settings)
    }

    fn warn_about_unused(&mut self) {
        for (i, engine) in self.engines.iter().enumerate() {
            if self.models.iter().all(|model| model.engine != i) {
                self.warnings.push(format!("engine `{}` is loaded, but no [[model]] uses it", engine.name));
            }
            let native = engine.scheduler.is_none();
            let without_effect = [
                (native && !engine.scheduler_settings.is_empty(), "scheduler_settings have"),
                (native && engine.scheduler_trace.is_some(), "scheduler_trace has"),
            ];
            for (_, what) in without_effect.iter().filter(|(applies, _)| *applies) {
                let name = &engine.name;
                self.warnings.push(format!("engine `{name}`: {what} no effect on the native scheduler"));
            }
        }
        let used = self.plugin_words().map(plugin_name).collect::<BTreeSet<_>>();
        for name in self.plugins.keys().filter(|name| !used.contains(*name)) {
            self.warnings.push(format!("[plugin.{name}] has no effect: no engine or model uses a plugin of that name"));
        }
    }

    /// Every plugin that is named, as it is named.
    fn plugin_words(&self) -> impl Iterator<Item = &str> {
        let schedulers = self.engines.iter().filter_map(|engine| engine.scheduler.as_deref());
        let stages = self.models.iter().flat_map(|model| model.output.iter().map(String::as_str));
        let templates = self.models.iter().filter_map(|model| model.chat_template.as_deref());
        // Templates without a plugin of their own run in this one.
        schedulers.chain(stages).chain(templates).chain([crate::wire::TEMPLATE_PLUGIN])
    }
}

/// The name of a plugin in `[plugin.NAME]`: itself, or the stem of its file.
pub fn plugin_name(word: &str) -> String {
    match word.strip_suffix(".wasm") {
        Some(path) => Path::new(path).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        None => word.to_string(),
    }
}

/// Flags of an engine go to the only engine there is, or make one.
fn lay_engine_flags(args: &ServeArgs, file: &mut ConfigFile) -> anyhow::Result<()> {
    let source = args.model.clone().or_else(|| args.source.clone());
    let mut flags = args.engine.clone();
    flags.source = source;
    if args.no_enable_prefix_caching {
        flags.enable_prefix_caching = Some(false);
    }
    if flags == EngineTable::default() {
        ensure!(
            !file.engine.is_empty(),
            "no model to serve: give one, as in `tokenloom serve MODEL`, or --config FILE"
        );
        return Ok(());
    }
    if file.engine.is_empty() {
        file.engine.insert(ENGINE_DEFAULT.into(), EngineTable::default());
    }
    let names = file.engine.keys().cloned().collect::<Vec<_>>().join("`, `");
    let mut engines = file.engine.values_mut();
    let (Some(engine), None) = (engines.next(), engines.next()) else {
        bail!("engine flags are not clear with several engines (`{names}`): put them into their [engine.NAME] tables");
    };
    macro_rules! lay { ($($field:ident)*) => { $( if flags.$field.is_some() { engine.$field = flags.$field; } )* } }
    lay!(source device scheduler scheduler_trace max_model_len max_num_seqs max_num_batched_tokens kv_cache_tokens max_num_queued_reqs
         threads gpu_memory_utilization enforce_eager batch_invariant cuda_arch kv_cache_dtype mamba_ssm_cache_dtype quantization load_format tokenizer enable_prefix_caching);
    Ok(())
}

/// Flags of a model go to the only model there is, or make one.
fn lay_model_flags(args: &ServeArgs, file: &mut ConfigFile, engines: &[EngineSettings]) -> anyhow::Result<()> {
    let chain = chain_of(args);
    let any = chain.is_some()
        || args.chat_template.is_some()
        || !args.served_model_name.is_empty()
        || args.generation_config.is_some()
        || args.reasoning_field.is_some();
    if file.model.is_empty() {
        let [engine] = engines else {
            bail!("{} engines and no [[model]]: say which names clients use, and over which engine", engines.len());
        };
        let name = engine.source.default_name();
        file.model.push(ModelTable { name, engine: Some(engine.name.clone()), ..Default::default() });
    }
    if !any {
        return Ok(());
    }
    let [model] = file.model.as_mut_slice() else {
        bail!("model flags are not clear with {} [[model]] tables: put them into their tables", file.model.len());
    };
    if let Some(chain) = chain {
        model.output = Some(chain);
    }
    macro_rules! lay { ($($field:ident)*) => { $( if args.$field.is_some() { model.$field = args.$field.clone(); } )* } }
    lay!(chat_template generation_config reasoning_field);
    if let Some((first, others)) = args.served_model_name.split_first() {
        model.name = first.clone();
        let more = others.iter().map(|name| ModelTable { name: name.clone(), ..model.clone() }).collect::<Vec<_>>();
        file.model.extend(more);
    }
    Ok(())
}

/// `--reasoning-parser X --tool-call-parser Y` is a chain of two; two equal names mean one stage.
fn chain_of(args: &ServeArgs) -> Option<Vec<String>> {
    let mut chain = args.output_stage.clone();
    chain.extend([&args.reasoning_parser, &args.tool_call_parser].into_iter().flatten().cloned());
    chain.dedup();
    (!chain.is_empty()).then_some(chain)
}

fn read_server(flags: &ServerTable, table: &ServerTable) -> anyhow::Result<ServerSettings> {
    let host = flags.host.as_deref().or(table.host.as_deref()).unwrap_or(HOST_DEFAULT);
    let port = flags.port.or(table.port).unwrap_or(PORT_DEFAULT);
    let address = match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port),
        Err(_) => {
            let mut found = (host, port).to_socket_addrs().with_context(|| format!("--host `{host}`"))?;
            found.next().with_context(|| format!("--host `{host}` has no address"))?
        }
    };
    let plugin_cache = match &table.plugin_cache {
        Some(path) if path.as_os_str().is_empty() => None,
        Some(path) => Some(path.clone()),
        None => crate::env::plugin_cache_default(),
    };
    check("server.component_mib_max", table.component_mib_max, 1, 64)?;
    check("server.compile_timeout_s", table.compile_timeout_s, 1, 3600)?;
    check("server.body_mib_max", table.body_mib_max, 1, 1024)?;
    check("server.sequences_max", table.sequences_max, 1, 1_000_000)?;
    check("server.shutdown_grace_s", table.shutdown_grace_s, 0, 3600)?;
    check("server.keep_alive_s", table.keep_alive_s, 1, 3600)?;
    check("server.responses_mib_max", table.responses_mib_max, 1, 1 << 20)?;
    Ok(ServerSettings {
        address,
        keys_file: flags.keys_file.clone().or_else(|| table.keys_file.clone()),
        require_digest: table.require_digest.unwrap_or(false),
        require_signature: table.require_signature.unwrap_or(false),
        plugin_keys: read_plugin_keys(table)?,
        compile_timeout: table.compile_timeout_s.map(|s| Duration::from_secs(s.into())),
        plugin_cache,
        plugins_dir: table.plugins_dir.clone(),
        registry_logins: table.registry_logins.clone(),
        component_mib_max: table.component_mib_max,
        strict_fields: table.strict_fields.unwrap_or(false),
        body_mib_max: table.body_mib_max,
        sequences_max: table.sequences_max,
        cors_origin: table.cors_origin.clone(),
        shutdown_grace: table.shutdown_grace_s.map_or(SHUTDOWN_GRACE, |s| Duration::from_secs(s.into())),
        keep_alive: table.keep_alive_s.map(|s| Duration::from_secs(s.into())),
        responses_file: table.responses_file.clone().filter(|path| !path.as_os_str().is_empty()),
        responses_mib_max: table.responses_mib_max.unwrap_or(RESPONSES_MIB_DEFAULT),
    })
}

fn read_plugin_keys(table: &ServerTable) -> anyhow::Result<PublicKeys> {
    let named = table.plugin_keys.iter().flatten().map(|(name, text)| {
        let key = PublicKey::parse(text).with_context(|| {
            format!("server.plugin_keys.{name} is `{text}`; 64 lower-case hex digits are needed, as `tokenloom plugin keygen` prints them")
        })?;
        Ok((name.clone(), key))
    });
    let keys = named.collect::<anyhow::Result<PublicKeys>>()?;
    ensure!(
        !(keys.is_empty() && table.require_signature == Some(true)),
        "server.require_signature is true and there is no key: put the signers' public keys into [server.plugin_keys]"
    );
    Ok(keys)
}

/// The file's word on the hub; what it leaves out is as other programs of the hub have it.
fn read_hub(table: &ServerTable) -> HubSettings {
    let known = crate::env::hub();
    HubSettings {
        endpoint: table.hub_endpoint.clone().or(known.endpoint).unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned()),
        cache: table.hub_cache.clone().or(known.cache),
        token: known.token,
    }
}

fn read_engine(
    name: &str,
    table: &EngineTable,
    hub: &HubSettings,
    warnings: &mut Vec<String>,
) -> anyhow::Result<EngineSettings> {
    let read = || -> anyhow::Result<EngineSettings> {
        let source = table
            .source
            .as_deref()
            .context("`source` is missing: a GGUF file, a folder, hf:ORG/NAME or script:FILE.json")?;
        check("max_model_len", table.max_model_len, 1, 1 << 30)?;
        check("max_num_seqs", table.max_num_seqs.map(u32::from), 1, 4096)?;
        check("max_num_batched_tokens", table.max_num_batched_tokens, 1, 65_536)?;
        check("kv_cache_tokens", table.kv_cache_tokens, 1, 1 << 30)?;
        check("max_num_queued_reqs", table.max_num_queued_reqs, 0, 1_000_000)?;
        check("threads", table.threads, 1, 1024)?;
        check("step_target_ms", table.step_target_ms, 1, 60_000)?;
        let source = Source::parse(source)?;
        let device = Device::parse(table.device.as_deref().unwrap_or("cpu"))?;
        check_weights(table, &source)?;
        Ok(EngineSettings {
            name: name.to_string(),
            source,
            hub: hub.clone(),
            device,
            dummy: table.load_format.as_deref() == Some("dummy"),
            gpu_memory_utilization: table.gpu_memory_utilization,
            enforce_eager: table.enforce_eager.unwrap_or(false),
            batch_invariant: table.batch_invariant.unwrap_or(false),
            state_type: read_state_type(table)?,
            quantization: read_quantization(table, device)?,
            dummy_mix: dummy_mix(table),
            cuda_arch: table.cuda_arch,
            scheduler: match table.scheduler.as_deref().unwrap_or(SCHEDULER_DEFAULT) {
                SCHEDULER_NATIVE => None,
                word => Some(word.to_string()),
            },
            scheduler_settings: json_object(table.scheduler_settings.as_ref())?,
            scheduler_trace: table.scheduler_trace.clone(),
            max_model_len: table.max_model_len,
            max_num_seqs: table.max_num_seqs,
            max_num_batched_tokens: table.max_num_batched_tokens,
            kv_cache_tokens: table.kv_cache_tokens,
            max_num_queued_reqs: table.max_num_queued_reqs,
            threads: table.threads,
            tokenizer: table.tokenizer.clone(),
            prefix_caching: table.enable_prefix_caching.unwrap_or(true),
            step_target_ms: table.step_target_ms,
        })
    };
    let settings = read().with_context(|| format!("engine `{name}`"))?;
    let scripted = matches!(settings.source, Source::Script(_));
    let without_effect = [
        (
            table.gpu_memory_utilization.is_some() && settings.device == Device::Cpu,
            "gpu_memory_utilization",
            "on the CPU",
        ),
        (table.enforce_eager.is_some() && settings.device == Device::Cpu, "enforce_eager", "on the CPU"),
        (
            table.batch_invariant.is_some() && settings.device == Device::Cpu,
            "batch_invariant",
            "on the CPU, where no text depends on its company",
        ),
        (table.cuda_arch.is_some() && settings.device == Device::Cpu, "cuda_arch", "on the CPU"),
        (
            settings.state_type != StateType::F32 && settings.device == Device::Cpu,
            "mamba_ssm_cache_dtype",
            "on the CPU, where states are float32",
        ),
        (table.threads.is_some() && settings.device != Device::Cpu, "threads", "on a GPU"),
        (table.threads.is_some() && scripted, "threads", "on a scripted model"),
        (table.tokenizer.is_some() && scripted, "tokenizer", "on a scripted model, which brings its own"),
    ];
    let without_effect = without_effect.iter().filter(|(applies, ..)| *applies);
    warnings.extend(without_effect.map(|(_, key, place)| format!("engine `{name}`: {key} has no effect {place}")));
    Ok(settings)
}

/// What is asked of the weights, against what can be done with them.
fn check_weights(table: &EngineTable, source: &Source) -> anyhow::Result<()> {
    match table.kv_cache_dtype.as_deref() {
        None | Some("auto") => {}
        Some(dtype) => bail!("kv_cache_dtype `{dtype}`: only `auto` is known"),
    }
    match table.load_format.as_deref() {
        None | Some("auto") => {}
        Some("dummy") if matches!(source, Source::Folder(_) | Source::Hub(_)) => {}
        Some("dummy") => bail!("load_format `dummy` needs a folder with a config.json, and {source} is none"),
        Some(format) => bail!("load_format `{format}` is not one of auto, dummy"),
    }
    if let Some(share) = table.gpu_memory_utilization {
        ensure!(share > 0.0 && share <= 1.0, "gpu_memory_utilization {share} is not above 0 and at most 1");
    }
    Ok(())
}

fn read_state_type(table: &EngineTable) -> anyhow::Result<StateType> {
    match table.mamba_ssm_cache_dtype.as_deref() {
        None | Some("auto" | "float32") => Ok(StateType::F32),
        Some("bfloat16") => Ok(StateType::Bf16),
        Some(dtype) => bail!("mamba_ssm_cache_dtype `{dtype}` is not one of auto, float32, bfloat16"),
    }
}

fn read_quantization(table: &EngineTable, device: Device) -> anyhow::Result<Option<Quantization>> {
    match (table.quantization.as_deref(), device) {
        (None, _) => Ok(None),
        (Some("fp8"), Device::Cuda(_)) => Ok(Some(Quantization::Fp8)),
        (Some("fp8"), Device::Cpu) => {
            bail!("quantization `fp8` is for `--device cuda`; on the CPU use a quantised GGUF file")
        }
        (Some(_), _) if dummy_mix(table).is_some() => Ok(None),
        (Some(other), _) => bail!(
            "quantization `{other}` is not one of fp8, or, of random weights (load_format `dummy`), {}; quantised GGUF files \
             need no flag",
            Mix::names()
        ),
    }
}

/// The GGUF formats that random weights are asked for in.
fn dummy_mix(table: &EngineTable) -> Option<Mix> {
    let dummy = table.load_format.as_deref() == Some("dummy");
    table.quantization.as_deref().filter(|_| dummy).and_then(Mix::named)
}

fn read_model(table: &ModelTable, engines: &[EngineSettings]) -> anyhow::Result<ModelSettings> {
    let read = || -> anyhow::Result<ModelSettings> {
        ensure!(!table.name.is_empty(), "`name` is empty");
        let engine = match &table.engine {
            None if engines.len() == 1 => 0,
            None => bail!("`engine` is missing, and there are {} engines", engines.len()),
            Some(name) => engines.iter().position(|engine| engine.name == *name).with_context(|| {
                let known = engines.iter().map(|engine| engine.name.as_str()).collect::<Vec<_>>().join("`, `");
                format!("engine `{name}` is not configured; there are `{known}`")
            })?,
        };
        check("max_model_len", table.max_model_len, 1, 1 << 30)?;
        let reasoning_field = match table.reasoning_field.as_deref() {
            None => ReasoningField::default(),
            Some("reasoning") => ReasoningField::Reasoning,
            Some("reasoning_content") => ReasoningField::ReasoningContent,
            Some("both") => ReasoningField::Both,
            Some(other) => bail!("reasoning_field `{other}` is not one of reasoning, reasoning_content, both"),
        };
        let mut output = table.output.clone().unwrap_or_default();
        output.dedup();
        Ok(ModelSettings {
            name: table.name.clone(),
            engine,
            output,
            choose_output: table.output.is_none(),
            chat_template: table.chat_template.clone(),
            template_kwargs: json_object(table.template_kwargs.as_ref())?,
            generation_config: match table.generation_config.as_deref() {
                None | Some("auto") => GenerationConfig::Auto,
                // `vllm` is vLLM's word for its own neutral defaults.
                Some("none" | "vllm") => GenerationConfig::None,
                Some(file) => GenerationConfig::File(file.into()),
            },
            sampling: table.sampling.clone().unwrap_or_default(),
            reasoning_field,
            max_model_len: table.max_model_len,
        })
    };
    read().with_context(|| format!("model `{}`", table.name))
}

fn check(key: &str, value: Option<u32>, min: u32, max: u32) -> anyhow::Result<()> {
    if let Some(value) = value {
        ensure!((min..=max).contains(&value), "{key} is {value}; it must be in {min}..={max}");
    }
    Ok(())
}

fn json_object(table: Option<&toml::Table>) -> anyhow::Result<Map<String, Value>> {
    let Some(table) = table else { return Ok(Map::new()) };
    match serde_json::to_value(table)? {
        Value::Object(object) => Ok(object),
        _ => Ok(Map::new()),
    }
}

#[cfg(test)]
mod tests;
