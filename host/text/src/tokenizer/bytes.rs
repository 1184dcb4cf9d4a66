//! The vocabulary of scripted models: one token per byte, an end token, and the strings of the script.

use contract::TokenId;

use super::vocab::{Entry, Table};

/// The id after the 256 byte tokens.
pub(super) const END_TOKEN: TokenId = 256;

/// One token of a scripted model beyond its 256 byte tokens and the end token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteVocabToken {
    pub bytes: Vec<u8>,
    /// Whether the text counts as one added token (matched by id, recognised in prompts).
    pub added: bool,
}

pub(super) fn table(extra: Vec<ByteVocabToken>) -> Table {
    let bytes = (0..=255u8).map(|b| Entry { id: b.into(), bytes: vec![b], added: false, special: false });
    let end = Entry { id: END_TOKEN, bytes: b"<|end|>".to_vec(), added: true, special: true };
    let extra = extra.into_iter().zip(END_TOKEN + 1..).map(|(token, id)| Entry {
        id,
        bytes: token.bytes,
        added: token.added,
        special: false,
    });
    Table::new(bytes.chain([end]).chain(extra).collect())
}

/// Bytes, with the longest added token wherever one stands.
pub(super) fn encode(table: &Table, text: &str) -> Vec<TokenId> {
    let mut added: Vec<(&str, TokenId)> = table.added_tokens().filter(|(text, _)| !text.is_empty()).collect();
    added.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some(&first) = rest.first() {
        let found = added.iter().find(|(text, _)| rest.starts_with(text.as_bytes()));
        let (token, len) = found.map_or((first.into(), 1), |(text, id)| (*id, text.len()));
        tokens.push(token);
        rest = &rest[len..];
    }
    tokens
}
