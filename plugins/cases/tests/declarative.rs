//! Formats that are described in settings: the README's two, and descriptions that cannot work.

use cases::{Setup, cut, open_described, run};
use serde_json::Value;

/// The settings that the README's n-th block describes, as the host hands them on.
fn settings(number: usize) -> String {
    let readme = include_str!("../../stages/declarative/README.md");
    let block = readme.split("```toml\n").nth(number).and_then(|rest| rest.split("```").next()).expect("a block");
    let table: toml::Table = block.parse().expect("TOML");
    let settings = &table["plugin"]["declarative"]["settings"];
    serde_json::to_string(settings).expect("TOML fits JSON")
}

/// The text that the README shows behind its n-th block.
fn example(number: usize) -> &'static str {
    let readme = include_str!("../../stages/declarative/README.md");
    let behind = readme.split("```toml\n").nth(number).and_then(|rest| rest.split("```\n").nth(1)).expect("a text");
    behind.lines().find_map(|line| line.strip_prefix("    ")).expect("an indented line")
}

fn answer(settings: &str, text: &str, size: usize) -> (String, String, Vec<(String, Value)>) {
    let schema = r#"{"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}"#;
    let setup = Setup { tools: vec![("get_weather".into(), schema.into())], ..Setup::default() };
    let chain = open_described(settings, &setup).expect("a description");
    let answer = run(chain, &cut(text, size)).expect("valid events");
    let call = |call: &cases::Call| {
        assert_eq!(call.complete, Some(true));
        (call.name.clone(), serde_json::from_str(&call.arguments).expect("JSON"))
    };
    (answer.content.clone(), answer.reasoning.clone(), answer.calls.iter().map(call).collect())
}

#[test]
fn a_format_like_hermes() {
    let settings = settings(1);
    let call = ("get_weather".to_string(), serde_json::json!({"city": "Oslo"}));
    for size in [0, 1, 2, 3, 5, 8] {
        let (content, reasoning, calls) = answer(&settings, example(1), size);
        assert_eq!((content.as_str(), reasoning.as_str(), calls), ("", "I need the weather.", vec![call.clone()]));
    }
    let text = "No <call> here, and <call>{\"name\": 1}</call> is none.";
    assert_eq!(answer(&settings, text, 1).0, text);
}

#[test]
fn a_format_with_tags() {
    let call = ("get_weather".to_string(), serde_json::json!({"city": "Oslo", "days": 3}));
    for size in [0, 1, 2, 3, 5, 8] {
        let (content, reasoning, calls) = answer(&settings(2), example(2), size);
        assert_eq!((content.as_str(), reasoning.as_str(), calls), ("", "", vec![call.clone()]));
    }
}

/// What is wrong with a description is said by its place.
#[test]
fn what_cannot_work_is_refused() {
    let cases = [
        ("{}", "must be described"),
        (r#"{"tools": {"call_open": ["<c>"]}}"#, "one of `object` and `named`"),
        (r#"{"tools": {"object": {}}}"#, "nothing begins a call"),
        (r#"{"tools": {"call_open": [""], "object": {}}}"#, "1 to 128 bytes"),
        (r#"{"tools": {"call_open": ["<c>"], "named": {}}}"#, "must end the name"),
        (r#"{"tools": {"call_open": ["<c>"], "named": {"arguments": "tags"}}}"#, "`tags` needs"),
        (
            r#"{"tools": {"call_open": ["<c>"], "named": {"arguments": "bare", "name_close": ["{"]}}}"#,
            "needs a `quote`",
        ),
        (r#"{"tools": {"call_opens": []}}"#, "call_opens"),
        (r#"{"reasoning": {"open": ["<a>"]}}"#, "equally many tags"),
    ];
    for (settings, expected) in cases {
        let error = open_described(settings, &Setup::default()).err().unwrap_or_default();
        assert!(error.contains(expected), "{settings}: {error}");
    }
}
