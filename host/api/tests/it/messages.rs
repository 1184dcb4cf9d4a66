//! `/v1/messages`: shapes, streams and errors of the Anthropic API.

use api::{KeyRow, Keys};
use axum::http::Method;
use serde_json::{Value, json};

use crate::fixture::{Setup, TestServer, serve, server};

const PATH: &str = "/v1/messages";
const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

fn request(extra: Value) -> Value {
    let mut body = json!({"model": "scripted", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

async fn message(server: &TestServer, extra: Value) -> Value {
    let answer = server.post(PATH, &request(extra)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

async fn stream(server: &TestServer, mut extra: Value) -> Vec<Value> {
    extra["stream"] = json!(true);
    let answer = server.post(PATH, &request(extra)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let frames = answer.body.trim_end().split("\n\n");
    let event = |frame: &str| {
        let (name, data) = frame.split_once('\n').expect("a name and data");
        let value: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name, format!("event: {}", value["type"].as_str().expect("a type")));
        value
    };
    frames.map(event).filter(|event| event["type"] != "ping").collect()
}

/// What a client's accumulator makes of the events.
fn folded(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut arguments = String::new();
    for event in &events[1..] {
        let at = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                message["content"].as_array_mut().expect("a list").push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let delta = event["delta"].as_object().expect("an object");
                for (name, value) in delta.iter().filter(|(name, _)| *name != "type") {
                    let text = value.as_str().expect("text");
                    if name == "partial_json" {
                        arguments += text;
                    } else {
                        let joined = message["content"][at][name].as_str().expect("a text field").to_owned() + text;
                        message["content"][at][name] = joined.into();
                    }
                }
            }
            "content_block_stop" if message["content"][at]["type"] == "tool_use" => {
                message["content"][at]["input"] = serde_json::from_str(&arguments).expect("whole arguments");
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

#[tokio::test]
async fn a_plain_answer() {
    let server = server(json!({"prompt_tokens": 7, "tokens": ["Hel", "lo"]}));
    let mut answer = message(&server, json!({})).await;
    assert!(answer["id"].take().as_str().is_some_and(|id| id.starts_with("msg_")));
    assert_eq!(
        answer,
        json!({
            "id": null, "type": "message", "role": "assistant", "model": "scripted",
            "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 2}
        })
    );
}

/// Each call is a block of its own, and the streamed answer is the plain one.
#[tokio::test]
async fn streamed_and_plain_are_one() {
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    for (extra, reason) in [
        (json!({}), "end_turn"),
        (json!({"tools": tools}), "tool_use"),
        (json!({"max_tokens": 3}), "max_tokens"),
        (json!({"stop_sequences": ["ll"]}), "stop_sequence"),
    ] {
        let server = server(json!({"text": format!("well {CALL}{CALL}"), "prompt_tokens": 9}));
        let plain = message(&server, extra.clone()).await;
        let events = stream(&server, extra.clone()).await;
        let mut streamed = folded(&events);
        assert_eq!(
            (&plain["stop_reason"], &events.last().expect("events")["type"]),
            (&json!(reason), &json!("message_stop"))
        );
        streamed["id"] = plain["id"].clone();
        for (at, block) in streamed["content"].as_array_mut().expect("a list").iter_mut().enumerate() {
            if block["type"] == "tool_use" {
                assert_ne!(block["id"], plain["content"][at]["id"]);
                block["id"] = plain["content"][at]["id"].clone();
            }
        }
        assert_eq!(streamed, plain, "{extra}");
        if reason == "tool_use" {
            assert_eq!(plain["content"].as_array().map(Vec::len), Some(3));
            assert_eq!((&plain["content"][2]["name"], &plain["content"][2]["input"]), (&json!("f"), &json!({"a": 1})));
        }
    }
}

#[tokio::test]
async fn tokens_are_counted_without_generating() {
    let server = server(json!({"text": "x"}));
    let mut body = request(json!({}));
    body.as_object_mut().expect("an object").remove("max_tokens");
    let answer = server.post("/v1/messages/count_tokens", &body).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"input_tokens": "\"user\": \"hi\"null\n".len()})));
}

#[tokio::test]
async fn errors_have_the_shape_of_the_api() {
    let server = server(json!({"text": "x"}));
    for (extra, status, kind, needle) in [
        (json!({"max_tokens": null}), 400, "invalid_request_error", "max_tokens"),
        (json!({"model": "other"}), 404, "not_found_error", "other"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            400,
            "invalid_request_error",
            "messages[0]",
        ),
        (json!({"max_tokens": 1_000_000}), 400, "invalid_request_error", "1000000 in max_tokens"),
    ] {
        let answer =
            server.send(Method::POST, PATH, &[("x-request-id", "mine")], request(extra.clone()).to_string()).await;
        let body = answer.json();
        assert_eq!(
            (answer.status.as_u16(), &body["type"], &body["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{extra}"
        );
        assert!(body["error"]["message"].as_str().is_some_and(|text| text.contains(needle)), "{body}");
        assert_eq!(body["request_id"], "mine");
    }
}

/// Case api-11: the stream ends with an error event, and no stop reason came before it.
#[tokio::test]
async fn a_failure_in_mid_stream() {
    let server = server(json!({"tokens": ["par", "tial"], "then": "error"}));
    let events = stream(&server, json!({})).await;
    let last = events.last().expect("events");
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert!(events.iter().all(|event| event["type"] != "message_delta"));
}

#[tokio::test]
async fn keys_come_in_either_header() {
    let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b".to_owned();
    let keys = Keys::new(&[KeyRow { sha256, tenant: "acme".into(), weight: 1.0, admin: false }]).expect("a row");
    let server = serve(json!({"responses": [{"text": "x"}]}), Setup { keys, ..Setup::default() });
    let send = |headers: &'static [(&'static str, &'static str)]| {
        server.send(Method::POST, PATH, headers, request(json!({})).to_string())
    };
    assert_eq!(send(&[("x-api-key", "secret")]).await.status, 200);
    assert_eq!(send(&[("authorization", "Bearer secret")]).await.status, 200);
    let refused = send(&[("x-api-key", "wrong")]).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[tokio::test]
async fn an_answer_that_was_begun_goes_on() {
    let server = server(json!({"text": " fine"}));
    let messages = json!([{"role": "user", "content": "how?"}, {"role": "assistant", "content": "Quite"}]);
    let answer = message(&server, json!({"messages": messages})).await;
    assert_eq!(answer["content"][0]["text"], " fine");
}
