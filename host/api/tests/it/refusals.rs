//! Requests that are not served, and how they are told so.

use api::{ApiOptions, ApiState, KeyRow, Keys, Store, router};
use axum::body::Body;
use axum::http::Method;
use serde_json::{Value, json};

use crate::fixture::{Answer, Setup, TestServer, hi, serve, server};

const CHAT: &str = "/v1/chat/completions";

/// Checks status, code and the error's shape.
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (status, code), "{}", answer.body);
    let body = answer.json();
    let keys: Vec<&str> = body["error"].as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["message", "type", "param", "code"]);
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    assert!(answer.headers.contains_key("x-request-id"));
}

fn ok() -> TestServer {
    server(json!({"tokens": ["ok"]}))
}

#[tokio::test]
async fn unknown_things_are_json() {
    let server = ok();
    refused(&server.get("/v2/nothing").await, 404, "route_not_found");
    refused(&server.get(CHAT).await, 405, "method_not_allowed");
    let answer = server.post(CHAT, &hi(json!({"model": "other"}))).await;
    refused(&answer, 404, "model_not_found");
    assert!(answer.error_message().contains("the models are: scripted"), "{}", answer.body);
    refused(&server.get("/v1/models/org/other").await, 404, "model_not_found");
}

#[tokio::test]
async fn bad_bodies() {
    let server = ok();
    let send = async |body: &'static str| server.send(Method::POST, CHAT, &[], body).await;
    refused(&send("{").await, 400, "invalid_json");
    refused(&send("").await, 400, "invalid_json");
    refused(&send("[1]").await, 400, "invalid_json");
    refused(&send("{\"messages\": 1}").await, 400, "invalid_value");
    refused(&server.post("/v1/completions", &json!({})).await, 400, "missing_field");
    refused(&server.post("/tokenize", &json!({"prompt": 1})).await, 400, "invalid_value");
    refused(&server.post("/detokenize", &json!({"tokens": [99_999]})).await, 400, "invalid_value");
}

#[tokio::test]
async fn values_outside_the_model() {
    let server = ok();
    for (fields, param) in
        [(json!({"logit_bias": {"99999": 1}}), "logit_bias"), (json!({"stop_token_ids": [99_999]}), "stop_token_ids")]
    {
        let answer = server.post(CHAT, &hi(fields)).await;
        refused(&answer, 400, "invalid_value");
        assert_eq!(answer.json()["error"]["param"], param);
        assert!(answer.error_message().contains("token 99999 at position 0 is not below the vocabulary size"));
    }
    refused(&server.post("/v1/completions", &json!({"prompt": [99_999]})).await, 400, "invalid_value");
}

#[tokio::test]
async fn a_template_failure_is_the_requests_fault() {
    let answer = ok().post(CHAT, &json!({"messages": [{"role": "system", "content": "refuse"}]})).await;
    refused(&answer, 400, "template_failed");
    assert!(answer.error_message().contains("system messages are not supported"));
}

#[tokio::test]
async fn a_prompt_that_the_script_does_not_know() {
    let server = serve(json!({"responses": [{"match": "only this", "tokens": ["x"]}]}), Setup::default());
    refused(&server.post(CHAT, &hi(json!({}))).await, 400, "no_scripted_response");
}

#[tokio::test]
async fn bodies_beyond_the_limit() {
    let options = ApiOptions { body_bytes_max: 64, ..ApiOptions::default() };
    let server = serve(json!({"responses": [{"tokens": ["x"]}]}), Setup { options, ..Setup::default() });
    let body = "x".repeat(65);
    let announced = server.send(Method::POST, CHAT, &[("content-length", "65")], body.clone()).await;
    refused(&announced, 413, "body_too_large");
    assert!(announced.error_message().contains("65 bytes, the limit is 64 bytes"));
    let parts = futures::stream::iter([Ok::<_, std::io::Error>(body.clone()), Ok(body)]);
    refused(&server.send(Method::POST, CHAT, &[], Body::from_stream(parts)).await, 413, "body_too_large");
}

#[tokio::test]
async fn a_full_server_says_when_to_come_back() {
    let options = ApiOptions { sequences_max: 2, ..ApiOptions::default() };
    let server = serve(json!({"responses": [{"tokens": ["x"]}]}), Setup { options, ..Setup::default() });
    let answer = server.post(CHAT, &hi(json!({"n": 3}))).await;
    refused(&answer, 429, "queue_full");
    assert_eq!(answer.headers["retry-after"], "1");
    server.chat(json!({"n": 2})).await;
}

#[tokio::test]
async fn keys() {
    let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b".to_owned();
    let keys = Keys::new(&[KeyRow { sha256, tenant: "acme".into(), weight: 1.0, admin: false }]).expect("a valid row");
    let server = serve(json!({"responses": [{"tokens": ["x"]}]}), Setup { keys, ..Setup::default() });
    let answer = server.post(CHAT, &hi(json!({}))).await;
    refused(&answer, 401, "invalid_api_key");
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    for path in ["/v1/models", "/plugins"] {
        refused(&server.get(path).await, 401, "invalid_api_key");
    }
    for path in ["/health", "/ready", "/version", "/metrics"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let key = [("authorization", "Bearer secret")];
    assert_eq!(server.send(Method::POST, CHAT, &key, hi(json!({})).to_string()).await.status, 200);
}

#[tokio::test]
async fn before_the_models_are_loaded() {
    let state = ApiState::new(ApiOptions::default(), Keys::default(), Store::open(None, 1 << 20).expect("memory"));
    let engine = ok().engine;
    let server = TestServer { router: router(state.clone()), state, engine };
    assert_eq!(server.get("/health").await.status, 200);
    let ready = server.get("/ready").await;
    assert_eq!((ready.status.as_u16(), ready.json()["status"].clone()), (503, json!("loading")));
    let answer = server.post(CHAT, &hi(json!({}))).await;
    refused(&answer, 503, "model_loading");
    assert!(answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn an_engine_that_stopped() {
    let server = ok();
    server.engine.shutdown();
    // The shutdown is a message: the first requests may still be served.
    let stopped = loop {
        let answer = server.post(CHAT, &hi(json!({}))).await;
        if answer.status != 200 {
            break answer;
        }
    };
    refused(&stopped, 503, "shutting_down");
}

/// Unknown fields are ignored with a warning, or refused where the operator asked for it.
#[tokio::test]
async fn unknown_fields() {
    let body = hi(json!({"frobnicate": 1, "store": true, "na\u{ef}ve": 2, "chat_template_kwargs": {"thinking": true}}));
    let answer = ok().post(CHAT, &body).await;
    assert_eq!(answer.status, 200);
    let warning = answer.headers["x-tokenloom-warning"].to_str().expect("ASCII");
    assert!(warning.starts_with("ignored fields: store, frobnicate, na?ve; "), "{warning}");
    assert!(warning.contains("never reads: thinking"), "{warning}");
    assert!(!ok().post(CHAT, &hi(json!({}))).await.headers.contains_key("x-tokenloom-warning"));
    let options = ApiOptions { strict_fields: true, ..ApiOptions::default() };
    let strict = serve(json!({"responses": [{"tokens": ["x"]}]}), Setup { options, ..Setup::default() });
    let answer = strict.post(CHAT, &body).await;
    refused(&answer, 400, "unknown_field");
    assert_eq!(answer.json()["error"]["param"], Value::from("frobnicate"));
}
