//! Recorded failures of other servers.

use serde_json::{Value, json};

use crate::fixture::{Setup, Stream, hi, serve, server};

fn weather_tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]
    }}}])
}

const CALL: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

fn counts(usage: &Value) -> (u64, u64, u64) {
    let number = |name: &str| usage[name].as_u64().expect("a count");
    (number("prompt_tokens"), number("completion_tokens"), number("total_tokens"))
}

#[tokio::test]
async fn api_01_usage_in_stream() {
    let server = server(json!({"prompt_tokens": 16, "tokens": ["He", "llo", "!"], "finish": "stop"}));
    let stream = server.stream(json!({"stream_options": {"include_usage": true}})).await;
    assert!(stream.done);
    assert_eq!(counts(stream.usage()), (16, 3, 19));
    let (_, before) = stream.chunks.split_last().expect("chunks");
    assert!(before.iter().all(|chunk| chunk["usage"].is_null()));
    assert_eq!(before.last().expect("a finish chunk")["choices"][0]["finish_reason"], "stop");
    // Without the option no chunk has usage or an empty list of choices.
    let bare = server.stream(json!({})).await;
    assert!(bare.chunks.iter().all(|chunk| chunk.get("usage").is_none() && chunk["choices"] != json!([])));
    // With the other option every chunk has it, growing.
    let running = server.stream(json!({"stream_options": {"continuous_usage_stats": true}})).await;
    let totals: Vec<u64> = running.chunks.iter().map(|chunk| counts(&chunk["usage"]).1).collect();
    assert!(totals.is_sorted() && totals.last() == Some(&3), "{totals:?}");
}

