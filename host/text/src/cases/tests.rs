use contract::template::Rendered;
use contract::{PluginError, Severity};
use serde_json::json;

use super::*;
use crate::test_stages::{brackets, think};

/// The naive stages, and a "template" that joins contents or raises on the word `raise`.
struct TestPlugins;

impl CasePlugins for TestPlugins {
    fn stage(&mut self, name: &str) -> Result<Option<Arc<dyn OutputStage>>, String> {
        match name {
            "think" => Ok(Some(think())),
            "brackets" => Ok(Some(brackets())),
            "broken" => Err("no such file".to_owned()),
            _ => Ok(None),
        }
    }

    fn template(
        &mut self,
        source: &str,
        special_tokens: &[(String, String)],
    ) -> Result<Option<Arc<dyn ChatTemplate>>, String> {
        let bos = special_tokens.first().map_or("", |(_, text)| text);
        Ok(Some(Arc::new(Joins(format!("{bos}{source}")))))
    }
}

struct Joins(String);

impl ChatTemplate for Joins {
    fn name(&self) -> &str {
        "joins"
    }

    fn render(&self, request_json: &str) -> Result<Rendered, PluginError> {
        let request: Value = serde_json::from_str(request_json).unwrap();
        let messages = request["messages"].as_array().unwrap();
        let texts: Vec<&str> = messages.iter().filter_map(|m| m["content"].as_str()).collect();
        if texts.contains(&"raise") {
            return Err(PluginError::new("joins", Severity::RejectRequest, "template-raised", "it was raised"));
        }
        let reasoning: String = messages.iter().filter_map(|m| m["reasoning_content"].as_str()).collect();
        let prompt = format!("{}{}{reasoning}@{}", self.0, texts.join("+"), request["now"].as_str().unwrap());
        Ok(Rendered { prompt, ..Rendered::default() })
    }
}

fn outcome(case: Value, chain: &Chain) -> Outcome {
    run_case(case.as_object().unwrap(), chain, &mut TestPlugins).outcome
}

fn check_passes(case: Value) {
    assert_eq!(outcome(case, &Chain::FromCase), Outcome::Passed);
}

fn check_fails(case: Value, expected: &str) {
    match outcome(case, &Chain::FromCase) {
        Outcome::Failed(reason) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("expected a failure with {expected:?}, got {other:?}"),
    }
}

/// A tool case for the brackets stage with one change.
fn tool_case(path: &str, value: Value) -> Value {
    let mut case = json!({
        "id": "t", "area": "tool", "title": "",
        "input": {
            "parser": "brackets",
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "deltas": ["Look.\n[", "f {\"b\": 1,", " \"a\": 2}]\n"],
            "engine_finish_reason": "stop",
        },
        "expected": {
            "content": "Look.",
            "tool_calls": [{"index": 0, "name": "f", "arguments": {"b": 1, "a": 2}}],
            "finish_reason": "tool_calls",
            "checks": [
                "chunk_invariant", "args_valid_json", "name_and_id_once", "no_marker_leak", "args_literal_utf8",
                "stream_equals_nonstream", "no_whitespace_only_content_delta", "rechunk:4,whole",
                "incremental_args: some text comes early",
            ],
            "content_compare": "trim",
        },
    });
    if !path.is_empty() {
        let (parent, key) = path.rsplit_once('/').unwrap();
        case.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.into(), value);
    }
    case
}

#[test]
fn a_good_case_passes() {
    check_passes(tool_case("", Value::Null));
    check_passes(tool_case("/expected/why", json!("remarks are not verified")));
    check_passes(tool_case("/expected/arguments_raw", json!(["{\"b\": 1, \"a\": 2}"])));
    check_passes(tool_case("/expected/tool_calls", json!([{"arguments_raw_prefix_of": "{\"b\": 1, \"a\": 2}, more"}])));
}

