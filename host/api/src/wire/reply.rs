//! The shapes of answers, plain and streamed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use contract::TokenId;
use contract::sampling::TokenLogprobs;
use serde::Serialize;
use text::Tokenizer;

/// JSON has no infinity; this is what the OpenAI API writes for a token of no probability.
pub const LOGPROB_MIN: f32 = -9999.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptDetails,
    pub completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    pub cached_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompletionDetails {
    pub reasoning_tokens: u32,
}

/// What ended an answer beside the model's own end token: the stop string, or the stop token's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(TokenId),
}

/// The frame of a plain answer and of every chunk of a stream.
#[derive(Clone, Debug, Serialize)]
pub struct Envelope<'a, C> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [TokenId]>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatChoice {
    pub index: u32,
    pub message: ChatMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: &'static str,
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatMessage {
    pub role: &'static str,
    pub content: Option<String>,
    pub refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub function: CalledFunction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CalledFunction {
    pub name: String,
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatChunkChoice {
    pub index: u32,
    pub delta: ChatDelta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
}

/// One change to a message; a field that does not change is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta; 1]>,
}

/// The first fragment of a call has everything, later ones only `index` and `function.arguments`: client libraries
/// join the strings of all fragments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ToolCallDelta {
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: FunctionDelta,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<ChatLogprob>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    #[serde(flatten)]
    pub sampled: TokenLogprob,
    pub top_logprobs: Vec<TokenLogprob>,
}

/// `token` is for reading: a token that is no whole character shows as U+FFFD there. `bytes` is exact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextChoice {
    pub index: u32,
    pub text: String,
    pub logprobs: Option<TextLogprobs>,
    pub finish_reason: Option<&'static str>,
    pub stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Arc<[TokenId]>>,
}

/// Lists of one length. Tokens that are no whole characters read `bytes:\xf0\x9f`, so that they stay distinct keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    pub top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Characters of the text before each token.
    pub text_offset: Vec<usize>,
}

pub fn finite(logprob: f32) -> f32 {
    // NaN compares as false and falls to the floor too.
    if logprob >= LOGPROB_MIN && logprob.is_finite() { logprob } else { LOGPROB_MIN }
}

fn token_logprob(tokenizer: &Tokenizer, token: TokenId, logprob: f32) -> TokenLogprob {
    let bytes = tokenizer.token_bytes(token);
    TokenLogprob {
        token: String::from_utf8_lossy(&bytes).into_owned(),
        logprob: finite(logprob),
        bytes: bytes.into_owned(),
    }
}

/// The chat shape of these positions.
pub fn chat_logprobs(tokenizer: &Tokenizer, positions: &[TokenLogprobs]) -> ChatLogprobs {
    let content = positions
        .iter()
        .map(|at| ChatLogprob {
            sampled: token_logprob(tokenizer, at.token, at.logprob),
            top_logprobs: at.top.iter().map(|&(token, logprob)| token_logprob(tokenizer, token, logprob)).collect(),
        })
        .collect();
    ChatLogprobs { content }
}

/// The completions shape of these positions; `offset` counts characters over the whole answer.
pub fn text_logprobs(tokenizer: &Tokenizer, positions: &[TokenLogprobs], offset: &mut usize) -> TextLogprobs {
    let mut logprobs = TextLogprobs::default();
    for at in positions {
        let name = text_token(&tokenizer.token_bytes(at.token));
        logprobs.text_offset.push(*offset);
        *offset += String::from_utf8_lossy(&tokenizer.token_bytes(at.token)).chars().count();
        let mut top: BTreeMap<String, f32> = at
            .top
            .iter()
            .map(|&(token, logprob)| (text_token(&tokenizer.token_bytes(token)), finite(logprob)))
            .collect();
        top.entry(name.clone()).or_insert(finite(at.logprob));
        logprobs.tokens.push(name);
        logprobs.token_logprobs.push(finite(at.logprob));
        logprobs.top_logprobs.push(top);
    }
    logprobs
}

fn text_token(bytes: &[u8]) -> String {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
    }
}
