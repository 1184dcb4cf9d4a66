//! The way out: tokens to bytes to whole UTF-8 to stop strings to stages to checked deltas.

use contract::TokenId;
use contract::output::StageRequest;
use contract::sampling::TokenLogprobs;

use crate::{EndOfStream, TextError};

/// Everything a stream's output depends on. `Default` is a stream without tools, stops or stages' extras.
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
}

/// One stream's way out. One per choice.
pub struct OutputPipeline {}

impl OutputPipeline {
    /// Takes the tokens of one engine step. `logprobs` is empty or has one entry per token.
    pub fn push(&mut self, _tokens: &[TokenId], _logprobs: Vec<TokenLogprobs>) -> Result<Piece, TextError> {
        Ok(Piece::default())
    }

    /// Flushes everything held, stage by stage. Later calls return an empty piece.
    pub fn finish(&mut self, _end: EndOfStream) -> Result<Piece, TextError> {
        Ok(Piece::default())
    }

    pub fn usage(&self) -> OutputUsage {
        OutputUsage::default()
    }

    /// `finish_reason` of this stream by [`crate::finish_reason`]; meaningful after `finish`.
    pub fn finish_reason(&self) -> &'static str {
        "stop"
    }
}
