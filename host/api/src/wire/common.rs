//! The parameters that chat and text completions share.

use contract::TokenId;
use serde_json::Value;
use text::Structure;

use super::fields::{Fields, as_integer, as_number, as_string, describe, too_many, wrong};
use super::foreign::Ignored;
use super::structure;
use crate::auth::TENANT_BYTES_MAX;
use crate::error::ApiError;

/// Choices per prompt, and sequences per request. More is a batch job, which belongs into several requests.
pub const CHOICES_MAX: u32 = 128;
/// Stop strings of a request. Each is searched in every piece of text.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string, in bytes: so much text may be held back by it.
pub const STOP_BYTES_MAX: usize = 1024;
pub const STOP_TOKENS_MAX: usize = 128;
/// Entries of `logit_bias`; OpenAI's own limit is lower. The sampler walks them for every token.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// The OpenAI API's limit.
pub const TOP_LOGPROBS_MAX: i64 = 20;
pub const MODEL_BYTES_MAX: usize = 512;
/// vLLM's limit.
pub const CACHE_SALT_BYTES_MAX: usize = 128;

/// Sampling as the request wishes it; `None` is the model's default. All values are finite and in range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Alternatives per position; `Some(0)` is the sampled token's own alone.
    pub logprobs: Option<u8>,
}

/// When an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    pub max_tokens: Option<u32>,
    /// The field it was given in, for errors.
    pub max_tokens_field: &'static str,
    pub min_tokens: u32,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub stop_tokens: Vec<TokenId>,
    pub include_stop_str: bool,
    pub skip_special_tokens: bool,
}

/// What both request kinds have beside their prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    pub model: Option<String>,
    pub n: u32,
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    pub return_token_ids: bool,
    /// Alternatives per token of the prompt; `Some(0)` is the token's own logprob alone.
    pub prompt_logprobs: Option<u8>,
    pub user: Option<String>,
    pub priority: i32,
    pub cache_salt: Option<String>,
    pub wishes: Wishes,
    pub ends: Ends,
    /// The form that the content must have.
    pub structure: Option<Structure>,
    pub ignored: Ignored,
}

impl Common {
    /// Takes the shared fields. `logprobs` is read by the caller, as its shape differs; `ignored` is filled in last.
    /// Answers of no token at all are allowed where `max_tokens_min` is 0.
    pub fn take(fields: &mut Fields, max_tokens_min: u32) -> Result<Self, ApiError> {
        let stream = fields.flag("stream", false)?;
        let (include_usage, continuous_usage, unknown) = stream_options(fields, stream)?;
        Ok(Self {
            model: fields.string("model", MODEL_BYTES_MAX)?,
            n: fields.count("n", 1..=CHOICES_MAX)?.unwrap_or(1),
            stream,
            include_usage,
            continuous_usage,
            return_token_ids: fields.flag("return_token_ids", false)?,
            prompt_logprobs: prompt_logprobs(fields, stream)?,
            user: fields.string("user", TENANT_BYTES_MAX)?,
            priority: priority(fields)?,
            cache_salt: fields.string("cache_salt", CACHE_SALT_BYTES_MAX)?,
            wishes: wishes(fields)?,
            ends: ends(fields, max_tokens_min)?,
            structure: structure::take(fields)?,
            ignored: Ignored { foreign: Vec::new(), unknown },
        })
    }

