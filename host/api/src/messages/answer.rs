//! The events of generation to content blocks, and to the events of a stream.

use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use text::Delta;

use super::error;
use crate::error::ApiError;
use crate::fold::Frame;
use crate::generate::{End, Event};
use crate::sse::{Chunks, at_once, named};
use crate::wire::reply::{StopReason, Usage};

/// Prefix of an answer's id.
pub const PREFIX: &str = "msg_";

/// Thinking of an open model needs no proof that nobody changed it; clients want the field all the same.
const SIGNATURE: &str = "unsigned";

/// An answer in the making.
pub struct Answer {
    frame: Frame,
    begun: bool,
    content: Vec<Value>,
    open: Option<Open>,
    calls: usize,
    end: Option<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    Call { id: String, name: String },
}

/// The block that grows.
struct Open {
    kind: Kind,
    text: String,
}

impl Answer {
    pub fn new(frame: Frame) -> Self {
        Self { frame, begun: false, content: Vec::new(), open: None, calls: 0, end: None }
    }

    /// Adds the events of one step to `out`.
    pub fn take(&mut self, event: Event, usage: Usage, out: &mut Vec<Value>) {
        // Not before the first event: only then is known what the cache held.
        if !std::mem::replace(&mut self.begun, true) {
            let message = self.message(usage, Value::Null);
            out.push(json!({"type": "message_start", "message": message}));
        }
        match event {
            Event::Started { .. } | Event::Prompt { .. } => {}
            Event::Piece { piece, .. } => piece.deltas.into_iter().for_each(|delta| self.delta(delta, out)),
            Event::Done { end, .. } => {
                self.close(out);
                self.end = Some(end);
            }
        }
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<Value>) {
        match delta {
            Delta::Content(text) => self.grow(Kind::Text, &text, out),
            Delta::Reasoning(text) => self.grow(Kind::Thinking, &text, out),
            Delta::CallStart { id, name, .. } => {
                self.close(out);
                self.open(Kind::Call { id, name }, out);
            }
            Delta::CallArguments { fragment, .. } => {
                if let Some(open) = self.open.as_mut().filter(|_| !fragment.is_empty()) {
                    open.text.push_str(&fragment);
                    self.block_delta(json!({"type": "input_json_delta", "partial_json": fragment}), out);
                }
            }
            Delta::CallEnd { complete, .. } => {
                self.calls += usize::from(complete);
                self.close(out);
            }
        }
    }

    fn grow(&mut self, kind: Kind, text: &str, out: &mut Vec<Value>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close(out);
            self.open(kind.clone(), out);
        }
        if let Some(open) = self.open.as_mut() {
            open.text.push_str(text);
        }
        let delta = match kind {
            Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            _ => json!({"type": "text_delta", "text": text}),
        };
        self.block_delta(delta, out);
    }

    fn block_delta(&self, delta: Value, out: &mut Vec<Value>) {
        out.push(json!({"type": "content_block_delta", "index": self.content.len(), "delta": delta}));
    }

    fn open(&mut self, kind: Kind, out: &mut Vec<Value>) {
        let block = match &kind {
            Kind::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Kind::Text => json!({"type": "text", "text": ""}),
            Kind::Call { id, name } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
        };
        out.push(json!({"type": "content_block_start", "index": self.content.len(), "content_block": block}));
        self.open = Some(Open { kind, text: String::new() });
    }

    fn close(&mut self, out: &mut Vec<Value>) {
        let Some(Open { kind, text }) = self.open.take() else { return };
        if kind == Kind::Thinking {
            self.block_delta(json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        out.push(json!({"type": "content_block_stop", "index": self.content.len()}));
        self.content.push(match kind {
            Kind::Thinking => json!({"type": "thinking", "thinking": text, "signature": SIGNATURE}),
            Kind::Text => json!({"type": "text", "text": text}),
            Kind::Call { id, name } => json!({"type": "tool_use", "id": id, "name": name, "input": input(&text)}),
        });
    }

    /// The finished answer.
    pub fn finish(&self, usage: Usage) -> Value {
        let (reason, sequence) = self.stop();
        let mut message = self.message(usage, json!(self.content));
        message["stop_reason"] = json!(reason);
        message["stop_sequence"] = json!(sequence);
        message
    }

    fn stop(&self) -> (&'static str, Option<&str>) {
        match &self.end {
            Some(end) if end.finish_reason == "length" => ("max_tokens", None),
            // A named tool counts here, too, unlike in the OpenAI API.
            Some(_) if self.calls > 0 => ("tool_use", None),
            Some(End { stop_reason: Some(StopReason::Text(text)), .. }) => ("stop_sequence", Some(text)),
            _ => ("end_turn", None),
        }
    }

    fn message(&self, usage: Usage, content: Value) -> Value {
        json!({
            "id": self.frame.id,
            "type": "message",
            "role": "assistant",
            "model": self.frame.model,
            "content": if content.is_null() { json!([]) } else { content },
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage_fields(usage),
        })
    }
}

/// Arguments that broke off are no object; they are wrapped as Anthropic's own documentation advises.
fn input(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(input)) => Value::Object(input),
        _ if text.is_empty() => json!({}),
        _ => json!({"INVALID_JSON": text}),
    }
}

/// Tokens that the cache held are not counted as input again.
fn usage_fields(usage: Usage) -> Value {
    let cached = usage.prompt_tokens_details.cached_tokens;
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    })
}

/// A streamed answer.
pub struct MessageChunks(pub Answer);

impl Chunks for MessageChunks {
    fn of(&mut self, event: Event, usage: Usage) -> Vec<Bytes> {
        let mut out = Vec::new();
        self.0.take(event, usage, &mut out);
        out.iter().map(named).collect()
    }

    fn end(&mut self, usage: Usage) -> BoxFuture<'static, Vec<Bytes>> {
        let (reason, sequence) = self.0.stop();
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let events = [
            json!({"type": "message_delta", "delta": delta, "usage": usage_fields(usage)}),
            json!({"type": "message_stop"}),
        ];
        at_once(events.iter().map(named).collect())
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![named(&error::body(error, None))]
    }

    fn keep_alive(&self) -> Bytes {
        named(&json!({"type": "ping"}))
    }
}
