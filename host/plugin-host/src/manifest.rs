//! `plugin.toml`: what a plugin says about itself. An unknown key is an error.

use std::fmt;

use serde::Deserialize;

use crate::config::Capability;
use crate::digest::unhex;
use crate::error::PluginLoadError;
use crate::signature::SIGNATURE_DIGITS;

/// What a plugin is for. One WIT package per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Output,
    Template,
    Scheduler,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Template => "template",
            Self::Scheduler => "scheduler",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Output => "output stage",
            Self::Template => "template",
            Self::Scheduler => "scheduler",
        })
    }
}

/// A checked `plugin.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    pub version: String,
    pub kind: Kind,
    /// The WIT package the component was built against, as `tokenloom:output@0.1.0`.
    pub wit: String,
    /// Lower-case hex of the component's bytes.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Lower-case hex of an ed25519 signature over the digest, as `tokenloom plugin sign` writes it.
    #[serde(default)]
    pub signature: Option<String>,
    #[serde(default)]
    pub summary: Option<String>,
    #[serde(default)]
    pub capabilities: Vec<Capability>,
    #[serde(default)]
    pub limits: ManifestLimits,
    #[serde(default)]
    pub failure: Failure,
    /// Further names this plugin answers to, each with settings of its own.
    #[serde(default)]
    pub provides: Vec<Alias>,
    /// Default settings; the operator's are laid over them key by key.
    #[serde(default)]
    pub settings: toml::Table,
    /// What settings there are: a JSON Schema of an object.
    #[serde(default)]
    pub settings_schema: Option<toml::Table>,
}

/// Limits a plugin asks for. What is left out takes the default of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestLimits {
    pub memory_mib: Option<u32>,
    /// Output stages and templates: wall-clock time of one call.
    pub call_ms: Option<u32>,
    /// Schedulers: fuel of one step; one unit is about one instruction.
    pub fuel: Option<u64>,
    /// Size of one answer, on top of eight times the size of the call's input.
    pub output_kib: Option<u32>,
    /// Output stages: how many streams share one store.
    pub streams_per_store: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What happens after a failure that a fresh store did not mend. `None`: the default of the kind.
    pub policy: Option<FailurePolicy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailurePolicy {
    /// Output stages (default): the text not yet emitted is passed on as it came.
    Passthrough,
    /// Output stages: the stream ends with an error.
    Error,
    /// Templates (default): the request is answered with a 400.
    Reject,
    /// Schedulers (default): first come, first served for that step.
    Fcfs,
}

impl FailurePolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Error => "error",
            Self::Reject => "reject",
            Self::Fcfs => "fcfs",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    pub name: String,
    #[serde(default)]
    pub settings: toml::Table,
}

/// A manifest is a page of text; a longer file is a mistake.
pub const MANIFEST_BYTES_MAX: u64 = 256 * 1024;

/// Plugin and alias names become metric labels and config words.
const NAME_BYTES_MAX: usize = 64;

impl Manifest {
    /// Parses and checks the text of a manifest. `plugin` names it in errors.
    pub fn parse(plugin: &str, text: &str) -> Result<Self, PluginLoadError> {
        let fault = |message: String| PluginLoadError::Manifest { plugin: plugin.into(), message };
        let manifest: Self = toml::from_str(text).map_err(|e| fault(e.to_string()))?;
        manifest.check().map_err(fault)?;
        Ok(manifest)
    }

    /// What holds for a component without a manifest: no capabilities, default limits.
    pub fn absent(name: &str, kind: Kind) -> Self {
        Self {
            name: name.into(),
            version: "0.0.0".into(),
            kind,
            wit: String::new(),
            sha256: None,
            signature: None,
            summary: None,
            capabilities: Vec::new(),
            limits: ManifestLimits::default(),
            failure: Failure::default(),
            provides: Vec::new(),
            settings: toml::Table::new(),
            settings_schema: None,
        }
    }

    fn check(&self) -> Result<(), String> {
        for name in std::iter::once(&self.name).chain(self.provides.iter().map(|alias| &alias.name)) {
            let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(good) {
                return Err(format!(
                    "name `{name}`: 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.` are allowed"
                ));
            }
        }
        let texts = [("sha256", &self.sha256, 64), ("signature", &self.signature, SIGNATURE_DIGITS)];
        for (key, text, digits) in texts {
            if let Some(text) = text.as_ref().filter(|text| text.len() != digits || unhex(text).is_none()) {
                return Err(format!("{key} `{text}`: {digits} lower-case hex digits are needed"));
            }
        }
        let package = format!("tokenloom:{}@", self.kind.as_str());
        if !self.wit.starts_with(&package) {
            return Err(format!("wit `{}`: kind `{}` needs `{package}VERSION`", self.wit, self.kind.as_str()));
        }
        let policy_fits = match (self.kind, self.failure.policy) {
            (_, None) => true,
            (Kind::Output, Some(policy)) => matches!(policy, FailurePolicy::Passthrough | FailurePolicy::Error),
            (Kind::Template, Some(policy)) => policy == FailurePolicy::Reject,
            (Kind::Scheduler, Some(policy)) => policy == FailurePolicy::Fcfs,
        };
        if !policy_fits {
            return Err("failure.policy: `passthrough` or `error` for output, `reject` for template, `fcfs` for \
                        scheduler"
                .into());
        }
        if self.kind == Kind::Scheduler && self.limits.call_ms.is_some() {
            return Err("limits.call_ms: a scheduler is limited by `fuel`".into());
        }
        if self.kind != Kind::Scheduler && self.limits.fuel.is_some() {
            return Err("limits.fuel: only schedulers are limited by fuel; use `call_ms`".into());
        }
        if self.kind != Kind::Output && self.limits.streams_per_store.is_some() {
            return Err("limits.streams_per_store: only output stages have streams".into());
        }
        Ok(())
    }
}
