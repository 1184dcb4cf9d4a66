//! What a client has after it has read a whole stream, with the framing rules checked on the way.

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::Event;

/// One choice, joined from its deltas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<Call>,
    pub finish_reason: Option<String>,
    pub logprobs: Vec<Value>,
    pub roles: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// A stream, joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    pub choices: Vec<Choice>,
    /// Of the chunk with empty choices.
    pub usage: Option<Value>,
    pub error: Option<Value>,
    pub done: bool,
}

/// Joins a chat stream; a broken framing rule is an error.
pub fn fold(events: &[Event]) -> anyhow::Result<Folded> {
    let mut folded = Folded::default();
    let mut same: Option<(Value, Value, Value)> = None;
    for event in events {
        ensure!(!folded.done && folded.error.is_none(), "an event after the end: {event:?}");
        let data = match event {
            Event::Done => {
                folded.done = true;
                continue;
            }
            Event::Data(data) => data,
        };
        if let Some(error) = data.get("error") {
            folded.error = Some(error.clone());
            continue;
        }
        let ids = (data["id"].clone(), data["created"].clone(), data["model"].clone());
        let first = same.get_or_insert_with(|| ids.clone());
        ensure!(*first == ids, "id, created and model differ within a stream: {first:?}, {ids:?}");
        let choices = data["choices"].as_array().context("choices is no list")?;
        if choices.is_empty() {
            ensure!(folded.usage.is_none(), "usage came twice");
            folded.usage = Some(data["usage"].clone());
            continue;
        }
        ensure!(data.get("usage").is_none_or(Value::is_null), "usage on a chunk with choices: {data}");
        for choice in choices {
            let index = choice["index"].as_u64().context("no index")? as usize;
            if folded.choices.len() <= index {
                folded.choices.resize(index + 1, Choice::default());
            }
            folded.choices[index].take(choice)?;
        }
    }
    Ok(folded)
}

impl Choice {
    fn take(&mut self, chunk: &Value) -> anyhow::Result<()> {
        ensure!(self.finish_reason.is_none(), "a chunk after the finish reason: {chunk}");
        let delta = &chunk["delta"];
        self.roles += usize::from(delta.get("role").is_some());
        let text = |key: &str| delta[key].as_str().unwrap_or_default();
        self.content += text("content");
        self.reasoning += if delta.get("reasoning").is_some() { text("reasoning") } else { text("reasoning_content") };
        if let Some(calls) = delta.get("tool_calls") {
            for call in calls.as_array().context("tool_calls is no list")? {
                self.take_call(call)?;
            }
        }
        if let Some(entries) = chunk["logprobs"]["content"].as_array() {
            self.logprobs.extend(entries.iter().cloned());
        }
        if let Some(reason) = chunk["finish_reason"].as_str() {
            let empty = ["content", "reasoning", "reasoning_content"].iter().all(|key| text(key).is_empty());
            ensure!(empty && delta.get("tool_calls").is_none(), "text beside the finish reason: {chunk}");
            self.finish_reason = Some(reason.to_string());
        }
        Ok(())
    }

    fn take_call(&mut self, call: &Value) -> anyhow::Result<()> {
        let index = call["index"].as_u64().context("a call without an index")? as usize;
        let arguments = call["function"]["arguments"].as_str().context("arguments is no text")?;
        match self.calls.get_mut(index) {
            Some(open) => {
                ensure!(call.get("id").is_none() && call["function"].get("name").is_none(), "named again: {call}");
                open.arguments += arguments;
            }
            None => {
                ensure!(index == self.calls.len(), "call {index} after {} calls", self.calls.len());
                ensure!(call["type"] == "function", "no type: {call}");
                let id = call["id"].as_str().context("no id")?.to_string();
                let name = call["function"]["name"].as_str().context("no name")?.to_string();
                self.calls.push(Call { id, name, arguments: arguments.to_string() });
            }
        }
        Ok(())
    }
}
