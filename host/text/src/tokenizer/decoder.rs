//! What a `tokenizer.json` decoder does to one token, and what it does to the first.
//!
//! We decode token by token, because a stream must never take text back. That is possible for every decoder whose
//! result for a token depends only on the token and on whether it is the first; the others are refused by name.

use tokenizers::{Decoder as _, DecoderWrapper};

use super::byte_level::ByteLevel;
use crate::TextError;

pub(super) const SUPPORTED: &str =
    "ByteLevel, Metaspace, WordPiece, Sequence of Replace, ByteFallback, Fuse, Strip (start only), or none";

/// What differs at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstRule {
    Same,
    /// The first token is decoded alone: Metaspace drops its leading marks, WordPiece and none add no space before it.
    Alone,
    /// At most `count` leading `content` characters of the whole text are dropped.
    Strip {
        content: char,
        count: usize,
    },
}

enum Kind {
    ByteLevel(Box<ByteLevel>),
    /// Through the library's decoder, with `byte_fallback` tokens (`<0x41>`) read here.
    Library {
        decoder: Option<DecoderWrapper>,
        byte_fallback: bool,
    },
}

pub(super) struct TokenDecoder {
    kind: Kind,
    pub first: FirstRule,
}

impl TokenDecoder {
    pub(super) fn byte_level() -> Self {
        Self { kind: Kind::ByteLevel(Box::new(ByteLevel::new())), first: FirstRule::Same }
    }

    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, TextError> {
        let library =
            |byte_fallback, first| Self { kind: Kind::Library { decoder: decoder.cloned(), byte_fallback }, first };
        match decoder {
            None | Some(DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_)) => {
                Ok(library(false, FirstRule::Alone))
            }
            Some(DecoderWrapper::ByteLevel(_)) => Ok(Self::byte_level()),
            Some(DecoderWrapper::Fuse(_) | DecoderWrapper::Replace(_)) => Ok(library(false, FirstRule::Same)),
            Some(DecoderWrapper::ByteFallback(_)) => Ok(library(true, FirstRule::Same)),
            Some(DecoderWrapper::Sequence(sequence)) => match sequence.get_decoders() {
                [DecoderWrapper::ByteLevel(_)] => Ok(Self::byte_level()),
                steps => {
                    let (byte_fallback, first) = sequence_rules(steps)?;
                    Ok(library(byte_fallback, first))
                }
            },
            Some(other) => Err(unsupported(other)),
        }
    }

    /// The bytes of a token that is not the first of a text.
    pub(super) fn bytes(&self, token: &str) -> Result<Vec<u8>, TextError> {
        match &self.kind {
            Kind::ByteLevel(map) => Ok(map.bytes_of(token)),
            Kind::Library { byte_fallback: true, .. } if byte_token(token).is_some() => {
                Ok(byte_token(token).into_iter().collect())
            }
            // A first token that no decoder changes; what follows it is the token's own text.
            Kind::Library { decoder, .. } => {
                let text = decode(decoder.as_ref(), &["x", token])?;
                Ok(text.strip_prefix('x').unwrap_or(&text).as_bytes().to_vec())
            }
        }
    }

    /// The bytes of a token that stands first, under [`FirstRule::Alone`].
    pub(super) fn bytes_alone(&self, token: &str) -> Result<Vec<u8>, TextError> {
        match &self.kind {
            Kind::ByteLevel(map) => Ok(map.bytes_of(token)),
            Kind::Library { decoder, .. } => Ok(decode(decoder.as_ref(), &[token])?.into_bytes()),
        }
    }

    /// Whether an added token's text is its own bytes whatever the decoder says. Byte-level decoders would read the
    /// Latin-1 letters of an added token as bytes.
    pub(super) fn added_is_literal(&self) -> bool {
        matches!(self.kind, Kind::ByteLevel(_))
    }
}

fn decode(decoder: Option<&DecoderWrapper>, tokens: &[&str]) -> Result<String, TextError> {
    match decoder {
        None => Ok(tokens.join(" ")),
        Some(decoder) => decoder
            .decode(tokens.iter().map(|t| (*t).to_owned()).collect())
            .map_err(|e| TextError::Tokenizer(format!("decoder failed on {:?}: {e}", tokens.last()))),
    }
}

/// `<0x41>` as its byte.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// Byte fallback and first rule of a sequence. After `Fuse` a step sees the whole text: only a leading strip is left.
fn sequence_rules(steps: &[DecoderWrapper]) -> Result<(bool, FirstRule), TextError> {
    let mut byte_fallback = false;
    let mut first = FirstRule::Same;
    let mut fused = false;
    for step in steps {
        match step {
            DecoderWrapper::Fuse(_) => fused = true,
            DecoderWrapper::Strip(strip) if strip.stop > 0 => return Err(unsupported(step)),
            DecoderWrapper::Strip(strip) if fused => {
                if first != FirstRule::Same {
                    return Err(unsupported(step));
                }
                first = FirstRule::Strip { content: strip.content, count: strip.start };
            }
            DecoderWrapper::Strip(_) | DecoderWrapper::Replace(_) if !fused => {}
            DecoderWrapper::ByteFallback(_) if !fused => byte_fallback = true,
            DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) if !fused && !byte_fallback => {
                first = FirstRule::Alone;
            }
            other => return Err(unsupported(other)),
        }
    }
    Ok((byte_fallback, first))
}

fn unsupported(decoder: &DecoderWrapper) -> TextError {
    let name = serde_json::to_value(decoder)
        .ok()
        .and_then(|value| value.get("type").and_then(|t| t.as_str()).map(str::to_owned))
        .unwrap_or_else(|| "unnamed".to_owned());
    TextError::UnsupportedDecoder { name, supported: SUPPORTED.to_owned() }
}
