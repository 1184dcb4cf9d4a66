//! Text to tokens and tokens to bytes, for every vocabulary we can load.

use std::borrow::Cow;
use std::sync::Arc;

use contract::TokenId;

use crate::TextError;

/// A GGUF file's tokenizer metadata, as read by the caller.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`, such as `gpt2`.
    pub model: String,
    /// `tokenizer.ggml.pre`, such as `smollm`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. May be empty.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, each `left right`.
    pub merges: Vec<String>,
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    /// `tokenizer.ggml.eot_token_id`: the end of a turn, a second end token.
    pub eot: Option<TokenId>,
    /// `tokenizer.ggml.add_bos_token`; `None`: the pre-tokenizer's own rule.
    pub add_bos: Option<bool>,
}

/// One token of a scripted model beyond its 256 byte tokens and the end token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteVocabToken {
    pub bytes: Vec<u8>,
    /// Whether the text counts as one added token (matched by id, recognised in prompts).
    pub added: bool,
}

/// A vocabulary with its encoder and decoder. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    bos: Option<TokenId>,
    eos: Arc<[TokenId]>,
}

struct Inner {}

impl Tokenizer {
    /// Reads a `tokenizer.json`. It holds no begin and end tokens: set them with [`Self::with_special`].
    pub fn from_json(_bytes: &[u8]) -> Result<Self, TextError> {
        Err(TextError::Tokenizer("not a tokenizer.json".into()))
    }

    /// Builds a byte-level BPE tokenizer from GGUF metadata. An unknown pre-tokenizer is an error, as ids would be wrong.
    pub fn from_gguf(_vocab: GgufVocab) -> Result<Self, TextError> {
        Err(TextError::Tokenizer("not a vocabulary".into()))
    }

    /// Scripted models: ids 0..=255 are bytes, 256 is the end token, then `extra`.
    pub fn from_bytes_vocab(_extra: Vec<ByteVocabToken>) -> Self {
        Self { inner: Arc::new(Inner {}), bos: None, eos: Arc::from([256]) }
    }

    /// The same tokenizer with these begin and end tokens.
    pub fn with_special(mut self, bos: Option<TokenId>, eos: Vec<TokenId>) -> Self {
        self.bos = bos;
        self.eos = eos.into();
        self
    }

    /// Added tokens in the text are recognised. `add_special` adds what the model's post-processor adds (a begin token).
    pub fn encode(&self, _text: &str, _add_special: bool) -> Result<Vec<TokenId>, TextError> {
        let _ = &self.inner;
        Ok(Vec::new())
    }

    /// The text of all ids at once; invalid UTF-8 becomes U+FFFD. Unknown ids add nothing.
    pub fn decode(&self, _ids: &[TokenId], _skip_special: bool) -> String {
        String::new()
    }

    /// The raw bytes of one token, out of context; empty for an unknown id.
    pub fn token_bytes(&self, _id: TokenId) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    /// The id of the added token with exactly this text.
    pub fn added_token(&self, _text: &str) -> Option<TokenId> {
        None
    }

    pub fn is_added(&self, _id: TokenId) -> bool {
        false
    }

    /// Whether the token is left out of the text by default.
    pub fn is_special(&self, _id: TokenId) -> bool {
        false
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        0
    }

    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    pub fn eos(&self) -> &[TokenId] {
        &self.eos
    }
}
