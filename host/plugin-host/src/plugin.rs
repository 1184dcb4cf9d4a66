//! One loaded plugin: who it is, what it may use, how it fares. Shared by its adapter, its stores and the status page.

use std::sync::Arc;

use wasmtime::Engine;

use crate::config::{Capability, PluginTokenizer};
use crate::engine::Engines;
use crate::limits::Limits;
use crate::manifest::{FailurePolicy, Kind};
use crate::metrics::Meters;
use crate::status::PluginStatus;

#[derive(Clone)]
pub(crate) struct Plugin {
    /// Different for every load of this host, from 1.
    pub serial: u64,
    pub name: String,
    pub version: String,
    pub kind: Kind,
    pub source: String,
    pub digest: String,
    pub signed_by: Option<String>,
    pub size_bytes: u64,
    pub wit: String,
    pub capabilities: Vec<Capability>,
    pub limits: Limits,
    /// Runs on the engine that counts fuel, as schedulers do.
    pub metered: bool,
    pub policy: FailurePolicy,
    pub settings_json: String,
    pub tokenizer: Option<Arc<dyn PluginTokenizer>>,
    pub engines: Arc<Engines>,
    pub meters: Arc<Meters>,
}

impl Plugin {
    pub fn engine(&self) -> &Engine {
        if self.metered { &self.engines.metered } else { &self.engines.timed }
    }

    pub fn status(&self) -> PluginStatus {
        PluginStatus {
            serial: self.serial,
            name: self.name.clone(),
            version: self.version.clone(),
            kind: self.kind,
            source: self.source.clone(),
            digest: self.digest.clone(),
            signed_by: self.signed_by.clone(),
            size_bytes: self.size_bytes,
            wit: self.wit.clone(),
            capabilities: self.capabilities.clone(),
            limits: self.limits.clone(),
            policy: self.policy,
            settings_json: self.settings_json.clone(),
            state: self.meters.state(),
            strikes: self.meters.strikes(),
            calls: self.meters.calls(),
            latency_mean: self.meters.latency_mean(),
            latency_max: self.meters.latency_max(),
            traps: self.meters.traps(),
            replays: self.meters.replays(),
            fallbacks: self.meters.fallbacks(),
            memory_bytes_max: self.meters.memory_bytes_max(),
            fuel: self.meters.fuel(),
        }
    }
}
