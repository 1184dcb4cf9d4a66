//! The request of `/v1/embeddings`.

use engine::Pooling;
use serde_json::Value;

use super::common::MODEL_BYTES_MAX;
use super::completion::{Prompt, prompts};
use super::fields::{Fields, missing, wrong};
use super::foreign::Ignored;
use crate::auth::TENANT_BYTES_MAX;
use crate::error::ApiError;

/// The OpenAI API's limit.
pub const INPUTS_MAX: usize = 2048;
/// No model has a wider hidden state.
pub const DIMENSIONS_MAX: u32 = 65_536;

#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingsRequest {
    pub model: Option<String>,
    /// At least one.
    pub inputs: Vec<Prompt>,
    pub dimensions: Option<u32>,
    pub base64: bool,
    pub pooling: Pooling,
    /// Vectors have length 1, as those of the OpenAI API.
    pub normalize: bool,
    pub add_special_tokens: bool,
    pub user: Option<String>,
    pub ignored: Ignored,
}

impl TryFrom<Fields> for EmbeddingsRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let input = fields.take("input").ok_or_else(|| missing("input"))?;
        let base64 = match fields.take("encoding_format") {
            None => false,
            Some(Value::String(format)) if format == "float" || format == "base64" => format == "base64",
            Some(other) => return Err(wrong("encoding_format", "\"float\" or \"base64\"", &other)),
        };
        let pooling = match fields.take("pooling") {
            None => Pooling::default(),
            Some(Value::String(kind)) if kind == "last" => Pooling::Last,
            Some(Value::String(kind)) if kind == "mean" => Pooling::Mean,
            Some(other) => return Err(wrong("pooling", "\"last\" or \"mean\"", &other)),
        };
        Ok(Self {
            model: fields.string("model", MODEL_BYTES_MAX)?,
            inputs: prompts("input", input, INPUTS_MAX)?,
            dimensions: fields.count("dimensions", 1..=DIMENSIONS_MAX)?,
            base64,
            pooling,
            normalize: fields.flag("normalize", true)?,
            add_special_tokens: fields.flag("add_special_tokens", true)?,
            user: fields.string("user", TENANT_BYTES_MAX)?,
            ignored: Ignored::sort(fields)?,
        })
    }
}