#[tokio::test]
async fn api_03_finish_reason_matrix() {
    let server = server(json!({"text": CALL, "finish": "stop"}));
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for (tool_choice, finish_reason) in
        [(json!("auto"), "tool_calls"), (json!("required"), "tool_calls"), (named, "stop")]
    {
        let fields = || json!({"tools": weather_tools(), "tool_choice": tool_choice});
        let plain = server.chat(fields()).await;
        let choice = &plain["choices"][0];
        assert_eq!(choice["finish_reason"], finish_reason, "{tool_choice}");
        assert_eq!(choice["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], r#"{"city":"Oslo"}"#);
        assert_eq!(choice["message"]["content"], Value::Null);
        let stream = server.stream(fields()).await;
        assert_eq!((stream.finish_reason(0).as_str(), stream.calls(0).len()), (finish_reason, 1), "{tool_choice}");
    }
}

/// A scripted model that says no call breaks the grammar, and the answer is an error, streamed and not. A real one
/// cannot say it.
#[tokio::test]
async fn api_04_required_without_call() {
    let server = server(json!({"text": "Hello there.", "finish": "stop"}));
    let fields = json!({"tools": weather_tools(), "tool_choice": "required"});
    let plain = server.post("/v1/chat/completions", &hi(fields.clone())).await;
    assert_eq!((plain.status.as_u16(), plain.error_code().as_str()), (500, "script_violates_grammar"));
    assert!(plain.error_message().contains("token 0 of the script"), "{}", plain.error_message());
    let mut streamed = hi(fields);
    streamed["stream"] = json!(true);
    let answer = server.post("/v1/chat/completions", &streamed).await;
    // The prompt's computation began, so the headers may be out; then the error is the stream's one event.
    let error = match answer.status.as_u16() {
        200 => Stream::read(&answer).error.expect("an error event"),
        _ => answer.json()["error"].clone(),
    };
    assert_eq!(error["code"], "script_violates_grammar");
}

#[tokio::test]
async fn api_05_n2_streams_do_not_mix() {
    let server = server(json!({"prompt_tokens": 5, "choices": [
        {"tokens": ["a1", "a2", "a3"], "finish": "stop"}, {"tokens": ["b1"], "finish": "length"}
    ]}));
    let stream = server.stream(json!({"n": 2, "stream_options": {"include_usage": true}})).await;
    assert_eq!((stream.text(0, "content"), stream.text(1, "content")), ("a1a2a3".into(), "b1".into()));
    assert_eq!((stream.finish_reason(0), stream.finish_reason(1)), ("stop".into(), "length".into()));
    assert_eq!(counts(stream.usage()), (5, 4, 9));
    assert_eq!((stream.text(0, "role"), stream.text(1, "role")), ("assistant".into(), "assistant".into()));
    let plain = server.chat(json!({"n": 2})).await;
    assert_eq!(plain["choices"].as_array().map(Vec::len), Some(2));
    assert_eq!(counts(&plain["usage"]), (5, 4, 9));
}

#[tokio::test]
async fn api_07_stop_string_across_tokens() {
    let tokens = [" A", "BC", " D", "E", "FX", " D", "EF", "GH", " tail"];
    let server = server(json!({"tokens": tokens, "finish": "stop"}));
    let stream = server.stream(json!({"stop": ["DEFG"]})).await;
    assert_eq!((stream.text(0, "content").as_str(), stream.finish_reason(0).as_str()), (" ABC DEFX ", "stop"));
    assert_eq!(stream.choice(0).last().expect("a last chunk")["stop_reason"], "DEFG");
    let plain = server.chat(json!({"stop": "DEFG"})).await;
    assert_eq!(plain["choices"][0]["message"]["content"], " ABC DEFX ");
    let shown = server.chat(json!({"stop": ["DEFG"], "include_stop_str_in_output": true})).await;
    assert_eq!(shown["choices"][0]["message"]["content"], " ABC DEFX DEFG");
}

#[tokio::test]
async fn api_09_chat_logprobs_shape() {
    let server = server(json!({
        "token_bytes_hex": ["4f6b20", "f09f", "988a"], "logprobs": [-0.1, -0.2, -0.3], "finish": "stop"
    }));
    let asked = || json!({"logprobs": true, "top_logprobs": 2});
    let plain = server.chat(asked()).await;
    let choice = &plain["choices"][0];
    assert_eq!(choice["message"]["content"], "Ok \u{1F60A}");
    let entries = choice["logprobs"]["content"].as_array().expect("a list");
    let bytes: Vec<Value> = entries.iter().map(|entry| entry["bytes"].clone()).collect();
    assert_eq!(bytes, [json!([79, 107, 32]), json!([240, 159]), json!([152, 138])]);
    for (entry, expected) in entries.iter().zip([-0.1_f64, -0.2, -0.3]) {
        assert!((entry["logprob"].as_f64().expect("a finite number") - expected).abs() < 1e-3, "{entry}");
        let top = entry["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 2);
        assert!(top.iter().all(|other| other["logprob"].as_f64().is_some_and(f64::is_finite)));
        let same = top.iter().find(|other| other["bytes"] == entry["bytes"]).expect("the sampled token");
        assert_eq!(same["logprob"], entry["logprob"]);
    }
    let stream = server.stream(asked()).await;
    let chunks = stream.choice(0);
    let lists = chunks.iter().filter_map(|chunk| chunk["logprobs"]["content"].as_array());
    assert_eq!(lists.flatten().cloned().collect::<Vec<Value>>(), *entries);
    assert_eq!(server.chat(json!({})).await["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn api_10_last_chunk_has_empty_delta() {
    let server = server(json!({"tokens": ["one", " two", " three", " four"], "finish": "length"}));
    let stream = server.stream(json!({"max_tokens": 3})).await;
    assert_eq!(stream.text(0, "content"), "one two three");
    assert_eq!(stream.finish_reason(0), "length");
    assert_eq!(stream.choice(0)[0]["delta"], json!({"role": "assistant", "content": ""}));
}

#[tokio::test]
async fn api_11_error_in_mid_stream() {
    let script = json!({"responses": [
        {"match": "fails", "tokens": ["par", "tial"], "then": "abort"}, {"tokens": ["fine"]}
    ]});
    let server = serve(script, Setup::default());
    let fails = json!({"messages": [{"role": "user", "content": "this fails"}]});
    let stream = server.stream(fails.clone()).await;
    assert_eq!(stream.text(0, "content"), "partial");
    assert!(!stream.done && stream.choice(0).iter().all(|chunk| chunk["finish_reason"].is_null()));
    let error = stream.error.expect("an error event");
    assert!(error["message"].is_string() && error["type"] == "InternalServerError" && error["code"].is_string());
    let plain = server.post("/v1/chat/completions", &fails).await;
    assert_eq!((plain.status.as_u16(), plain.json()["error"]["code"].clone()), (500, error["code"].clone()));
    assert_eq!(server.chat(json!({})).await["choices"][0]["message"]["content"], "fine");
}

#[tokio::test]
async fn api_14_context_overflow() {
    let said = |prompt_tokens: u32| json!({"match": format!("run {prompt_tokens}."), "prompt_tokens": prompt_tokens, "tokens": vec!["x"; 64]});
    let script = json!({"context": 2048, "responses": [said(8), said(3000), said(2048), said(2047)]});
    let server = serve(script, Setup::default());
    let run = |prompt_tokens: u32| json!({"messages": [{"role": "user", "content": format!("run {prompt_tokens}.")}]});
    let mut first = run(8);
    first["max_tokens"] = json!(2045);
    for (body, numbers) in
        [(first, &["2048", "8 in", "2045"][..]), (run(3000), &["2048", "3000"]), (run(2048), &["2048"])]
    {
        let answer = server.post("/v1/chat/completions", &body).await;
        assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (400, "context_length_exceeded"));
        let message = answer.error_message();
        assert!(message.contains("maximum context length is 2048 tokens"), "{message}");
        assert!(numbers.iter().all(|number| message.contains(number)), "{message}");
    }
    let answer = server.chat(run(2047)).await;
    assert_eq!(counts(&answer["usage"]), (2047, 1, 2048));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn api_16_broken_arguments_in_history() {
    let server = server(json!({"tokens": ["ok"]}));
    let function = json!({"name": "get_weather", "arguments": "{\"city\": \"Os"});
    let history = json!({"tools": weather_tools(), "messages": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "error: bad arguments"},
        {"role": "user", "content": "again"}
    ]});
    for _ in 0..2 {
        assert_eq!(server.chat(history.clone()).await["choices"][0]["message"]["content"], "ok");
    }
    // The text reaches the template as the string it is.
    let rendered = server.post("/v1/chat/completions/render", &history).await.json();
    assert!(rendered["prompt"].as_str().is_some_and(|prompt| prompt.contains(r#""{\"city\": \"Os""#)), "{rendered}");
}

#[tokio::test]
async fn api_17_tool_choice_none() {
    let text = format!("Format: {CALL} like this.");
    let server = server(json!({"text": text, "finish": "stop"}));
    let none = json!({"tools": weather_tools(), "tool_choice": "none"});
    for fields in [none, json!({"tool_choice": "none"})] {
        let plain = server.chat(fields.clone()).await;
        let choice = &plain["choices"][0];
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(text), &json!("stop")));
        assert!(choice["message"].get("tool_calls").is_none());
        assert_eq!(counts(&plain["usage"]).1, text.len() as u64);
        assert_eq!(server.stream(fields).await.text(0, "content"), text);
    }
}

#[tokio::test]
async fn api_19_stream_delta_shape() {
    let tokens =
        ["<tool_call>", "\n{\"name\": \"get_weather\",", " \"arguments\": {\"city\":", " \"Oslo\"}}", "\n</tool_call>"];
    let server = server(json!({"tokens": tokens, "finish": "stop"}));
    let stream: Stream = server.stream(json!({"tools": weather_tools()})).await;
    let calls = stream.calls(0);
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].1.as_str(), calls[0].2.as_str()), ("get_weather", r#"{"city":"Oslo"}"#));
    let fragments = stream.choice(0).iter().filter(|chunk| chunk["delta"].get("tool_calls").is_some()).count();
    assert_eq!(fragments, 3, "a start and two pieces of arguments");
}

#[tokio::test]
async fn api_20_parallel_calls_index_end_to_end() {
    let call = |path: &str, text: &str| {
        let call = json!({"name": "file_write", "arguments": {"path": path, "text": text}});
        format!("<tool_call>\n{call}\n</tool_call>")
    };
    let text = format!("{}\n{}", call("a.py", "print(1)"), call("b.py", "print(2)"));
    let server = server(json!({"text": text, "finish": "stop"}));
    let tools = json!([{"type": "function", "function": {"name": "file_write", "parameters": {"type": "object"}}}]);
    let calls = server.stream(json!({"tools": tools})).await.calls(0);
    let paths: Vec<Value> = calls
        .iter()
        .map(|(_, _, arguments)| serde_json::from_str::<Value>(arguments).expect("arguments parse")["path"].clone())
        .collect();
    assert_eq!(paths, ["a.py", "b.py"]);
    assert_ne!(calls[0].0, calls[1].0);
}

#[tokio::test]
async fn api_21_multibyte_text_in_stream() {
    let pieces = ["6e", "c3", "a920", "f0", "9f8c", "b6", "e2", "80"];
    let server = server(json!({"token_bytes_hex": pieces, "finish": "length"}));
    let stream = server.stream(json!({"stream_options": {"include_usage": true}})).await;
    let text = stream.text(0, "content");
    let whole = text.strip_suffix('\u{FFFD}').unwrap_or(&text);
    assert_eq!(whole, "n\u{e9} \u{1F336}");
    assert_eq!(counts(stream.usage()).1, 8);
    let plain = server.chat(json!({})).await;
    assert_eq!(plain["choices"][0]["message"]["content"], text);
}
