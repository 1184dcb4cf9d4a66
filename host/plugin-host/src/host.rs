//! [`PluginHost`]: one per process, loads plugins and knows how they fare.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use contract::output::OutputStage;
use contract::policy::SchedulePolicy;
use contract::template::ChatTemplate;
use prometheus_client::registry::Registry;
use wasmtime::component::{Component, InstancePre};

use crate::bindings::{output::OutputPluginPre, scheduler::SchedulerPluginPre, template::TemplatePluginPre};
use crate::cache::Cache;
use crate::clean::clean;
use crate::config::{COMPONENT_BYTES_MAX, Grants, HostConfig, PluginSource, TemplateModel};
use crate::digest::{Sha, hex};
use crate::engine::Engines;
use crate::error::PluginLoadError;
use crate::inspect::{self, Inspection};
use crate::limits::Limits;
use crate::load::{Artifact, Surface, check_exports, check_imports, compile, link};
use crate::manifest::{FailurePolicy, Kind, Manifest};
use crate::metrics::{Families, Meters};
use crate::plugin::Plugin;
use crate::sandbox::StoreData;
use crate::scheduler::WasmPolicy;
use crate::settings;
use crate::stage::WasmStage;
use crate::status::PluginStatus;
use crate::template::WasmTemplate;

/// Loads plugins. What it loaded goes on working after it is dropped.
pub struct PluginHost {
    config: HostConfig,
    engines: Arc<Engines>,
    families: Families,
    cache: Option<Cache>,
    /// Compiled components of this process by digest and engine, so that two models with the same parser share code.
    compiled: Mutex<HashMap<(Sha, bool), Component>>,
    plugins: Mutex<Vec<Weak<Plugin>>>,
    serials: AtomicU64,
}

/// A server has a handful of plugins; a long-lived one that swaps them must not keep all code for ever.
const COMPILED_MAX: usize = 32;

/// A plugin that may be instantiated.
#[derive(Clone)]
struct Ready {
    plugin: Arc<Plugin>,
    pre: InstancePre<StoreData>,
    /// Whether the component's own name is to be held against the manifest's.
    has_manifest: bool,
}

/// A scheduler that was read once: its policies do not depend on what becomes of its file.
#[derive(Clone)]
pub struct SchedulerPlugin(Ready);

impl PluginHost {
    /// Starts the deadline ticker and registers the plugin metrics.
    pub fn new(config: HostConfig, registry: &mut Registry) -> Result<Self, PluginLoadError> {
        if config.component_bytes_max > COMPONENT_BYTES_MAX {
            let message = format!(
                "a component may have at most {} MiB, {} were asked for",
                COMPONENT_BYTES_MAX >> 20,
                config.component_bytes_max >> 20
            );
            return Err(PluginLoadError::Host { message });
        }
        let cache = config.cache_dir.as_deref().and_then(|dir| match Cache::open(dir) {
            Ok(cache) => Some(cache),
            Err(e) => {
                tracing::warn!("no cache of compiled plugins in {}: {e}; each start compiles them", dir.display());
                None
            }
        });
        Ok(Self {
            engines: Arc::new(Engines::start(config.tick)?),
            families: Families::register(registry),
            cache,
            compiled: Mutex::new(HashMap::new()),
            plugins: Mutex::new(Vec::new()),
            serials: AtomicU64::new(0),
            config,
        })
    }

    /// Loads an output stage. `settings_json` is the operator's object, laid over the manifest's defaults.
    pub fn load_stage(
        &self,
        source: &PluginSource,
        grant: &Grants,
        settings_json: Option<&str>,
    ) -> Result<Arc<dyn OutputStage>, PluginLoadError> {
        let ready = self.ready(source, Kind::Output, grant, settings_json)?;
        let pre = OutputPluginPre::new(ready.pre).map_err(|e| signature(&ready.plugin.name, &e))?;
        let stage = WasmStage::load(ready.plugin.clone(), pre, self.config.configure_timeout, ready.has_manifest)?;
        self.loaded(&ready.plugin);
        Ok(Arc::new(stage))
    }

    /// Loads a chat template for one model.
    pub fn load_template(
        &self,
        source: &PluginSource,
        grant: &Grants,
        settings_json: Option<&str>,
        model: &TemplateModel,
    ) -> Result<Arc<dyn ChatTemplate>, PluginLoadError> {
        let ready = self.ready(source, Kind::Template, grant, settings_json)?;
        let pre = TemplatePluginPre::new(ready.pre).map_err(|e| signature(&ready.plugin.name, &e))?;
        let template =
            WasmTemplate::load(ready.plugin.clone(), pre, model, self.config.configure_timeout, ready.has_manifest)?;
        self.loaded(&ready.plugin);
        Ok(Arc::new(template))
    }

    /// Loads a scheduler. The policy belongs to one engine; its first call must be `resync`.
    pub fn load_scheduler(
        &self,
        source: &PluginSource,
        grant: &Grants,
        settings_json: Option<&str>,
    ) -> Result<Box<dyn SchedulePolicy>, PluginLoadError> {
        self.policy(&self.scheduler(source, grant, settings_json)?)
    }

    /// Reads, checks and compiles a scheduler, of which [`PluginHost::policy`] makes policies.
    pub fn scheduler(
        &self,
        source: &PluginSource,
        grant: &Grants,
        settings_json: Option<&str>,
    ) -> Result<SchedulerPlugin, PluginLoadError> {
        Ok(SchedulerPlugin(self.ready(source, Kind::Scheduler, grant, settings_json)?))
    }

