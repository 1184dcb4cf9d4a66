//! Chat messages as clients send them, to the form that templates were written for.
//!
//! | sent | given to the template |
//! |---|---|
//! | role `developer` | role `system` |
//! | content parts, all text | one string, or parts where the template knows only parts |
//! | `tool_calls[].function.arguments` as JSON text | the object; invalid JSON stays text |
//! | `reasoning` or `reasoning_content` | both |
//! | `tool_calls: []` or null | absent |
//! | content null or absent | null beside tool calls (templates test `is none`), else the empty string |

use serde_json::{Map, Value};

use crate::TextError;

/// How a template wants message content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentForm {
    #[default]
    Text,
    /// A list of `{"type": "text", "text": …}`.
    Parts,
}

/// The names that cases use for the steps below; the runner always takes all of them, as the server does.
pub const STEPS: [&str; 6] = [
    "developer_to_system",
    "text_parts_to_string",
    "tool_arguments_to_object",
    "reasoning_aliases",
    "drop_empty_tool_calls",
    "null_content",
];

/// All steps on all messages. Messages that are no objects, have no role, or carry parts that are not text are refused.
pub fn normalise(messages: &[Value], form: ContentForm) -> Result<Vec<Value>, TextError> {
    messages.iter().enumerate().map(|(index, message)| normalise_message(index, message, form)).collect()
}

fn normalise_message(index: usize, message: &Value, form: ContentForm) -> Result<Value, TextError> {
    let at = |field: &str| format!("messages[{index}]{field}");
    let Value::Object(message) = message else {
        return Err(bad(at(""), "must be an object"));
    };
    let mut message = message.clone();
    match message.get("role").and_then(Value::as_str) {
        None => return Err(bad(at(".role"), "must be a string")),
        Some("developer") => {
            message.insert("role".into(), "system".into());
        }
        Some(_) => {}
    }
    alias_reasoning(&mut message);
    let has_calls = normalise_calls(&at(""), &mut message)?;
    let content = content(&at(".content"), message.get("content"), has_calls, form)?;
    message.insert("content".into(), content);
    Ok(Value::Object(message))
}

fn alias_reasoning(message: &mut Map<String, Value>) {
    for (from, to) in [("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")] {
        let absent = message.get(to).is_none_or(Value::is_null);
        if let Some(value) = message.get(from).filter(|value| absent && !value.is_null()).cloned() {
            message.insert(to.into(), value);
        }
    }
}

/// Whether any tool calls are left.
fn normalise_calls(at: &str, message: &mut Map<String, Value>) -> Result<bool, TextError> {
    let calls = match message.get_mut("tool_calls") {
        None => return Ok(false),
        Some(Value::Array(calls)) if !calls.is_empty() => calls,
        Some(Value::Array(_) | Value::Null) => {
            message.shift_remove("tool_calls");
            return Ok(false);
        }
        Some(_) => return Err(bad(format!("{at}.tool_calls"), "must be an array")),
    };
    for (n, call) in calls.iter_mut().enumerate() {
        let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
            return Err(bad(format!("{at}.tool_calls[{n}].function"), "must be an object"));
        };
        if let Some(arguments) = function.get_mut("arguments") {
            object_from_text(arguments);
        }
    }
    Ok(true)
}

/// A call cut by a limit was stored with half an object: it stays text, so that the conversation can go on.
fn object_from_text(arguments: &mut Value) {
    if let Value::String(text) = arguments {
        let text = if text.trim().is_empty() { "{}" } else { text.as_str() };
        if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) {
            *arguments = Value::Object(object);
        }
    }
}

