//! The way out: tokens to bytes to whole UTF-8 to stop strings to stages to checked deltas.

mod chain;
mod rules;
mod shape;

use std::collections::HashSet;

use contract::TokenId;
use contract::output::{EndReason, Marker, OutputEvent, StageRequest, StageSession, ToolChoice};
use contract::reasoning::ReasoningTracker;
use contract::sampling::TokenLogprobs;

use crate::detokenizer::Detokenizer;
use crate::stops::{StopMatcher, TextPiece};
use crate::{EndOfStream, TextError, Tokenizer, finish_reason};
use chain::Chain;
pub use chain::ChainStep;
use shape::{Shaper, ShaperParts};

/// Everything a stream's output depends on.
#[derive(Clone, Debug, Default)]
pub struct OutputJob {
    /// Tools, choice, `starts_in`, `turn_prefix`. `markers` is filled in per stage by the model.
    pub stage_request: StageRequest,
    /// The request's stop strings and those of [`crate::Prepared::stops`].
    pub stop: Vec<String>,
    /// What the engine was told to stop at: these end the text and are not part of it.
    pub stop_tokens: Vec<TokenId>,
    /// Keep the stop string, or the text of the stop token, in the output.
    pub include_stop_str: bool,
    /// Leave out tokens that the tokenizer calls special, unless a stage declared them as markers.
    pub skip_special_tokens: bool,
    /// No stages and no white space rule: the raw text, for `/v1/completions`.
    pub raw: bool,
    /// Before so many tokens no stop string ends the text. The engine holds back stop tokens by itself.
    pub min_tokens: u32,
    /// The budget that the engine's constraint keeps; what it forces is never shown.
    pub thinking_tokens_max: Option<u32>,
    /// Reasoning is separated and counted, but not delivered.
    pub hide_reasoning: bool,
    /// The answer ends with its first complete call.
    pub one_call: bool,
    /// Keep what each stage made of the last step, for [`OutputPipeline::last_step`].
    pub record_steps: bool,
}

/// A step of the answer as a client sees it. Plain and streamed answers fold the same deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Content(String),
    Reasoning(String),
    /// Calls are numbered from 0 without gaps and never overlap.
    CallStart {
        index: u32,
        id: String,
        name: String,
    },
    CallArguments {
        index: u32,
        fragment: String,
    },
    /// `complete`: the joined fragments are one JSON object (any text for a free-text tool).
    CallEnd {
        index: u32,
        complete: bool,
    },
}

/// What one push or finish brought. Log-probabilities and ids ride, all and in order, on the next piece with deltas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    pub deltas: Vec<Delta>,
    pub logprobs: Vec<TokenLogprobs>,
    pub token_ids: Vec<TokenId>,
    /// The stop string that was hit: drop the generation and call `finish`.
    pub stopped: Option<String>,
    /// The one call that was wanted is complete: drop the generation and call `finish`.
    pub enough: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputUsage {
    /// Tokens of the answer. The stop token that ended it is not one of them, unless it was delivered.
    pub completion_tokens: u32,
    pub reasoning_tokens: u32,
    pub complete_calls: u32,
    /// Calls of tools that the request does not declare; they are passed on and counted.
    pub undeclared_calls: u32,
    /// Stages that broke the event rules or held too much and were cut out of this stream.
    pub stage_violations: u32,
    /// The stages called text reasoning where the tracker saw none, or the other way round.
    pub reasoning_disagrees: bool,
}

/// What [`crate::TextModel::open_output`] made of the job.
pub(crate) struct PipelineParts {
    pub tokenizer: Tokenizer,
    /// Stage names with their open sessions.
    pub sessions: Vec<(String, Box<dyn StageSession>)>,
    /// Tokens that some stage declared as markers: fed to the stages even when special.
    pub markers: HashSet<TokenId>,
    pub tracker: ReasoningTracker,
    /// Every span's markers are tokens. Markers of bytes count in part as reasoning, so nothing can be compared.
    pub spans_are_exact: bool,
    /// The closing marker of each span.
    pub closes: Vec<Marker>,
    pub job: OutputJob,
}

/// One stream's way out. One per choice.
pub struct OutputPipeline {
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    chain: Chain,
    shaper: Shaper,
    tracker: ReasoningTracker,
    /// Text that is not white space came while the tracker was inside a span.
    tracked_reasoning: bool,
    spans_are_exact: bool,
    closes: Vec<Marker>,
    /// The closing marker of the span that is being closed by force was fed to the stages.
    close_is_fed: bool,
    min_tokens: u32,
    one_call: bool,
    /// Nothing more is delivered.
    enough: bool,
    markers: HashSet<TokenId>,
    stop_tokens: HashSet<TokenId>,
    skip_special_tokens: bool,
    include_stop_str: bool,
    tool_choice: ToolChoice,
    completion_tokens: u32,
    /// A stop token that may turn out to be the last one.
    last: Option<Taken>,
    riding: Piece,
    end: Option<EndOfStream>,
}

