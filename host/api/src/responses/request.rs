//! A Responses request to a chat request.

use serde_json::{Map, Value, json};

use super::custom;
use super::items::{self, Turn};
use crate::error::{ApiError, Code};
use crate::translate::renamed;
use crate::wire::ChatRequest;
use crate::wire::common::TOP_LOGPROBS_MAX;
use crate::wire::fields::{Fields, describe, missing, wrong};
use crate::wire::tools::TOOLS_MAX;

/// Longest id of an answer; ours are shorter.
pub const ID_BYTES_MAX: usize = 128;

/// Fields of the chat request, and what they are called here.
pub const NAMES: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("messages", "input"),
];

/// What `include` may ask for. Encrypted reasoning is sent as plain reasoning instead, which needs no key.
const INCLUDED: &[&str] = &["message.output_text.logprobs", "reasoning.encrypted_content"];

#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesRequest {
    /// This turn's items as sent; references are not resolved yet.
    pub input: Vec<Value>,
    pub previous: Option<String>,
    pub store: bool,
    /// What the answer repeats of the request.
    pub echo: Map<String, Value>,
    instructions: Option<String>,
    /// The chat request without its messages.
    chat: Map<String, Value>,
    /// Fields that were read and have no effect.
    idle: Vec<&'static str>,
}

impl TryFrom<Fields> for ResponsesRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        refuse(&fields)?;
        let input = items::input(fields.take("input"))?;
        let instructions = match fields.take("instructions") {
            None => None,
            Some(Value::String(text)) => Some(text).filter(|text| !text.is_empty()),
            Some(other) => return Err(wrong("instructions", "a string", &other)),
        };
        let previous = fields.string("previous_response_id", ID_BYTES_MAX)?;
        let store = fields.flag("store", true)?;
        let mut idle = Vec::new();
        let mut own = Own { fields: &mut fields, chat: Map::new(), echo: Map::new(), idle: &mut idle };
        own.limits()?;
        own.reasoning()?;
        own.text()?;
        own.tools()?;
        own.tool_choice()?;
        own.logprobs()?;
        let Own { mut chat, mut echo, .. } = own;
        echo.insert("instructions".into(), json!(instructions));
        echo.insert("previous_response_id".into(), json!(previous));
        echo.insert("store".into(), json!(store));
        // Parameters of sampling, and what this server knows beyond the API, mean what they mean for a chat.
        for (name, value) in fields.into_rest() {
            chat.insert(name, value);
        }
        for name in ["parallel_tool_calls", "temperature", "top_p", "user"] {
            echo.insert(name.to_owned(), chat.get(name).cloned().unwrap_or(Value::Null));
        }
        Ok(Self { input, previous, store, echo, instructions, chat, idle })
    }
}

impl ResponsesRequest {
    /// The chat request after `history`, the items of the turns before.
    pub fn into_chat(self, history: &[Value]) -> Result<ChatRequest, ApiError> {
        let Self { input, instructions, mut chat, idle, .. } = self;
        let read = |(i, item): (usize, &Value)| items::read(&format!("input[{i}]"), item);
        let mut turns: Vec<Turn> = history.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        for turn in input.iter().enumerate().map(read) {
            turns.push(turn?);
        }
        if turns.len() > items::ITEMS_MAX {
            let message = format!("and the turns before it have {} items, above {}", turns.len(), items::ITEMS_MAX);
            return Err(ApiError::invalid("input", message));
        }
        chat.insert("messages".into(), Value::Array(items::messages(instructions.as_deref(), turns)));
        let mut request = ChatRequest::try_from(Fields::new(chat)).map_err(|error| renamed(error, NAMES))?;
        request.common.ignored.foreign.extend(idle.into_iter().map(str::to_owned));
        Ok(request)
    }
}

/// What this server does not do, and what belongs to another endpoint.
fn refuse(fields: &Fields) -> Result<(), ApiError> {
    for (name, hint) in [
        ("conversation", "use previous_response_id"),
        ("prompt", "send the text as input"),
        ("messages", "send the messages as input"),
        ("max_tokens", "use max_output_tokens"),
        ("max_completion_tokens", "use max_output_tokens"),
    ] {
        if fields.has(name) {
            return Err(ApiError::field(Code::UnsupportedField, name, format!("is not supported here: {hint}")));
        }
    }
    Ok(())
}

/// The fields that have another shape here than in a chat request.
struct Own<'a> {
    fields: &'a mut Fields,
    chat: Map<String, Value>,
    echo: Map<String, Value>,
    idle: &'a mut Vec<&'static str>,
}

