//! `/v1/responses`: shapes, streams, and what is kept.

use api::{KeyRow, Keys};
use axum::body::Body;
use axum::http::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, Setup, TestServer, serve, server};

const PATH: &str = "/v1/responses";
const CALL: &str = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";

async fn respond(server: &TestServer, body: Value) -> Value {
    let answer = server.post(PATH, &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// The events of a stream, with the framing rules checked.
fn events(answer: &Answer) -> Vec<Value> {
    let frames = answer.body.trim_end().split("\n\n").filter(|frame| !frame.starts_with(':'));
    let events: Vec<Value> = frames
        .map(|frame| {
            let (name, data) = frame.split_once('\n').expect("a name and data");
            let value: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name, format!("event: {}", value["type"].as_str().expect("a type")));
            value
        })
        .collect();
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>(), "numbered without gaps");
    events
}

async fn stream(server: &TestServer, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let answer = server.post(PATH, &body).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["content-type"]),
        (200, &"text/event-stream; charset=utf-8".parse().expect("a value"))
    );
    events(&answer)
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap_or_default().trim_start_matches("response.")).collect()
}

/// Everything of a response but what no two have alike.
fn timeless(mut response: Value) -> String {
    let name = response["id"].as_str().expect("an id").trim_start_matches("resp_").to_owned();
    response["created_at"] = Value::Null;
    for item in response["output"].as_array_mut().expect("a list") {
        if item["type"] == "function_call" {
            item["call_id"] = Value::Null;
        }
    }
    response.to_string().replace(&name, "NAME")
}

