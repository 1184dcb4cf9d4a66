//! Text completions: the same events, where all deltas are plain text.

use std::sync::Arc;

use bytes::Bytes;
use contract::TokenId;
use futures::future::BoxFuture;
use text::{Delta, Piece};

use super::{Frame, Riders, last_frames, to_json};
use crate::generate::{End, Event};
use crate::sse::{Chunks, at_once, data};
use crate::wire::reply::{TextChoice, Usage, text_logprobs};

/// A plain answer in the making.
pub struct TextFold {
    frame: Frame,
    choices: Vec<Folded>,
}

struct Folded {
    prompt_ids: Arc<[TokenId]>,
    text: String,
    riders: Riders,
    end: Option<End>,
}

impl TextFold {
    /// `prompts` has one entry per choice.
    pub fn new(frame: Frame, prompts: Vec<Arc<[TokenId]>>) -> Self {
        let folded = |prompt_ids| Folded { prompt_ids, text: String::new(), riders: Riders::default(), end: None };
        Self { frame, choices: prompts.into_iter().map(folded).collect() }
    }

    pub fn take(&mut self, event: Event) {
        match event {
            Event::Started { .. } => {}
            Event::Piece { index, mut piece } => {
                if let Some(choice) = self.choices.get_mut(index as usize) {
                    choice.riders.take_from(&mut piece);
                    choice.text.push_str(&joined(piece));
                }
            }
            Event::Done { index, end } => {
                if let Some(choice) = self.choices.get_mut(index as usize) {
                    choice.end = Some(end);
                }
            }
        }
    }

    pub fn finish(self, usage: Usage) -> String {
        let Self { frame, choices } = self;
        let choices = (0..).zip(choices).map(|(index, choice)| choice.finish(index, &frame)).collect();
        to_json(&frame.envelope("text_completion", choices, Some(usage)))
    }
}

impl Folded {
    fn finish(self, index: u32, frame: &Frame) -> TextChoice {
        let logprobs = frame.wants_logprobs.then(|| text_logprobs(&frame.tokenizer, &self.riders.logprobs, &mut 0));
        let token_ids = frame.wants_token_ids.then_some(self.riders.token_ids);
        let (finish_reason, stop_reason) = match self.end {
            Some(end) => (Some(end.finish_reason), end.stop_reason),
            None => (None, None),
        };
        let prompt_token_ids = frame.wants_token_ids.then_some(self.prompt_ids);
        TextChoice { index, text: self.text, logprobs, finish_reason, stop_reason, token_ids, prompt_token_ids }
    }
}

fn joined(piece: Piece) -> String {
    let text = |delta: Delta| match delta {
        Delta::Content(text) | Delta::Reasoning(text) => text,
        // Raw pipelines have no stages and therefore no calls.
        Delta::CallStart { .. } | Delta::CallArguments { .. } | Delta::CallEnd { .. } => String::new(),
    };
    piece.deltas.into_iter().map(text).collect()
}

/// A streamed answer in the making.
pub struct TextChunks {
    frame: Frame,
    choices: Vec<Streaming>,
}

struct Streaming {
    /// Taken by the choice's first chunk.
    prompt_ids: Option<Arc<[TokenId]>>,
    riders: Riders,
    offset: usize,
}

impl TextChunks {
    /// `prompts` has one entry per choice.
    pub fn new(frame: Frame, prompts: Vec<Arc<[TokenId]>>) -> Self {
        let streaming = |prompt_ids| Streaming { prompt_ids: Some(prompt_ids), riders: Riders::default(), offset: 0 };
        let choices = prompts.into_iter().map(streaming).collect();
        Self { frame, choices }
    }

    fn chunk(&mut self, index: u32, text: String, end: Option<End>, usage: Usage) -> Option<String> {
        let state = self.choices.get_mut(index as usize)?;
        let positions = state.riders.logprobs(&self.frame);
        let logprobs = positions.map(|at| text_logprobs(&self.frame.tokenizer, &at, &mut state.offset));
        let token_ids = state.riders.token_ids(&self.frame);
        let (finish_reason, stop_reason) = match end {
            Some(end) => (Some(end.finish_reason), end.stop_reason),
            None => (None, None),
        };
        let prompt_token_ids = state.prompt_ids.take().filter(|_| self.frame.wants_token_ids);
        let choice = TextChoice { index, text, logprobs, finish_reason, stop_reason, token_ids, prompt_token_ids };
        let usage = self.frame.continuous_usage.then_some(usage);
        Some(to_json(&self.frame.envelope("text_completion", vec![choice], usage)))
    }
}

impl Chunks for TextChunks {
    fn of(&mut self, event: Event, usage: Usage) -> Vec<Bytes> {
        let chunk = match event {
            Event::Started { .. } => None,
            Event::Piece { index, mut piece } => {
                if let Some(state) = self.choices.get_mut(index as usize) {
                    state.riders.take_from(&mut piece);
                }
                match joined(piece) {
                    text if text.is_empty() => None,
                    text => self.chunk(index, text, None, usage),
                }
            }
            Event::Done { index, end } => self.chunk(index, String::new(), Some(end), usage),
        };
        chunk.iter().map(|json| data(json)).collect()
    }

    fn end(&mut self, usage: Usage) -> BoxFuture<'static, Vec<Bytes>> {
        let envelope = self.frame.envelope::<TextChoice>("text_completion", Vec::new(), Some(usage));
        at_once(last_frames(self.frame.include_usage.then(|| to_json(&envelope))))
    }
}