struct Taken {
    token: TokenId,
    logprobs: Option<TokenLogprobs>,
}

impl OutputPipeline {
    pub(crate) fn new(parts: PipelineParts) -> Self {
        let PipelineParts { tokenizer, sessions, markers, tracker, spans_are_exact, closes, job } = parts;
        let request = job.stage_request;
        let calls_allowed = !job.raw && !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        Self {
            detokenizer: Detokenizer::new(tokenizer.clone()),
            stops: StopMatcher::new(job.stop, job.include_stop_str),
            chain: Chain::new(sessions, calls_allowed, job.record_steps),
            shaper: Shaper::new(ShaperParts {
                tokenizer: tokenizer.clone(),
                skip_special_tokens: job.skip_special_tokens,
                calls_allowed,
                declared_tools: request.tools.into_iter().map(|tool| tool.name).collect(),
                hide_reasoning: job.hide_reasoning,
            }),
            tokenizer,
            tracker,
            tracked_reasoning: false,
            spans_are_exact,
            closes,
            close_is_fed: false,
            min_tokens: job.min_tokens,
            one_call: job.one_call && calls_allowed,
            enough: false,
            markers,
            stop_tokens: job.stop_tokens.into_iter().collect(),
            skip_special_tokens: job.skip_special_tokens,
            include_stop_str: job.include_stop_str,
            tool_choice: request.tool_choice,
            completion_tokens: 0,
            last: None,
            riding: Piece::default(),
            end: None,
        }
    }

    /// The next push or finish may take until a plugin's deadline: make it where nobody else waits for it.
    pub fn is_suspect(&self) -> bool {
        self.chain.is_suspect()
    }

    /// Takes the tokens of one engine step. `logprobs` is empty or has one entry per token.
    ///
    /// After [`Piece::stopped`] or [`Piece::enough`] was set, tokens are ignored: they were sampled before the caller could know.
    pub fn push(&mut self, tokens: &[TokenId], logprobs: Vec<TokenLogprobs>) -> Result<Piece, TextError> {
        let mut text = Vec::new();
        let mut logprobs = logprobs.into_iter();
        for &token in tokens {
            if self.end.is_some() || self.enough || self.stops.hit().is_some() {
                break;
            }
            let taken = Taken { token, logprobs: logprobs.next() };
            if let Some(earlier) = self.last.take() {
                self.take(earlier, &mut text);
            }
            if self.stop_tokens.contains(&token) {
                self.last = Some(taken);
            } else {
                self.take(taken, &mut text);
            }
        }
        let events = self.chain.feed(events(text))?;
        self.shape(events);
        Ok(self.piece(false))
    }

    /// Flushes everything held, stage by stage. Later calls return an empty piece.
    pub fn finish(&mut self, end: EndOfStream) -> Result<Piece, TextError> {
        if self.end.replace(end).is_some() {
            return Ok(Piece::default());
        }
        let mut text = Vec::new();
        if self.stops.hit().is_none() {
            if let Some(last) = self.last.take() {
                self.take_last(last, end, &mut text);
            }
            self.break_character(&mut text);
            self.stops.finish(&mut text);
        }
        let reason = match (self.stops.hit(), end) {
            (Some(stop), _) => EndReason::StopString(stop.to_owned()),
            (None, EndOfStream::StopToken(token)) => EndReason::StopToken(token),
            (None, EndOfStream::Length) => EndReason::Length,
            (None, EndOfStream::Cancelled) => EndReason::Cancelled,
            (None, EndOfStream::Error) => EndReason::Error,
        };
        let events = self.chain.finish(events(text), &reason)?;
        self.shape(events);
        self.shaper.finish(&mut self.riding.deltas);
        Ok(self.piece(true))
    }

    /// Events to deltas, up to the first complete call when one is all that is wanted.
    fn shape(&mut self, events: Vec<OutputEvent>) {
        if self.enough {
            return;
        }
        let deltas = &mut self.riding.deltas;
        let from = deltas.len();
        self.shaper.take(events, deltas);
        if self.one_call
            && let Some(end) = deltas[from..].iter().position(|d| matches!(d, Delta::CallEnd { complete: true, .. }))
        {
            deltas.truncate(from + end + 1);
            self.enough = true;
        }
    }

    /// What the stages made of the last push or finish; `None` unless the job asked for it.
    pub fn last_step(&self) -> Option<&ChainStep> {
        self.chain.last_step()
    }

    pub fn usage(&self) -> OutputUsage {
        OutputUsage {
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.tracker.reasoning_tokens(),
            complete_calls: self.shaper.complete_calls,
            undeclared_calls: self.shaper.undeclared_calls,
            stage_violations: self.chain.violations(),
            reasoning_disagrees: self.spans_are_exact
                && self.end.is_some()
                && self.tracked_reasoning != self.shaper.any_reasoning,
        }
    }

