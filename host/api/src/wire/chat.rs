//! The chat request, checked.

use contract::output::ToolChoice;
use serde_json::{Map, Value};

use super::common::{Common, alternatives};
use super::fields::{Fields, describe, missing, wrong};
use super::messages;
use crate::error::{ApiError, Code};

/// Tools of one request. Each is rendered into the prompt.
pub const TOOLS_MAX: usize = 512;
/// Longest tool name, in bytes; OpenAI's own limit is 64.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
pub const DOCUMENTS_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    pub common: Common,
    pub prompt: ChatPrompt,
}

/// What is rendered into the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// At least one; each an object with a known role and content of a known shape.
    pub messages: Vec<Value>,
    /// As sent; each a function with a name.
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    pub parallel_calls: bool,
    pub documents: Option<Value>,
    pub kwargs: Map<String, Value>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
}

impl TryFrom<Fields> for ChatRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let mut common = Common::take(&mut fields)?;
        common.wishes.logprobs = logprobs(&mut fields)?;
        let prompt = ChatPrompt::take(&mut fields)?;
        common.close(fields)?;
        Ok(Self { common, prompt })
    }
}

impl ChatPrompt {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = messages::take(fields)?;
        let tools = fields.array("tools", TOOLS_MAX)?.unwrap_or_default();
        for (index, tool) in tools.iter().enumerate() {
            check_tool(index, tool)?;
        }
        let tool_choice = tool_choice(fields)?;
        let continue_final_message = fields.flag("continue_final_message", false)?;
        let add_generation_prompt = fields.flag("add_generation_prompt", !continue_final_message)?;
        if continue_final_message && add_generation_prompt {
            let message = "must be false together with continue_final_message: a turn is either begun or continued";
            return Err(ApiError::invalid("add_generation_prompt", message));
        }
        let last_role = messages.last().and_then(|message| message["role"].as_str());
        if continue_final_message && last_role != Some("assistant") {
            let message = format!("needs a last message of the role assistant, not {}", last_role.unwrap_or("none"));
            return Err(ApiError::invalid("continue_final_message", message));
        }
        Ok(Self {
            messages,
            tools,
            tool_choice,
            parallel_calls: fields.flag("parallel_tool_calls", true)?,
            documents: documents(fields)?,
            kwargs: kwargs(fields)?,
            add_generation_prompt,
            continue_final_message,
        })
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<u8>, ApiError> {
    let wanted = fields.flag("logprobs", false)?;
    match alternatives(fields, "top_logprobs")? {
        // Routers write the default 0 into every request.
        Some(n) if n > 0 && !wanted => {
            Err(ApiError::invalid("top_logprobs", format!("is {n}, which needs \"logprobs\": true")))
        }
        top => Ok(wanted.then(|| top.unwrap_or(0))),
    }
}

/// Checks what `text::prepare::stage_tools` reads, with the limits of a request.
fn check_tool(index: usize, tool: &Value) -> Result<(), ApiError> {
    let path = |rest: &str| format!("tools[{index}]{rest}");
    let object = tool.as_object().ok_or_else(|| wrong(&path(""), "an object", tool))?;
    match object.get("type") {
        None | Some(Value::Null) => return Err(missing(&path(".type"))),
        Some(Value::String(kind)) if kind == "function" => {}
        Some(other) => {
            let message = format!("must be \"function\", not {}", describe(other));
            return Err(ApiError::field(Code::UnsupportedField, &path(".type"), message));
        }
    }
    let function = match object.get("function") {
        Some(Value::Object(function)) => function,
        None | Some(Value::Null) => return Err(missing(&path(".function"))),
        Some(other) => return Err(wrong(&path(".function"), "an object", other)),
    };
    match function.get("name") {
        Some(Value::String(name)) if !name.is_empty() && name.len() <= TOOL_NAME_BYTES_MAX => {}
        None | Some(Value::Null) => return Err(missing(&path(".function.name"))),
        Some(other) => {
            let wanted = format!("a string of 1 to {TOOL_NAME_BYTES_MAX} bytes");
            return Err(wrong(&path(".function.name"), &wanted, other));
        }
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => {}
        Some(other) => return Err(wrong(&path(".function.parameters"), "an object", other)),
    }
    match function.get("strict") {
        None | Some(Value::Null | Value::Bool(_)) => Ok(()),
        Some(other) => Err(wrong(&path(".function.strict"), "true or false", other)),
    }
}

fn tool_choice(fields: &mut Fields) -> Result<ToolChoice, ApiError> {
    let unsupported = |what: &str| {
        let message = format!("{what} needs constrained output, which is not supported yet; use \"auto\" or \"none\"");
        Err(ApiError::field(Code::UnsupportedField, "tool_choice", message))
    };
    match fields.take("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            // Both are harmless without tools, and routers add "auto" to everything.
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => unsupported("\"required\""),
            _ => Err(wrong("tool_choice", "\"auto\" or \"none\"", &Value::String(choice))),
        },
        Some(Value::Object(choice)) => match choice.get("type").and_then(Value::as_str) {
            Some("function") => unsupported("a named function"),
            Some("allowed_tools") => unsupported("\"allowed_tools\""),
            _ => Err(wrong("tool_choice", "\"auto\" or \"none\"", &Value::Object(choice))),
        },
        Some(other) => Err(wrong("tool_choice", "\"auto\" or \"none\"", &other)),
    }
}

fn documents(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let Some(list) = fields.array("documents", DOCUMENTS_MAX)? else { return Ok(None) };
    match list.iter().enumerate().find(|(_, document)| !document.is_object()) {
        Some((i, other)) => Err(wrong(&format!("documents[{i}]"), "an object", other)),
        None => Ok(Some(Value::Array(list))),
    }
}

/// `chat_template_kwargs`, with `reasoning_effort` as one of them: only the template knows what it means.
fn kwargs(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    match fields.take("reasoning_effort") {
        None => {}
        Some(Value::String(effort)) if effort.len() <= 32 => {
            if effort == "none" && !kwargs.contains_key("enable_thinking") {
                kwargs.insert("enable_thinking".into(), Value::Bool(false));
            }
            kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        Some(other) => return Err(wrong("reasoning_effort", "a word such as \"low\" or \"high\"", &other)),
    }
    Ok(kwargs)
}