#[tokio::test]
async fn a_plain_answer() {
    let server = server(json!({"prompt_tokens": 7, "tokens": ["Hel", "lo"]}));
    let answer = respond(&server, json!({"model": "scripted", "input": "hi", "instructions": "be brief"})).await;
    assert_eq!(
        (&answer["object"], &answer["status"], &answer["error"]),
        (&json!("response"), &json!("completed"), &Value::Null)
    );
    let item = &answer["output"][0];
    let part = json!({"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []});
    assert_eq!(
        (&item["type"], &item["role"], &item["content"]),
        (&json!("message"), &json!("assistant"), &json!([part]))
    );
    assert_eq!(
        answer["usage"],
        json!({
            "input_tokens": 7, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 9
        })
    );
    assert_eq!((&answer["instructions"], &answer["store"]), (&json!("be brief"), &json!(true)));
}

#[tokio::test]
async fn text_is_streamed() {
    let server = server(json!({"tokens": ["Hel", "lo"]}));
    let events = stream(&server, json!({"input": "hi"})).await;
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!((text.as_str(), &events[6]["text"]), ("Hello", &json!("Hello")));
}

/// Cases api-19 and api-20 in this API's shape: one item per call, arguments that join.
#[tokio::test]
async fn calls_are_items() {
    let server = server(json!({"text": format!("ok {CALL}{CALL}")}));
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let events = stream(&server, json!({"input": "hi", "tools": tools})).await;
    let done: Vec<&Value> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    let items: Vec<&Value> = done.iter().map(|event| &event["item"]["type"]).collect();
    assert_eq!(items, ["message", "function_call", "function_call"]);
    for (index, event) in done.iter().enumerate().skip(1) {
        let of = |event: &&Value| {
            event["output_index"] == index && event["type"] == "response.function_call_arguments.delta"
        };
        let arguments: String = events.iter().filter(of).filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!((event["item"]["arguments"].as_str(), arguments.as_str()), (Some("{\"a\":1}"), "{\"a\":1}"));
        assert_eq!((&event["item"]["name"], &event["item"]["status"]), (&json!("f"), &json!("completed")));
    }
    assert_ne!(done[1]["item"]["call_id"], done[2]["item"]["call_id"]);
}

/// A custom tool's call carries text, and goes back in as it came.
#[tokio::test]
async fn custom_tools_take_text() {
    let call = r#"<tool_call>{"name": "patch", "arguments": {"input": "+ \"a\"\n"}}</tool_call>"#;
    let server = server(json!({"text": call}));
    let tools = json!([{"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "text"}}]);
    let events = stream(&server, json!({"input": "hi", "tools": tools})).await;
    let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
    let input: String =
        of("response.custom_tool_call_input.delta").filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(input, "+ \"a\"\n");
    let item = of("response.output_item.done").next().expect("an item")["item"].clone();
    assert_eq!(
        (&item["type"], &item["name"], &item["input"]),
        (&json!("custom_tool_call"), &json!("patch"), &json!(input))
    );
    let output = json!({"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"});
    let again = json!({"input": [{"role": "user", "content": "hi"}, item, output], "tools": tools});
    assert_eq!(respond(&server, again).await["tools"], tools);
}

/// The last event of a stream carries what the plain answer is.
#[tokio::test]
async fn streamed_and_plain_are_one() {
    let script = json!({"responses": [{"text": format!("well {CALL}"), "prompt_tokens": 9}]});
    let tools = json!([{"type": "function", "name": "f"}]);
    for extra in [json!({}), json!({"tools": tools}), json!({"max_output_tokens": 3}), json!({"top_logprobs": 1})] {
        let server = serve(script.clone(), Setup::default());
        let mut body = json!({"input": "hi", "seed": 1});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let plain = respond(&server, body.clone()).await;
        let events = stream(&server, body).await;
        let last = events.last().expect("events")["response"].clone();
        assert_eq!(timeless(last), timeless(plain), "{extra}");
    }
}

#[tokio::test]
async fn an_answer_that_was_cut_is_incomplete() {
    let server = server(json!({"tokens": ["a", "b", "c"]}));
    let answer = respond(&server, json!({"input": "hi", "max_output_tokens": 2})).await;
    assert_eq!(
        (&answer["status"], &answer["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(answer["output"][0]["status"], "incomplete");
    let events = stream(&server, json!({"input": "hi", "max_output_tokens": 2})).await;
    assert_eq!(kinds(&events).last(), Some(&"incomplete"));
}

/// Case api-11: a failure in mid-stream is a failed response, and nothing says that it is complete.
#[tokio::test]
async fn a_failure_in_mid_stream() {
    let server = server(json!({"tokens": ["par", "tial"], "then": "error"}));
    let events = stream(&server, json!({"input": "hi"})).await;
    let kinds = kinds(&events);
    assert_eq!(kinds[kinds.len() - 2..], ["failed", "error"]);
    let failed = &events[events.len() - 2]["response"];
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("engine_failed")));
    assert!(!kinds.contains(&"completed"));
}

#[tokio::test]
async fn logprobs_ride_on_the_text() {
    let server = server(json!({"tokens": ["a", "b"], "logprobs": [-0.5, -1.0]}));
    let body = json!({"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let answer = respond(&server, body).await;
    let logprobs = &answer["output"][0]["content"][0]["logprobs"];
    assert_eq!((&logprobs[0]["token"], &logprobs[1]["logprob"]), (&json!("a"), &json!(-1.0)));
    assert_eq!(logprobs[0]["top_logprobs"].as_array().map(Vec::len), Some(2));
}

/// The script answers only to a prompt that holds the turns before.
fn conversation() -> TestServer {
    let script = json!({"responses": [
        {"match": "\"second\"", "text": "two"},
        {"match": "\"first\"", "text": "one"},
    ]});
    serve(script, Setup::default())
}

#[tokio::test]
async fn a_conversation_goes_on_by_id() {
    let server = conversation();
    let first = respond(&server, json!({"input": "first"})).await;
    let body = json!({"input": "second", "previous_response_id": first["id"]});
    let render = |answer: &Value| answer["output"][0]["content"][0]["text"].clone();
    let second = respond(&server, body).await;
    assert_eq!((render(&second), &second["previous_response_id"]), (json!("two"), &first["id"]));
    // Both turns are in the third prompt: the plain template shows what was rendered.
    let third = respond(&server, json!({"input": "x", "previous_response_id": second["id"]})).await;
    let expected = "\"user\": \"first\"null\n\"assistant\": \"one\"null\n\"user\": \"second\"null\n\"assistant\": \"two\"null\n\"user\": \"x\"null\n";
    assert_eq!(third["usage"]["input_tokens"], expected.len());
    let item = first["output"][0]["id"].clone();
    let referred = respond(
        &server,
        json!({"input": [{"type": "item_reference", "id": item}, {"role": "user", "content": "second"}]}),
    )
    .await;
    assert_eq!(render(&referred), "two");
}

#[tokio::test]
async fn what_was_kept_is_read_and_deleted() {
    let server = conversation();
    let answer = respond(&server, json!({"input": "first", "metadata": {"k": "v"}})).await;
    let path = format!("{PATH}/{}", answer["id"].as_str().expect("an id"));
    assert_eq!(server.get(&path).await.json(), answer);
    let items = server.get(&format!("{path}/input_items")).await.json();
    assert_eq!(items["data"][0]["content"], "first");
    assert_eq!(server.get(&format!("{path}?stream=true")).await.error_code(), "unsupported_field");
    let deleted = server.send(Method::DELETE, &path, &[], Body::empty()).await;
    assert_eq!(deleted.json(), json!({"id": answer["id"], "object": "response", "deleted": true}));
    for gone in [server.get(&path).await, server.send(Method::DELETE, &path, &[], Body::empty()).await] {
        assert_eq!((gone.status.as_u16(), gone.error_code().as_str()), (404, "response_not_found"));
    }
    let body = json!({"input": "x", "previous_response_id": answer["id"]});
    let lost = server.post(PATH, &body).await;
    assert_eq!((lost.status.as_u16(), &lost.json()["error"]["param"]), (404, &json!("previous_response_id")));
}

/// A streamed answer is there as soon as its last event is; `store: false` keeps nothing.
#[tokio::test]
async fn streams_are_kept_too() {
    let server = conversation();
    let events = stream(&server, json!({"input": "first"})).await;
    let response = &events.last().expect("events")["response"];
    let kept = server.get(&format!("{PATH}/{}", response["id"].as_str().expect("an id"))).await;
    assert_eq!(&kept.json(), response);
    let loose = respond(&server, json!({"input": "first", "store": false})).await;
    assert_eq!(server.get(&format!("{PATH}/{}", loose["id"].as_str().expect("an id"))).await.status, 404);
}

/// Another tenant's answers are not there, by whatever road.
#[tokio::test]
async fn tenants_do_not_meet() {
    let row =
        |sha256: &str, tenant: &str| KeyRow { sha256: sha256.into(), tenant: tenant.into(), weight: 1.0, admin: false };
    let keys = Keys::new(&[
        row("2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "one"),
        row("35224d0d3465d74e855f8d69a136e79c744ea35a675d3393360a327cbf6359a2", "two"),
    ]);
    let setup = Setup { keys: keys.expect("two rows"), ..Setup::default() };
    let server = serve(json!({"responses": [{"text": "x"}]}), setup);
    let as_one = [("authorization", "Bearer secret")];
    let as_two = [("authorization", "Bearer secret2")];
    let made = server.send(Method::POST, PATH, &as_one, json!({"input": "hi"}).to_string()).await.json();
    let path = format!("{PATH}/{}", made["id"].as_str().expect("an id"));
    assert_eq!(server.send(Method::GET, &path, &as_one, Body::empty()).await.status, 200);
    let item = json!({"type": "item_reference", "id": made["output"][0]["id"]});
    for answer in [
        server.send(Method::GET, &path, &as_two, Body::empty()).await,
        server.send(Method::DELETE, &path, &as_two, Body::empty()).await,
        server
            .send(Method::POST, PATH, &as_two, json!({"input": "x", "previous_response_id": made["id"]}).to_string())
            .await,
        server.send(Method::POST, PATH, &as_two, json!({"input": [item]}).to_string()).await,
    ] {
        assert_eq!(answer.status, 404, "{}", answer.body);
    }
}
