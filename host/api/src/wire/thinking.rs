//! How much a model may think, and whether the client wants to see it.
//!
//! Whether a model thinks at all is its template's to do: these fields become template arguments
//! (`enable_thinking`, `reasoning_effort`). The budget and the hiding are the server's own.

use serde_json::{Map, Value};

use super::fields::{Fields, as_bool, as_integer, wrong};
use crate::error::ApiError;

/// Longest name of an effort, in bytes.
const EFFORT_BYTES_MAX: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// Reasoning tokens, after which the reasoning is closed for the model. `None`: no limit.
    pub tokens_max: Option<u32>,
    /// Reasoning is counted, but not sent.
    pub hidden: bool,
}

/// Names of the budget: ours and vLLM's, Qwen's, llama.cpp's two.
const BUDGETS: [&str; 4] =
    ["thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens"];

impl Thinking {
    /// Takes the fields; what the template must know goes into `kwargs`, unless the request says it there itself.
    pub fn take(fields: &mut Fields, kwargs: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let mut budgets: Vec<(String, Option<u32>)> = Vec::new();
        for name in BUDGETS {
            if let Some(value) = fields.take(name) {
                budgets.push((name.to_owned(), budget(name, &value)?));
            }
        }
        let mut hidden = !fields.flag("include_reasoning", true)?;
        let mut effort = fields.take("reasoning_effort").map(|value| ("reasoning_effort".to_owned(), value));
        let mut enabled = fields.boolean("enable_thinking")?;
        if let Some(reasoning) = fields.object("reasoning")? {
            for (name, value) in reasoning {
                let at = format!("reasoning.{name}");
                match name.as_str() {
                    _ if value.is_null() => {}
                    "effort" => effort = effort.or(Some((at, value))),
                    "max_tokens" => budgets.push((at.clone(), budget(&at, &value)?)),
                    "exclude" => hidden |= as_bool(&at, &value)?,
                    "enabled" => enabled = Some(as_bool(&at, &value)?),
                    "summary" | "generate_summary" => {}
                    _ => return Err(ApiError::invalid(&at, "is not one of effort, max_tokens, exclude, enabled")),
                }
            }
        }
        if let Some(thinking) = fields.object("thinking")? {
            let on = match thinking.get("type").and_then(Value::as_str) {
                Some("enabled" | "adaptive" | "auto") => true,
                Some("disabled") => false,
                _ => {
                    let found = thinking.get("type").unwrap_or(&Value::Null);
                    return Err(wrong("thinking.type", "\"enabled\" or \"disabled\"", found));
                }
            };
            enabled = Some(on);
            if let Some(value) = thinking.get("budget_tokens").filter(|value| on && !value.is_null()) {
                budgets.push(("thinking.budget_tokens".into(), budget("thinking.budget_tokens", value)?));
            }
        }
        arguments(effort, enabled, kwargs)?;
        Ok(Self { tokens_max: one(&budgets)?, hidden })
    }
}

/// -1 is no limit; 0 is no thinking at all.
fn budget(name: &str, value: &Value) -> Result<Option<u32>, ApiError> {
    let tokens = as_integer(name, value, &(-1..=i64::from(u32::MAX)))?;
    Ok(u32::try_from(tokens).ok())
}

fn one(budgets: &[(String, Option<u32>)]) -> Result<Option<u32>, ApiError> {
    let Some((first, rest)) = budgets.split_first() else { return Ok(None) };
    match rest.iter().find(|(_, tokens)| *tokens != first.1) {
        None => Ok(first.1),
        Some((name, _)) => {
            let message = format!("differs from {}; they mean the same, send one of them", first.0);
            Err(ApiError::invalid(name, message))
        }
    }
}

fn arguments(
    effort: Option<(String, Value)>,
    enabled: Option<bool>,
    kwargs: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    if let Some(enabled) = enabled {
        kwargs.entry("enable_thinking").or_insert(enabled.into());
    }
    match effort {
        None => {}
        Some((_, Value::String(effort))) if !effort.is_empty() && effort.len() <= EFFORT_BYTES_MAX => {
            if effort == "none" {
                kwargs.entry("enable_thinking").or_insert(false.into());
            }
            kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        Some((name, other)) => return Err(wrong(&name, "a word such as \"low\" or \"high\"", &other)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(body: Value) -> Result<(Thinking, Value), String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("an object");
        let mut kwargs = fields.object("chat_template_kwargs").expect("an object").unwrap_or_default();
        let thinking = Thinking::take(&mut fields, &mut kwargs).map_err(|error| error.message)?;
        Ok((thinking, Value::Object(kwargs)))
    }

    fn expect(body: Value, tokens_max: Option<u32>, hidden: bool, kwargs: Value) {
        assert_eq!(taken(body.clone()), Ok((Thinking { tokens_max, hidden }, kwargs)), "{body}");
    }

    #[test]
    fn all_names_of_the_same_wish() {
        expect(json!({}), None, false, json!({}));
        expect(json!({"thinking_token_budget": 5}), Some(5), false, json!({}));
        expect(json!({"thinking_budget_tokens": 0, "thinking_token_budget": 0}), Some(0), false, json!({}));
        expect(json!({"reasoning_budget_tokens": -1, "include_reasoning": false}), None, true, json!({}));
        expect(
            json!({"reasoning_effort": "none"}),
            None,
            false,
            json!({"enable_thinking": false, "reasoning_effort": "none"}),
        );
        expect(
            json!({"reasoning": {"effort": "low", "max_tokens": 9, "exclude": true}}),
            Some(9),
            true,
            json!({"reasoning_effort": "low"}),
        );
        expect(
            json!({"thinking": {"type": "enabled", "budget_tokens": 7}}),
            Some(7),
            false,
            json!({"enable_thinking": true}),
        );
        expect(
            json!({"thinking": {"type": "disabled", "budget_tokens": 7}}),
            None,
            false,
            json!({"enable_thinking": false}),
        );
        // What the request gives its template itself stands.
        expect(
            json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}}),
            None,
            false,
            json!({"enable_thinking": false}),
        );
    }

    #[test]
    fn errors_name_the_field() {
        let cases = [
            (
                json!({"thinking_token_budget": -2}),
                "thinking_token_budget: must be a whole number from -1 to 4294967295, not -2",
            ),
            (
                json!({"thinking_token_budget": 1, "thinking_budget": 2}),
                "thinking_budget: differs from thinking_token_budget; they mean the same, send one of them",
            ),
            (
                json!({"reasoning": {"effort": 3}}),
                "reasoning.effort: must be a word such as \"low\" or \"high\", not 3",
            ),
            (json!({"reasoning": {"depth": 3}}), "reasoning.depth: is not one of effort, max_tokens, exclude, enabled"),
            (
                json!({"thinking": {"type": "maybe"}}),
                "thinking.type: must be \"enabled\" or \"disabled\", not the string \"maybe\"",
            ),
            (json!({"include_reasoning": 1}), "include_reasoning: must be true or false, not 1"),
        ];
        for (body, message) in cases {
            assert_eq!(taken(body.clone()), Err(message.to_owned()), "{body}");
        }
    }
}