/// Every wrong expectation is noticed.
#[test]
fn wrong_expectations_fail() {
    check_fails(tool_case("/expected/content", json!("Look")), "content:");
    check_fails(tool_case("/expected/content", json!(null)), "content:");
    check_fails(tool_case("/expected/content_compare", json!("fuzzy")), "content_compare must be");
    check_fails(tool_case("/expected/reasoning", json!("x")), "reasoning:");
    check_fails(tool_case("/expected/finish_reason", json!("stop")), "finish_reason:");
    check_fails(tool_case("/expected/tool_calls", json!([])), "tool_calls: expected 0, got 1");
    check_fails(tool_case("/expected/arguments_raw", json!(["{}"])), "arguments_raw:");
    let call = |key: &str, value: Value| tool_case("/expected/tool_calls", json!([{key: value}]));
    check_fails(call("index", json!(1)), "tool_calls[0].index");
    check_fails(call("name", json!("g")), "tool_calls[0].name");
    check_fails(call("arguments", json!({"a": 2, "b": 1})), "tool_calls[0].arguments");
    check_fails(call("arguments_raw_prefix_of", json!("{")), "tool_calls[0].arguments_raw_prefix_of");
}

/// What the runner does not verify fails the case instead of passing it.
#[test]
fn unknown_checks_and_keys_fail() {
    check_fails(tool_case("/expected/checks", json!(["args_are_nice"])), "unknown check");
    check_fails(tool_case("/expected/checks", json!(["rechunk:1,x"])), "neither a size nor `whole`");
    check_fails(tool_case("/expected/colour", json!("red")), "`expected.colour` is not verified");
    check_fails(tool_case("/expected/tool_calls", json!([{"colour": "red"}])), "tool_calls[0].colour: is not verified");
    check_fails(tool_case("/area", json!("poetry")), "unknown area");
    check_fails(tool_case("/input/engine_finish_reason", json!("abort")), "engine_finish_reason");
    check_fails(tool_case("/input/tools", json!([{}])), "tools[0].function");
}

#[test]
fn checks_notice() {
    let with = |deltas: Value, check: &str, expected: Value| {
        let mut case = tool_case("/input/deltas", deltas);
        case["expected"] = expected;
        case["expected"]["checks"] = json!([check]);
        case
    };
    let call = json!({"tool_calls": [{"index": 0}], "finish_reason": "tool_calls"});
    check_fails(with(json!(["[f {\"a\": \"\\u00e9\"}]"]), "args_literal_utf8", call.clone()), "\\u00e9");
    check_passes(with(json!(["[f {\"a\": \"\\u001b \\\\u00e9\"}]"]), "args_literal_utf8", call.clone()));
    check_fails(with(json!(["[f {}]"]), "incremental_args", call), "incremental_args:");
    let broken = json!({"tool_calls": [{"index": 0}], "finish_reason": "stop"});
    check_fails(with(json!(["[f {]"]), "args_valid_json", broken), "args_valid_json:");
    let lost = json!({"content": "x", "tool_calls": [{"index": 0}], "finish_reason": "tool_calls"});
    let text = json!({"content": "a", "finish_reason": "stop"});
    check_fails(with(json!(["x [f {}]"]), "no_text_loss", lost), "no_text_loss:");
    check_passes(with(json!(["a"]), "no_text_loss", text.clone()));
    check_fails(with(json!(["a", "\n"]), "no_whitespace_only_content_delta", text), "no_whitespace_only");
}

#[test]
fn a_special_token_is_matched_by_id() {
    let token = |text: &str, special: bool| json!({"text": text, "special": special});
    check_passes(json!({
        "id": "r", "area": "reasoning",
        "input": {
            "parser": "think", "tool_parser": "think", "prompt_ends_with": "<think>\n", "engine_finish_reason": "length",
            "deltas_tokens": [token("strips `</think>`", false), token("</think>", true), token("\n\nDone.", false)],
        },
        "expected": {
            "reasoning": "strips `</think>`", "content": "Done.", "finish_reason": "length",
            "checks": ["chunk_invariant", "no_marker_leak"],
        },
    }));
}

#[test]
fn cases_that_cannot_run_are_skipped_or_fail() {
    let skipped = |case: Value, chain: &Chain| matches!(outcome(case, chain), Outcome::Skipped(_));
    assert!(skipped(tool_case("/input/parser", json!("kimi")), &Chain::FromCase));
    assert!(skipped(tool_case("/area", json!("api")), &Chain::FromCase));
    assert!(skipped(tool_case("/expected", json!({"observable": ["prose"], "why": ""})), &Chain::FromCase));
    assert!(skipped(tool_case("", Value::Null), &Chain::None));
    let given = |provides: &str| Chain::Given { stages: vec![brackets()], provides: vec![provides.to_owned()] };
    assert!(skipped(tool_case("", Value::Null), &given("other")));
    assert_eq!(outcome(tool_case("", Value::Null), &given("brackets")), Outcome::Passed);
    check_fails(tool_case("/input/parser", json!("broken")), "no such file");
}

