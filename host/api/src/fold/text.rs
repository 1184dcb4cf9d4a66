//! Text completions: the same events, where all deltas are plain text.

use std::sync::Arc;

use bytes::Bytes;
use contract::TokenId;
use contract::sampling::TokenLogprobs;
use futures::future::BoxFuture;
use text::{Delta, Piece};

use super::{Frame, Riders, last_frames, to_json};
use crate::generate::{End, Event};
use crate::sse::{Chunks, at_once, data};
use crate::wire::reply::{TextChoice, TextLogprobs, Usage, echo_logprobs, text_logprobs};

/// What a choice answers.
#[derive(Clone)]
pub struct Asked {
    pub prompt_ids: Arc<[TokenId]>,
    /// The prompt's text, where the answer begins with it.
    pub echo: Option<Arc<str>>,
}

impl Asked {
    fn echo_logprobs(&self, frame: &Frame, text: &str, positions: &[TokenLogprobs]) -> Option<TextLogprobs> {
        let top = frame.logprobs?;
        Some(echo_logprobs(&frame.tokenizer, &self.prompt_ids, text, positions, top))
    }
}

/// A plain answer in the making.
pub struct TextFold {
    frame: Frame,
    choices: Vec<Folded>,
}

struct Folded {
    asked: Asked,
    prompt: Vec<TokenLogprobs>,
    text: String,
    riders: Riders,
    end: Option<End>,
}

impl TextFold {
    /// `asked` has one entry per choice.
    pub fn new(frame: Frame, asked: Vec<Asked>) -> Self {
        let folded = |asked: Asked| {
            let text = asked.echo.as_deref().unwrap_or_default().to_owned();
            Folded { asked, prompt: Vec::new(), text, riders: Riders::default(), end: None }
        };
        Self { frame, choices: asked.into_iter().map(folded).collect() }
    }

    pub fn take(&mut self, event: Event) {
        match event {
            Event::Started { .. } => {}
            Event::Prompt { index, mut logprobs } => {
                if let Some(choice) = self.choices.get_mut(index as usize) {
                    choice.prompt.append(&mut logprobs);
                }
            }
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
        let Self { asked, prompt, .. } = &self;
        let echo = asked.echo.as_deref();
        let before = echo.and_then(|text| asked.echo_logprobs(frame, text, prompt));
        let logprobs = frame.logprobs.map(|_| {
            let mut offset = echo.map_or(0, |text| text.chars().count());
            let mut all = before.unwrap_or_default();
            all.append(text_logprobs(&frame.tokenizer, &self.riders.logprobs, &mut offset));
            all
        });
        let prompt_logprobs = frame.prompt_logprobs.map(|top| frame.prompt(prompt, top));
        let token_ids = frame.wants_token_ids.then_some(self.riders.token_ids);
        let (finish_reason, stop_reason) = match self.end {
            Some(end) => (Some(end.finish_reason), end.stop_reason),
            None => (None, None),
        };
        let prompt_token_ids = frame.wants_token_ids.then_some(self.asked.prompt_ids);
        let text = self.text;
        TextChoice {
            logprobs,
            finish_reason,
            stop_reason,
            token_ids,
            prompt_token_ids,
            prompt_logprobs,
            ..bare(index, text)
        }
    }
}

fn bare(index: u32, text: String) -> TextChoice {
    TextChoice {
        index,
        text,
        logprobs: None,
        finish_reason: None,
        stop_reason: None,
        token_ids: None,
        prompt_token_ids: None,
        prompt_logprobs: None,
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
    asked: Asked,
    /// Of the prompt, until it was repeated.
    prompt: Vec<TokenLogprobs>,
    begun: bool,
    riders: Riders,
    offset: usize,
}

impl TextChunks {
    /// `asked` has one entry per choice.
    pub fn new(frame: Frame, asked: Vec<Asked>) -> Self {
        let streaming =
            |asked| Streaming { asked, prompt: Vec::new(), begun: false, riders: Riders::default(), offset: 0 };
        Self { frame, choices: asked.into_iter().map(streaming).collect() }
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
        Some(self.send(TextChoice { logprobs, finish_reason, stop_reason, token_ids, ..bare(index, text) }, usage))
    }

    /// The prompt again, in a chunk of its own before the answer's first.
    fn echo(&mut self, index: u32, usage: Usage) -> Option<String> {
        let state = self.choices.get_mut(index as usize).filter(|state| !state.begun)?;
        let text = state.asked.echo.clone()?;
        let positions = std::mem::take(&mut state.prompt);
        let logprobs = state.asked.echo_logprobs(&self.frame, &text, &positions);
        state.offset = text.chars().count();
        Some(self.send(TextChoice { logprobs, ..bare(index, text.as_ref().to_owned()) }, usage))
    }

    /// A choice's first chunk has the ids of its prompt.
    fn send(&mut self, mut choice: TextChoice, usage: Usage) -> String {
        if let Some(state) = self.choices.get_mut(choice.index as usize)
            && !std::mem::replace(&mut state.begun, true)
            && self.frame.wants_token_ids
        {
            choice.prompt_token_ids = Some(Arc::clone(&state.asked.prompt_ids));
        }
        let usage = self.frame.continuous_usage.then_some(usage);
        to_json(&self.frame.envelope("text_completion", vec![choice], usage))
    }
}

impl Chunks for TextChunks {
    fn of(&mut self, event: Event, usage: Usage) -> Vec<Bytes> {
        let mut out = Vec::new();
        match event {
            Event::Started { .. } => {}
            Event::Prompt { index, mut logprobs } => {
                if let Some(state) = self.choices.get_mut(index as usize) {
                    state.prompt.append(&mut logprobs);
                }
            }
            Event::Piece { index, mut piece } => {
                out.extend(self.echo(index, usage));
                if let Some(state) = self.choices.get_mut(index as usize) {
                    state.riders.take_from(&mut piece);
                }
                let text = joined(piece);
                if !text.is_empty() {
                    out.extend(self.chunk(index, text, None, usage));
                }
            }
            Event::Done { index, end } => out.extend(self.chunk(index, String::new(), Some(end), usage)),
        }
        out.iter().map(|json| data(json)).collect()
    }

    fn end(&mut self, usage: Usage) -> BoxFuture<'static, Vec<Bytes>> {
        let envelope = self.frame.envelope::<TextChoice>("text_completion", Vec::new(), Some(usage));
        at_once(last_frames(self.frame.include_usage.then(|| to_json(&envelope))))
    }
}
