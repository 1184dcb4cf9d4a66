//! The events of generation to output items, and to the events of a stream.
//!
//! An answer is a list of items: reasoning, messages, calls. A change of kind closes one and opens the next. The plain
//! answer is what the last event of a stream carries, so there is one path for both.

use bytes::Bytes;
use contract::sampling::TokenLogprobs;
use futures::future::{BoxFuture, FutureExt};
use serde_json::{Map, Value, json};
use text::Delta;

use super::custom::Input;
use super::store::Keeper;
use crate::error::ApiError;
use crate::fold::Frame;
use crate::generate::{End, Event};
use crate::sse::{Chunks, named};
use crate::wire::reply::{Usage, chat_logprobs};

/// Prefix of an answer's id.
pub const PREFIX: &str = "resp_";

/// An answer in the making.
pub struct Answer {
    frame: Frame,
    /// What the answer repeats of the request.
    echo: Map<String, Value>,
    sequence: u64,
    output: Vec<Value>,
    open: Option<Open>,
    /// Positions that wait for the next piece of text.
    positions: Vec<TokenLogprobs>,
    end: Option<End>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call {
        call_id: String,
        name: String,
    },
    /// Of a tool that takes free text.
    Custom {
        call_id: String,
        name: String,
    },
}

/// The item that grows.
struct Open {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<Value>,
    /// Where the arguments of a custom tool's call become text.
    input: Input,
}

impl Answer {
    pub fn new(frame: Frame, echo: Map<String, Value>) -> Self {
        let (output, positions) = (Vec::new(), Vec::new());
        Self { frame, echo, sequence: 0, output, open: None, positions, end: None }
    }

    /// The events before the first token.
    fn begin(&mut self, out: &mut Vec<Value>) {
        let response = self.response("in_progress", None, None);
        self.event(out, "response.created", json!({"response": response}));
        self.event(out, "response.in_progress", json!({"response": response}));
    }

    pub fn take(&mut self, event: Event, out: &mut Vec<Value>) {
        match event {
            Event::Started { .. } | Event::Prompt { .. } => {}
            Event::Piece { piece, .. } => {
                if self.frame.logprobs.is_some() {
                    self.positions.extend(piece.logprobs);
                }
                for delta in piece.deltas {
                    self.delta(delta, out);
                }
            }
            Event::Done { end, .. } => {
                let cut = end.finish_reason == "length";
                self.close(!cut, out);
                self.end = Some(end);
            }
        }
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<Value>) {
        match delta {
            Delta::Content(text) => self.text(Kind::Message, "response.output_text.delta", &text, out),
            Delta::Reasoning(text) => self.text(Kind::Reasoning, "response.reasoning_text.delta", &text, out),
            Delta::CallStart { id, name, .. } => {
                self.close(true, out);
                let call_id = id;
                let custom = self.is_custom(&name);
                self.open(if custom { Kind::Custom { call_id, name } } else { Kind::Call { call_id, name } }, out);
            }
            Delta::CallArguments { fragment, .. } => {
                let custom = self.open.as_mut().filter(|open| matches!(open.kind, Kind::Custom { .. }));
                let fragment = custom.map(|open| open.input.push(&fragment)).unwrap_or(fragment);
                self.argument(&fragment, out);
            }
            Delta::CallEnd { complete, .. } => self.close(complete, out),
        }
    }

    fn is_custom(&self, name: &str) -> bool {
        let mut tools = self.echo.get("tools").and_then(Value::as_array).into_iter().flatten();
        tools.any(|tool| tool["type"] == "custom" && tool["name"] == name)
    }

    fn argument(&mut self, fragment: &str, out: &mut Vec<Value>) {
        let at = self.output.len();
        let Some(open) = self.open.as_mut().filter(|_| !fragment.is_empty()) else { return };
        open.text.push_str(fragment);
        let fields = json!({"item_id": open.id, "output_index": at, "delta": fragment});
        let event = match open.kind {
            Kind::Custom { .. } => "response.custom_tool_call_input.delta",
            _ => "response.function_call_arguments.delta",
        };
        self.event(out, event, fields);
    }

