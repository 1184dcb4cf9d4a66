//! From a checked chat request to prompt tokens.

use contract::TokenId;
use contract::output::ToolChoice;
use contract::template::Rendered;
use serde_json::{Map, Value};

/// A checked chat request, text side.
#[derive(Clone, Debug, Default)]
pub struct ChatJob {
    /// OpenAI messages as sent; each must be an object with a string `role`.
    pub messages: Vec<Value>,
    /// OpenAI tools as sent.
    pub tools: Vec<Value>,
    pub documents: Option<Value>,
    pub tool_choice: ToolChoice,
    pub parallel_calls: bool,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    /// `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// RFC 3339 with offset; templates have no other clock.
    pub now: String,
}

/// Ends that the template and the stages ask for, to be joined with the request's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Those that are exactly one added token.
    pub tokens: Vec<TokenId>,
    /// The rest.
    pub strings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    pub prompt: Vec<TokenId>,
    pub rendered: Rendered,
    pub stops: Stops,
    /// What the client should know although the request is served: template arguments nobody reads.
    pub warnings: Vec<String>,
}
