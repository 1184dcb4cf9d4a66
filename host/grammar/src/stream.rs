//! One stream's constraint: reasoning first, then the grammar, then the end.

use std::sync::Arc;

use contract::TokenId;
use contract::constraint::{ConstraintError, TokenConstraint};
use contract::reasoning::{ReasoningTracker, ResolvedMarker};
use llguidance::Matcher;

use crate::error::short;
use crate::vocabulary::LEADING_BYTES_MAX;
use crate::{Compiled, Vocabulary};

/// Where the grammar begins to bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    FirstToken,
    /// After the first span of reasoning. A stream that begins outside of one may still open it, unless it is known that
    /// the model does not think.
    AfterReasoning {
        may_open: bool,
    },
}

/// What a stream's constraint is made of.
#[derive(Clone)]
pub struct StreamParts {
    pub vocabulary: Arc<Vocabulary>,
    /// `None`: only the thinking budget of the tracker is kept.
    pub grammar: Option<Compiled>,
    pub start: Start,
    /// At the stream's start, with the budget if there is one.
    pub tracker: ReasoningTracker,
    /// The opening markers of the tracker's spans.
    pub openings: Vec<ResolvedMarker>,
    /// Tokens that may end the text when the grammar allows an end.
    pub ends: Arc<[TokenId]>,
    /// No end before so many tokens, unless the grammar allows nothing else.
    pub min_tokens: u32,
}

impl StreamParts {
    /// A new stream's state.
    pub fn open(&self) -> StreamConstraint {
        let matcher = self.grammar.as_ref().map(Compiled::matcher);
        let gate = match (self.start, self.tracker.in_reasoning()) {
            (Start::FirstToken, _) => Gate::Bound,
            (Start::AfterReasoning { .. }, true) => Gate::Reasoning,
            (Start::AfterReasoning { may_open }, false) if may_open && !self.openings.is_empty() => {
                Gate::MayOpen { written: Vec::new() }
            }
            (Start::AfterReasoning { .. }, false) => Gate::Bound,
        };
        StreamConstraint { parts: self.clone(), tracker: self.tracker.clone(), matcher, gate, generated: 0 }
    }
}

enum Gate {
    /// Nothing but an opening marker may come in place of the grammar's text; so much of it was written.
    MayOpen {
        written: Vec<u8>,
    },
    Reasoning,
    /// Reasoning is over; so many bytes of white space may come before the grammar's text.
    Leading {
        bytes_left: usize,
    },
    Bound,
}

/// A [`TokenConstraint`] over one stream.
pub struct StreamConstraint {
    parts: StreamParts,
    tracker: ReasoningTracker,
    matcher: Option<Matcher>,
    gate: Gate,
    generated: u32,
}

impl TokenConstraint for StreamConstraint {
    fn is_active(&self) -> bool {
        let waits = matches!(self.gate, Gate::Reasoning);
        self.tracker.forced().is_some() || self.generated < self.parts.min_tokens || (self.matcher.is_some() && !waits)
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<(), ConstraintError> {
        if let Some(token) = self.tracker.forced() {
            mask.fill(0);
            allow(mask, token);
            return Ok(());
        }
        match (&mut self.matcher, &self.gate) {
            (Some(matcher), Gate::MayOpen { .. } | Gate::Leading { .. } | Gate::Bound) => {
                let ends_too = grammar_mask(matcher, &self.parts.vocabulary, mask)?;
                self.before_the_grammar(mask);
                self.ends(ends_too, mask);
            }
            _ => {
                mask.fill(u32::MAX);
                self.ends(true, mask);
            }
        }
        Ok(())
    }

    fn forced(&self) -> Option<TokenId> {
        self.tracker.forced()
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.generated = self.generated.saturating_add(1);
        let forced = self.tracker.forced() == Some(token);
        let was_inside = self.tracker.in_reasoning();
        let vocabulary = Arc::clone(&self.parts.vocabulary);
        // Text that only looks like a marker is text once the grammar binds.
        let is_text = matches!((&self.gate, self.parts.start), (Gate::Bound, Start::AfterReasoning { .. }));
        let inside = if is_text { false } else { self.tracker.push(token, vocabulary.bytes(token)) };
        if self.matcher.is_none() {
            return Ok(());
        }
        match &mut self.gate {
            Gate::Reasoning => {
                if was_inside && !inside {
                    self.gate = Gate::Leading { bytes_left: LEADING_BYTES_MAX };
                    let rest = self.tracker.rest(vocabulary.bytes(token)).to_vec();
                    return self.text_after_reasoning(&rest);
                }
                Ok(())
            }
            Gate::MayOpen { .. } if inside => {
                self.gate = Gate::Reasoning;
                Ok(())
            }
            // What a forced close has after its marker is no part of the answer.
            Gate::Leading { .. } if forced => Ok(()),
            Gate::MayOpen { .. } | Gate::Leading { .. } | Gate::Bound => self.bound(token),
        }
    }
}

impl StreamConstraint {
    /// A token outside of reasoning.
    fn bound(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        let vocabulary = Arc::clone(&self.parts.vocabulary);
        let Some(matcher) = &mut self.matcher else { return Ok(()) };
        let is_text = !matcher.is_stopped() && matcher.validate_tokens(&[token]).map_err(failed)? == 1;
        if is_text {
            self.gate = Gate::Bound;
            return matcher.consume_token(token).map_err(failed);
        }
        if self.parts.ends.contains(&token) {
            return Ok(());
        }
        let bytes = vocabulary.bytes(token);
        match &mut self.gate {
            Gate::Leading { bytes_left } if vocabulary.is_white_space(token) && bytes.len() <= *bytes_left => {
                *bytes_left -= bytes.len();
                Ok(())
            }
            Gate::MayOpen { written } => {
                written.extend_from_slice(bytes);
                Ok(())
            }
            _ => Err(ConstraintError(format!("token {token} is forbidden by the grammar"))),
        }
    }

