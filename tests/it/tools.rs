//! Tool calls through the bundled parsers.

use serde_json::{Value, json};
use testkit::{TestServer, chunks};

use crate::{message, script, streamed};

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}])
}

const CALL: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
const XML: &str =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";

/// One call, the same in every cutting, streamed or not, from either parser.
#[test]
fn a_call_is_read_in_every_cutting() -> anyhow::Result<()> {
    for (parser, text) in [("hermes", CALL), ("qwen3_coder", XML)] {
        for size in chunks::SIZES {
            let server = TestServer::script(&chunks::script(text, size).to_string(), &["--tool-call-parser", parser])?;
            let choice = message(&server, json!({"tools": tools()}))?;
            let call = &choice["message"]["tool_calls"][0];
            assert_eq!(call["function"]["name"], "get_weather", "{parser}, size {size}: {choice}");
            let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap_or_default())?;
            assert_eq!((arguments, &choice["finish_reason"]), (json!({"city": "Oslo"}), &json!("tool_calls")));
            let folded = streamed(&server, json!({"tools": tools()}))?;
            let streamed = &folded.choices[0];
            assert_eq!(streamed.finish_reason.as_deref(), Some("tool_calls"));
            assert_eq!(call["function"]["arguments"], streamed.calls[0].arguments, "{parser}, size {size}");
        }
    }
    Ok(())
}

/// Auto, required and named, streamed and not: each stage's own grammar lets its own calls through.
#[test]
fn api_03_finish_reason_matrix() -> anyhow::Result<()> {
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (parser, text) in [("hermes", CALL), ("qwen3_coder", XML)] {
        let server = TestServer::script(&script(json!({"text": text})), &["--tool-call-parser", parser])?;
        for (choice, reason) in
            [(json!("auto"), "tool_calls"), (json!("required"), "tool_calls"), (named.clone(), "stop")]
        {
            let fields = || json!({"tools": tools(), "tool_choice": choice});
            let plain = message(&server, fields())?;
            assert_eq!(plain["finish_reason"], reason, "{parser}, {choice}: {plain}");
            assert_eq!(plain["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
            let folded = streamed(&server, fields())?;
            let streamed = &folded.choices[0];
            assert_eq!((streamed.finish_reason.as_deref(), streamed.calls.len()), (Some(reason), 1), "{parser}");
        }
    }
    Ok(())
}

#[test]
fn api_17_tool_choice_none() -> anyhow::Result<()> {
    let text = format!("Format: {CALL} like this.");
    let server = TestServer::script(&script(json!({"text": text})), &["--tool-call-parser", "hermes"])?;
    let choice = message(&server, json!({"tools": tools(), "tool_choice": "none"}))?;
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(text), &json!("stop")));
    assert!(choice["message"].get("tool_calls").is_none_or(|calls| calls.as_array().is_some_and(Vec::is_empty)));
    assert_eq!(message(&server, json!({"tool_choice": "none"}))?["finish_reason"], "stop");
    Ok(())
}

#[test]
fn api_20_parallel_calls_index_end_to_end() -> anyhow::Result<()> {
    let second = CALL.replace("Oslo", "Bergen");
    let server =
        TestServer::script(&script(json!({"text": format!("{CALL}\n{second}")})), &["--tool-call-parser", "hermes"])?;
    let folded = streamed(&server, json!({"tools": tools()}))?;
    let calls = &folded.choices[0].calls;
    let cities = calls.iter().map(|call| call.arguments.as_str()).collect::<Vec<_>>();
    assert_eq!(cities, ["{\"city\": \"Oslo\"}", "{\"city\": \"Bergen\"}"]);
    assert_ne!(calls[0].id, calls[1].id);
    Ok(())
}

/// Two names over one engine: the same text, read by a parser and by none.
#[test]
fn two_names_over_one_engine() -> anyhow::Result<()> {
    let config = r#"
        [engine.main]
        source = "script:s.json"
        [[model]]
        name = "parsed"
        output = ["hermes"]
        [[model]]
        name = "raw"
    "#;
    let server = TestServer::config(config, &[("s.json", &script(json!({"text": CALL})))])?;
    let parsed = message(&server, json!({"model": "parsed", "tools": tools()}))?;
    assert_eq!(parsed["message"]["tool_calls"][0]["function"]["name"], "get_weather");
    let raw = message(&server, json!({"model": "raw", "tools": tools()}))?;
    assert_eq!(raw["message"]["content"], CALL);
    Ok(())
}
