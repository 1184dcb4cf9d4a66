//! The cases of `tests/cases/cases.jsonl` whose parsers are bundled, in every cutting.

use cases::{Answer, Piece, STAGES, Setup, cut, open, run};
use serde_json::Value;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/cases.jsonl");

fn bundled() -> Vec<Value> {
    let text = std::fs::read_to_string(CASES).expect("the repository holds the cases");
    let cases = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("one case per line"));
    cases
        .filter(|case| !names(case).is_empty() && names(case).iter().all(|name| STAGES.contains(&name.as_str())))
        .collect()
}

fn names(case: &Value) -> Vec<String> {
    ["parser", "tool_parser"].iter().filter_map(|key| Some(case["input"][*key].as_str()?.to_string())).collect()
}

fn setup(case: &Value) -> Setup {
    let tools = case["input"]["tools"].as_array().into_iter().flatten();
    let tools = tools.map(|tool| {
        let function = &tool["function"];
        (function["name"].as_str().expect("a name").to_string(), function["parameters"].to_string())
    });
    let added = match case["input"]["deltas_tokens"].as_array() {
        Some(pieces) => {
            let special = pieces.iter().filter(|piece| piece["special"] == true);
            special.map(|piece| (piece["text"].as_str().expect("text").to_string(), 7)).collect()
        }
        None => Vec::new(),
    };
    let turn_prefix = case["input"]["prompt_ends_with"].as_str().unwrap_or_default().to_string();
    Setup { tools: tools.collect(), turn_prefix, added }
}

fn pieces(case: &Value) -> Vec<Piece> {
    let input = &case["input"];
    let list = input["deltas"].as_array().or(input["deltas_tokens"].as_array()).expect("deltas");
    let text = |piece: &Value| piece.as_str().or(piece["text"].as_str()).expect("text").to_string();
    list.iter().map(|piece| (text(piece), (piece["special"] == true).then_some(7))).collect()
}

fn compare(text: &str, how: &str) -> String {
    match how {
        "exact" => text.to_string(),
        "collapse_ws" => text.split_whitespace().collect::<Vec<_>>().join(" "),
        "trim" => text.trim().to_string(),
        other => panic!("unknown comparison {other}"),
    }
}

fn check(case: &Value, answer: &Answer, what: &str) {
    let id = format!("{} ({what})", case["id"]);
    let expected = &case["expected"];
    let how = expected["content_compare"].as_str().unwrap_or("trim");
    let wanted = expected["content"].as_str().unwrap_or_default();
    assert_eq!(compare(&answer.content, how), compare(wanted, how), "content of {id}");
    let wanted = expected["reasoning"].as_str().unwrap_or_default();
    assert_eq!(answer.reasoning.trim(), wanted.trim(), "reasoning of {id}");
    let calls: Vec<Value> = expected["tool_calls"].as_array().cloned().unwrap_or_default();
    assert_eq!(answer.calls.len(), calls.len(), "calls of {id}: {answer:?}");
    for (call, wanted) in answer.calls.iter().zip(&calls) {
        assert_eq!(call.name, wanted["name"].as_str().expect("a name"), "{id}");
        if let Some(whole) = wanted["arguments_raw_prefix_of"].as_str() {
            assert!(whole.starts_with(&call.arguments), "{id}: {}", call.arguments);
            assert_eq!(call.complete, Some(false), "{id}");
            continue;
        }
        assert_eq!(call.complete, Some(true), "{id}");
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|e| panic!("{id}: {e}: {call:?}"));
        // As text, because key order counts.
        assert_eq!(arguments.to_string(), wanted["arguments"].to_string(), "{id}");
    }
    for (call, raw) in answer.calls.iter().zip(expected["arguments_raw"].as_array().into_iter().flatten()) {
        assert_eq!(call.arguments, raw.as_str().expect("text"), "{id}");
    }
}

fn answer(case: &Value, pieces: &[Piece]) -> Answer {
    let names = names(case);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let chain = open(&names, &setup(case)).expect("bundled");
    run(chain, pieces).unwrap_or_else(|error| panic!("{}: {error}", case["id"]))
}

#[test]
fn every_case_in_every_cutting() {
    let cases = bundled();
    assert_eq!(cases.len(), 37);
    for case in &cases {
        let pieces = pieces(case);
        let given = answer(case, &pieces);
        check(case, &given, "as given");
        let checks = case["expected"]["checks"].as_array().expect("checks");
        let has = |name: &str| checks.iter().any(|check| check.as_str().expect("a name").starts_with(name));
        if has("incremental_args") {
            assert!(given.early_arguments > "{\"path\": \"m.py\", \"text\": \"".len(), "{}", case["id"]);
        }
        let tokens = pieces.iter().any(|(_, token)| token.is_some());
        if !tokens {
            let text: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
            for size in [0, 1, 2, 3, 5, 8, 13, 40] {
                check(case, &answer(case, &cut(&text, size)), &format!("cut by {size}"));
            }
        }
    }
}

/// The same cases with the markers as tokens of their own.
#[test]
fn markers_as_tokens() {
    for case in bundled().iter().filter(|case| case["input"]["deltas"].is_array()) {
        // A marker that is quoted in an argument or a sentence is no token there.
        let quoted = ["tool-hermes-05", "tool-qwen3c-06", "reason-17"];
        if quoted.iter().any(|id| case["id"].as_str().is_some_and(|case| case.starts_with(id))) {
            continue;
        }
        let text: String = pieces(case).iter().map(|(text, _)| text.as_str()).collect();
        let markers: Vec<String> = names(case).iter().flat_map(|name| cases::markers(name)).collect();
        let (added, tokens) = cases::with_tokens(&text, &markers, 3);
        let setup = Setup { added, ..setup(case) };
        let names = names(case);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let answer = run(open(&names, &setup).expect("bundled"), &tokens).expect("valid events");
        check(case, &answer, "markers as tokens");
    }
}
