//! Plugins as the operator names them: sources, grants, settings, digests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use api::exchange::{ExchangeError, ExchangeOrder, Place};
use contract::output::OutputStage;
use contract::policy::SchedulePolicy;
use contract::template::ChatTemplate;
use plugin_host::{
    COMPONENT_BYTES_DEFAULT, Capability, Catalogue, Grants, HostConfig, Manifest, PluginHost, PluginSource,
    PluginState, PluginStatus, PluginTokenizer, SchedulerPlugin, TemplateModel,
};
use prometheus_client::registry::Registry;
use serde_json::{Map, Value, json};
use text::Tokenizer;

use super::exchange::Exchange;
use crate::config;
use crate::oci::{Logins, OciPlugin};
use crate::report::PluginLine;
use crate::settings::{Settings, plugin_name};

/// The plugin host, with what the operator says about each plugin.
pub struct Plugins {
    host: PluginHost,
    tables: BTreeMap<String, config::PluginTable>,
    /// Where plugins of registries are kept.
    fetched: Option<PathBuf>,
    logins: Logins,
}

/// What one load is made of.
struct Order {
    source: PluginSource,
    grants: Grants,
    settings: Option<String>,
}

impl Plugins {
    pub fn new(settings: &Settings, registry: &mut Registry) -> anyhow::Result<Self> {
        let server = &settings.server;
        let defaults = HostConfig::default();
        let config = HostConfig {
            cache_dir: server.plugin_cache.clone(),
            require_digest: server.require_digest,
            require_signature: server.require_signature,
            signers: server.plugin_keys.clone(),
            component_bytes_max: server.component_mib_max.map_or(COMPONENT_BYTES_DEFAULT, |mib| u64::from(mib) << 20),
            compile_timeout: server.compile_timeout.unwrap_or(defaults.compile_timeout),
            ..defaults
        };
        let logins = server.registry_logins.as_deref().map(Logins::read).transpose()?.unwrap_or_default();
        let fetched = server.plugin_cache.as_ref().map(|cache| cache.join("oci"));
        Ok(Self { host: PluginHost::new(config, registry)?, tables: settings.plugins.clone(), fetched, logins })
    }

    pub fn stage(&self, word: &str, tokenizer: &Tokenizer) -> anyhow::Result<Arc<dyn OutputStage>> {
        let order = self.order(word, Some(tokenizer), &Map::new())?;
        Ok(self.host.load_stage(&order.source, &order.grants, order.settings.as_deref())?)
    }

    pub fn template(
        &self,
        word: &str,
        tokenizer: &Tokenizer,
        model: &TemplateModel,
    ) -> anyhow::Result<Arc<dyn ChatTemplate>> {
        let order = self.order(word, Some(tokenizer), &Map::new())?;
        Ok(self.host.load_template(&order.source, &order.grants, order.settings.as_deref(), model)?)
    }

    pub fn scheduler(&self, word: &str, settings: &Map<String, Value>) -> anyhow::Result<SchedulerPlugin> {
        let order = self.order(word, None, settings)?;
        Ok(self.host.scheduler(&order.source, &order.grants, order.settings.as_deref())?)
    }

    pub fn policy(&self, scheduler: &SchedulerPlugin) -> anyhow::Result<Box<dyn SchedulePolicy>> {
        Ok(self.host.policy(scheduler)?)
    }

    /// A stage that may take the place of a live one: a file with the digest that the operator named.
    pub fn candidate_stage(
        &self,
        file: &Path,
        tokenizer: &Tokenizer,
        sha256: &str,
        settings: Option<&Map<String, Value>>,
    ) -> anyhow::Result<Arc<dyn OutputStage>> {
        let order = self.candidate(file, Some(tokenizer), sha256, settings)?;
        Ok(self.host.load_stage(&order.source, &order.grants, order.settings.as_deref())?)
    }