    /// The end of a token that closed the reasoning in its middle.
    fn text_after_reasoning(&mut self, text: &[u8]) -> Result<(), ConstraintError> {
        let text = text.trim_ascii_start();
        let tokens = self.parts.vocabulary.trie().greedy_tokenize(text);
        tokens.into_iter().try_for_each(|token| self.bound(token))
    }

    /// What may come instead of the grammar's first token.
    fn before_the_grammar(&self, mask: &mut [u32]) {
        let vocabulary = &self.parts.vocabulary;
        match &self.gate {
            Gate::MayOpen { written } => {
                if !written.is_empty() {
                    mask.fill(0);
                }
                for opening in &self.parts.openings {
                    match opening {
                        ResolvedMarker::Token(token) if written.is_empty() => allow(mask, *token),
                        ResolvedMarker::Token(_) => {}
                        ResolvedMarker::Bytes(bytes) => {
                            let Some(rest) = bytes.strip_prefix(written.as_slice()) else { continue };
                            vocabulary.trie().all_prefixes(rest).into_iter().for_each(|token| allow(mask, token));
                        }
                    }
                }
            }
            Gate::Leading { bytes_left } => {
                let fits = |token: &TokenId| vocabulary.bytes(*token).len() <= *bytes_left;
                let white_space = vocabulary.white_space().iter().filter(fits).collect::<Vec<_>>();
                white_space.into_iter().for_each(|token| allow(mask, token));
            }
            Gate::Reasoning | Gate::Bound => {}
        }
    }

    /// End tokens: where the text may end, and not before its least length.
    fn ends(&self, allowed: bool, mask: &mut [u32]) {
        if allowed && self.generated >= self.parts.min_tokens {
            self.parts.ends.iter().for_each(|&token| allow(mask, token));
            return;
        }
        if allowed {
            self.parts.ends.iter().for_each(|&token| forbid(mask, token));
            if mask.iter().all(|&bits| bits == 0) {
                self.parts.ends.iter().for_each(|&token| allow(mask, token));
            }
        }
    }
}

/// The grammar's own mask; answers whether the text may end here.
fn grammar_mask(matcher: &mut Matcher, vocabulary: &Vocabulary, mask: &mut [u32]) -> Result<bool, ConstraintError> {
    if matcher.is_stopped() && !matcher.is_error() {
        mask.fill(0);
        return Ok(true);
    }
    let allowed = matcher.compute_mask().map_err(failed)?;
    let words = allowed.as_slice();
    let filled = words.len().min(mask.len());
    mask[..filled].copy_from_slice(&words[..filled]);
    mask[filled..].fill(0);
    // The library's own end token has no bit in the model's vocabulary, but may have one in the padding.
    forbid(mask, vocabulary.end());
    Ok(allowed.is_allowed(vocabulary.end()))
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError(short(&error.to_string()))
}

fn allow(mask: &mut [u32], token: TokenId) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

fn forbid(mask: &mut [u32], token: TokenId) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word &= !(1 << (token % 32));
    }
}

#[cfg(test)]
mod tests;
