//! Template cases: messages to prompt text, through the server's own normaliser.

use contract::template::ChatTemplate;
use serde_json::{Map, Value};

use super::{CasePlugins, Stop, is_remark};
use crate::normalise::{ContentForm, STEPS};
use crate::{ChatJob, TextError, prepare};

/// The time templates see in cases that freeze none.
const NOW: &str = "2025-01-01T00:00:00+00:00";

pub(super) fn run(
    input: &Map<String, Value>,
    expected: &Map<String, Value>,
    plugins: &mut dyn CasePlugins,
) -> Result<(), Stop> {
    check_steps(input)?;
    known_keys(expected, input.contains_key("messages"), input.contains_key("variants"))?;
    let source =
        input.get("template").and_then(Value::as_str).ok_or_else(|| Stop::fail("`template` must be a string"))?;
    let empty = Map::new();
    let kwargs = input.get("kwargs").and_then(Value::as_object).unwrap_or(&empty);
    let template = plugins
        .template(source, &special_tokens(kwargs))
        .map_err(|e| Stop::fail(format!("the template plugin could not be loaded: {e}")))?
        .ok_or_else(|| Stop::Skip("no template plugin is under test".to_owned()))?;
    let before = template.failures();
    let render = |messages: &[Value]| -> Result<String, TextError> {
        let job = job(messages, kwargs, input);
        prepare::render(template.as_ref() as &dyn ChatTemplate, &job, ContentForm::Text).map(|r| r.prompt)
    };
    let messages = input.get("messages").and_then(Value::as_array);
    if let Some(messages) = messages {
        check_messages(messages, expected, &render)?;
    }
    let variants = input.get("variants").and_then(Value::as_array);
    for variant in variants.into_iter().flatten().filter_map(Value::as_array) {
        compare("rendered_all_variants", expected.get("rendered_all_variants"), render(variant))?;
    }
    if messages.is_none() && variants.is_none_or(Vec::is_empty) {
        return Err(Stop::fail("neither `messages` nor `variants` to render"));
    }
    // What another try made good is still a failed call, unless the case is about one.
    let failed = template.failures().since(&before).filter(|_| !expected.contains_key("error"));
    failed.map_or(Ok(()), |why| Err(Stop::fail(why)))
}

fn known_keys(expected: &Map<String, Value>, messages: bool, variants: bool) -> Result<(), Stop> {
    for key in expected.keys().filter(|key| !is_remark(key)) {
        let verified = match key.as_str() {
            "rendered" | "error" | "rendered_first_turn" | "common_prefix_chars" | "common_prefix_ends_with" => {
                messages
            }
            "rendered_all_variants" => variants,
            _ => false,
        };
        if !verified {
            return Err(Stop::fail(format!("`expected.{key}` is not verified by this runner")));
        }
    }
    Ok(())
}