    pub fn candidate_template(
        &self,
        file: &Path,
        tokenizer: &Tokenizer,
        model: &TemplateModel,
        sha256: &str,
        settings: Option<&Map<String, Value>>,
    ) -> anyhow::Result<Arc<dyn ChatTemplate>> {
        let order = self.candidate(file, Some(tokenizer), sha256, settings)?;
        Ok(self.host.load_template(&order.source, &order.grants, order.settings.as_deref(), model)?)
    }

    pub fn candidate_scheduler(
        &self,
        file: &Path,
        sha256: &str,
        settings: &Map<String, Value>,
    ) -> anyhow::Result<SchedulerPlugin> {
        let order = self.candidate(file, None, sha256, Some(settings))?;
        Ok(self.host.scheduler(&order.source, &order.grants, order.settings.as_deref())?)
    }

    fn candidate(
        &self,
        file: &Path,
        tokenizer: Option<&Tokenizer>,
        sha256: &str,
        settings: Option<&Map<String, Value>>,
    ) -> anyhow::Result<Order> {
        let none = Map::new();
        let mut order = self.order(&file.display().to_string(), tokenizer, settings.unwrap_or(&none))?;
        order.grants.sha256 = Some(sha256.to_owned());
        Ok(order)
    }

    /// After an exchange: what it tried and did not take is not kept.
    pub fn forget_unused(&self) {
        self.host.forget_unused();
    }

    /// How the plugin of that digest fares, the one loaded last; `None` when none is loaded any more.
    pub fn state_of(&self, sha256: &str) -> Option<PluginState> {
        self.host.status().into_iter().rev().find(|status| status.digest == sha256).map(|status| status.state)
    }