    fn text(&mut self, kind: Kind, event: &str, text: &str, out: &mut Vec<Value>) {
        if text.is_empty() {
            return;
        }
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close(true, out);
            self.open(kind.clone(), out);
        }
        let logprobs = if kind == Kind::Message { self.logprobs() } else { Vec::new() };
        let at = self.output.len();
        let Some(open) = self.open.as_mut() else { return };
        open.text.push_str(text);
        let mut fields = json!({"item_id": open.id, "output_index": at, "content_index": 0, "delta": text});
        if kind == Kind::Message {
            fields["logprobs"] = logprobs.clone().into();
        }
        open.logprobs.extend(logprobs);
        self.event(out, event, fields);
    }

    fn logprobs(&mut self) -> Vec<Value> {
        let positions = std::mem::take(&mut self.positions);
        let content = chat_logprobs(&self.frame.tokenizer, &positions).content;
        content.iter().map(|at| serde_json::to_value(at).unwrap_or_default()).collect()
    }

    fn open(&mut self, kind: Kind, out: &mut Vec<Value>) {
        let at = self.output.len();
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
            Kind::Custom { .. } => "ctc_",
        };
        let name = self.frame.id.strip_prefix(PREFIX).unwrap_or(&self.frame.id);
        // The answer's own id and the place: enough to find an item that a later request refers to.
        let id = format!("{prefix}{name}_{at}");
        let open = Open { kind, id, text: String::new(), logprobs: Vec::new(), input: Input::default() };
        let item = open.item("in_progress", false);
        self.event(out, "response.output_item.added", json!({"output_index": at, "item": item}));
        if let Some(part) = open.part() {
            let fields = json!({"item_id": open.id, "output_index": at, "content_index": 0, "part": part});
            self.event(out, "response.content_part.added", fields);
        }
        self.open = Some(open);
    }

    fn close(&mut self, complete: bool, out: &mut Vec<Value>) {
        let rest = self.open.as_mut().map(|open| open.input.end()).unwrap_or_default();
        self.argument(&rest, out);
        let Some(mut open) = self.open.take() else { return };
        let at = self.output.len();
        if open.kind == Kind::Message {
            // Tokens behind the last text, such as a marker that closed it.
            open.logprobs.extend(self.logprobs());
        }
        let mut fields = json!({"item_id": open.id, "output_index": at});
        let event = match &open.kind {
            Kind::Reasoning => "response.reasoning_text.done",
            Kind::Message => "response.output_text.done",
            Kind::Call { .. } => "response.function_call_arguments.done",
            Kind::Custom { .. } => "response.custom_tool_call_input.done",
        };
        match &open.kind {
            Kind::Call { name, .. } => {
                fields["name"] = json!(name);
                fields["arguments"] = json!(open.text);
            }
            Kind::Custom { .. } => fields["input"] = json!(open.text),
            Kind::Reasoning | Kind::Message => {
                fields["content_index"] = json!(0);
                fields["text"] = json!(open.text);
            }
        }
        if open.kind == Kind::Message {
            fields["logprobs"] = json!(open.logprobs);
        }
        self.event(out, event, fields);
        if let Some(part) = open.part() {
            let fields = json!({"item_id": open.id, "output_index": at, "content_index": 0, "part": part});
            self.event(out, "response.content_part.done", fields);
        }
        let item = open.item(if complete { "completed" } else { "incomplete" }, true);
        self.event(out, "response.output_item.done", json!({"output_index": at, "item": item}));
        self.output.push(item);
    }

    /// The finished answer.
    pub fn finish(&self, usage: Usage) -> Value {
        self.response(self.status(), Some(usage), None)
    }

    fn status(&self) -> &'static str {
        match &self.end {
            Some(end) if end.finish_reason == "length" => "incomplete",
            _ => "completed",
        }
    }

    fn response(&self, status: &str, usage: Option<Usage>, error: Option<&ApiError>) -> Value {
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let error = error.map(|error| json!({"code": error.code.as_str(), "message": error.message}));
        let mut response = json!({
            "id": self.frame.id,
            "object": "response",
            "created_at": self.frame.created,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": incomplete,
            "model": self.frame.model,
            "output": self.output,
            "usage": usage.map(usage_fields),
            "truncation": "disabled",
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.echo.clone());
        }
        response
    }

    fn event(&mut self, out: &mut Vec<Value>, kind: &str, fields: Value) {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        out.push(event);
    }
}

impl Open {
    fn item(&self, status: &str, whole: bool) -> Value {
        let content = match self.part() {
            Some(part) if whole => json!([part]),
            _ => json!([]),
        };
        let id = &self.id;
        match &self.kind {
            Kind::Reasoning => {
                json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Kind::Message => {
                json!({"id": id, "type": "message", "role": "assistant", "content": content, "status": status})
            }
            Kind::Call { call_id, name } => json!({
                "id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": self.text,
                "status": status,
            }),
            Kind::Custom { call_id, name } => json!({
                "id": id, "type": "custom_tool_call", "call_id": call_id, "name": name, "input": self.text,
                "status": status,
            }),
        }
    }

    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            Kind::Message => Some(json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            })),
            Kind::Call { .. } | Kind::Custom { .. } => None,
        }
    }
}

fn usage_fields(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    })
}

/// A streamed answer.
pub struct ResponseChunks {
    pub answer: Answer,
    /// `None`: the answer is not kept.
    pub keeper: Option<Keeper>,
}

impl Chunks for ResponseChunks {
    fn begin(&mut self) -> Vec<Bytes> {
        let mut out = Vec::new();
        self.answer.begin(&mut out);
        out.iter().map(named).collect()
    }

    fn of(&mut self, event: Event, _: Usage) -> Vec<Bytes> {
        let mut out = Vec::new();
        self.answer.take(event, &mut out);
        out.iter().map(named).collect()
    }

    /// The answer is kept before its client reads that it is complete, so that the next request finds it.
    fn end(&mut self, usage: Usage) -> BoxFuture<'static, Vec<Bytes>> {
        let (response, mut out) = (self.answer.finish(usage), Vec::new());
        let kind = format!("response.{}", self.answer.status());
        self.answer.event(&mut out, &kind, json!({"response": response}));
        let keeper = self.keeper.take();
        async move {
            if let Some(keeper) = keeper {
                keeper.keep(response).await;
            }
            out.iter().map(named).collect()
        }
        .boxed()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Bytes> {
        let mut out = Vec::new();
        self.answer.close(false, &mut out);
        let response = self.answer.response("failed", None, Some(error));
        self.answer.event(&mut out, "response.failed", json!({"response": response}));
        // The documented event is flat, but the client packages fail on an `error` object, which is what should happen.
        let mut fields = json!({"code": error.code.as_str(), "message": error.message, "param": error.param});
        fields["error"] = error.body()["error"].clone();
        self.answer.event(&mut out, "error", fields);
        out.iter().map(named).collect()
    }
}
