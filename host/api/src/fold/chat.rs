//! Chat answers.

use std::sync::Arc;

use bytes::Bytes;
use contract::TokenId;
use contract::sampling::TokenLogprobs;
use futures::future::BoxFuture;
use text::{Delta, Piece};

use super::{Frame, Riders, last_frames, to_json};
use crate::generate::{End, Event};
use crate::sse::{Chunks, at_once, data};
use crate::state::ReasoningField;
use crate::wire::reply::{
    CalledFunction, ChatChoice, ChatChunkChoice, ChatDelta, ChatMessage, FunctionDelta, ToolCall, ToolCallDelta, Usage,
    chat_logprobs,
};

/// Puts reasoning text under the model's name for it.
fn reasoning(field: ReasoningField, text: &str) -> (Option<String>, Option<String>) {
    let under = |name: &str| field.names().contains(&name).then(|| text.to_owned());
    (under("reasoning"), under("reasoning_content"))
}

/// A plain answer in the making.
pub struct ChatFold {
    frame: Frame,
    field: ReasoningField,
    prompt_ids: Arc<[TokenId]>,
    prompt_logprobs: Vec<TokenLogprobs>,
    choices: Vec<Folded>,
}

#[derive(Default)]
struct Folded {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    riders: Riders,
    end: Option<End>,
}

impl ChatFold {
    pub fn new(frame: Frame, field: ReasoningField, prompt_ids: Arc<[TokenId]>, choices: usize) -> Self {
        let choices = (0..choices).map(|_| Folded::default()).collect();
        Self { frame, field, prompt_ids, prompt_logprobs: Vec::new(), choices }
    }