    /// `settings` are laid over those of `[plugin.NAME]`.
    fn order(&self, word: &str, tokenizer: Option<&Tokenizer>, settings: &Map<String, Value>) -> anyhow::Result<Order> {
        let name = plugin_name(word);
        let table = self.tables.get(&name).cloned().unwrap_or_default();
        let mut merged = match serde_json::to_value(&table.settings)? {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        merged.extend(settings.clone());
        let settings = (!merged.is_empty()).then(|| Value::Object(merged).to_string());
        let tokenizer = tokenizer.map(|t| Arc::new(HostTokenizer(t.clone())) as Arc<dyn PluginTokenizer>);
        let capabilities = table.grant.iter().copied().collect();
        let grants = Grants { capabilities, tokenizer, limits: table.limits, sha256: table.sha256.clone() };
        let source = match &table.component {
            None => PluginSource::parse(word),
            Some(component) => self.source(&name, component)?,
        };
        Ok(Order { source, grants, settings })
    }

    /// Where the config says that a plugin is. Files of registries are named as the config names the plugin.
    fn source(&self, name: &str, component: &str) -> anyhow::Result<PluginSource> {
        if !OciPlugin::is_reference(component) {
            return Ok(PluginSource::File(component.into()));
        }
        let cache =
            self.fetched.as_ref().context("plugins of registries are kept in `plugin_cache`, and there is none")?;
        Ok(PluginSource::File(OciPlugin::parse(component)?.fetch(cache, name, &self.logins)?))
    }

    /// One line per loaded plugin for the start-up report.
    pub fn effective(&self) -> Vec<PluginLine> {
        self.host.status().iter().map(|status| self.line(status)).collect()
    }

    fn line(&self, status: &PluginStatus) -> PluginLine {
        let table = self.tables.get(&plugin_name(&status.source));
        let asked = manifest_of(&status.source).map(|manifest| manifest.capabilities).unwrap_or_default();
        let granted = table.map(|table| table.grant.clone()).unwrap_or_default();
        let useless = granted.iter().filter(|c| !status.capabilities.contains(c)).copied().collect::<Vec<_>>();
        PluginLine {
            text: status.effective(),
            asked: words(&asked),
            granted: words(&granted),
            effective: words(&status.capabilities),
            warning: (!useless.is_empty()).then(|| {
                format!(
                    "plugin `{}`: the grant of {} has no effect, it imports nothing of it",
                    status.name,
                    words(&useless)
                )
            }),
        }
    }
}

/// The manifest as it is written, for what it asks; the host has checked it already.
fn manifest_of(source: &str) -> Option<Manifest> {
    match PluginSource::parse(source) {
        PluginSource::File(path) => {
            let text = std::fs::read_to_string(path.with_extension("toml")).ok()?;
            Manifest::parse(source, &text).ok()
        }
        PluginSource::Bundled(name) => bundled(&name),
    }
}

/// The bundled plugin of that name, its own or one it provides.
pub fn bundled(name: &str) -> Option<Manifest> {
    let manifests = Catalogue::bundled().manifests().ok()?;
    manifests.into_iter().find(|manifest| manifest.name == name || manifest.provides.iter().any(|a| a.name == name))
}

fn words(capabilities: &[Capability]) -> String {
    match capabilities {
        [] => "none".into(),
        some => some.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// What plugins with the capability `tokenizer` see of the model's.
struct HostTokenizer(Tokenizer);

impl PluginTokenizer for HostTokenizer {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode(text, false).unwrap_or_default()
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        self.0.added_token(token)
    }
}

/// `GET /plugins`, and what makes the server degraded.
pub struct PluginTable {
    pub plugins: Arc<Plugins>,
    pub exchange: Arc<Exchange>,
}

impl api::PluginRows for PluginTable {
    fn rows(&self) -> Vec<Value> {
        let exchanges = self.exchange.states().into_iter().map(|state| json!({"exchange": state}));
        self.plugins.host.status().iter().map(row).chain(exchanges).collect()
    }

    fn exchange(&self, order: &ExchangeOrder) -> Result<Value, ExchangeError> {
        self.exchange.exchange(order)
    }

    fn roll_back(&self, place: &Place) -> Result<Value, ExchangeError> {
        self.exchange.roll_back(place)
    }

    fn degraded(&self) -> Vec<String> {
        let failing = self.plugins.host.status().into_iter().filter(|status| status.state == PluginState::Failing);
        failing.map(|s| format!("{} `{}` keeps failing ({} fallbacks)", s.kind, s.name, s.fallbacks)).collect()
    }
}

fn row(status: &PluginStatus) -> Value {
    json!({
        "id": status.serial,
        "name": status.name,
        "version": status.version,
        "kind": status.kind.as_str(),
        "source": status.source,
        "sha256": status.digest,
        "signed_by": status.signed_by,
        "size_bytes": status.size_bytes,
        "wit": status.wit,
        "capabilities": status.capabilities.iter().map(|c| c.as_str()).collect::<Vec<_>>(),
        "limits": status.limits.to_string(),
        "on_failure": status.policy.as_str(),
        "settings": serde_json::from_str::<Value>(&status.settings_json).unwrap_or(Value::Null),
        "state": status.state.as_str(),
        "strikes": status.strikes,
        "calls": status.calls,
        "latency_mean_us": status.latency_mean.as_secs_f64() * 1e6,
        "latency_max_us": status.latency_max.as_secs_f64() * 1e6,
        "traps": status.traps,
        "replays": status.replays,
        "fallbacks": status.fallbacks,
        "memory_bytes_max": status.memory_bytes_max,
    })
}

/// Reads a template file, which is a page of text and not a download.
pub fn read_template(path: &Path) -> anyhow::Result<String> {
    const BYTES_MAX: u64 = 1 << 20;
    let read = || -> anyhow::Result<String> {
        let size = std::fs::metadata(path)?.len();
        ensure!(size <= BYTES_MAX, "{size} bytes, the limit is {BYTES_MAX}");
        Ok(std::fs::read_to_string(path)?)
    };
    read().with_context(|| format!("chat template {}", path.display()))
}
