//! A Messages request to a chat request.

use serde_json::{Map, Value, json};

use super::blocks;
use crate::error::{ApiError, Code};
use crate::translate::renamed;
use crate::wire::ChatRequest;
use crate::wire::fields::{Fields, describe, missing, wrong};
use crate::wire::tools::TOOLS_MAX;

/// Fields of the chat request, and what they are called here.
pub const NAMES: &[(&str, &str)] = &[
    ("stop", "stop_sequences"),
    ("thinking_token_budget", "thinking.budget_tokens"),
    ("response_format.json_schema", "output_format"),
    ("response_format", "output_format"),
    ("reasoning_effort", "output_config.effort"),
];

/// Whether tokens are generated or only counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Generate,
    Count,
}

/// Any fields to a checked chat request or a typed error.
pub fn chat_request(mut fields: Fields, purpose: Purpose) -> Result<ChatRequest, ApiError> {
    for name in ["mcp_servers", "container"] {
        if fields.take(name).is_some_and(|value| value != json!([])) {
            return Err(ApiError::field(Code::UnsupportedField, name, "is not supported: no tool runs on this server"));
        }
    }
    if purpose == Purpose::Generate && !fields.has("max_tokens") {
        return Err(missing("max_tokens"));
    }
    let list = fields.array("messages", blocks::MESSAGES_MAX)?.ok_or_else(|| missing("messages"))?;
    let messages = blocks::messages(fields.take("system"), &list)?;
    let mut chat = Map::new();
    // An answer that the client has begun is gone on with.
    let begun = messages.last().is_some_and(|last| {
        last["role"] == "assistant"
            && last["tool_calls"].is_null()
            && last["content"].as_str().is_some_and(|text| !text.is_empty())
    });
    if begun {
        chat.insert("continue_final_message".into(), json!(true));
    }
    chat.insert("messages".into(), messages.into());
    if let Some(stop) = fields.take("stop_sequences") {
        chat.insert("stop".into(), stop);
    }
    tools(&mut fields, &mut chat)?;
    tool_choice(&mut fields, &mut chat)?;
    thinking(&mut fields, &mut chat)?;
    output(&mut fields, &mut chat)?;
    // One answer, always: the shape has no place for more.
    fields.count("n", 1..=1)?;
    for (name, value) in fields.into_rest() {
        chat.entry(name).or_insert(value);
    }
    ChatRequest::try_from(Fields::new(chat)).map_err(|error| renamed(error, NAMES))
}

fn tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let tools = fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
    let mut list = Vec::with_capacity(tools.len());
    for (i, tool) in tools.iter().enumerate() {
        let at = |field: &str| format!("tools[{i}].{field}");
        let object = tool.as_object().ok_or_else(|| wrong(&format!("tools[{i}]"), "an object", tool))?;
        match object.get("type") {
            None | Some(Value::Null) => {}
            Some(kind) if kind == "custom" => {}
            Some(kind) => {
                let message = format!("must be \"custom\", not {}: no tool runs on this server", describe(kind));
                return Err(ApiError::field(Code::UnsupportedField, &at("type"), message));
            }
        }
        let name = match object.get("name") {
            Some(Value::String(name)) if !name.is_empty() => name,
            None | Some(Value::Null) => return Err(missing(&at("name"))),
            Some(other) => return Err(wrong(&at("name"), "a string that is not empty", other)),
        };
        let mut function = json!({"name": name});
        for (own, theirs) in [("description", "description"), ("input_schema", "parameters"), ("strict", "strict")] {
            if let Some(value) = object.get(own).filter(|value| !value.is_null()) {
                function[theirs] = value.clone();
            }
        }
        if !object.get("input_schema").is_none_or(Value::is_object) {
            return Err(wrong(&at("input_schema"), "an object", &object["input_schema"]));
        }
        list.push(json!({"type": "function", "function": function}));
    }
    if !list.is_empty() {
        chat.insert("tools".into(), list.into());
    }
    Ok(())
}