fn template_case(input: Value, expected: Value) -> Value {
    json!({"id": "m", "area": "template", "input": input, "expected": expected})
}

#[test]
fn template_cases() {
    let user = json!([{"role": "user", "content": [{"type": "text", "text": "a"}]}]);
    let rendered = |text: &str| json!({"rendered": text, "verified_with": "x", "minijinja_x": "y", "raw_x": "z"});
    let input = json!({"template": "T:", "messages": user, "kwargs": {"bos_token": "<s>"}, "frozen_now": "2025-02-03T09:05:07", "normalise_before_render": ["text_parts_to_string"]});
    check_passes(template_case(input.clone(), rendered("<s>T:a@2025-02-03T09:05:07+00:00")));
    check_fails(template_case(input.clone(), rendered("T:")), "rendered:");
    check_fails(
        template_case(input.clone(), json!({"rendered": "", "colour": 1})),
        "`expected.colour` is not verified",
    );
    let mut unknown = input.clone();
    unknown["normalise_before_render"] = json!(["polish"]);
    check_fails(template_case(unknown, rendered("")), "the normaliser has no step \"polish\"");
    let key = json!({"rendered": "<s>T:a@2025-02-03T09:05:07+00:00", "rendered_all_variants": ""});
    check_fails(template_case(input, key), "`expected.rendered_all_variants` is not verified");
}

#[test]
fn template_errors_and_prefixes() {
    let input = |messages: Value| json!({"template": "", "messages": messages, "frozen_now": "1"});
    let error = json!({"kind": "template_raised", "message": "it was raised", "http_status": 400, "generation_started": false, "jinja2_exception": "X"});
    let raises = json!([{"role": "user", "content": "raise"}]);
    check_passes(template_case(input(raises.clone()), json!({"error": error})));
    check_fails(template_case(input(raises.clone()), json!({"error": {"http_status": 500}})), "error.http_status");
    check_fails(template_case(input(raises), json!({"error": {"colour": 1}})), "not verified");
    let turns = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]);
    let prefix = |chars: u32, end: &str| json!({"rendered": "q+a+r@1+00:00", "rendered_first_turn": "q@1+00:00", "common_prefix_chars": chars, "common_prefix_ends_with": end});
    check_passes(template_case(input(turns.clone()), prefix(1, "q")));
    check_fails(template_case(input(turns.clone()), prefix(2, "q")), "common_prefix_chars");
    check_fails(template_case(input(turns), prefix(1, "x")), "common_prefix_ends_with");
}

#[test]
fn variants_render_alike() {
    let variant = |key: &str| json!([{"role": "assistant", "content": "A", key: "R"}]);
    let input =
        json!({"template": "", "variants": [variant("reasoning"), variant("reasoning_content")], "frozen_now": "1"});
    let case = |text: &str| json!({"id": "v", "area": "reasoning", "input": input, "expected": {"rendered_all_variants": text}});
    check_passes(case("AR@1+00:00"));
    check_fails(case("A@1+00:00"), "rendered_all_variants:");
}

#[test]
fn a_file_is_run_line_by_line() {
    let good = tool_case("", Value::Null).to_string();
    let bad = tool_case("/expected/content", json!("x")).to_string();
    let text = format!("{good}\n\nnot json\n{{}}\n{bad}\n{}\n", tool_case("/area", json!("sched")));
    let results = run_jsonl(&text, &Chain::FromCase, &mut TestPlugins);
    let ids: Vec<&str> = results.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(ids, ["t", "line 3", "line 4", "t", "t"]);
    let summary = Summary::of(&results);
    assert_eq!((summary.to_string().as_str(), summary.is_success()), ("1 passed, 3 failed, 1 skipped", false));
    assert!(!Summary::of(&[]).is_success());
}

/// Every check, key and step that the published cases use is known here: without plugins all are skipped, none fails.
#[test]
fn the_published_cases_are_understood() {
    struct NoPlugins;
    impl CasePlugins for NoPlugins {}
    let cases = include_str!("../../../../tests/cases/cases.jsonl");
    let results = run_jsonl(cases, &Chain::FromCase, &mut NoPlugins);
    let failed: Vec<_> = results.iter().filter(|r| matches!(r.outcome, Outcome::Failed(_))).collect();
    assert!(failed.is_empty() && results.len() >= 82, "{} cases, failed: {failed:?}", results.len());
}
