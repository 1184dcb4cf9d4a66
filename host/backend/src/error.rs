//! What a backend can fail at.

/// A failure that names the part, the value and the limit. After [`BackendError::Device`] every call answers with the
/// first one, so the cause is never hidden by what followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    #[error("weight `{name}`: {reason}")]
    Weight { name: String, reason: String },
    #[error("{what} needs {needed} bytes, {available} are available; {fix}")]
    Memory { what: String, needed: u64, available: u64, fix: String },
    #[error("this backend cannot run {what}; {fix}")]
    Unsupported { what: String, fix: String },
    #[error("device fault in {operation}: {cause}")]
    Device { operation: String, cause: String },
    /// The caller broke the protocol of [`crate::Backend`]; always a bug of the engine.
    #[error("invalid step: {0}")]
    InvalidStep(String),
    /// The request cannot be served by a scripted model.
    #[error("script: {0}")]
    Script(String),
    /// One seat's sequence is at fault; the others go on.
    #[error("script_violates_grammar: token {position} of the script is forbidden by the grammar")]
    ScriptViolatesGrammar { position: u32 },
}