    /// Sorts the fields that nobody took.
    pub fn close(&mut self, rest: Fields) -> Result<(), ApiError> {
        let mut more = Ignored::sort(rest)?;
        self.ignored.foreign.append(&mut more.foreign);
        self.ignored.unknown.append(&mut more.unknown);
        Ok(())
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<(bool, bool, Vec<String>), ApiError> {
    let Some(map) = fields.object("stream_options")? else { return Ok((false, false, Vec::new())) };
    if !stream {
        return Err(ApiError::invalid("stream_options", "is only allowed together with \"stream\": true"));
    }
    let mut usage = [false, false];
    let mut unknown = Vec::new();
    for (name, value) in map {
        let place = match name.as_str() {
            "include_usage" => &mut usage[0],
            "continuous_usage_stats" => &mut usage[1],
            _ => {
                unknown.push(format!("stream_options.{name}"));
                continue;
            }
        };
        *place = match value {
            Value::Null => false,
            Value::Bool(wanted) => wanted,
            other => return Err(wrong(&format!("stream_options.{name}"), "true or false", &other)),
        };
    }
    Ok((usage[0], usage[1], unknown))
}

fn prompt_logprobs(fields: &mut Fields, stream: bool) -> Result<Option<u8>, ApiError> {
    const NAME: &str = "prompt_logprobs";
    // Some clients say `false` where they want none.
    let Some(value) = fields.take(NAME).filter(|value| *value != Value::Bool(false)) else { return Ok(None) };
    let count = as_integer(NAME, &value, &(0..=TOP_LOGPROBS_MAX))?;
    if stream {
        return Err(ApiError::invalid(NAME, "is part of whole answers only; leave out \"stream\": true"));
    }
    Ok(Some(u8::try_from(count).expect("the limit fits a byte")))
}

fn priority(fields: &mut Fields) -> Result<i32, ApiError> {
    let wide = fields.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?.unwrap_or(0);
    Ok(i32::try_from(wide).expect("the range is one of i32"))
}

fn wishes(fields: &mut Fields) -> Result<Wishes, ApiError> {
    Ok(Wishes {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        // Both 0 and -1 mean "off" among clients.
        top_k: fields.integer("top_k", -1..=i64::from(i32::MAX))?.map(|k| u32::try_from(k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0..=1.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        // It divides logits: values near 0 would make them infinite.
        repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?,
        seed: seed(fields)?,
        logit_bias: logit_bias(fields)?,
        logprobs: None,
    })
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    match fields.take("seed") {
        None => Ok(None),
        // A negative seed is a seed like any other.
        Some(value) => match value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)) {
            Some(seed) => Ok(Some(seed)),
            None => as_integer("seed", &value, &(i64::MIN..=i64::MAX)).map(|seed| Some(seed.cast_unsigned())),
        },
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > LOGIT_BIAS_MAX {
        return Err(too_many("logit_bias", map.len(), LOGIT_BIAS_MAX));
    }
    map.iter()
        .map(|(key, value)| {
            let token = key.parse::<TokenId>().map_err(|_| {
                let shown = describe(&Value::String(key.clone()));
                ApiError::invalid("logit_bias", format!("a key must be a token id, not {shown}"))
            })?;
            let bias = as_number(&format!("logit_bias.{token}"), value, &(-100.0..=100.0))?;
            Ok((token, bias))
        })
        .collect()
}

fn ends(fields: &mut Fields, max_tokens_min: u32) -> Result<Ends, ApiError> {
    let old = fields.count("max_tokens", max_tokens_min..=u32::MAX)?;
    let new = fields.count("max_completion_tokens", max_tokens_min..=u32::MAX)?;
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let message = format!("is {new}, but max_tokens is {old}; they mean the same, send one of them");
        return Err(ApiError::invalid("max_completion_tokens", message));
    }
    let min_tokens = fields.count("min_tokens", 0..=u32::MAX)?.unwrap_or(0);
    let max_tokens = new.or(old);
    if let Some(max_tokens) = max_tokens.filter(|&max_tokens| max_tokens < min_tokens) {
        return Err(ApiError::invalid(
            "min_tokens",
            format!("is {min_tokens}, above max_tokens, which is {max_tokens}"),
        ));
    }
    Ok(Ends {
        max_tokens,
        max_tokens_field: if new.is_some() { "max_completion_tokens" } else { "max_tokens" },
        min_tokens,
        ignore_eos: fields.flag("ignore_eos", false)?,
        stop: stop(fields)?,
        stop_tokens: stop_tokens(fields)?,
        include_stop_str: fields.flag("include_stop_str_in_output", false)?,
        skip_special_tokens: fields.flag("skip_special_tokens", true)?,
    })
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() > STOP_STRINGS_MAX => {
            Err(too_many("stop", list.len(), STOP_STRINGS_MAX))
        }
        Some(Value::Array(list)) => list
            .into_iter()
            .enumerate()
            .map(|(i, value)| as_string(&format!("stop[{i}]"), value, STOP_BYTES_MAX))
            .collect(),
        Some(Value::String(text)) => Ok(vec![as_string("stop", Value::String(text), STOP_BYTES_MAX)?]),
        Some(other) => Err(wrong("stop", "a string or an array of strings", &other)),
    }
}

fn stop_tokens(fields: &mut Fields) -> Result<Vec<TokenId>, ApiError> {
    let list = fields.array("stop_token_ids", STOP_TOKENS_MAX)?.unwrap_or_default();
    token_ids("stop_token_ids", &list)
}

/// Token ids; whether they are in the vocabulary is checked once the model is known.
pub fn token_ids(name: &str, list: &[Value]) -> Result<Vec<TokenId>, ApiError> {
    list.iter()
        .enumerate()
        .map(|(i, value)| match value.as_u64().and_then(|id| TokenId::try_from(id).ok()) {
            Some(id) => Ok(id),
            // The name is only put together for the error: a prompt has many ids.
            None => as_integer(&format!("{name}[{i}]"), value, &(0..=i64::from(TokenId::MAX)))
                .map(|id| TokenId::try_from(id).expect("the range is one of token ids")),
        })
        .collect()
}

/// `top_logprobs`-like counts.
pub fn alternatives(fields: &mut Fields, name: &str) -> Result<Option<u8>, ApiError> {
    let count = fields.integer(name, 0..=TOP_LOGPROBS_MAX)?;
    Ok(count.map(|n| u8::try_from(n).expect("the limit fits a byte")))
}
