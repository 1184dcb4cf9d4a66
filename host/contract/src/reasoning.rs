//! Reasoning spans, tracked natively on token ids.
//!
//! Grammars start, thinking budgets are counted and `reasoning_tokens` is reported from here, so none of them depends
//! on what a plugin says.

use std::sync::Arc;

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

/// How much may be thought, and what the host writes when it is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinkingBudget {
    /// Reasoning tokens of one stream, over all its spans.
    pub tokens_max: u32,
    /// Per span, in the tracker's order: the tokens that end it. Each closes its span.
    pub closes: Arc<[Vec<TokenId>]>,
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
    budget: Option<ThinkingBudget>,
    /// The span that is being closed by force, and how many of its closing tokens came.
    forcing: Option<(usize, usize)>,
    /// Bytes of the last token behind the marker that it completed.
    rest: usize,
}

impl ReasoningTracker {
    /// `starts_open`: the prompt left the first span open.
    pub fn new(spans: Vec<ResolvedSpan>, starts_open: bool) -> Self {
        let open = (starts_open && !spans.is_empty()).then_some(0);
        Self { spans, open, tail: Vec::new(), reasoning_tokens: 0, budget: None, forcing: None, rest: 0 }
    }

    /// The same tracker, which also says when the budget is spent.
    pub fn with_budget(mut self, budget: Option<ThinkingBudget>) -> Self {
        self.budget = budget;
        self
    }

    pub fn in_reasoning(&self) -> bool {
        self.open.is_some()
    }

    /// Index of the span that the stream is in.
    pub fn open_span(&self) -> Option<usize> {
        self.open
    }

    /// The token that must come next because the thinking budget is spent.
    ///
    /// A model that closes its span in time is never forced. Once a forced close has begun it is written to its end,
    /// also what follows the closing marker in it.
    pub fn forced(&self) -> Option<TokenId> {
        let budget = self.budget.as_ref()?;
        let (span, written) = match self.forcing {
            Some(forcing) => forcing,
            None if self.reasoning_tokens >= budget.tokens_max => (self.open?, 0),
            None => return None,
        };
        budget.closes.get(span)?.get(written).copied()
    }

    /// Whether this token is the one that had to come.
    fn push_forced(&mut self, token: TokenId) -> bool {
        if self.forced() != Some(token) {
            return false;
        }
        let (span, written) = self.forcing.unwrap_or((self.open.unwrap_or(0), 0));
        let length = self.budget.as_ref().and_then(|budget| budget.closes.get(span)).map_or(0, Vec::len);
        self.forcing = (written + 1 < length).then_some((span, written + 1));
        true
    }

    /// Tokens between the markers, markers and forced tokens excluded.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// Takes one token and the bytes it decodes to; returns whether the stream is inside reasoning after it.
    pub fn push(&mut self, token: TokenId, bytes: &[u8]) -> bool {
        let was_open = self.open.is_some();
        let forced = self.push_forced(token);
        self.rest = 0;
        self.tail.extend_from_slice(bytes);
        match self.open {
            Some(span) => {
                if let Some(end) = self.matches(&self.spans[span].close, token) {
                    self.open = None;
                    self.rest = (self.tail.len() - end).min(bytes.len());
                    self.tail.clear();
                }
            }
            None => {
                let end_of = |i: usize| Some((i, self.matches(&self.spans[i].open, token)?));
                if let Some((span, end)) = (0..self.spans.len()).find_map(end_of) {
                    self.open = Some(span);
                    self.rest = (self.tail.len() - end).min(bytes.len());
                    self.tail.clear();
                }
            }
        }
        if was_open && self.open.is_some() && !forced {
            self.reasoning_tokens += 1;
        }
        let keep =
            self.spans.iter().flat_map(|s| [&s.open, &s.close]).map(ResolvedMarker::bytes_len).max().unwrap_or(0);
        let cut = self.tail.len().saturating_sub(keep);
        self.tail.drain(..cut);
        self.in_reasoning()
    }

    /// The end of the last pushed token, from behind the marker that it completed; empty when it completed none, and
    /// for a marker that is a token.
    pub fn rest<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[bytes.len().saturating_sub(self.rest)..]
    }

    /// Where in the tail the marker ends, if it is complete.
    fn matches(&self, marker: &ResolvedMarker, token: TokenId) -> Option<usize> {
        match marker {
            ResolvedMarker::Token(id) => (*id == token).then_some(self.tail.len()),
            // Only the end of the tail is new, but a token may carry text after the marker.
            ResolvedMarker::Bytes(bytes) if bytes.is_empty() => None,
            ResolvedMarker::Bytes(bytes) => {
                let start = self.tail.windows(bytes.len()).position(|window| window == bytes)?;
                Some(start + bytes.len())
            }
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

    /// What a budget forces after each token; `-` is nothing.
    fn forced_after(tokens_max: u32, stream: &[TokenId]) -> String {
        let span = ResolvedSpan { open: ResolvedMarker::Token(7), close: ResolvedMarker::Token(8) };
        let budget = ThinkingBudget { tokens_max, closes: Arc::new([vec![5, 8, 6]]) };
        let mut tracker = ReasoningTracker::new(vec![span], true).with_budget(Some(budget));
        let mut seen = vec![tracker.forced()];
        for &token in stream {
            tracker.push(token, b"");
            seen.push(tracker.forced());
        }
        let shown = seen.into_iter().map(|token| token.map_or("-".to_owned(), |token| token.to_string()));
        format!("{} | {} tokens", shown.collect::<Vec<_>>().join(" "), tracker.reasoning_tokens())
    }

    /// The close is forced token by token, its tail after the marker too, and none of it counts as reasoning.
    #[test]
    fn a_spent_budget_forces_the_close() {
        assert_eq!(forced_after(2, &[1, 1, 5, 8, 6, 1]), "- - 5 8 6 - - | 2 tokens");
        assert_eq!(forced_after(0, &[5, 8, 6, 1]), "5 8 6 - - | 0 tokens");
        // A block that is opened again has nothing left to spend.
        assert_eq!(forced_after(1, &[1, 5, 8, 6, 7]), "- 5 8 6 - 5 | 1 tokens");
    }

    #[test]
    fn a_model_that_closes_in_time_is_not_forced() {
        assert_eq!(forced_after(2, &[1, 8, 1, 1]), "- - - - - | 1 tokens");
    }

    /// What a token has behind the marker in its middle.
    #[test]
    fn the_rest_of_a_token_is_known() {
        let marker = |s: &str| ResolvedMarker::Bytes(s.as_bytes().to_vec());
        let span = ResolvedSpan { open: marker("<t>"), close: marker("</t>") };
        let mut tracker = ReasoningTracker::new(vec![span], true);
        let mut rest = |bytes: &'static [u8]| {
            tracker.push(1, bytes);
            tracker.rest(bytes)
        };
        assert_eq!([rest(b"a</"), rest(b"t>\n{"), rest(b"x")], [&b""[..], b"\n{", b""]);
    }

    /// A span that never closes counts to the end.
    #[test]
    fn open_span_counts_everything() {
        assert_eq!(count(ResolvedMarker::Token(7), ResolvedMarker::Token(8), true, &[(1, "a"), (2, "b")]), (2, true));
    }
}
