//! What stands beside generating: calling requests off, ending the server, keeping silent streams alive, parsing.

use std::time::Duration;

use api::ApiOptions;
use axum::http::Method;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::disconnect::until;
use crate::fixture::{Answer, Setup, Stream, TestServer, hi, serve, server};

/// A server whose answers end only when somebody ends them.
fn endless() -> TestServer {
    serve(json!({"responses": [{"tokens": ["a", "b"], "delay_ms": 1}]}), Setup::default())
}

fn forever(extra: Value) -> String {
    let mut body = hi(json!({"max_tokens": 8000, "ignore_eos": true}));
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body.to_string()
}

async fn abort(server: &TestServer, id: &str) -> Value {
    let answer = server.post("/abort", &json!({"request_id": id})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["aborted"].clone()
}

async fn running(server: &TestServer, path: &str, extra: Value) -> (Answer, Value) {
    let body = forever(extra);
    let request = server.send(Method::POST, path, &[("x-request-id", "mine")], body);
    let stop = async {
        until(&server.engine, "the start", |now| now.running == 1).await;
        abort(server, "mine").await
    };
    tokio::join!(request, stop)
}

#[tokio::test]
async fn a_plain_answer_is_called_off() {
    let server = endless();
    let (answer, aborted) = running(&server, "/v1/chat/completions", json!({})).await;
    assert_eq!((aborted, answer.status.as_u16()), (json!(1), 499));
    assert_eq!(answer.error_code(), "request_aborted");
    until(&server.engine, "the end", |now| (now.running, now.pages_used) == (0, 0)).await;
    assert_eq!(abort(&server, "mine").await, 0, "a request that has ended is not there");
}

/// Case api-11: an error event, no `[DONE]` and no finish reason, so that half an answer is never taken for a whole one.
#[tokio::test]
async fn a_stream_is_called_off_by_the_id_of_its_answer() {
    let server = endless();
    let body = serde_json::from_str(&forever(json!({"stream": true}))).expect("JSON");
    let mut frames = server.open("/v1/chat/completions", &body).await.into_data_stream();
    let first = frames.next().await.expect("a frame").expect("no error");
    let chunk: Value = serde_json::from_slice(&first[6..]).expect("a chunk");
    assert_eq!(abort(&server, chunk["id"].as_str().expect("an id")).await, 1);
    let rest: Vec<_> = frames.map(|frame| frame.expect("no error").to_vec()).collect().await;
    let rest = String::from_utf8_lossy(&rest.concat()).into_owned();
    assert!(rest.contains("request_aborted") && !rest.contains("[DONE]"), "{rest}");
    assert!(!rest.contains("\"finish_reason\":\""), "{rest}");
}

/// Running answers end as they would; new requests are told to go elsewhere; what needs no engine still answers.
#[tokio::test]
async fn a_server_drains() {
    let server = serve(json!({"responses": [{"tokens": ["a", "b", "c"], "delay_ms": 50}]}), Setup::default());
    let body = hi(json!({"stream": true}));
    let mut frames = server.open("/v1/chat/completions", &body).await.into_data_stream();
    frames.next().await.expect("the answer begins").expect("no error");
    server.state.drain();
    let refused = server.post("/v1/chat/completions", &hi(json!({}))).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (503, "shutting_down"));
    assert_eq!(refused.headers["retry-after"], "5");
    let ready = server.get("/ready").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &json!("draining")));
    assert_eq!(server.get("/health").await.status, 200);
    let rest = async {
        let rest: Vec<_> = frames.map(|frame| frame.expect("no error").to_vec()).collect().await;
        String::from_utf8_lossy(&rest.concat()).into_owned()
    };
    let (rest, ()) = tokio::join!(rest, server.state.drained());
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let options = ApiOptions { keep_alive: Duration::from_millis(5), ..ApiOptions::default() };
    let script = json!({"responses": [{"tokens": ["a"], "delay_ms": 200}]});
    let server = serve(script, Setup { options, ..Setup::default() });
    let mut fields = hi(json!({"stream": true}));
    fields["max_tokens"] = json!(1);
    let answer = server.post("/v1/chat/completions", &fields).await;
    assert!(answer.body.contains("\n\n: keep-alive\n\n"), "{}", answer.body);
    assert!(Stream::read(&answer).done);
}

async fn parse(fields: Value) -> Value {
    let server = server(json!({"text": "unused"}));
    let answer = server.post("/parse", &fields).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// What the chain was fed, what each stage gave and what a client would see, token by token and at the end.
#[tokio::test]
async fn each_stage_is_shown_step_by_step() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let call = "ok<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>";
    let parsed = parse(json!({"text": call, "tools": tools, "steps": true})).await;
    let steps = parsed["steps"].as_array().expect("steps").clone();
    assert_eq!((&parsed["stages"], steps.len()), (&json!(["calls"]), call.len() + 1));
    assert_eq!(steps[0]["token"]["text"], "o");
    assert_eq!(steps[0]["fed"], json!([{"type": "text", "channel": "content", "text": "o", "token": null}]));
    assert_eq!(steps[call.len()]["token"], Value::Null, "the last step is the end");
    let joined = |what: fn(&Value) -> Vec<Value>| -> Vec<String> {
        steps.iter().flat_map(what).map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let given = joined(|step| step["stages"][0].as_array().cloned().unwrap_or_default());
    assert!(given.contains(&"call-start".to_owned()) && given.contains(&"call-end".to_owned()), "{given:?}");
    let sent = joined(|step| step["deltas"].as_array().cloned().unwrap_or_default());
    assert_eq!(sent.iter().filter(|kind| *kind == "call-start").count(), 1, "{sent:?}");
    let long = server(json!({"tokens": ["x"]})).post("/parse", &json!({"text": "x".repeat(9000), "steps": true})).await;
    assert!(long.error_message().contains("at most 8192 tokens, and these are 9000"), "{}", long.body);
}

/// The same stages, the same message and the same rule for the finish reason as in a chat answer.
#[tokio::test]
async fn text_is_parsed_without_generating() {
    let call = "ok <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let parsed = parse(json!({"text": call, "tools": tools})).await;
    assert_eq!(parsed["finish_reason"], "tool_calls");
    assert_eq!(parsed["message"]["content"], "ok");
    assert_eq!(parsed["message"]["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"a\":1}"}));
    let plain = parse(json!({"text": call})).await;
    assert_eq!((&plain["message"]["content"], &plain["finish_reason"]), (&json!(call), &json!("stop")));
    let cut = parse(json!({"tokens": [104, 105], "finish_reason": "length"})).await;
    assert_eq!((&cut["message"]["content"], &cut["finish_reason"]), (&json!("hi"), &json!("length")));
}

#[tokio::test]
async fn what_cannot_be_parsed_names_the_field() {
    let server = server(json!({"text": "unused"}));
    for (fields, param) in [
        (json!({}), "text"),
        (json!({"text": "a", "tokens": [1]}), "tokens"),
        (json!({"tokens": [1 << 20]}), "tokens"),
        (json!({"text": "a", "finish_reason": "abort"}), "finish_reason"),
        (json!({"text": "a", "tools": [{}]}), "tools[0].type"),
        (json!({"text": "a", "messages": []}), "messages"),
    ] {
        let answer = server.post("/parse", &fields).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!(param)), "{fields}");
    }
}
