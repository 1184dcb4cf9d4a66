//! Text to tokens and tokens to bytes, for every vocabulary we can load.

mod byte_level;
mod bytes;
mod decoder;
mod gguf;
mod vocab;

use std::borrow::Cow;
use std::sync::Arc;

use contract::TokenId;

use crate::TextError;
use crate::detokenizer::Detokenizer;
use decoder::{FirstRule, TokenDecoder};
use vocab::{Entry, TOKEN_ID_MAX, Table};

pub use bytes::ByteVocabToken;
pub use gguf::GgufVocab;

/// Longest text that is encoded at once. Prose of this length has about a million tokens, more than any context we
/// serve, and the slowest texts (runs of white space) take about four seconds a mebibyte on one slow core.
pub const ENCODE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A vocabulary with its encoder and decoder. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
    bos: Option<TokenId>,
    eos: Arc<[TokenId]>,
}

enum Encoder {
    Library(Box<tokenizers::Tokenizer>),
    Bytes,
}

struct Inner {
    encoder: Encoder,
    decoder: TokenDecoder,
    table: Table,
    /// Put the begin token in front when special tokens are asked for. `tokenizer.json` has a post-processor instead.
    add_bos: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`. It holds no begin and end tokens: set them with [`Self::with_special`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, TextError> {
        let mut library = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|e| TextError::Tokenizer(format!("tokenizer.json is not usable: {e}")))?;
        // Serving never pads or cuts a prompt, whatever the file's training settings were.
        library.with_padding(None);
        library.with_truncation(None).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        let decoder = TokenDecoder::new(library.get_decoder())?;
        let table = table(&library, &decoder)?;
        Ok(Self::assemble(Encoder::Library(Box::new(library)), decoder, table, false))
    }

    /// Builds a byte-level BPE tokenizer from GGUF metadata. An unknown pre-tokenizer is an error, as ids would be
    /// wrong.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TextError> {
        let (library, add_bos) = gguf::build(&vocab)?;
        let decoder = TokenDecoder::byte_level();
        let table = table(&library, &decoder)?;
        let eos = gguf::end_tokens(&vocab);
        let encoder = Encoder::Library(Box::new(library));
        Ok(Self::assemble(encoder, decoder, table, add_bos).with_special(vocab.bos, eos))
    }

    /// Scripted models: ids 0..=255 are bytes, 256 is the end token, then `extra`.
    pub fn from_bytes_vocab(extra: Vec<ByteVocabToken>) -> Self {
        Self::assemble(Encoder::Bytes, TokenDecoder::byte_level(), bytes::table(extra), false)
            .with_special(None, vec![bytes::END_TOKEN])
    }

    fn assemble(encoder: Encoder, decoder: TokenDecoder, table: Table, add_bos: bool) -> Self {
        let inner = Arc::new(Inner { encoder, decoder, table, add_bos });
        Self { inner, bos: None, eos: Arc::from([]) }
    }

    /// The same tokenizer with these begin and end tokens.
    pub fn with_special(mut self, bos: Option<TokenId>, eos: Vec<TokenId>) -> Self {
        self.bos = bos;
        self.eos = eos.into();
        self
    }

    /// Added tokens in the text are recognised. `add_special` adds what the model puts around a text (a begin token).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, TextError> {
        let failed = |reason: String| TextError::Encode { bytes: text.len(), reason };
        if text.len() > ENCODE_BYTES_MAX {
            return Err(failed(format!("the limit is {ENCODE_BYTES_MAX} bytes")));
        }
        match &self.inner.encoder {
            Encoder::Bytes => Ok(bytes::encode(&self.inner.table, text)),
            Encoder::Library(library) => {
                let encoding = library.encode_fast(text, add_special).map_err(|e| failed(e.to_string()))?;
                let mut tokens = encoding.get_ids().to_vec();
                if let Some(bos) = self.bos.filter(|_| add_special && self.inner.add_bos)
                    && tokens.first() != Some(&bos)
                {
                    tokens.insert(0, bos);
                }
                Ok(tokens)
            }
        }
    }

    /// The text of all ids at once; invalid UTF-8 becomes U+FFFD. Unknown ids add nothing.
    ///
    /// It is the same code that streams, so joined stream pieces always equal it.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> String {
        let mut detokenizer = Detokenizer::new(self.clone());
        let mut text = String::new();
        for &id in ids.iter().filter(|id| !(skip_special && self.is_special(**id))) {
            text.push_str(&detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        text
    }

    /// The raw bytes of one token, out of context; empty for an unknown id.
    pub fn token_bytes(&self, id: TokenId) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.inner.table.bytes(id))
    }

    /// The bytes of a token that starts a text.
    pub(crate) fn first_token_bytes(&self, id: TokenId) -> Cow<'_, [u8]> {
        let in_context = self.inner.table.bytes(id);
        if self.inner.decoder.first != FirstRule::Alone {
            return Cow::Borrowed(in_context);
        }
        let Encoder::Library(library) = &self.inner.encoder else { return Cow::Borrowed(in_context) };
        let alone = library.id_to_token(id).and_then(|token| self.inner.decoder.bytes_alone(&token).ok());
        alone.map_or(Cow::Borrowed(in_context), Cow::Owned)
    }

    /// The character that is dropped at the start of a text, and how often.
    pub(crate) fn leading_strip(&self) -> Option<(char, usize)> {
        match self.inner.decoder.first {
            FirstRule::Strip { content, count } => Some((content, count)),
            FirstRule::Same | FirstRule::Alone => None,
        }
    }

    /// The id of the added token with exactly this text.
    pub fn added_token(&self, text: &str) -> Option<TokenId> {
        self.inner.table.added_token(text)
    }

    pub fn is_added(&self, id: TokenId) -> bool {
        self.inner.table.is_added(id)
    }

    /// Whether the vocabulary has this id.
    pub fn is_known(&self, id: TokenId) -> bool {
        self.inner.table.is_known(id)
    }

    /// Whether the token is left out of the text by default.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.inner.table.is_special(id)
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.inner.table.size()
    }

    /// The vocabulary as grammars see it.
    pub fn vocabulary(&self) -> grammar::Vocabulary {
        let ids = 0..self.vocab_size() as TokenId;
        grammar::Vocabulary::new(ids.map(|id| (self.token_bytes(id), self.is_added(id))))
    }

    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    pub fn eos(&self) -> &[TokenId] {
        &self.eos
    }
}

/// Decodes the whole vocabulary once, so that serving a token is a table look-up.
fn table(library: &tokenizers::Tokenizer, decoder: &TokenDecoder) -> Result<Table, TextError> {
    let added = library.get_added_tokens_decoder();
    let mut entries = Vec::new();
    for (token, id) in library.get_vocab(true) {
        if id > TOKEN_ID_MAX {
            return Err(TextError::Tokenizer(format!(
                "token {token:?} has id {id}, the highest possible is {TOKEN_ID_MAX}"
            )));
        }
        let added_token = added.get(&id);
        let literal = added_token.filter(|_| decoder.added_is_literal());
        let bytes = match literal {
            Some(added) => added.content.clone().into_bytes(),
            None => decoder.bytes(&token)?,
        };
        entries.push(Entry {
            id,
            bytes,
            added: added_token.is_some(),
            special: added_token.is_some_and(|t| t.special),
        });
    }
    Ok(Table::new(entries))
}

#[cfg(test)]
mod tests;