fn tool_choice(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok(()) };
    let kind = choice.get("type").unwrap_or(&Value::Null);
    let chosen = match kind.as_str() {
        Some("auto") => json!("auto"),
        Some("none") => json!("none"),
        Some("any") => json!("required"),
        Some("tool") => match choice.get("name") {
            Some(Value::String(name)) => json!({"type": "function", "function": {"name": name}}),
            None | Some(Value::Null) => return Err(missing("tool_choice.name")),
            Some(other) => return Err(wrong("tool_choice.name", "a string", other)),
        },
        None if kind.is_null() => return Err(missing("tool_choice.type")),
        _ => return Err(wrong("tool_choice.type", "auto, any, tool or none", kind)),
    };
    chat.insert("tool_choice".into(), chosen);
    match choice.get("disable_parallel_tool_use") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Bool(off)) => {
            chat.insert("parallel_tool_calls".into(), json!(!off));
            Ok(())
        }
        Some(other) => Err(wrong("tool_choice.disable_parallel_tool_use", "true or false", other)),
    }
}

/// Without the field the template's own default stands: many open models always think.
fn thinking(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(()) };
    let kind = thinking.get("type").unwrap_or(&Value::Null);
    let on = match kind.as_str() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        None if kind.is_null() => return Err(missing("thinking.type")),
        _ => return Err(wrong("thinking.type", "enabled, adaptive or disabled", kind)),
    };
    let mut kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    kwargs.entry("enable_thinking").or_insert(json!(on));
    chat.insert("chat_template_kwargs".into(), kwargs.into());
    if let Some(budget) = thinking.get("budget_tokens").filter(|budget| on && !budget.is_null()) {
        chat.insert("thinking_token_budget".into(), budget.clone());
    }
    Ok(())
}

/// `output_format`, and its newer place in `output_config`.
fn output(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let mut config = Fields::new(fields.object("output_config")?.unwrap_or_default());
    if let Some(effort) = config.take("effort") {
        chat.insert("reasoning_effort".into(), effort);
    }
    let old = fields.object("output_format")?;
    let format = match config.object("format").map_err(|e| renamed(e, &[("format", "output_config.format")]))? {
        Some(format) => format,
        None => match old {
            Some(format) => format,
            None => return Ok(()),
        },
    };
    match format.get("type").and_then(Value::as_str) {
        Some("json_schema") => {
            let schema = format.get("schema").ok_or_else(|| missing("output_format.schema"))?;
            let schema = json!({"name": "output", "schema": schema, "strict": true});
            chat.insert("response_format".into(), json!({"type": "json_schema", "json_schema": schema}));
            Ok(())
        }
        _ => Err(wrong("output_format.type", "\"json_schema\"", format.get("type").unwrap_or(&Value::Null))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: Value) -> Result<ChatRequest, ApiError> {
        chat_request(Fields::parse(body.to_string().as_bytes())?, Purpose::Generate)
    }

    #[test]
    fn everything_has_its_place_in_a_chat_request() {
        let body = json!({
            "model": "m", "max_tokens": 9, "system": "be brief", "stop_sequences": ["x"], "top_k": 5,
            "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"},
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]
        });
        let chat = request(body).expect("a good request");
        assert_eq!((chat.common.ends.max_tokens, chat.common.ends.stop.as_slice()), (Some(9), &["x".to_owned()][..]));
        assert_eq!(chat.common.wishes.top_k, Some(5));
        assert_eq!(chat.prompt.tools[0]["function"]["parameters"], json!({"type": "object"}));
        assert_eq!(chat.prompt.kwargs["enable_thinking"], false);
        assert!(chat.prompt.continue_final_message && !chat.prompt.add_generation_prompt);
        assert!(!chat.prompt.parallel_calls);
    }

    #[test]
    fn errors_name_the_fields_of_this_api() {
        for (field, value, param) in [
            ("max_tokens", Value::Null, "max_tokens"),
            ("max_tokens", json!(0), "max_tokens"),
            ("messages", json!([]), "messages"),
            ("stop_sequences", json!([""]), "stop_sequences[0]"),
            ("system", json!(3), "system"),
            ("tools", json!([{"type": "bash_20250124", "name": "bash"}]), "tools[0].type"),
            ("tools", json!([{"input_schema": {}}]), "tools[0].name"),
            ("tool_choice", json!({"type": "some"}), "tool_choice.type"),
            ("tool_choice", json!({"type": "tool"}), "tool_choice.name"),
            ("thinking", json!({"type": "maybe"}), "thinking.type"),
            ("output_format", json!({"type": "text"}), "output_format.type"),
            ("mcp_servers", json!([{"name": "x"}]), "mcp_servers"),
            ("temperature", json!("hot"), "temperature"),
        ] {
            let mut body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]});
            body[field] = value.clone();
            let error = request(body).expect_err("refused");
            assert_eq!((error.status().as_u16(), error.param.as_deref()), (400, Some(param)), "{field}: {value}");
        }
    }
}
