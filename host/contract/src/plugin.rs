//! What a plugin says when it cannot do what it was asked.

/// What the host should do after a failure, in the plugin's own judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// This request is at fault: answer it with a 400.
    RejectRequest,
    /// The plugin's state may be at fault: a fresh instance may succeed.
    RetryOnce,
    /// The plugin cannot work at all.
    DisablePlugin,
}

/// A typed failure of a plugin call. `code` is stable and kebab case; `message` is for a person, at most 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin `{plugin}`: {code}: {message}")]
pub struct PluginError {
    pub plugin: String,
    pub severity: Severity,
    pub code: String,
    pub message: String,
}

/// Longest message that is kept of a plugin's error, in bytes. A plugin must not fill the log.
pub const MESSAGE_BYTES_MAX: usize = 512;

impl PluginError {
    pub fn new(
        plugin: impl Into<String>,
        severity: Severity,
        code: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        let mut message: String = message.into();
        if message.len() > MESSAGE_BYTES_MAX {
            let mut end = MESSAGE_BYTES_MAX;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
        }
        Self { plugin: plugin.into(), severity, code: code.into(), message }
    }
}

/// Calls of a plugin that failed so far. A replay or a fallback may have spared clients the failure; whoever judges the
/// plugin wants to know. A typed error that the caller gets is an answer and does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub count: u64,
    /// The last one: which call, and what stopped it.
    pub last: Option<String>,
}

impl Failures {
    /// The last failure, if there was one since `before`.
    pub fn since(self, before: &Self) -> Option<String> {
        (self.count > before.count).then(|| self.last.unwrap_or_else(|| "a call failed".into()))
    }
}
