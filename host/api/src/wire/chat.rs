//! The chat request, checked.

use contract::output::ToolChoice;
use serde_json::{Map, Value};

use super::common::{Common, alternatives};
use super::fields::{Fields, wrong};
use super::messages;
use super::thinking::Thinking;
use super::tools::Tools;
use crate::error::ApiError;

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
    /// With allowed tools: one of them must be called.
    pub allowed_is_required: bool,
    pub parallel_calls: bool,
    pub thinking: Thinking,
    pub documents: Option<Value>,
    pub kwargs: Map<String, Value>,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
}

impl TryFrom<Fields> for ChatRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let mut common = Common::take(&mut fields, 1)?;
        common.wishes.logprobs = logprobs(&mut fields)?;
        let prompt = ChatPrompt::take(&mut fields)?;
        common.close(fields)?;
        Ok(Self { common, prompt })
    }
}

impl ChatPrompt {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = messages::take(fields)?;
        let Tools { tools, choice, allowed_is_required } = Tools::take(fields)?;
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
        let mut kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
        let thinking = Thinking::take(fields, &mut kwargs)?;
        Ok(Self {
            messages,
            tools,
            tool_choice: choice,
            allowed_is_required,
            parallel_calls: fields.flag("parallel_tool_calls", true)?,
            thinking,
            documents: documents(fields)?,
            kwargs,
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

fn documents(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let Some(list) = fields.array("documents", DOCUMENTS_MAX)? else { return Ok(None) };
    match list.iter().enumerate().find(|(_, document)| !document.is_object()) {
        Some((i, other)) => Err(wrong(&format!("documents[{i}]"), "an object", other)),
        None => Ok(Some(Value::Array(list))),
    }
}
