//! The environment, read at start: the config file's path, the log filter, and what every program of the model hub
//! finds there. Nothing else is configured through it.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::hub::Secret;

/// Path of the config file, when `--config` is not given.
pub const CONFIG_VARIABLE: &str = "TOKENLOOM_CONFIG";
/// Log filter in the syntax of `tracing`, such as `info,engine=debug`.
pub const LOG_VARIABLE: &str = "TOKENLOOM_LOG";

/// What the environment says.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub config: Option<PathBuf>,
    pub log: Option<String>,
}

impl Environment {
    pub fn read() -> anyhow::Result<Self> {
        let config = std::env::var_os(CONFIG_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
        let log = match std::env::var(LOG_VARIABLE) {
            Ok(filter) => Some(filter),
            Err(std::env::VarError::NotPresent) => None,
            Err(error) => return Err(error).context(LOG_VARIABLE),
        };
        Ok(Self { config, log })
    }

    /// Logs go to stderr: stdout belongs to what a command answers.
    pub fn start_logging(&self) -> anyhow::Result<()> {
        let filter = self.log.as_deref().unwrap_or("info");
        let filter = EnvFilter::try_new(filter).with_context(|| format!("{LOG_VARIABLE} `{filter}`"))?;
        let colours = std::io::stderr().is_terminal();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
        Ok(())
    }
}

/// The hub's own variables, so that models which other programs fetched are found.
#[derive(Clone, Debug, Default)]
pub struct HubEnvironment {
    /// `HF_ENDPOINT`
    pub endpoint: Option<String>,
    /// `HF_HOME/hub`, else the user's cache.
    pub cache: Option<PathBuf>,
    /// `HF_TOKEN`
    pub token: Option<Secret>,
}

pub fn hub() -> HubEnvironment {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let own = || Some(home()?.join(".cache/huggingface"));
    HubEnvironment {
        endpoint: variable("HF_ENDPOINT"),
        cache: variable("HF_HOME").map(PathBuf::from).or_else(own).map(|home| home.join("hub")),
        token: variable("HF_TOKEN").map(Secret),
    }
}

/// Where compiled plugins are kept unless the config names another folder: the user's cache.
pub fn plugin_cache_default() -> Option<PathBuf> {
    user_cache("plugins")
}

/// Where compiled GPU kernels are kept.
pub fn kernel_cache() -> Option<PathBuf> {
    user_cache("kernels")
}

fn user_cache(what: &str) -> Option<PathBuf> {
    let caches = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    Some(home()?.join(caches).join("tokenloom").join(what))
}

fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}
