//! From a checked chat request to prompt tokens: normalise, render, tokenize.

use contract::TokenId;
use contract::output::{CallKind, Tool, ToolChoice};
use contract::template::{ChatTemplate, Rendered};
use serde_json::{Map, Value, json};

use crate::TextError;
use crate::normalise::{ContentForm, normalise};

/// A checked chat request, text side.
#[derive(Clone, Debug, Default)]
pub struct ChatJob {
    /// OpenAI messages as sent; each must be an object with a string `role`.
    pub messages: Vec<Value>,
    /// OpenAI tools as sent.
    pub tools: Vec<Value>,
    pub documents: Option<Value>,
    pub tool_choice: ToolChoice,
    pub parallel_calls: bool,
    pub add_generation_prompt: bool,
    pub continue_final_message: bool,
    /// `chat_template_kwargs`.
    pub kwargs: Map<String, Value>,
    /// RFC 3339 with offset; templates have no other clock.
    pub now: String,
}

/// Ends that the template and the stages ask for, to be joined with the request's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Those that are exactly one added token.
    pub tokens: Vec<TokenId>,
    /// The rest.
    pub strings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    pub prompt: Vec<TokenId>,
    pub rendered: Rendered,
    pub stops: Stops,
    /// What the client should know although the request is served: template arguments nobody reads.
    pub warnings: Vec<String>,
}

/// The request JSON of the template interface (`docs/protocols.md`, templates). `tools` and `documents` are null when
/// absent, because templates test them with `is none` or by truth.
pub fn template_request(job: &ChatJob, form: ContentForm) -> Result<String, TextError> {
    check_continue(job)?;
    let messages = normalise(&job.messages, form)?;
    let request = json!({
        "messages": messages,
        "tools": if job.tools.is_empty() { Value::Null } else { Value::Array(job.tools.clone()) },
        "documents": job.documents,
        "add_generation_prompt": job.add_generation_prompt,
        "continue_final_message": job.continue_final_message,
        "kwargs": job.kwargs,
        "now": job.now,
    });
    Ok(request.to_string())
}

/// Normalises and renders. A template's own failure is the request's fault and carries the template's message.
pub fn render(template: &dyn ChatTemplate, job: &ChatJob, form: ContentForm) -> Result<Rendered, TextError> {
    template.render(&template_request(job, form)?).map_err(TextError::from_template)
}

/// OpenAI tools as the stages see them; the schema is the text of `function.parameters`, in the client's key order.
pub fn stage_tools(tools: &[Value]) -> Result<Vec<Tool>, TextError> {
    let tool = |(index, tool): (usize, &Value)| {
        let bad = |field: &str, message: &str| TextError::BadRequest {
            param: format!("tools[{index}]{field}"),
            message: message.to_owned(),
        };
        let function = tool.get("function").and_then(Value::as_object);
        let function = function.ok_or_else(|| bad(".function", "must be an object"))?;
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| bad(".function.name", "must be a string that is not empty"))?;
        let schema = function.get("parameters").filter(|schema| !schema.is_null());
        Ok(Tool {
            name: name.to_owned(),
            kind: CallKind::Json,
            schema_json: schema.map(|schema| schema.to_string().into()),
            strict: function.get("strict").and_then(Value::as_bool).unwrap_or(false),
        })
    };
    tools.iter().enumerate().map(tool).collect()
}

/// Warnings a rendered request deserves.
pub(crate) fn warnings(rendered: &Rendered) -> Vec<String> {
    rendered
        .ext
        .iter()
        .filter(|(key, value)| key == "unread-kwargs" && !value.is_empty())
        .map(|(_, value)| format!("chat_template_kwargs that this model's template never reads: {value}"))
        .collect()
}

fn check_continue(job: &ChatJob) -> Result<(), TextError> {
    let bad =
        |param: &str, message: &str| TextError::BadRequest { param: param.to_owned(), message: message.to_owned() };
    if job.messages.is_empty() {
        return Err(bad("messages", "at least one message is needed"));
    }
    if !job.continue_final_message {
        return Ok(());
    }
    if job.add_generation_prompt {
        return Err(bad(
            "continue_final_message",
            "cannot be true together with add_generation_prompt: one goes on with the last message, the other opens a new one",
        ));
    }
    let role = job.messages.last().and_then(|m| m.get("role")).and_then(Value::as_str);
    if role != Some("assistant") {
        let message = format!("the last message must have role assistant, it has {}", role.unwrap_or("none"));
        return Err(bad("continue_final_message", &message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(messages: Value) -> ChatJob {
        let Value::Array(messages) = messages else { panic!("messages are an array") };
        ChatJob { messages, now: "2025-02-03T09:05:07+00:00".into(), ..ChatJob::default() }
    }

    #[test]
    fn absent_tools_and_documents_are_null() {
        let request = template_request(&job(json!([{"role": "user", "content": "hi"}])), ContentForm::Text).unwrap();
        assert_eq!(
            request,
            r#"{"messages":[{"role":"user","content":"hi"}],"tools":null,"documents":null,"add_generation_prompt":false,"continue_final_message":false,"kwargs":{},"now":"2025-02-03T09:05:07+00:00"}"#
        );
    }

    #[test]
    fn the_order_of_keys_reaches_the_template() {
        let mut job = job(json!([{"role": "user", "content": "hi"}]));
        job.tools = vec![json!({"z": 1, "a": {"y": 1, "b": 2}})];
        let request = template_request(&job, ContentForm::Text).unwrap();
        assert!(request.contains(r#""tools":[{"z":1,"a":{"y":1,"b":2}}]"#), "{request}");
    }

    fn check_refused(job: &ChatJob, expected: &str) {
        assert_eq!(template_request(job, ContentForm::Text).unwrap_err().to_string(), expected);
    }

    #[test]
    fn continuing_needs_an_assistant_message_and_no_generation_prompt() {
        let mut user = job(json!([{"role": "user", "content": "hi"}]));
        user.continue_final_message = true;
        check_refused(&user, "continue_final_message: the last message must have role assistant, it has user");
        let mut both = job(json!([{"role": "assistant", "content": "hi"}]));
        both.continue_final_message = true;
        both.add_generation_prompt = true;
        check_refused(
            &both,
            "continue_final_message: cannot be true together with add_generation_prompt: one goes on with the last message, the other opens a new one",
        );
        check_refused(&job(json!([])), "messages: at least one message is needed");
    }

    #[test]
    fn unread_arguments_are_warned_about() {
        let rendered = Rendered { ext: vec![("unread-kwargs".into(), "thinking".into())], ..Rendered::default() };
        assert_eq!(warnings(&rendered), ["chat_template_kwargs that this model's template never reads: thinking"]);
    }
}
