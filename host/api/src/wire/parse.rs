//! The request of `/parse`: text that a model might have said.

use contract::TokenId;
use serde_json::{Value, json};

use super::chat::ChatPrompt;
use super::common::{MODEL_BYTES_MAX, token_ids};
use super::fields::{Fields, missing, wrong};
use super::foreign::Ignored;
use crate::error::ApiError;

#[derive(Clone, Debug, PartialEq)]
pub struct ParseRequest {
    pub model: Option<String>,
    pub said: Said,
    /// Tools and messages as in a chat request.
    pub prompt: Box<ChatPrompt>,
    pub before: Before,
    /// The text broke off at a length limit.
    pub cut: bool,
    /// The answer says what each stage made of each token.
    pub steps: bool,
    pub ignored: Ignored,
}

/// What the model said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Text(String),
    /// Not yet checked against a vocabulary.
    Tokens(Vec<TokenId>),
}

/// What the start of the output depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// The prompt that the messages give.
    Messages,
    /// The end of a prompt, as its text.
    Prefix(String),
}

impl TryFrom<Fields> for ParseRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let model = fields.string("model", MODEL_BYTES_MAX)?;
        let said = said(&mut fields)?;
        let before = match fields.take("prompt_prefix") {
            _ if fields.has("messages") => Before::Messages,
            None => Before::Prefix(String::new()),
            Some(Value::String(text)) => Before::Prefix(text),
            Some(other) => return Err(wrong("prompt_prefix", "a string", &other)),
        };
        if before != Before::Messages {
            // The tools are checked as in a chat request, which has messages; nothing is rendered from this one.
            fields.put("messages", json!([{"role": "user", "content": ""}]));
        }
        let cut = match fields.take("finish_reason") {
            None => false,
            Some(Value::String(reason)) if reason == "stop" || reason == "length" => reason == "length",
            Some(other) => return Err(wrong("finish_reason", "\"stop\" or \"length\"", &other)),
        };
        let steps = fields.flag("steps", false)?;
        let prompt = Box::new(ChatPrompt::take(&mut fields)?);
        Ok(Self { model, said, prompt, before, cut, steps, ignored: Ignored::sort(fields)? })
    }
}

fn said(fields: &mut Fields) -> Result<Said, ApiError> {
    // The body's own limit bounds the list.
    let tokens = fields.array("tokens", usize::MAX)?;
    match (fields.take("text"), tokens) {
        (Some(_), Some(_)) => Err(ApiError::invalid("tokens", "and text are two forms of one thing; send one of them")),
        (Some(Value::String(text)), None) => Ok(Said::Text(text)),
        (Some(other), None) => Err(wrong("text", "a string", &other)),
        (None, Some(list)) => Ok(Said::Tokens(token_ids("tokens", &list)?)),
        (None, None) => Err(missing("text")),
    }
}