    /// A policy with figures of its own.
    pub fn policy(&self, scheduler: &SchedulerPlugin) -> Result<Box<dyn SchedulePolicy>, PluginLoadError> {
        let Ready { plugin, pre, has_manifest } = scheduler.0.clone();
        let meters = Arc::new(Meters::new(&self.families, &plugin.name));
        let plugin = Arc::new(Plugin { serial: self.serial(), meters, ..Plugin::clone(&plugin) });
        let pre = SchedulerPluginPre::new(pre).map_err(|e| signature(&plugin.name, &e))?;
        let policy = WasmPolicy::load(plugin.clone(), pre, self.config.configure_timeout, has_manifest)?;
        self.loaded(&plugin);
        Ok(Box::new(policy))
    }

    /// Reads what a component is, without running any of it.
    pub fn inspect(&self, source: &PluginSource) -> Result<Inspection, PluginLoadError> {
        // A missing digest or signature is something to report here, not to refuse.
        let config = HostConfig { require_digest: false, require_signature: false, ..self.config.clone() };
        let artifact = Artifact::read(source, &config, None)?;
        let component = self.component(&artifact, false)?;
        Ok(inspect::inspection(&artifact, &Surface::of(&component)))
    }

    /// Every plugin that is loaded now, in order of loading.
    pub fn status(&self) -> Vec<PluginStatus> {
        let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        plugins.iter().filter_map(Weak::upgrade).map(|plugin| plugin.status()).collect()
    }

    /// Lets go of compiled code that no loaded plugin has: what a refused candidate left.
    pub fn forget_unused(&self) {
        let used: HashSet<String> = self.status().into_iter().map(|status| status.digest).collect();
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        compiled.retain(|(digest, _), _| used.contains(&hex(digest)));
    }

    fn ready(
        &self,
        source: &PluginSource,
        kind: Kind,
        grants: &Grants,
        settings_json: Option<&str>,
    ) -> Result<Ready, PluginLoadError> {
        let artifact = Artifact::read(source, &self.config, grants.sha256.as_deref())?;
        let name = artifact.name.clone();
        let found = hex(&artifact.digest);
        let manifest = artifact.manifest.clone().unwrap_or_else(|| Manifest::absent(&name, kind));
        if manifest.kind != kind {
            return Err(PluginLoadError::WrongKind { plugin: name, found: manifest.kind, wanted: kind });
        }
        let manifest_fault = |message: String| PluginLoadError::Manifest { plugin: name.clone(), message };
        let limits = Limits::effective(kind, &manifest.limits, &grants.limits).map_err(manifest_fault)?;
        let settings_json = settings::effective(&name, &manifest, artifact.alias_settings.as_ref(), settings_json)?;
        let metered = kind == Kind::Scheduler || self.config.meter_all;
        let component = self.component(&artifact, metered)?;
        let surface = Surface::of(&component);
        let wit = check_exports(&name, kind, &surface)?;
        if artifact.manifest.is_some() && manifest.wit != wit {
            return Err(manifest_fault(format!("wit is `{}`, the component was built against `{wit}`", manifest.wit)));
        }
        let capabilities = check_imports(&name, &surface, &manifest, grants)?;
        let pre = link(&name, &component, &capabilities)?;
        let policy = manifest.failure.policy.unwrap_or(match kind {
            Kind::Output => FailurePolicy::Passthrough,
            Kind::Template => FailurePolicy::Reject,
            Kind::Scheduler => FailurePolicy::Fcfs,
        });
        let plugin = Plugin {
            serial: self.serial(),
            meters: Arc::new(Meters::new(&self.families, &name)),
            name,
            version: manifest.version,
            kind,
            source: artifact.source,
            digest: found,
            signed_by: artifact.signed_by,
            size_bytes: artifact.bytes.len() as u64,
            wit,
            capabilities,
            limits,
            metered,
            policy,
            settings_json,
            tokenizer: grants.tokenizer.clone(),
            engines: self.engines.clone(),
        };
        Ok(Ready { plugin: Arc::new(plugin), pre, has_manifest: artifact.manifest.is_some() })
    }

    fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Relaxed) + 1
    }

    fn component(&self, artifact: &Artifact, metered: bool) -> Result<Component, PluginLoadError> {
        let key = (artifact.digest, metered);
        if let Some(component) = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(component.clone());
        }
        let engine = if metered { &self.engines.metered } else { &self.engines.timed };
        let component = compile(artifact, engine, self.cache.as_ref(), &self.config)?;
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
        }
        compiled.insert(key, component.clone());
        Ok(component)
    }

    fn loaded(&self, plugin: &Arc<Plugin>) {
        tracing::info!("{}", plugin.status().effective());
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        plugins.retain(|plugin| plugin.strong_count() > 0);
        plugins.push(Arc::downgrade(plugin));
    }
}

fn signature(plugin: &str, error: &wasmtime::Error) -> PluginLoadError {
    PluginLoadError::WrongSignature { plugin: plugin.into(), message: clean(&format!("{error:#}")) }
}

/// The component's own name must be the manifest's: a manifest beside the wrong file is caught here.
pub(crate) fn check_name(plugin: &Plugin, described: (String, String)) -> Result<(), PluginLoadError> {
    let (name, version) = described;
    if name != plugin.name {
        let message = format!("its name is `{}`, the component calls itself `{}`", plugin.name, clean(&name));
        return Err(PluginLoadError::Manifest { plugin: plugin.name.clone(), message });
    }
    if version != plugin.version {
        let (plugin, manifest) = (&plugin.name, &plugin.version);
        tracing::warn!("plugin `{plugin}`: the manifest says version {manifest}, the component {}", clean(&version));
    }
    Ok(())
}