fn check_messages(
    messages: &[Value],
    expected: &Map<String, Value>,
    render: &dyn Fn(&[Value]) -> Result<String, TextError>,
) -> Result<(), Stop> {
    if let Some(error) = expected.get("error") {
        return check_error(error, render(messages));
    }
    let rendered = render(messages);
    compare("rendered", expected.get("rendered"), rendered.clone())?;
    let first_turn_end = messages.iter().position(|m| m.get("role").and_then(Value::as_str) == Some("assistant"));
    let first_turn = render(&messages[..first_turn_end.unwrap_or(messages.len())]);
    if let Some(expected) = expected.get("rendered_first_turn") {
        compare("rendered_first_turn", Some(expected), first_turn.clone())?;
    }
    if let (Ok(rendered), Ok(first_turn)) = (rendered, first_turn) {
        let common: String =
            rendered.chars().zip(first_turn.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
        let count = common.chars().count();
        if let Some(chars) = expected.get("common_prefix_chars")
            && chars.as_u64() != Some(count as u64)
        {
            return Err(Stop::fail(format!("common_prefix_chars: expected {chars}, got {count}")));
        }
        if let Some(end) = expected.get("common_prefix_ends_with")
            && !end.as_str().is_some_and(|end| common.ends_with(end))
        {
            return Err(Stop::fail(format!(
                "common_prefix_ends_with: expected {end}, the common prefix is {common:?}"
            )));
        }
    }
    Ok(())
}

fn compare(key: &str, expected: Option<&Value>, got: Result<String, TextError>) -> Result<(), Stop> {
    let expected = expected.and_then(Value::as_str);
    let expected = expected.ok_or_else(|| Stop::fail(format!("`expected.{key}` must be a string")))?;
    match got {
        Ok(got) if got == expected => Ok(()),
        Ok(got) => Err(Stop::fail(format!("{key}:\n  expected {expected:?}\n  got      {got:?}"))),
        Err(error) => Err(Stop::fail(format!("{key}: expected {expected:?}, got the error {error}"))),
    }
}

/// `jinja2_exception` names the reference's class; the rest is what a client of ours sees.
fn check_error(expected: &Value, got: Result<String, TextError>) -> Result<(), Stop> {
    let expected = expected.as_object().ok_or_else(|| Stop::fail("`expected.error` must be an object"))?;
    let error = match got {
        Ok(text) => return Err(Stop::fail(format!("expected an error, got {text:?}"))),
        Err(error) => error,
    };
    for (key, value) in expected {
        let met = match key.as_str() {
            "kind" => value == "template_raised" && matches!(error, TextError::Template { .. }),
            "message" => value.as_str().is_some_and(|message| error.to_string().contains(message)),
            "http_status" => value == 400 && error.is_request_fault(),
            // A render that failed left no prompt to generate from.
            "generation_started" => value == false,
            "jinja2_exception" => true,
            _ => return Err(Stop::fail(format!("`expected.error.{key}` is not verified by this runner"))),
        };
        if !met {
            return Err(Stop::fail(format!("error.{key}: expected {value}, got {error:?}")));
        }
    }
    Ok(())
}

/// Every step is always taken; the names only say which of them the case depends on.
fn check_steps(input: &Map<String, Value>) -> Result<(), Stop> {
    let steps = input.get("normalise_before_render").and_then(Value::as_array);
    for step in steps.into_iter().flatten() {
        if !step.as_str().is_some_and(|step| STEPS.contains(&step)) {
            let known = STEPS.join(", ");
            return Err(Stop::fail(format!("the normaliser has no step {step}; it has {known}")));
        }
    }
    Ok(())
}

fn special_tokens(kwargs: &Map<String, Value>) -> Vec<(String, String)> {
    let token = |name: &str| kwargs.get(name).and_then(Value::as_str).map(|text| (name.to_owned(), text.to_owned()));
    ["bos_token", "eos_token"].into_iter().filter_map(token).collect()
}

/// The case's `kwargs` mix what a request has fields for with `chat_template_kwargs`.
fn job(messages: &[Value], kwargs: &Map<String, Value>, input: &Map<String, Value>) -> ChatJob {
    let mut kwargs = kwargs.clone();
    let mut flag = |name: &str| kwargs.shift_remove(name).is_some_and(|value| value == true);
    let (add_generation_prompt, continue_final_message) =
        (flag("add_generation_prompt"), flag("continue_final_message"));
    let tools = match kwargs.shift_remove("tools") {
        Some(Value::Array(tools)) => tools,
        _ => Vec::new(),
    };
    let documents = kwargs.shift_remove("documents").filter(|documents| !documents.is_null());
    for token in ["bos_token", "eos_token"] {
        kwargs.shift_remove(token);
    }
    let frozen = input.get("frozen_now").and_then(Value::as_str);
    ChatJob {
        messages: messages.to_vec(),
        tools,
        documents,
        add_generation_prompt,
        continue_final_message,
        kwargs,
        now: frozen.map_or_else(|| NOW.to_owned(), with_offset),
        ..ChatJob::default()
    }
}

/// RFC 3339 needs an offset; cases write local time.
fn with_offset(time: &str) -> String {
    let clock = time.split_once('T').map_or("", |(_, clock)| clock);
    if clock.contains(['Z', '+', '-']) { time.to_owned() } else { format!("{time}+00:00") }
}
