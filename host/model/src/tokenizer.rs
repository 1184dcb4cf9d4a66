//! What a GGUF file says about its tokenizer, as plain data for the text side.

use crate::gguf::{Gguf, GgufError, Required};

/// The `tokenizer.*` keys. Nothing is interpreted here: whether `pre` is known is the tokenizer's business.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufTokenizerData {
    /// `tokenizer.ggml.model`: `gpt2` for byte-level BPE.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; one per token, or empty where the file has none.
    pub token_types: Vec<u32>,
    /// `a b`, best first.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub padding: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
}

impl GgufTokenizerData {
    pub fn read(gguf: &Gguf) -> Result<Self, GgufError> {
        let metadata = gguf.metadata();
        let text = |key: &str| metadata.string(key).map(|text| text.map(str::to_owned));
        let texts = |key: &str| match metadata.strings(key)? {
            None => Ok(None),
            Some(strings) => strings.map(|s| s.map(str::to_owned)).collect::<Result<Vec<_>, _>>().map(Some),
        };
        let tokens = texts("tokenizer.ggml.tokens").required("tokenizer.ggml.tokens")?;
        let token_types = metadata.u32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !token_types.is_empty() && token_types.len() != tokens.len() {
            let field = "the length of `tokenizer.ggml.token_type` (one per token)".to_owned();
            return Err(GgufError::Limit { field, value: token_types.len() as u64, limit: tokens.len() as u64 });
        }
        let id = |key: &str| match metadata.u32(key)? {
            Some(id) if id as usize >= tokens.len() => {
                let limit = (tokens.len() as u64).saturating_sub(1);
                Err(GgufError::Limit { field: format!("`{key}`"), value: id.into(), limit })
            }
            id => Ok(id),
        };
        Ok(Self {
            model: text("tokenizer.ggml.model").required("tokenizer.ggml.model")?,
            pre: text("tokenizer.ggml.pre")?,
            token_types,
            merges: texts("tokenizer.ggml.merges")?.unwrap_or_default(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            padding: id("tokenizer.ggml.padding_token_id")?,
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
            tokens,
        })
    }
}
