//! What can be seen of a loaded plugin from outside: `GET /plugins` and the lines printed at start.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::Capability;
use crate::limits::Limits;
use crate::manifest::{FailurePolicy, Kind};

/// One loaded plugin, now.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginStatus {
    /// Which load this is, from 1.
    pub serial: u64,
    pub name: String,
    pub version: String,
    pub kind: Kind,
    /// Where it came from: a catalogue name or a path.
    pub source: String,
    /// Lower-case hex SHA-256 of the component.
    pub digest: String,
    /// The operator's name of the key that signed the component.
    pub signed_by: Option<String>,
    pub size_bytes: u64,
    /// The WIT package and version the component was built against.
    pub wit: String,
    /// What it imports and was granted.
    pub capabilities: Vec<Capability>,
    pub limits: Limits,
    pub policy: FailurePolicy,
    /// The settings in effect, as JSON.
    pub settings_json: String,
    pub state: PluginState,
    /// Failures within the last minute, at most three.
    pub strikes: u32,
    pub calls: u64,
    pub latency_mean: Duration,
    pub latency_max: Duration,
    /// Failed calls by cause: `late`, `memory`, `output`, `stack`, `trap`, `quota`, `violation`, `refused`.
    pub traps: BTreeMap<&'static str, u64>,
    /// Streams continued in a fresh store, the client none the wiser.
    pub replays: u64,
    /// Times the declared failure policy was applied.
    pub fallbacks: u64,
    pub memory_bytes_max: u64,
    /// By export: calls that ended well, and the fuel of all of them. Empty where fuel is not counted.
    pub fuel: BTreeMap<&'static str, (u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginState {
    Healthy,
    /// Three failures within the last minute.
    Failing,
}

impl PluginState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Failing => "failing",
        }
    }
}

impl PluginStatus {
    /// The line that is printed at start: what is effective, with the numbers.
    pub fn effective(&self) -> String {
        let capabilities = match self.capabilities.as_slice() {
            [] => "none".to_string(),
            some => some.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(","),
        };
        let signed = self.signed_by.as_ref().map_or_else(String::new, |name| format!(" signed_by={name}"));
        format!(
            "{} `{}` {} ({}) sha256={}{signed} capabilities={capabilities} {} on_failure={} settings={}",
            self.kind,
            self.name,
            self.version,
            self.source,
            self.digest,
            self.limits,
            self.policy.as_str(),
            self.settings_json,
        )
    }
}
