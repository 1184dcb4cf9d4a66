//! Reasoning spans, tracked natively on token ids.
//!
//! Grammars start, thinking budgets are counted and `reasoning_tokens` is reported from here, so none of them depends
//! on what a plugin says.

use crate::TokenId;

/// A span's markers after they were looked up in the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedSpan {
    pub open: ResolvedMarker,
    pub close: ResolvedMarker,
}

/// A marker is one added token, or, when the tokenizer has none of that text, a byte string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedMarker {
    Token(TokenId),
    Bytes(Vec<u8>),
}

/// Follows one stream and knows, after each token, whether it is inside a reasoning span.
#[derive(Clone, Debug)]
pub struct ReasoningTracker {
    spans: Vec<ResolvedSpan>,
    /// Index of the open span.
    open: Option<usize>,
    /// Bytes that may still become an unresolved marker.
    tail: Vec<u8>,
    reasoning_tokens: u32,
}

impl ReasoningTracker {
    /// `starts_open`: the prompt left the first span open.
    pub fn new(spans: Vec<ResolvedSpan>, starts_open: bool) -> Self {
        let open = (starts_open && !spans.is_empty()).then_some(0);
        Self { spans, open, tail: Vec::new(), reasoning_tokens: 0 }
    }

    pub fn in_reasoning(&self) -> bool {
        self.open.is_some()
    }

    /// Tokens between the markers, markers excluded.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// Takes one token and the bytes it decodes to; returns whether the stream is inside reasoning after it.
    pub fn push(&mut self, token: TokenId, bytes: &[u8]) -> bool {
        let was_open = self.open.is_some();
        self.tail.extend_from_slice(bytes);
        match self.open {
            Some(span) => {
                if self.matches(&self.spans[span].close, token) {
                    self.open = None;
                    self.tail.clear();
                }
            }
            None => {
                let opened = (0..self.spans.len()).find(|&i| self.matches(&self.spans[i].open, token));
                if opened.is_some() {
                    self.open = opened;
                    self.tail.clear();
                }
            }
        }
        if was_open && self.open.is_some() {
            self.reasoning_tokens += 1;
        }
        let keep =
            self.spans.iter().flat_map(|s| [&s.open, &s.close]).map(ResolvedMarker::bytes_len).max().unwrap_or(0);
        let cut = self.tail.len().saturating_sub(keep);
        self.tail.drain(..cut);
        self.in_reasoning()
    }

    fn matches(&self, marker: &ResolvedMarker, token: TokenId) -> bool {
        match marker {
            ResolvedMarker::Token(id) => *id == token,
            // Only the end of the tail is new, but a token may carry text after the marker.
            ResolvedMarker::Bytes(bytes) => !bytes.is_empty() && self.tail.windows(bytes.len()).any(|w| w == bytes),
        }
    }
}

impl ResolvedMarker {
    fn bytes_len(&self) -> usize {
        match self {
            Self::Token(_) => 0,
            Self::Bytes(bytes) => bytes.len().saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(
        open: ResolvedMarker,
        close: ResolvedMarker,
        starts_open: bool,
        stream: &[(TokenId, &str)],
    ) -> (u32, bool) {
        let mut tracker = ReasoningTracker::new(vec![ResolvedSpan { open, close }], starts_open);
        for (token, text) in stream {
            tracker.push(*token, text.as_bytes());
        }
        (tracker.reasoning_tokens(), tracker.in_reasoning())
    }

    /// A marker that is one token is matched by id: the same text from other tokens does not close the span.
    #[test]
    fn tokens_match_by_id() {
        let stream = [(5, "quoting "), (6, "</think>"), (8, "</think>"), (5, "done")];
        assert_eq!(count(ResolvedMarker::Token(7), ResolvedMarker::Token(8), true, &stream), (2, false));
    }

    /// A marker that no token spells is matched over token borders.
    #[test]
    fn bytes_match_across_tokens() {
        let marker = |s: &str| ResolvedMarker::Bytes(s.as_bytes().to_vec());
        let stream = [(1, "<th"), (2, "ink>"), (3, "a"), (4, "b</thi"), (5, "nk>"), (6, "c")];
        assert_eq!(count(marker("<think>"), marker("</think>"), false, &stream), (2, false));
    }

    /// A span that never closes counts to the end.
    #[test]
    fn open_span_counts_everything() {
        assert_eq!(count(ResolvedMarker::Token(7), ResolvedMarker::Token(8), true, &[(1, "a"), (2, "b")]), (2, true));
    }
}
