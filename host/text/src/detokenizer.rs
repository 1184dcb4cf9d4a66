//! Tokens to text, one at a time, never splitting a code point and never taking text back.

use contract::TokenId;

use crate::Tokenizer;

/// Bytes of one stream that are not yet a whole character, and what the start of the text still needs.
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// At most three bytes: the beginning of a character that the next bytes may complete.
    pending: Vec<u8>,
    at_start: bool,
    /// Leading characters that may still be dropped.
    strip: Option<(char, usize)>,
}

impl Detokenizer {
    pub fn new(tokenizer: Tokenizer) -> Self {
        let strip = tokenizer.leading_strip();
        Self { tokenizer, pending: Vec::new(), at_start: true, strip }
    }

    /// The text that this token completes; often empty in the middle of a character.
    pub fn push(&mut self, token: TokenId) -> String {
        let bytes = if std::mem::take(&mut self.at_start) {
            self.tokenizer.first_token_bytes(token)
        } else {
            self.tokenizer.token_bytes(token)
        };
        self.pending.extend_from_slice(&bytes);
        self.whole_characters()
    }

    /// As [`Self::push`], for bytes that come from no token.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        self.whole_characters()
    }

    fn whole_characters(&mut self) -> String {
        let mut text = String::with_capacity(self.pending.len());
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    // An error without a length is a character that later bytes may complete.
                    let Some(bad) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        self.strip_start(text)
    }

    /// The end, or a border that no character crosses: an incomplete character becomes one U+FFFD.
    pub fn finish(&mut self) -> &'static str {
        if self.pending.is_empty() {
            return "";
        }
        self.pending.clear();
        self.strip = None;
        "\u{FFFD}"
    }

    fn strip_start(&mut self, text: String) -> String {
        let Some((content, mut left)) = self.strip else { return text };
        if text.is_empty() {
            return text;
        }
        let mut rest = text.as_str();
        while left > 0
            && let Some(after) = rest.strip_prefix(content)
        {
            rest = after;
            left -= 1;
        }
        self.strip = (rest.is_empty() && left > 0).then_some((content, left));
        rest.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(pieces: &[&[u8]]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(Tokenizer::from_bytes_vocab(Vec::new()));
        let mut texts: Vec<String> = pieces.iter().map(|p| detokenizer.push_bytes(p)).collect();
        texts.push(detokenizer.finish().to_owned());
        texts
    }

    /// Case api-21: characters made of several tokens come whole, and the broken tail is one U+FFFD at the end.
    #[test]
    fn characters_come_whole() {
        let pieces: [&[u8]; 8] = [&[0x6e], &[0xc3], &[0xa9, 0x20], &[0xf0], &[0x9f, 0x8c], &[0xb6], &[0xe2], &[0x80]];
        assert_eq!(stream(&pieces), ["n", "", "é ", "", "", "🌶", "", "", "\u{FFFD}"]);
    }

    #[test]
    fn bytes_that_cannot_complete_are_replaced_at_once() {
        assert_eq!(stream(&[&[0xc3], b"a", &[0xff, b'b']]), ["", "\u{FFFD}a", "\u{FFFD}b", ""]);
    }

    proptest! {
        /// Any cutting of any bytes gives what the lossy one-shot decode gives.
        #[test]
        fn joined_pieces_equal_the_lossy_text(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..20)) {
            let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            let expected = String::from_utf8_lossy(&whole);
            prop_assert_eq!(stream(&slices).concat(), expected.as_ref());
        }
    }
}