    /// `finish_reason` of this stream by the one rule, [`crate::finish_reason`]; meaningful after `finish`.
    pub fn finish_reason(&self) -> &'static str {
        let end = self.end.unwrap_or(EndOfStream::Error);
        finish_reason(end, self.stops.hit().is_some(), self.shaper.complete_calls, &self.tool_choice)
    }

    /// The stop string that ended the text.
    pub fn stopped(&self) -> Option<&str> {
        self.stops.hit()
    }

    /// The last token is no part of the text, unless a stage knows it as a marker or the client wants to see it.
    fn take_last(&mut self, last: Taken, end: EndOfStream, text: &mut Vec<TextPiece>) {
        let ends_here = end == EndOfStream::StopToken(last.token);
        if !ends_here || self.markers.contains(&last.token) {
            self.take(last, text);
        } else if self.include_stop_str {
            let token = last.token;
            self.count(last);
            // Without its id, or it would be hidden again as a special token.
            let shown = self.detokenizer.push(token);
            self.stops.push(TextPiece { text: shown, token: None }, text);
        }
    }

    fn take(&mut self, taken: Taken, text: &mut Vec<TextPiece>) {
        let token = taken.token;
        let is_forced = self.tracker.forced() == Some(token);
        let span = self.tracker.open_span();
        self.count(taken);
        if is_forced {
            return self.forced(span, text);
        }
        self.close_is_fed = false;
        let hidden = self.skip_special_tokens && self.tokenizer.is_special(token) && !self.markers.contains(&token);
        if hidden {
            let bytes = self.tokenizer.token_bytes(token);
            let stop = std::str::from_utf8(&bytes).ok().and_then(|text| self.stops.has(text)).map(str::to_owned);
            if let Some(stop) = stop.filter(|_| self.may_stop()) {
                self.stops.force_hit(&stop, text);
            }
        } else if self.tokenizer.is_added(token) {
            self.added(token, text);
        } else {
            let piece = TextPiece { text: self.detokenizer.push(token), token: None };
            self.feed_stops(piece, text);
        }
    }

    /// A token that the host wrote: the stages see the bare marker, and nobody sees the rest.
    fn forced(&mut self, span: Option<usize>, text: &mut Vec<TextPiece>) {
        if let Some(close) = span.and_then(|span| self.closes.get(span)).filter(|_| !self.close_is_fed) {
            let close = TextPiece { text: close.text.clone(), token: close.token };
            self.break_character(text);
            self.stops.pass(close, text);
            self.close_is_fed = true;
        }
    }

    /// An added token is an event of its own; a character that was incomplete before it stays incomplete.
    fn added(&mut self, token: TokenId, text: &mut Vec<TextPiece>) {
        self.break_character(text);
        let own = self.detokenizer.push(token);
        self.feed_stops(TextPiece { text: own, token: Some(token) }, text);
    }

    fn break_character(&mut self, text: &mut Vec<TextPiece>) {
        let broken = TextPiece { text: self.detokenizer.finish().to_owned(), token: None };
        self.feed_stops(broken, text);
    }

    fn may_stop(&self) -> bool {
        self.completion_tokens >= self.min_tokens
    }

    fn feed_stops(&mut self, piece: TextPiece, text: &mut Vec<TextPiece>) {
        if self.may_stop() {
            self.stops.push(piece, text);
        } else {
            self.stops.pass(piece, text);
        }
    }

    fn count(&mut self, taken: Taken) {
        self.completion_tokens += 1;
        let bytes = self.tokenizer.token_bytes(taken.token);
        let was_inside = self.tracker.in_reasoning();
        let inside = self.tracker.push(taken.token, &bytes) && was_inside;
        self.tracked_reasoning |= inside && !bytes.trim_ascii().is_empty();
        self.riding.token_ids.push(taken.token);
        self.riding.logprobs.extend(taken.logprobs);
    }

    /// What rides leaves with the first piece that has deltas, or with the last.
    fn piece(&mut self, last: bool) -> Piece {
        let stopped = self.stops.hit().map(str::to_owned);
        if self.riding.deltas.is_empty() && !last && stopped.is_none() {
            return Piece::default();
        }
        Piece { stopped, enough: self.enough, ..std::mem::take(&mut self.riding) }
    }
}

/// One event per added token; other text joined.
fn events(pieces: Vec<TextPiece>) -> Vec<OutputEvent> {
    let mut events: Vec<OutputEvent> = Vec::new();
    for piece in pieces {
        match (events.last_mut(), piece.token) {
            (Some(OutputEvent::Text { text, token: None, .. }), None) => text.push_str(&piece.text),
            (_, token) => {
                events.push(OutputEvent::Text { channel: Default::default(), text: piece.text, token });
            }
        }
    }
    events
}

#[cfg(test)]
mod tests;
