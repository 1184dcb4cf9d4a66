//! Content blocks to chat messages.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Code};
use crate::wire::fields::{describe, missing, wrong};

/// Messages of one request, and blocks of one message.
pub const MESSAGES_MAX: usize = 16_384;
pub const BLOCKS_MAX: usize = 4096;

/// The chat messages of `system` and `messages`.
pub fn messages(system: Option<Value>, list: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut chat = Vec::with_capacity(list.len() + 1);
    if let Some(system) = system {
        chat.push(json!({"role": "system", "content": texts("system", &system)?.join("\n")}));
    }
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "must have at least one message"));
    }
    for (i, message) in list.iter().enumerate() {
        let path = format!("messages[{i}]");
        let object = message.as_object().ok_or_else(|| wrong(&path, "an object", message))?;
        let content = object.get("content").unwrap_or(&Value::Null);
        match object.get("role") {
            Some(Value::String(role)) if role == "user" => user(&path, content, &mut chat)?,
            Some(Value::String(role)) if role == "assistant" => chat.push(assistant(&path, content)?),
            None | Some(Value::Null) => return Err(missing(&format!("{path}.role"))),
            Some(other) => return Err(wrong(&format!("{path}.role"), "user or assistant", other)),
        }
    }
    Ok(chat)
}

/// Results of tools become messages of their own, in order; the text between them stays the user's.
fn user(path: &str, content: &Value, chat: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut text: Vec<Value> = Vec::new();
    let say = |text: &mut Vec<Value>, chat: &mut Vec<Value>| {
        if !text.is_empty() {
            chat.push(json!({"role": "user", "content": std::mem::take(text)}));
        }
    };
    if content.is_string() {
        chat.push(json!({"role": "user", "content": content}));
        return Ok(());
    }
    for (at, block) in blocks(path, content)? {
        match block["type"].as_str() {
            Some("tool_result") => {
                say(&mut text, chat);
                let id = string(&at, block, "tool_use_id")?;
                let result = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => texts(&format!("{at}.content"), content)?.join("\n"),
                };
                chat.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
            }
            _ => text.push(json!({"type": "text", "text": text_of(&at, block)?})),
        }
    }
    say(&mut text, chat);
    Ok(())
}

fn assistant(path: &str, content: &Value) -> Result<Value, ApiError> {
    if content.is_string() {
        return Ok(json!({"role": "assistant", "content": content}));
    }
    let (mut text, mut reasoning, mut calls) = (None::<String>, String::new(), Vec::new());
    for (at, block) in blocks(path, content)? {
        match block["type"].as_str() {
            Some("thinking") => reasoning += string(&at, block, "thinking")?,
            // Another server's secret; there is nothing to show the model.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let (id, name) = (string(&at, block, "id")?, string(&at, block, "name")?);
                let input = match block.get("input") {
                    Some(Value::Object(input)) => Value::Object(input.clone()).to_string(),
                    None | Some(Value::Null) => return Err(missing(&format!("{at}.input"))),
                    Some(other) => return Err(wrong(&format!("{at}.input"), "an object", other)),
                };
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}));
            }
            _ => text.get_or_insert_default().push_str(text_of(&at, block)?),
        }
    }
    let mut message = Map::from_iter([("role".to_owned(), json!("assistant")), ("content".to_owned(), json!(text))]);
    if !reasoning.is_empty() {
        message.insert("reasoning_content".into(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    Ok(Value::Object(message))
}

/// The blocks with their paths.
fn blocks<'a>(path: &str, content: &'a Value) -> Result<Vec<(String, &'a Value)>, ApiError> {
    let path = format!("{path}.content");
    match content {
        Value::Array(list) if list.len() > BLOCKS_MAX => {
            Err(ApiError::invalid(&path, format!("must have at most {BLOCKS_MAX} blocks, not {}", list.len())))
        }
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(i, block)| match block {
                Value::Object(_) => Ok((format!("{path}[{i}]"), block)),
                other => Err(wrong(&format!("{path}[{i}]"), "an object", other)),
            })
            .collect(),
        Value::Null => Err(missing(&path)),
        other => Err(wrong(&path, "a string or an array of blocks", other)),
    }
}

/// A string, or the texts of text blocks.
fn texts(path: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(list) => {
            let text = |(i, block): (usize, &Value)| text_of(&format!("{path}[{i}]"), block).map(str::to_owned);
            list.iter().enumerate().map(text).collect()
        }
        other => Err(wrong(path, "a string or an array of text blocks", other)),
    }
}

fn text_of<'a>(path: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    match &block["type"] {
        Value::String(kind) if kind == "text" => string(path, block, "text"),
        Value::Null => Err(missing(&format!("{path}.type"))),
        other => {
            let message = format!("must be \"text\" here, not {}: this server reads text only", describe(other));
            Err(ApiError::field(Code::UnsupportedField, &format!("{path}.type"), message))
        }
    }
}

fn string<'a>(path: &str, block: &'a Value, field: &str) -> Result<&'a str, ApiError> {
    match &block[field] {
        Value::String(text) => Ok(text),
        Value::Null => Err(missing(&format!("{path}.{field}"))),
        other => Err(wrong(&format!("{path}.{field}"), "a string", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_messages() {
        let system = json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]);
        let list = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "ok"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "1"}]},
                {"type": "text", "text": "and?"}
            ]},
        ]);
        let call = json!({"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
        assert_eq!(
            Value::Array(messages(Some(system), list.as_array().expect("a list")).expect("good messages")),
            json!([
                {"role": "system", "content": "a\nb"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "t1", "content": "1"},
                {"role": "user", "content": [{"type": "text", "text": "and?"}]},
            ])
        );
    }

    #[test]
    fn errors_name_the_place() {
        let user = |content: Value| json!({"role": "user", "content": content});
        for (message, param) in [
            (json!("hi"), "messages[0]"),
            (json!({"content": "x"}), "messages[0].role"),
            (json!({"role": "system", "content": "x"}), "messages[0].role"),
            (json!({"role": "user"}), "messages[0].content"),
            (user(json!([{"type": "image", "source": {}}])), "messages[0].content[0].type"),
            (user(json!([{"type": "text"}])), "messages[0].content[0].text"),
            (user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}),
                "messages[0].content[0].input",
            ),
        ] {
            let error = messages(None, std::slice::from_ref(&message)).expect_err("a bad message");
            assert_eq!((error.status().as_u16(), error.param.as_deref()), (400, Some(param)), "{message}");
        }
    }
}