impl Own<'_> {
    fn limits(&mut self) -> Result<(), ApiError> {
        let unsupported = |field: &str, message: &str| ApiError::field(Code::UnsupportedField, field, message);
        if self.fields.flag("background", false)? {
            return Err(unsupported("background", "is not supported: only false is accepted; use \"stream\": true"));
        }
        match self.fields.take("truncation") {
            None => {}
            Some(Value::String(word)) if word == "disabled" => {}
            Some(other) => {
                let message = format!("is not supported with {}: only \"disabled\" is accepted", describe(&other));
                return Err(unsupported("truncation", &message));
            }
        }
        // One answer, always: the shape has no place for more.
        self.fields.count("n", 1..=1)?;
        let max = self.fields.count("max_output_tokens", 1..=u32::MAX)?;
        if let Some(max) = max {
            self.chat.insert("max_completion_tokens".into(), max.into());
        }
        self.echo.insert("max_output_tokens".into(), json!(max));
        if self.fields.count("max_tool_calls", 0..=u32::MAX)?.is_some() {
            self.idle.push("max_tool_calls");
        }
        // Only says whether events are padded; ours never are.
        self.fields.object("stream_options")?;
        let metadata = self.fields.object("metadata")?.unwrap_or_default();
        self.echo.insert("metadata".into(), Value::Object(metadata));
        Ok(())
    }

    fn reasoning(&mut self) -> Result<(), ApiError> {
        let mut reasoning = Fields::new(self.fields.object("reasoning")?.unwrap_or_default());
        let effort = reasoning.string("effort", 32).map_err(|e| renamed(e, &[("effort", "reasoning.effort")]))?;
        if reasoning.has("summary") || reasoning.has("generate_summary") {
            self.idle.push("reasoning.summary");
        }
        if let Some(effort) = &effort {
            self.chat.insert("reasoning_effort".into(), json!(effort));
        }
        self.echo.insert("reasoning".into(), json!({"effort": effort, "summary": null}));
        Ok(())
    }

    /// `text.format` is `response_format`, one level flatter.
    fn text(&mut self) -> Result<(), ApiError> {
        let mut text = Fields::new(self.fields.object("text")?.unwrap_or_default());
        let format = text.object("format").map_err(|e| renamed(e, &[("format", "text.format")]))?;
        if text.has("verbosity") {
            self.idle.push("text.verbosity");
        }
        let format = Value::Object(format.unwrap_or_else(|| Map::from_iter([("type".to_owned(), json!("text"))])));
        let wanted = match format["type"].as_str() {
            None => return Err(missing("text.format.type")),
            Some("text") => None,
            Some("json_schema") => {
                let mut schema = format.clone();
                if let Some(schema) = schema.as_object_mut() {
                    schema.shift_remove("type");
                }
                Some(json!({"type": "json_schema", "json_schema": schema}))
            }
            Some(_) => Some(format.clone()),
        };
        if let Some(wanted) = wanted {
            self.chat.insert("response_format".into(), wanted);
        }
        self.echo.insert("text".into(), json!({"format": format}));
        Ok(())
    }

    fn tools(&mut self) -> Result<(), ApiError> {
        let tools = self.fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
        let (mut chat, mut shown) = (Vec::with_capacity(tools.len()), Vec::with_capacity(tools.len()));
        for (i, tool) in tools.iter().enumerate() {
            let at = format!("tools[{i}]");
            let object = tool.as_object().ok_or_else(|| wrong(&at, "an object", tool))?;
            let function = match tool["type"].as_str() {
                Some("function") => function(&at, object)?,
                Some("custom") => {
                    let (function, described) = custom::function(&at, object)?;
                    if described {
                        self.idle.push("tools.format");
                    }
                    function
                }
                _ => {
                    let kind = describe(&tool["type"]);
                    let message =
                        format!("must be \"function\" or \"custom\", not {kind}: no tool runs on this server");
                    return Err(ApiError::field(Code::UnsupportedField, &format!("{at}.type"), message));
                }
            };
            shown.push(if tool["type"] == "custom" {
                tool.clone()
            } else {
                json!({
                    "type": "function", "name": function["name"], "description": function["description"],
                    "parameters": function["parameters"], "strict": function["strict"].as_bool().unwrap_or(false),
                })
            });
            chat.push(json!({"type": "function", "function": function}));
        }
        self.echo.insert("tools".into(), shown.into());
        if !chat.is_empty() {
            self.chat.insert("tools".into(), chat.into());
        }
        Ok(())
    }

    fn tool_choice(&mut self) -> Result<(), ApiError> {
        let choice = self.fields.take("tool_choice");
        self.echo.insert("tool_choice".into(), choice.clone().unwrap_or_else(|| json!("auto")));
        let choice = match choice {
            Some(Value::Object(choice)) if choice.contains_key("name") => {
                let kind =
                    choice.get("type").filter(|kind| *kind != "custom").cloned().unwrap_or_else(|| json!("function"));
                json!({"type": kind, "function": {"name": choice.get("name")}})
            }
            Some(Value::Object(choice)) if choice.get("type").is_some_and(|kind| kind == "allowed_tools") => {
                let tools = choice.get("tools").and_then(Value::as_array).cloned().unwrap_or_default();
                let tool = |tool: &Value| json!({"type": "function", "function": {"name": tool["name"]}});
                let tools: Vec<Value> = tools.iter().map(tool).collect();
                json!({"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}})
            }
            Some(other) => other,
            None => return Ok(()),
        };
        self.chat.insert("tool_choice".into(), choice);
        Ok(())
    }

    fn logprobs(&mut self) -> Result<(), ApiError> {
        let mut wanted = false;
        for (i, name) in self.fields.array("include", 32)?.unwrap_or_default().iter().enumerate() {
            match name.as_str() {
                Some("message.output_text.logprobs") => wanted = true,
                Some("reasoning.encrypted_content") => self.idle.push("include.reasoning.encrypted_content"),
                _ => return Err(wrong(&format!("include[{i}]"), &format!("one of {}", INCLUDED.join(", ")), name)),
            }
        }
        let top = self.fields.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?;
        self.echo.insert("top_logprobs".into(), json!(top.unwrap_or(0)));
        if wanted || top.is_some_and(|top| top > 0) {
            self.chat.insert("logprobs".into(), json!(true));
            self.chat.insert("top_logprobs".into(), json!(top.unwrap_or(0)));
        }
        Ok(())
    }
}

/// A function in this API's shape, or in the chat's own.
fn function(path: &str, tool: &Map<String, Value>) -> Result<Value, ApiError> {
    if let Some(function) = tool.get("function") {
        return Ok(function.clone());
    }
    let mut function = tool.clone();
    function.shift_remove("type");
    if function.get("name").is_none_or(|name| !name.is_string()) {
        return Err(missing(&format!("{path}.name")));
    }
    Ok(Value::Object(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: Value) -> Result<ChatRequest, ApiError> {
        ResponsesRequest::try_from(Fields::parse(body.to_string().as_bytes())?)?.into_chat(&[])
    }

    #[test]
    fn everything_has_its_place_in_a_chat_request() {
        let body = json!({
            "model": "m", "input": "hi", "instructions": "be brief", "max_output_tokens": 9, "temperature": 0.5,
            "reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "low"},
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
            "tool_choice": "auto", "include": ["message.output_text.logprobs"], "top_logprobs": 2, "top_k": 5
        });
        let chat = request(body).expect("a good request");
        assert_eq!((chat.common.ends.max_tokens, chat.common.wishes.logprobs), (Some(9), Some(2)));
        assert_eq!((chat.common.wishes.temperature, chat.common.wishes.top_k), (Some(0.5), Some(5)));
        assert_eq!(chat.prompt.messages[1], json!({"role": "user", "content": "hi"}));
        assert_eq!(chat.prompt.tools[0]["function"]["name"], "f");
        assert_eq!(chat.prompt.kwargs["reasoning_effort"], "low");
        assert_eq!(chat.common.ignored.foreign, ["reasoning.summary", "text.verbosity"]);
    }

    /// Free text is a function's one parameter; what it has to look like is said and not held.
    #[test]
    fn custom_tools_are_functions() {
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: \"x\""});
        let body = json!({
            "input": "hi", "tool_choice": {"type": "custom", "name": "patch"},
            "tools": [{"type": "custom", "name": "patch", "description": "Edits files.", "format": format}]
        });
        let chat = request(body).expect("a good request");
        let function = &chat.prompt.tools[0]["function"];
        assert_eq!(function["parameters"]["required"], json!(["input"]));
        assert!(function["description"].as_str().is_some_and(|text| text.ends_with("start: \"x\"")), "{function}");
        assert_eq!(chat.common.ignored.foreign, ["tools.format"]);
    }

    #[test]
    fn errors_name_the_fields_of_this_api() {
        for (field, value, param) in [
            ("max_output_tokens", json!(0), "max_output_tokens"),
            ("max_tokens", json!(5), "max_tokens"),
            ("background", json!(true), "background"),
            ("truncation", json!("auto"), "truncation"),
            ("conversation", json!("c"), "conversation"),
            ("n", json!(2), "n"),
            ("reasoning", json!({"effort": 3}), "reasoning.effort"),
            ("text", json!({"format": {}}), "text.format.type"),
            ("tools", json!([{"type": "web_search"}]), "tools[0].type"),
            ("tools", json!([{"type": "function"}]), "tools[0].name"),
            ("tools", json!([{"type": "custom"}]), "tools[0].name"),
            ("tools", json!([{"type": "custom", "name": "f", "format": {"type": "x"}}]), "tools[0].format.type"),
            (
                "tools",
                json!([{"type": "custom", "name": "f", "format": {"type": "grammar"}}]),
                "tools[0].format.syntax",
            ),
            ("include", json!(["file_search_call.results"]), "include[0]"),
            ("input", json!([]), "input"),
            ("input", json!([{"role": "user"}]), "input[0].content"),
            ("temperature", json!("hot"), "temperature"),
        ] {
            let mut body = json!({"input": "hi"});
            body[field] = value.clone();
            let error = request(body).expect_err("refused");
            assert_eq!((error.status().as_u16(), error.param.as_deref()), (400, Some(param)), "{field}: {value}");
        }
    }
}
