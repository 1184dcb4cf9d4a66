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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// vLLM's shape: for each token of the prompt those of its place by id, and null for the first, which nothing foretells.
pub type PromptLogprobs = Vec<Option<BTreeMap<TokenId, PromptLogprob>>>;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptLogprob {
    pub logprob: f32,
    /// 1 for the likeliest.
    pub rank: u32,
    pub decoded_token: String,
}

/// Lists of one length. Tokens that are no whole characters read `bytes:\xf0\x9f`, so that they stay distinct keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt, which nothing foretells.
    pub token_logprobs: Vec<Option<f32>>,
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
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
        logprobs.push(tokenizer, at.token, *offset, Some((at, at.top.len())));
        *offset += String::from_utf8_lossy(&tokenizer.token_bytes(at.token)).chars().count();
    }
    logprobs
}

/// The same of a prompt that the answer repeats as `text`; `positions` are its tokens' but the first's.
pub fn echo_logprobs(
    tokenizer: &Tokenizer,
    prompt: &[TokenId],
    text: &str,
    positions: &[TokenLogprobs],
    top: u8,
) -> TextLogprobs {
    let mut logprobs = TextLogprobs::default();
    let positions = std::iter::once(None).chain(positions.iter().map(Some));
    for ((&token, offset), at) in prompt.iter().zip(offsets(tokenizer, prompt, text)).zip(positions) {
        logprobs.push(tokenizer, token, offset, at.map(|at| (at, usize::from(top))));
    }
    logprobs
}

/// Characters of `text` before each of its tokens. A token that the text does not show, such as one that the tokenizer
/// put in front, takes no place; one whose leading space the text dropped takes its others.
fn offsets(tokenizer: &Tokenizer, tokens: &[TokenId], text: &str) -> Vec<usize> {
    let (mut rest, mut count) = (text.as_bytes(), 0);
    let offset = |&token: &TokenId| {
        let before = count;
        let bytes = tokenizer.token_bytes(token);
        let shown = [&*bytes, bytes.strip_prefix(b" ").unwrap_or(&bytes)].into_iter().find(|b| rest.starts_with(b));
        let (shown, after) = rest.split_at(shown.map_or(0, <[u8]>::len));
        // A character counts with its first byte.
        count += shown.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        rest = after;
        before
    };
    tokens.iter().map(offset).collect()
}

/// vLLM's shape of a prompt's positions.
pub fn prompt_logprobs(tokenizer: &Tokenizer, positions: &[TokenLogprobs], top: usize) -> PromptLogprobs {
    let entry = |token, logprob, rank| {
        let decoded_token = String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned();
        (token, PromptLogprob { logprob: finite(logprob), rank, decoded_token })
    };
    let place = |at: &TokenLogprobs| {
        let likeliest = at.top.iter().zip(1..).take(top).map(|(&(token, logprob), rank)| entry(token, logprob, rank));
        likeliest.chain([entry(at.token, at.logprob, at.rank)]).collect()
    };
    std::iter::once(None).chain(positions.iter().map(|at| Some(place(at)))).collect()
}

impl TextLogprobs {
    fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, offset: usize, at: Option<(&TokenLogprobs, usize)>) {
        let name = text_token(&tokenizer.token_bytes(token));
        self.text_offset.push(offset);
        self.token_logprobs.push(at.map(|(at, _)| finite(at.logprob)));
        self.top_logprobs.push(at.map(|(at, top)| {
            let likeliest = at.top.iter().take(top);
            let mut map: BTreeMap<String, f32> = likeliest
                .map(|&(token, logprob)| (text_token(&tokenizer.token_bytes(token)), finite(logprob)))
                .collect();
            map.entry(name.clone()).or_insert(finite(at.logprob));
            map
        }));
        self.tokens.push(name);
    }

    pub fn append(&mut self, mut other: Self) {
        self.tokens.append(&mut other.tokens);
        self.token_logprobs.append(&mut other.token_logprobs);
        self.top_logprobs.append(&mut other.top_logprobs);
        self.text_offset.append(&mut other.text_offset);
    }
}

fn text_token(bytes: &[u8]) -> String {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
    }
}
