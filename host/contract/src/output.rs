//! Model output as events, and the stages that relabel them.
//!
//! A chain of stages sits between the detokenizer and the API. The detokenizer feeds [`OutputEvent::Text`] in
//! [`Channel::Content`]; each stage passes on, in order, what it does not handle.

use std::sync::Arc;

use crate::{Failures, PluginError, TokenId};

/// Where a piece of model output belongs. The host treats an unknown `Other` as content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    #[default]
    Content,
    Reasoning,
    Other(Arc<str>),
}

/// How a call's arguments are written: a JSON object, or free text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    Json,
    Text,
}

/// One step of the output of a chain. Calls are numbered from 0 per stream and never overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// `token` is set when this text is exactly one added token of the tokenizer.
    Text {
        channel: Channel,
        text: String,
        token: Option<TokenId>,
    },
    CallStart {
        index: u32,
        id: Option<String>,
        name: String,
        kind: CallKind,
    },
    CallArguments {
        index: u32,
        fragment: String,
    },
    /// `complete: false`: the arguments broke off; what was sent of them is not valid JSON.
    CallEnd {
        index: u32,
        complete: bool,
    },
    /// What a later version adds; passed on unchanged.
    Ext {
        key: String,
        value: String,
    },
}

impl OutputEvent {
    pub fn content(text: impl Into<String>) -> Self {
        Self::Text { channel: Channel::Content, text: text.into(), token: None }
    }
}

/// A tool the request declares. `schema_json` is given only to stages that require schemas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    pub name: String,
    pub kind: CallKind,
    pub schema_json: Option<Arc<str>>,
    pub strict: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    #[default]
    Auto,
    Required,
    Named(String),
    Allowed(Vec<String>),
}

/// A marker a stage asked for. With a token it is matched by id only, without one by its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub text: String,
    pub token: Option<TokenId>,
}

/// Everything a stage is told about a stream, once, before its first event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageRequest {
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    pub parallel_calls: bool,
    /// The channel the template says it left open; `None`: read `turn_prefix`.
    pub starts_in: Option<Channel>,
    /// What was rendered after the last user or tool turn, at most [`TURN_PREFIX_BYTES_MAX`].
    pub turn_prefix: String,
    pub markers: Vec<Marker>,
}

/// A longer turn prefix is cut from the left: the end decides the start state.
pub const TURN_PREFIX_BYTES_MAX: usize = 64 * 1024;

/// A stage may hold this much text without emitting it; then the host passes the text through.
pub const HELD_BYTES_MAX: usize = 256 * 1024;

/// Why the text ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    StopToken(TokenId),
    StopString(String),
    Length,
    Cancelled,
    Error,
}

/// Markers of a stretch of reasoning, tracked natively by [`crate::reasoning::ReasoningTracker`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningSpan {
    pub open: String,
    pub close: String,
    /// What is forced when the thinking budget is spent.
    pub forced_close: String,
}

/// What a stage needs, asked once at load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// Resolved against the tokenizer and handed back in [`StageRequest::markers`].
    pub markers: Vec<String>,
    pub reasoning: Vec<ReasoningSpan>,
    pub tool_schemas: bool,
    /// Stop strings the format implies.
    pub stop: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    FirstToken,
    AfterReasoning,
}

/// A grammar a stage asks the host to enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    pub start: StartAt,
    /// `lark`, in llguidance's dialect.
    pub language: String,
    pub grammar: String,
}

/// The plugin kind *output stage*: one loaded stage, shared by all streams of a model.
pub trait OutputStage: Send + Sync {
    fn name(&self) -> &str;
    /// Which loaded plugin answers here, as `GET /plugins` numbers them; 0: none does.
    fn serial(&self) -> u64 {
        0
    }
    /// How many of its calls failed, whatever clients saw of it.
    fn failures(&self) -> Failures {
        Failures::default()
    }
    fn requirements(&self) -> &Requirements;
    /// Called once per request that has tools; may answer with a grammar.
    fn constrain(&self, request: &StageRequest) -> Result<Option<Constraint>, PluginError>;
    /// Called once per stream.
    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError>;
    /// Calls were late not long ago, so the next one may take until its deadline: make it where nobody else waits for it.
    fn is_suspect(&self) -> bool {
        false
    }
}

/// One stream's state in a stage. Calls are inline on the request's task and must not block.
pub trait StageSession: Send {
    /// One call per engine step, with that step's events.
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError>;
    /// The last call; gives back whatever is held.
    fn finish(&mut self, reason: EndReason) -> Result<Vec<OutputEvent>, PluginError>;
    /// As [`OutputStage::is_suspect`].
    fn is_suspect(&self) -> bool {
        false
    }
}