fn content(at: &str, content: Option<&Value>, has_calls: bool, form: ContentForm) -> Result<Value, TextError> {
    let text = match content {
        None | Some(Value::Null) if has_calls => return Ok(Value::Null),
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<&str>, TextError> =
                parts.iter().enumerate().map(|(n, part)| part_text(at, n, part)).collect();
            texts?.concat()
        }
        Some(_) => return Err(bad(at.to_owned(), "must be a string, an array of parts, or null")),
    };
    Ok(match form {
        ContentForm::Text => Value::String(text),
        ContentForm::Parts => serde_json::json!([{"type": "text", "text": text}]),
    })
}

fn part_text<'a>(at: &str, n: usize, part: &'a Value) -> Result<&'a str, TextError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
    if !matches!(kind, "text" | "input_text" | "output_text" | "refusal") {
        return Err(bad(format!("{at}[{n}].type"), &format!("`{kind}` is not supported: this model takes text")));
    }
    let field = if kind == "refusal" { "refusal" } else { "text" };
    part.get(field).and_then(Value::as_str).ok_or_else(|| bad(format!("{at}[{n}].{field}"), "must be a string"))
}

fn bad(param: String, message: &str) -> TextError {
    TextError::BadRequest { param, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(sent: Value, expected: Value) {
        let given = normalise(&[sent], ContentForm::Text).unwrap();
        assert_eq!(Value::Array(given).to_string(), json!([expected]).to_string());
    }

    #[test]
    fn developer_is_system() {
        check(json!({"role": "developer", "content": "be brief"}), json!({"role": "system", "content": "be brief"}));
    }

    #[test]
    fn text_parts_are_joined() {
        check(
            json!({"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}),
            json!({"role": "user", "content": "a b"}),
        );
    }

    #[test]
    fn arguments_become_objects_and_keep_their_order() {
        check(
            json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 18, \"a\": [3]}"}}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"b": 18, "a": [3]}}}]}),
        );
    }

    /// Case api-16: a broken call in the history must not end the conversation.
    #[test]
    fn broken_arguments_stay_text() {
        let broken = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"city\": \"Os"}}]});
        check(broken.clone(), broken);
    }

    #[test]
    fn both_reasoning_names_reach_the_template() {
        check(
            json!({"role": "assistant", "content": "A", "reasoning": "R"}),
            json!({"role": "assistant", "content": "A", "reasoning": "R", "reasoning_content": "R"}),
        );
        check(
            json!({"role": "assistant", "content": "A", "reasoning_content": "R"}),
            json!({"role": "assistant", "content": "A", "reasoning_content": "R", "reasoning": "R"}),
        );
    }

    #[test]
    fn empty_calls_and_null_content() {
        check(
            json!({"role": "assistant", "content": null, "tool_calls": []}),
            json!({"role": "assistant", "content": ""}),
        );
        check(
            json!({"role": "tool", "tool_call_id": "c1"}),
            json!({"role": "tool", "tool_call_id": "c1", "content": ""}),
        );
    }

    #[test]
    fn a_template_that_knows_only_parts_gets_parts() {
        let given = normalise(&[json!({"role": "user", "content": "x"})], ContentForm::Parts).unwrap();
        assert_eq!(given, [json!({"role": "user", "content": [{"type": "text", "text": "x"}]})]);
    }

    #[test]
    fn bad_messages_name_the_field() {
        let check = |sent: Value, expected: &str| {
            assert_eq!(normalise(&[sent], ContentForm::Text).unwrap_err().to_string(), expected);
        };
        check(json!("hi"), "messages[0]: must be an object");
        check(json!({"content": "x"}), "messages[0].role: must be a string");
        check(
            json!({"role": "user", "content": 3}),
            "messages[0].content: must be a string, an array of parts, or null",
        );
        check(
            json!({"role": "user", "content": [{"type": "image_url"}]}),
            "messages[0].content[0].type: `image_url` is not supported: this model takes text",
        );
        check(json!({"role": "assistant", "tool_calls": {}}), "messages[0].tool_calls: must be an array");
        check(json!({"role": "assistant", "tool_calls": [3]}), "messages[0].tool_calls[0].function: must be an object");
    }
}
