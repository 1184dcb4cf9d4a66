//! What the operator decides: where plugins come from, what they may do, how much they may use.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::bundled::Catalogue;
use crate::signature::PublicKeys;

/// Where a component comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginSource {
    /// A plugin of the catalogue, or one of the names it provides.
    Bundled(String),
    /// A `.wasm` file; `FILE.toml` beside it is its manifest.
    File(PathBuf),
}

impl PluginSource {
    /// How flags and config name a plugin: a word of the catalogue, or a path that ends in `.wasm`.
    pub fn parse(text: &str) -> Self {
        if text.ends_with(".wasm") { Self::File(text.into()) } else { Self::Bundled(text.into()) }
    }
}

impl fmt::Display for PluginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bundled(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A host interface a plugin may import. All are leaf functions: none blocks and none calls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    Log,
    Metrics,
    Tokenizer,
}

impl Capability {
    pub const ALL: [Self; 3] = [Self::Log, Self::Metrics, Self::Tokenizer];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Metrics => "metrics",
            Self::Tokenizer => "tokenizer",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The model's tokenizer, for plugins that were granted it.
pub trait PluginTokenizer: Send + Sync {
    fn encode(&self, text: &str) -> Vec<u32>;
    fn token_id(&self, token: &str) -> Option<u32>;
}

/// What the operator grants one plugin. The default grants nothing and changes no limit.
#[derive(Clone, Default)]
pub struct Grants {
    pub capabilities: BTreeSet<Capability>,
    /// Needed when `tokenizer` is granted and the plugin imports it.
    pub tokenizer: Option<Arc<dyn PluginTokenizer>>,
    pub limits: LimitOverrides,
    /// The operator's own pin, lower-case hex: another component is refused before any of it is compiled.
    pub sha256: Option<String>,
}

/// The operator's word on limits; it wins over the manifest's, up or down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitOverrides {
    pub memory_mib: Option<u32>,
    pub call_ms: Option<u32>,
    pub fuel: Option<u64>,
    pub output_kib: Option<u32>,
    pub streams_per_store: Option<u32>,
}

/// What a model's files say to a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateModel {
    /// The model's Jinja source, when it has one.
    pub template_source: Option<String>,
    /// For example `("bos_token", "<s>")`.
    pub special_tokens: Vec<(String, String)>,
}

/// Settings of the whole plugin host.
#[derive(Clone)]
pub struct HostConfig {
    /// Compiled code is kept here, in a folder only this user may enter. `None`: compile at every start.
    pub cache_dir: Option<PathBuf>,
    /// How often deadlines are looked at. A runaway call ends at most one tick late.
    pub tick: Duration,
    /// Refuse a component whose manifest does not pin its digest.
    pub require_digest: bool,
    /// Refuse a file that none of [`HostConfig::signers`] has signed. What is inside the binary needs no signature.
    pub require_signature: bool,
    /// Whose signatures count.
    pub signers: PublicKeys,
    /// Largest component; 16 MiB unless the operator says up to 64.
    pub component_bytes_max: u64,
    /// Compiling happens once, at load.
    pub compile_timeout: Duration,
    /// `start` functions, `configure`, `load` and `requires`, each, at load.
    pub configure_timeout: Duration,
    /// Count the fuel of every kind and not of schedulers alone, for an author who wants to know it; calls are slower.
    pub meter_all: bool,
    pub catalogue: Catalogue,
}

pub const COMPONENT_BYTES_DEFAULT: u64 = 16 << 20;
/// A Python guest is 18 MB; nothing known needs more than this.
pub const COMPONENT_BYTES_MAX: u64 = 64 << 20;

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            cache_dir: None,
            tick: Duration::from_millis(1),
            require_digest: false,
            require_signature: false,
            signers: PublicKeys::new(),
            component_bytes_max: COMPONENT_BYTES_DEFAULT,
            compile_timeout: Duration::from_secs(120),
            configure_timeout: Duration::from_secs(1),
            meter_all: false,
            catalogue: Catalogue::bundled(),
        }
    }
}
