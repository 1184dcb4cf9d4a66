//! What can go wrong between text and tokens, and whose fault it is.

use contract::{PluginError, Severity};

/// Every variant names the part, the value and, where there is one, the limit or the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tokenizer file or vocabulary cannot be used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    #[error("tokenizer: unknown pre-tokenizer `{name}`; known: {known}")]
    UnknownPreTokenizer { name: String, known: String },
    #[error("tokenizer: decoder `{name}` is not supported; supported: {supported}")]
    UnsupportedDecoder { name: String, supported: String },
    #[error("tokenizer: text of {bytes} bytes could not be encoded: {reason}")]
    Encode { bytes: usize, reason: String },
    /// The model has no chat template: chat endpoints cannot serve it.
    #[error("this model has no chat template; pass one with --chat-template, or use /v1/completions")]
    NoTemplate,
    /// The request is at fault. `param` is a path such as `messages[1].content[0].type`.
    #[error("{param}: {message}")]
    BadRequest { param: String, message: String },
    /// The template refused or failed on this request; `message` is its own text.
    #[error("chat template `{template}`: {message}")]
    Template { template: String, code: String, message: String },
    /// An output stage failed and its declared policy was not to pass the text through.
    #[error("output stage `{stage}`: {code}: {message}")]
    Stage { stage: String, code: String, message: String, severity: Severity },
    /// The form that the request asks for cannot be enforced. `param` is the field that asks.
    #[error("{param}: {error}")]
    Grammar { param: String, error: grammar::GrammarError },
    #[error("model text setup: {0}")]
    Setup(String),
}

impl TextError {
    /// Whether the client can fix it (HTTP 400); otherwise it is the server's fault (HTTP 500).
    pub fn is_request_fault(&self) -> bool {
        match self {
            Self::NoTemplate | Self::BadRequest { .. } | Self::Template { .. } | Self::Encode { .. } => true,
            Self::Grammar { error, .. } => error.is_request_fault(),
            Self::Stage { severity, .. } => *severity == Severity::RejectRequest,
            _ => false,
        }
    }

    /// The request field at fault, for `error.param`.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::BadRequest { param, .. } | Self::Grammar { param, .. } => Some(param),
            Self::Template { .. } | Self::NoTemplate => Some("messages"),
            _ => None,
        }
    }

    /// A stable kebab or snake case word for `error.code`, when there is a better one than the type.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Template { code, .. } | Self::Stage { code, .. } => Some(code),
            _ => None,
        }
    }

    pub(crate) fn from_template(error: PluginError) -> Self {
        Self::Template { template: error.plugin, code: error.code, message: error.message }
    }

    pub(crate) fn from_stage(error: PluginError) -> Self {
        Self::Stage { stage: error.plugin, code: error.code, message: error.message, severity: error.severity }
    }
}
