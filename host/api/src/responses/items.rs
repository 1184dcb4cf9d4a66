//! Input items to chat messages.
//!
//! Items are finer than messages: reasoning, text and calls of one turn are items of their own. Neighbours of the
//! assistant become one message again, because that is what templates know.

use serde_json::{Map, Value, json};

use super::custom;
use crate::error::{ApiError, Code};
use crate::wire::fields::{describe, missing, wrong};

/// Items of one request, earlier turns included.
pub const ITEMS_MAX: usize = 16_384;

/// What one item says.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// `content` is a string or a list of text parts, as in a chat message.
    Message {
        role: String,
        content: Value,
    },
    Reasoning(String),
    Call {
        id: String,
        name: String,
        arguments: String,
    },
    Output {
        call_id: String,
        content: Value,
    },
}

/// The `input` field as items: a string is one message of the user.
pub fn input(value: Option<Value>) -> Result<Vec<Value>, ApiError> {
    match value {
        None => Err(missing("input")),
        Some(Value::String(text)) => Ok(vec![json!({"type": "message", "role": "user", "content": text})]),
        Some(Value::Array(list)) if list.is_empty() => Err(ApiError::invalid("input", "must not be an empty array")),
        Some(Value::Array(list)) if list.len() > ITEMS_MAX => {
            Err(ApiError::invalid("input", format!("must have at most {ITEMS_MAX} items, not {}", list.len())))
        }
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(wrong("input", "a string or an array of items", &other)),
    }
}

/// The item that this one refers to, if it is a reference.
pub fn reference(item: &Value) -> Option<&str> {
    (item["type"] == "item_reference").then(|| item["id"].as_str().unwrap_or_default())
}

/// Reads one item; `path` is its place in the request.
pub fn read(path: &str, item: &Value) -> Result<Turn, ApiError> {
    let at = |field: &str| format!("{path}.{field}");
    let object = item.as_object().ok_or_else(|| wrong(path, "an object", item))?;
    let text = |field: &str| match object.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        None | Some(Value::Null) => Err(missing(&at(field))),
        Some(other) => Err(wrong(&at(field), "a string", other)),
    };
    match object.get("type") {
        None | Some(Value::Null) => message(path, object),
        Some(Value::String(kind)) => match kind.as_str() {
            "message" => message(path, object),
            "reasoning" => Ok(Turn::Reasoning(reasoning(path, object)?)),
            "function_call" => {
                Ok(Turn::Call { id: text("call_id")?, name: text("name")?, arguments: text("arguments")? })
            }
            "custom_tool_call" => {
                let arguments = custom::arguments(&text("input")?);
                Ok(Turn::Call { id: text("call_id")?, name: text("name")?, arguments })
            }
            "function_call_output" | "custom_tool_call_output" => {
                let output = object.get("output").unwrap_or(&Value::Null);
                Ok(Turn::Output { call_id: text("call_id")?, content: content(&at("output"), output)? })
            }
            _ => {
                let message = "must be message, reasoning, function_call, custom_tool_call or an output of these two";
                let message = format!("{message}, not {}", describe(&object["type"]));
                Err(ApiError::field(Code::UnsupportedField, &at("type"), message))
            }
        },
        Some(other) => Err(wrong(&at("type"), "a string", other)),
    }
}

fn message(path: &str, object: &Map<String, Value>) -> Result<Turn, ApiError> {
    let role = match object.get("role") {
        Some(Value::String(role)) if ["user", "assistant", "system", "developer"].contains(&role.as_str()) => role,
        None | Some(Value::Null) => return Err(missing(&format!("{path}.role"))),
        Some(other) => return Err(wrong(&format!("{path}.role"), "user, assistant, system or developer", other)),
    };
    let content = content(&format!("{path}.content"), object.get("content").unwrap_or(&Value::Null))?;
    Ok(Turn::Message { role: role.clone(), content })
}

/// A string, or text parts under any of their names.
fn content(path: &str, value: &Value) -> Result<Value, ApiError> {
    let parts = match value {
        Value::String(_) => return Ok(value.clone()),
        Value::Array(parts) => parts,
        Value::Null => return Err(missing(path)),
        other => return Err(wrong(path, "a string or an array of parts", other)),
    };
    let part = |(i, part): (usize, &Value)| {
        let at = |field: &str| format!("{path}[{i}].{field}");
        let field = match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => "text",
            Some("refusal") => "refusal",
            _ if part["type"].is_null() => return Err(missing(&at("type"))),
            _ => {
                let message =
                    format!("must be a text part, not {}: this server reads text only", describe(&part["type"]));
                return Err(ApiError::field(Code::UnsupportedField, &at("type"), message));
            }
        };
        match &part[field] {
            Value::String(text) => Ok(json!({"type": "text", "text": text})),
            Value::Null => Err(missing(&at(field))),
            other => Err(wrong(&at(field), "a string", other)),
        }
    };
    Ok(Value::Array(parts.iter().enumerate().map(part).collect::<Result<_, _>>()?))
}