    pub fn take(&mut self, event: Event) {
        match event {
            Event::Started { .. } => {}
            Event::Prompt { mut logprobs, .. } => self.prompt_logprobs.append(&mut logprobs),
            Event::Piece { index, piece } => {
                if let Some(choice) = self.choices.get_mut(index as usize) {
                    choice.take(piece);
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
        let Self { frame, field, prompt_ids, prompt_logprobs, choices } = self;
        let choices = (0..).zip(choices).map(|(index, choice)| choice.finish(index, &frame, field)).collect();
        let mut envelope = frame.envelope("chat.completion", choices, Some(usage));
        envelope.prompt_token_ids = frame.wants_token_ids.then_some(&*prompt_ids);
        envelope.prompt_logprobs = frame.prompt_logprobs.map(|n| frame.prompt(&prompt_logprobs, n));
        to_json(&envelope)
    }
}

impl Folded {
    fn take(&mut self, mut piece: Piece) {
        self.riders.take_from(&mut piece);
        for delta in piece.deltas {
            match delta {
                Delta::Content(text) => self.content.push_str(&text),
                Delta::Reasoning(text) => self.reasoning.push_str(&text),
                Delta::CallStart { id, name, .. } => {
                    let function = CalledFunction { name, arguments: String::new() };
                    self.calls.push(ToolCall { id, kind: "function", function });
                }
                Delta::CallArguments { index, fragment } => {
                    if let Some(call) = self.calls.get_mut(index as usize) {
                        call.function.arguments.push_str(&fragment);
                    }
                }
                Delta::CallEnd { .. } => {}
            }
        }
    }

    fn finish(mut self, index: u32, frame: &Frame, field: ReasoningField) -> ChatChoice {
        let logprobs = frame.logprobs.map(|_| chat_logprobs(&frame.tokenizer, &self.riders.logprobs));
        let token_ids = frame.wants_token_ids.then(|| std::mem::take(&mut self.riders.token_ids));
        let (end, message) = (self.end.take(), self.message(field));
        let (finish_reason, stop_reason) = match end {
            Some(end) => (end.finish_reason, end.stop_reason),
            None => ("stop", None),
        };
        ChatChoice { index, message, logprobs, finish_reason, stop_reason, token_ids }
    }

    fn message(self, field: ReasoningField) -> ChatMessage {
        // An answer of calls or reasoning alone has no content; an empty answer has an empty one.
        let silent = self.content.is_empty() && !(self.calls.is_empty() && self.reasoning.is_empty());
        let (reasoning, reasoning_content) = match self.reasoning.as_str() {
            "" => (None, None),
            text => reasoning(field, text),
        };
        ChatMessage {
            role: "assistant",
            content: (!silent).then_some(self.content),
            refusal: None,
            reasoning,
            reasoning_content,
            tool_calls: self.calls,
        }
    }
}

/// The message that these pieces are.
pub fn message_of(pieces: Vec<Piece>, field: ReasoningField) -> ChatMessage {
    let mut folded = Folded::default();
    pieces.into_iter().for_each(|piece| folded.take(piece));
    folded.message(field)
}

/// A streamed answer in the making.
pub struct ChatChunks {
    frame: Frame,
    field: ReasoningField,
    prompt_ids: Arc<[TokenId]>,
    choices: Vec<Streaming>,
    prompt_ids_sent: bool,
}

#[derive(Default)]
struct Streaming {
    role_sent: bool,
    riders: Riders,
}

impl ChatChunks {
    pub fn new(frame: Frame, field: ReasoningField, prompt_ids: Arc<[TokenId]>, choices: usize) -> Self {
        let choices = (0..choices).map(|_| Streaming::default()).collect();
        Self { frame, field, prompt_ids, choices, prompt_ids_sent: false }
    }

    fn chunk(&mut self, choice: ChatChunkChoice, usage: Usage) -> String {
        let usage = self.frame.continuous_usage.then_some(usage);
        let first = !std::mem::replace(&mut self.prompt_ids_sent, true);
        let mut envelope = self.frame.envelope("chat.completion.chunk", vec![choice], usage);
        envelope.prompt_token_ids = (first && self.frame.wants_token_ids).then_some(&*self.prompt_ids);
        to_json(&envelope)
    }

    /// The role comes once per choice, with an empty content, before anything else of it.
    fn role(&mut self, index: u32, usage: Usage, out: &mut Vec<String>) {
        let Some(state) = self.choices.get_mut(index as usize) else { return };
        if !std::mem::replace(&mut state.role_sent, true) {
            let delta = ChatDelta { role: Some("assistant"), content: Some(String::new()), ..ChatDelta::default() };
            let choice = bare(index, delta);
            out.push(self.chunk(choice, usage));
        }
    }

    fn piece(&mut self, index: u32, mut piece: Piece, usage: Usage, out: &mut Vec<String>) {
        let Some(state) = self.choices.get_mut(index as usize) else { return };
        state.riders.take_from(&mut piece);
        for delta in piece.deltas {
            let Some(delta) = chat_delta(self.field, delta) else { continue };
            let choice = self.ride(bare(index, delta));
            out.push(self.chunk(choice, usage));
        }
    }

    /// Adds the logprobs and ids that wait; the first chunk after their tokens carries them.
    fn ride(&mut self, mut choice: ChatChunkChoice) -> ChatChunkChoice {
        if let Some(state) = self.choices.get_mut(choice.index as usize) {
            let positions = state.riders.logprobs(&self.frame);
            choice.logprobs = positions.map(|positions| chat_logprobs(&self.frame.tokenizer, &positions));
            choice.token_ids = state.riders.token_ids(&self.frame);
        }
        choice
    }
}

impl ChatChunks {
    /// The chunks that an event gives.
    pub(super) fn json(&mut self, event: Event, usage: Usage) -> Vec<String> {
        let mut out = Vec::new();
        match event {
            Event::Started { index, .. } => self.role(index, usage, &mut out),
            // Only whole answers show them.
            Event::Prompt { .. } => {}
            Event::Piece { index, piece } => {
                self.role(index, usage, &mut out);
                self.piece(index, piece, usage, &mut out);
            }
            Event::Done { index, end } => {
                self.role(index, usage, &mut out);
                let mut choice = self.ride(bare(index, ChatDelta::default()));
                choice.finish_reason = Some(end.finish_reason);
                choice.stop_reason = end.stop_reason;
                out.push(self.chunk(choice, usage));
            }
        }
        out
    }
}

impl Chunks for ChatChunks {
    fn of(&mut self, event: Event, usage: Usage) -> Vec<Bytes> {
        self.json(event, usage).iter().map(|json| data(json)).collect()
    }

    fn end(&mut self, usage: Usage) -> BoxFuture<'static, Vec<Bytes>> {
        let envelope = self.frame.envelope::<ChatChunkChoice>("chat.completion.chunk", Vec::new(), Some(usage));
        at_once(last_frames(self.frame.include_usage.then(|| to_json(&envelope))))
    }
}

fn bare(index: u32, delta: ChatDelta) -> ChatChunkChoice {
    ChatChunkChoice { index, delta, logprobs: None, finish_reason: None, stop_reason: None, token_ids: None }
}

/// `None` where a delta shows nothing on the wire.
fn chat_delta(field: ReasoningField, delta: Delta) -> Option<ChatDelta> {
    let call = |index, id, kind, name, arguments| {
        let function = FunctionDelta { name, arguments };
        ChatDelta { tool_calls: Some([ToolCallDelta { index, id, kind, function }]), ..ChatDelta::default() }
    };
    match delta {
        Delta::Content(text) if text.is_empty() => None,
        Delta::Content(text) => Some(ChatDelta { content: Some(text), ..ChatDelta::default() }),
        Delta::Reasoning(text) if text.is_empty() => None,
        Delta::Reasoning(text) => {
            let (reasoning, reasoning_content) = reasoning(field, &text);
            Some(ChatDelta { reasoning, reasoning_content, ..ChatDelta::default() })
        }
        Delta::CallStart { index, id, name } => {
            Some(call(index, Some(id), Some("function"), Some(name), String::new()))
        }
        Delta::CallArguments { fragment, .. } if fragment.is_empty() => None,
        Delta::CallArguments { index, fragment } => Some(call(index, None, None, None, fragment)),
        Delta::CallEnd { .. } => None,
    }
}
