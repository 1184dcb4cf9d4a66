//! Any text, cut anywhere: the answer does not depend on the cutting, and no text is lost.

use cases::{Answer, Piece, STAGES, Setup, cut, markers, open, run};
use proptest::prelude::*;

/// Pieces that many formats share, whole and broken, between ordinary text.
const WORDS: [&str; 46] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=g>",
    "</function>",
    "<parameter=a>",
    "<parameter=b>",
    "</parameter>",
    "{\"name\": \"f\", ",
    "\"arguments\": {",
    "\"a\": 1",
    "\"x\"",
    "}",
    "}}",
    "\\",
    "\n",
    "\n\n",
    " ",
    "é",
    "你",
    "<",
    "</",
    "text",
    "42",
    "{\"arguments\": {\"b\": [1, {}]}, ",
    "\"name\": \"f\"}",
    "true",
    "\u{1}",
    "[",
    "]",
    "f(",
    "a=1",
    ", ",
    "b='x'",
    ")",
    "f",
    "functions.f:0",
    "call:f{",
    "a:1,",
    "```json",
    "```",
    "<invoke name=\"f\">",
    "<parameter name=\"b\">",
    "</invoke>",
];

fn setup(prefix: &str) -> Setup {
    let schema = "{\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}}}";
    Setup { tools: vec![("f".into(), schema.into())], turn_prefix: prefix.into(), added: Vec::new() }
}

fn answer(names: &[&str], setup: &Setup, pieces: &[Piece]) -> Answer {
    let mut answer = run(open(names, setup).expect("bundled"), pieces).expect("valid events");
    answer.early_arguments = 0;
    answer
}

/// A stage, and text of its markers and of words.
fn texts() -> impl Strategy<Value = (&'static str, String)> {
    prop::sample::select(STAGES).prop_flat_map(|name| {
        let markers = markers(name);
        let word = prop_oneof![
            2 => prop::sample::select(markers),
            3 => prop::sample::select(&WORDS[..]).prop_map(str::to_string),
        ];
        (Just(name), prop::collection::vec(word, 0..30).prop_map(|words| words.concat()))
    })
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

const PREFIXES: [&str; 4] = ["", "<think>\n", "<think>\n\n</think>\n\n", "<|start|>assistant"];

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn cutting_changes_nothing((name, text) in texts(), behind in any::<bool>(), prefix in 0..PREFIXES.len()) {
        let setup = setup(PREFIXES[prefix]);
        let chain: &[&str] = if behind { &["qwen3", name] } else { &[name] };
        let whole = answer(chain, &setup, &cut(&text, 0));
        for size in [1, 2, 3, 7] {
            prop_assert_eq!(&answer(chain, &setup, &cut(&text, size)), &whole, "{:?} cut by {}", chain, size);
        }
    }

    /// A whole call is valid JSON, whatever stands in it.
    #[test]
    fn complete_calls_are_json((name, text) in texts(), behind in any::<bool>()) {
        let chain: &[&str] = if behind { &["deepseek_r1", name] } else { &[name] };
        for call in answer(chain, &setup(""), &cut(&text, 4)).calls {
            if call.complete == Some(true) {
                prop_assert!(serde_json::from_str::<serde_json::Value>(&call.arguments).is_ok(), "{}", call.arguments);
            }
        }
    }

    /// Without a call the text comes out as it went in; with markers in it, these may be swallowed, and white space and
    /// brackets between them.
    #[test]
    fn text_is_kept((name, text) in texts()) {
        // What stands in a harmony header is no text.
        prop_assume!(name != "gpt_oss");
        let answer = answer(&[name], &setup("<think>\n</think>"), &cut(&text, 2));
        let markers = markers(name);
        if !answer.calls.is_empty() {
            return Ok(());
        }
        if markers.iter().any(|marker| text.contains(marker)) {
            let bare = |text: &str| markers.iter().fold(text.to_string(), |text, marker| text.replace(marker, ""));
            let visible = |text: &str| bare(text).replace(|c: char| c.is_whitespace() || "[]".contains(c), "");
            let delivered = answer.reasoning + &answer.content;
            prop_assert_eq!(visible(&delivered), visible(&text), "{}", name);
        } else {
            prop_assert_eq!(&answer.content, &text, "{}", name);
        }
    }

    /// The fuzz entry point takes any bytes.
    #[test]
    fn any_bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        cases::fuzz(&data);
    }
}

fn content(name: &str, pieces: &[(&str, Option<u32>)]) -> Answer {
    let mut setup = setup("");
    setup.added = vec![("<tool_call>".into(), 5), ("</tool_call>".into(), 6)];
    let pieces: Vec<Piece> = pieces.iter().map(|(text, token)| (text.to_string(), *token)).collect();
    answer(&[name], &setup, &pieces)
}

/// A marker that is a token of its own is not found by its text.
#[test]
fn a_written_marker_is_text() {
    let call = "{\"name\": \"f\", \"arguments\": {}}";
    let written = content("hermes", &[("<tool_call>", None), (call, None), ("</tool_call>", None)]);
    assert_eq!(written.content, format!("<tool_call>{call}</tool_call>"));
    let meant = content("hermes", &[("<tool_call>", Some(5)), (call, None), ("</tool_call>", Some(6))]);
    assert_eq!((meant.content.as_str(), meant.calls.len()), ("", 1));
    // The second opener counts, although the first was no call.
    let twice = [("<tool_call>", Some(5)), ("<tool_call>", Some(5)), (call, None), ("</tool_call>", Some(6))];
    let twice = content("hermes", &twice);
    assert_eq!((twice.content.as_str(), twice.calls.len()), ("<tool_call>", 1));
}

/// The first byte that breaks the JSON ends the call, and the rest is content.
#[test]
fn broken_arguments_end_the_call() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, b}}\n</tool_call> after";
    let answer = answer(&["hermes"], &setup(""), &cut(text, 3));
    assert_eq!(answer.calls[0].arguments, "{\"a\": 1, ");
    assert_eq!(answer.calls[0].complete, Some(false));
    assert_eq!(answer.content, "b}}\n</tool_call> after");
}

/// A call in reasoning that is followed by the closing tag before it ended goes back.
#[test]
fn an_unfinished_call_in_reasoning_is_reasoning() {
    let text = "<think>I could <tool_call>\n{\"name\": \"f\", \"argu</think>No.";
    let answer = answer(&["qwen3", "hermes"], &setup(""), &cut(text, 2));
    assert_eq!(answer.reasoning, "I could <tool_call>\n{\"name\": \"f\", \"argu");
    assert_eq!((answer.content.as_str(), answer.calls.len()), ("No.", 0));
}

/// Values may hold what looks like the end of a value.
#[test]
fn values_may_hold_tags() {
    let value = "<parameter=x>\n1\n</parameter>\nthen </function> and </tool_call>";
    let text = format!("<tool_call>\n<function=f>\n<parameter=b>\n{value}\n</parameter>\n</function>\n</tool_call>");
    let answer = answer(&["qwen3_coder"], &setup(""), &cut(&text, 1));
    let got: serde_json::Value = serde_json::from_str(&answer.calls[0].arguments).expect("JSON");
    assert_eq!(got, serde_json::json!({ "b": value }));
}