/// The text itself where it is there, else its summary: encrypted content is another server's.
fn reasoning(path: &str, object: &Map<String, Value>) -> Result<String, ApiError> {
    let texts = |field: &str| -> Result<String, ApiError> {
        match object.get(field) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::Array(parts)) => Ok(parts.iter().filter_map(|part| part["text"].as_str()).collect()),
            Some(other) => Err(wrong(&format!("{path}.{field}"), "an array of parts", other)),
        }
    };
    let (content, summary) = (texts("content")?, texts("summary")?);
    Ok(if content.is_empty() { summary } else { content })
}

/// Chat messages of these turns, after `instructions`.
pub fn messages(instructions: Option<&str>, turns: Vec<Turn>) -> Vec<Value> {
    let mut list = Vec::new();
    if let Some(text) = instructions {
        list.push(json!({"role": "system", "content": text}));
    }
    let mut open = Assistant::default();
    for turn in turns {
        match turn {
            Turn::Reasoning(text) => {
                if open.has_spoken() {
                    open.close(&mut list);
                }
                open.reasoning += &text;
            }
            Turn::Message { role, content } if role == "assistant" => {
                if open.has_spoken() {
                    open.close(&mut list);
                }
                open.content = Some(content);
            }
            Turn::Call { id, name, arguments } => {
                let function = json!({"name": name, "arguments": arguments});
                open.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            Turn::Message { role, content } => {
                open.close(&mut list);
                list.push(json!({"role": role, "content": content}));
            }
            Turn::Output { call_id, content } => {
                open.close(&mut list);
                list.push(json!({"role": "tool", "tool_call_id": call_id, "content": content}));
            }
        }
    }
    open.close(&mut list);
    list
}

/// The assistant's message that is being put together.
#[derive(Default)]
struct Assistant {
    reasoning: String,
    content: Option<Value>,
    calls: Vec<Value>,
}

impl Assistant {
    fn has_spoken(&self) -> bool {
        self.content.is_some() || !self.calls.is_empty()
    }

    fn close(&mut self, list: &mut Vec<Value>) {
        let Self { reasoning, content, calls } = std::mem::take(self);
        if content.is_none() && calls.is_empty() && reasoning.is_empty() {
            return;
        }
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        list.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(items: Value) -> Value {
        let items = input(Some(items)).expect("items");
        let turns = items.iter().map(|item| read("input[0]", item)).collect::<Result<_, _>>().expect("good items");
        Value::Array(messages(Some("be brief"), turns))
    }

    /// What one turn of the assistant was cut into becomes one message again.
    #[test]
    fn neighbours_of_the_assistant_are_joined() {
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"a\":1}"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
            {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "a\n"},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        ]);
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            of(items),
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "ok"}], "reasoning_content": "hm",
                 "tool_calls": [call("c1", "f", "{}"), call("c2", "g", "{\"a\":1}")]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
                {"role": "assistant", "content": null, "tool_calls": [call("c3", "patch", "{\"input\":\"a\\n\"}")]},
                {"role": "tool", "tool_call_id": "c3", "content": "done"},
                {"role": "assistant", "content": null, "reasoning_content": "so"},
            ])
        );
    }

    #[test]
    fn two_answers_in_a_row_stay_two() {
        let said = |text: &str| json!({"role": "assistant", "content": text});
        assert_eq!(of(json!([said("a"), said("b")]))[2]["content"], "b");
    }

    #[test]
    fn errors_name_the_place() {
        for (item, param) in [
            (json!("hi"), "input[3]"),
            (json!({"content": "x"}), "input[3].role"),
            (json!({"role": "robot", "content": "x"}), "input[3].role"),
            (json!({"role": "user"}), "input[3].content"),
            (
                json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
                "input[3].content[0].type",
            ),
            (json!({"type": "function_call", "name": "f", "arguments": "{}"}), "input[3].call_id"),
            (json!({"type": "computer_call"}), "input[3].type"),
            (json!({"type": "reasoning", "content": "x"}), "input[3].content"),
        ] {
            let error = read("input[3]", &item).expect_err("a bad item");
            assert_eq!((error.status().as_u16(), error.param.as_deref()), (400, Some(param)), "{item}");
        }
    }
}
