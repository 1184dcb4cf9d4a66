//! The bytes of every token, as the library's trie.

use std::borrow::Cow;
use std::sync::Arc;

use contract::TokenId;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};

/// Longest white space that a model may put between its reasoning and what a grammar binds, in bytes. Templates put one
/// or two line ends there.
pub(crate) const LEADING_BYTES_MAX: usize = 8;

/// The tokens of one model, as grammars see them.
///
/// Added tokens are no text: a grammar matches them only by name or id (`<|tool|>` or `<[151657]>` in Lark), so free text
/// inside a grammar can never spell a marker. Only those that are white space alone count as text too.
pub struct Vocabulary {
    env: TokEnv,
    size: usize,
    /// Per token its text; empty for unknown ones.
    white_space: SimpleVob,
}

impl Vocabulary {
    /// `tokens`: bytes and whether it is an added token, by id without gaps; unknown ids have no bytes.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (Cow<'a, [u8]>, bool)>) -> Self {
        const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
        let mut white = Vec::new();
        let mut words: Vec<Vec<u8>> = Vec::new();
        for (id, (bytes, added)) in tokens.into_iter().enumerate() {
            // JSON's own: a form feed before an answer would make it no JSON.
            let is_white = !bytes.is_empty() && bytes.iter().all(|byte| b" \t\n\r".contains(byte));
            if is_white && bytes.len() <= LEADING_BYTES_MAX {
                white.push(id as TokenId);
            }
            words.push(match bytes.first() {
                None => Vec::new(),
                Some(_) if added && !is_white => [&[MARK], &*bytes].concat(),
                // No text has this byte; the trie uses it as the mark of a token that is none.
                Some(&MARK) => Vec::new(),
                Some(_) => bytes.into_owned(),
            });
        }
        let size = words.len();
        // An end of our own: which tokens end a text is the request's to say.
        words.push([&[MARK], &b"<|end of grammar|>"[..]].concat());
        let info = TokRxInfo::new(words.len() as u32, size as TokenId);
        let trie = TokTrie::from(&info, &words);
        let mut white_space = trie.alloc_token_set();
        white.into_iter().for_each(|id| white_space.allow_token(id));
        // Not canonical: any spelling of an allowed text is allowed, so no tokenizer runs while a model waits.
        Self { env: Arc::new(ApproximateTokEnv::new(trie)), size, white_space }
    }

    pub(crate) fn env(&self) -> &TokEnv {
        &self.env
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    /// Tokens of the model; masks have a bit for each.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Stands for "the text may end here" in the library's masks.
    pub(crate) fn end(&self) -> TokenId {
        self.size as TokenId
    }

    /// The bytes that a token adds to the text; those of an added token too.
    pub(crate) fn bytes(&self, token: TokenId) -> &[u8] {
        if token as usize >= self.size {
            return &[];
        }
        let bytes = self.trie().token(token);
        bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)
    }

    /// Added tokens with their texts.
    pub(crate) fn all_added(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        (0..self.size as TokenId).filter(|&id| self.trie().is_special_token(id)).map(|id| (id, self.bytes(id)))
    }

    pub(crate) fn white_space(&self) -> &SimpleVob {
        &self.white_space
    }

    pub(crate) fn is_white_space(&self, token: TokenId) -> bool {
        (token as usize) < self.size && self.white_space.is_allowed(token)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// 256 bytes, an end token, and these added tokens from 257 on.
    pub(crate) fn bytes_and(added: &[&str]) -> Vocabulary {
        let bytes = (0..=255u8).map(|byte| (Cow::Owned(vec![byte]), false));
        let end = (Cow::Borrowed(&b"<|end|>"[..]), true);
        let added = added.iter().map(|text| (Cow::Borrowed(text.as_bytes()), true));
        Vocabulary::new(bytes.chain([end]).chain(added))
    }

    #[test]
    fn added_tokens_are_no_text() {
        let vocabulary = bytes_and(&["<tool>", "\n\n"]);
        assert_eq!((vocabulary.size(), vocabulary.end()), (259, 259));
        assert_eq!(vocabulary.bytes(257), b"<tool>");
        assert!(vocabulary.is_white_space(258) && vocabulary.is_white_space(10) && !vocabulary.is_white_space(97));
        assert!(!vocabulary.is_white_space(12), "a form feed");
        assert_eq!(vocabulary.all_added().map(|(id, _)| id).collect::<Vec<_>>(), [256, 257]);
    }
}
