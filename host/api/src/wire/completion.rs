//! The text completion request, checked, and the requests of `/tokenize` and `/detokenize`.

use contract::TokenId;
use serde_json::Value;

use super::chat::ChatPrompt;
use super::common::{CHOICES_MAX, Common, MODEL_BYTES_MAX, alternatives, token_ids};
use super::fields::{Fields, missing, too_many, wrong};
use super::foreign::Ignored;
use crate::error::ApiError;

#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    pub common: Common,
    /// At least one; prompts times `n` is at most [`CHOICES_MAX`].
    pub prompts: Vec<Prompt>,
    pub add_special_tokens: bool,
    /// The answer begins with the prompt.
    pub echo: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    /// At least one id; not yet checked against a vocabulary.
    Tokens(Vec<TokenId>),
}

impl CompletionRequest {
    /// Alternatives per token of the prompt that the engine is asked for: those that are shown with an echo, or by
    /// themselves.
    pub fn prompt_logprobs(&self) -> Option<u8> {
        self.common.prompt_logprobs.max(self.common.wishes.logprobs.filter(|_| self.echo))
    }
}

impl TryFrom<Fields> for CompletionRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let echo = fields.flag("echo", false)?;
        let mut common = Common::take(&mut fields, u32::from(!echo))?;
        common.wishes.logprobs = alternatives(&mut fields, "logprobs")?;
        let prompts = prompts("prompt", fields.take("prompt").ok_or_else(|| missing("prompt"))?, CHOICES_MAX as usize)?;
        let sequences = prompts.len().saturating_mul(common.n as usize);
        if sequences > CHOICES_MAX as usize {
            let message =
                format!("{} prompts times n = {} is {sequences}, above {CHOICES_MAX}", prompts.len(), common.n);
            return Err(ApiError::invalid("n", message));
        }
        let add_special_tokens = fields.flag("add_special_tokens", true)?;
        common.close(fields)?;
        Ok(Self { common, prompts, add_special_tokens, echo })
    }
}

/// One prompt, or a list of at most `entries_max`.
pub fn prompts(name: &str, value: Value, entries_max: usize) -> Result<Vec<Prompt>, ApiError> {
    const WANTED: &str = "a string, an array of strings, an array of token ids or an array of such arrays";
    let list = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(list) => list,
        other => return Err(wrong(name, WANTED, &other)),
    };
    match list.first() {
        None => Err(ApiError::invalid(name, "must not be an empty array")),
        Some(Value::Number(_)) => Ok(vec![Prompt::Tokens(token_ids(name, &list)?)]),
        Some(Value::String(_) | Value::Array(_)) if list.len() > entries_max => {
            Err(too_many(name, list.len(), entries_max))
        }
        Some(Value::String(_) | Value::Array(_)) => {
            list.into_iter().enumerate().map(|(i, entry)| batch_entry(&format!("{name}[{i}]"), entry)).collect()
        }
        Some(other) => Err(wrong(name, WANTED, other)),
    }
}

fn batch_entry(path: &str, entry: Value) -> Result<Prompt, ApiError> {
    match entry {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) if ids.is_empty() => Err(ApiError::invalid(path, "must not be an empty array")),
        Value::Array(ids) => Ok(Prompt::Tokens(token_ids(path, &ids)?)),
        other => Err(wrong(path, "a string or an array of token ids", &other)),
    }
}

/// What `/tokenize` is asked about.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizeInput {
    Text { text: String, add_special: bool },
    Chat(Box<ChatPrompt>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub input: TokenizeInput,
    pub return_token_strs: bool,
    pub ignored: Ignored,
}

impl TryFrom<Fields> for TokenizeRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let model = fields.string("model", MODEL_BYTES_MAX)?;
        let return_token_strs = fields.flag("return_token_strs", false)?;
        let input = if fields.has("messages") {
            // A rendered chat holds its special tokens already.
            if fields.flag("add_special_tokens", false)? {
                return Err(ApiError::invalid(
                    "add_special_tokens",
                    "must be false with messages: the template adds them",
                ));
            }
            TokenizeInput::Chat(Box::new(ChatPrompt::take(&mut fields)?))
        } else {
            let add_special = fields.flag("add_special_tokens", true)?;
            match fields.take("prompt") {
                Some(Value::String(text)) => TokenizeInput::Text { text, add_special },
                Some(other) => return Err(wrong("prompt", "a string", &other)),
                None => return Err(missing("prompt")),
            }
        };
        Ok(Self { model, input, return_token_strs, ignored: Ignored::sort(fields)? })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct DetokenizeRequest {
    pub model: Option<String>,
    pub tokens: Vec<TokenId>,
    pub ignored: Ignored,
}

impl TryFrom<Fields> for DetokenizeRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let model = fields.string("model", MODEL_BYTES_MAX)?;
        // The body's own limit bounds the list.
        let list = fields.array("tokens", usize::MAX)?.ok_or_else(|| missing("tokens"))?;
        Ok(Self { model, tokens: token_ids("tokens", &list)?, ignored: Ignored::sort(fields)? })
    }
}
