//! The shape of chat messages. What they mean to a template is the text side's business.

use serde_json::{Map, Value};

use super::fields::{Fields, describe, missing, wrong};
use crate::error::{ApiError, Code};

/// Messages of one request.
pub const MESSAGES_MAX: usize = 16_384;
/// Content parts of one message, and calls of one message.
pub const PARTS_MAX: usize = 4096;

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool", "function"];

/// Takes and checks `messages`; both `reasoning` and `reasoning_content` are accepted in history.
pub fn take(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let messages = fields.array("messages", MESSAGES_MAX)?.ok_or_else(|| missing("messages"))?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "must have at least one message"));
    }
    for (index, message) in messages.iter().enumerate() {
        check(&Path { index }, message)?;
    }
    Ok(messages)
}

/// Where in `messages` an error is. Put together only when there is one.
struct Path {
    index: usize,
}

impl Path {
    fn to(&self, rest: &str) -> String {
        format!("messages[{}]{rest}", self.index)
    }
}

fn check(path: &Path, message: &Value) -> Result<(), ApiError> {
    let object = message.as_object().ok_or_else(|| wrong(&path.to(""), "an object", message))?;
    let role = match object.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => role.as_str(),
        None | Some(Value::Null) => return Err(missing(&path.to(".role"))),
        Some(other) => return Err(wrong(&path.to(".role"), &format!("one of {}", ROLES.join(", ")), other)),
    };
    match object.get("content") {
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => check_parts(path, parts)?,
        // An assistant turn may consist of calls or reasoning alone.
        None | Some(Value::Null) if role == "assistant" => {}
        None | Some(Value::Null) => return Err(missing(&path.to(".content"))),
        Some(other) => return Err(wrong(&path.to(".content"), "a string or an array of parts", other)),
    }
    for name in ["name", "tool_call_id", "reasoning", "reasoning_content"] {
        match object.get(name) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => return Err(wrong(&path.to(&format!(".{name}")), "a string", other)),
        }
    }
    match object.get("tool_calls") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(calls)) if calls.len() <= PARTS_MAX => check_calls(path, role, calls),
        Some(other) => Err(wrong(&path.to(".tool_calls"), &format!("an array of at most {PARTS_MAX} calls"), other)),
    }
}

fn check_parts(path: &Path, parts: &[Value]) -> Result<(), ApiError> {
    if parts.len() > PARTS_MAX {
        let message = format!("must have at most {PARTS_MAX} parts, not {}", parts.len());
        return Err(ApiError::invalid(&path.to(".content"), message));
    }
    for (i, part) in parts.iter().enumerate() {
        let at = |rest: &str| path.to(&format!(".content[{i}]{rest}"));
        let object = match part {
            Value::String(_) => continue,
            Value::Object(object) => object,
            other => return Err(wrong(&at(""), "an object with type \"text\"", other)),
        };
        match object.get("type") {
            Some(Value::String(kind)) if kind == "text" => text_part(&at(".text"), object, "text")?,
            Some(Value::String(kind)) if kind == "refusal" => text_part(&at(".refusal"), object, "refusal")?,
            None | Some(Value::Null) => return Err(missing(&at(".type"))),
            Some(other) => {
                let message = format!("must be \"text\", not {}: this server reads text only", describe(other));
                return Err(ApiError::field(Code::UnsupportedField, &at(".type"), message));
            }
        }
    }
    Ok(())
}

fn text_part(path: &str, part: &Map<String, Value>, field: &str) -> Result<(), ApiError> {
    match part.get(field) {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) => Err(missing(path)),
        Some(other) => Err(wrong(path, "a string", other)),
    }
}

fn check_calls(path: &Path, role: &str, calls: &[Value]) -> Result<(), ApiError> {
    if role != "assistant" && !calls.is_empty() {
        return Err(ApiError::invalid(&path.to(".tool_calls"), format!("belongs to the role assistant, not {role}")));
    }
    for (i, call) in calls.iter().enumerate() {
        let at = |rest: &str| path.to(&format!(".tool_calls[{i}]{rest}"));
        let object = call.as_object().ok_or_else(|| wrong(&at(""), "an object", call))?;
        let function = match object.get("function") {
            Some(Value::Object(function)) => function,
            None | Some(Value::Null) => return Err(missing(&at(".function"))),
            Some(other) => return Err(wrong(&at(".function"), "an object", other)),
        };
        match function.get("name") {
            Some(Value::String(_)) => {}
            None | Some(Value::Null) => return Err(missing(&at(".function.name"))),
            Some(other) => return Err(wrong(&at(".function.name"), "a string", other)),
        }
        // A string that is no JSON is accepted: a call that was cut short must not spoil the conversation.
        match function.get("arguments") {
            None | Some(Value::Null | Value::String(_) | Value::Object(_)) => {}
            Some(other) => return Err(wrong(&at(".function.arguments"), "a string or an object", other)),
        }
    }
    Ok(())
}
