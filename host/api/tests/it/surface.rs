//! Every endpoint's answer, and the parameters that the recorded cases do not touch.

use api::{ModelOptions, ReasoningField};
use axum::body::Body;
use axum::http::Method;
use backend::load::LoadOptions;
use serde_json::{Value, json};

use crate::fixture::{Setup, Stream, hi, serve, server};

#[tokio::test]
async fn a_plain_chat_answer() {
    let server = server(json!({"prompt_tokens": 7, "tokens": ["Hel", "lo"]}));
    let mut answer = server.chat(json!({"model": "scripted"})).await;
    let id = answer["id"].take();
    assert!(id.as_str().is_some_and(|id| id.starts_with("chatcmpl-") && id.len() == 41));
    assert!(answer["created"].take().is_u64());
    assert_eq!(
        answer,
        json!({
            "id": null, "object": "chat.completion", "created": null, "model": "scripted",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": null},
                "logprobs": null, "finish_reason": "stop", "stop_reason": null
            }],
            "usage": {
                "prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0}
            }
        })
    );
}

#[tokio::test]
async fn token_ids_are_returned_when_asked_for() {
    let server = server(json!({"tokens": ["a", "b"]}));
    let plain = server.chat(json!({"return_token_ids": true})).await;
    assert_eq!(plain["choices"][0]["token_ids"], json!([257, 258]));
    let prompt = plain["prompt_token_ids"].as_array().expect("the prompt's ids").clone();
    assert_eq!(prompt.len() as u64, plain["usage"]["prompt_tokens"].as_u64().expect("a count"));
    let stream = server.stream(json!({"return_token_ids": true})).await;
    assert_eq!(stream.chunks[0]["prompt_token_ids"], Value::from(prompt));
    let chunks = stream.choice(0);
    let ids: Vec<Value> = chunks.iter().filter_map(|chunk| chunk["token_ids"].as_array()).flatten().cloned().collect();
    assert_eq!(ids, [257, 258]);
}

#[tokio::test]
async fn stop_tokens_and_min_tokens() {
    let server = server(json!({"tokens": ["a", "b", "c"]}));
    let stopped = server.chat(json!({"stop_token_ids": [258]})).await;
    let choice = &stopped["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["stop_reason"]), (&json!("a"), &json!(258)));
    let endless = server.chat(json!({"ignore_eos": true, "max_tokens": 7})).await;
    assert_eq!(endless["choices"][0]["message"]["content"], "abcabca");
    assert_eq!(endless["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn text_completions() {
    let script = json!({"responses": [
        {"match": "one", "tokens": ["1"], "logprobs": [-0.5]}, {"match": "two", "tokens": ["2", "2"]}
    ]});
    let server = serve(script, Setup::default());
    let post = async |body: Value| server.post("/v1/completions", &body).await;
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().expect("a list");
        choices.iter().map(|choice| choice["text"].as_str().expect("a text").to_owned()).collect()
    };
    let batch = post(json!({"prompt": ["one", "two"], "n": 2})).await.json();
    assert_eq!(texts(&batch), ["1", "1", "22", "22"]);
    assert_eq!((&batch["object"], &batch["usage"]["prompt_tokens"]), (&json!("text_completion"), &json!(6)));
    let ids = post(json!({"prompt": [[116, 119, 111], [111, 110, 101]]})).await.json();
    assert_eq!(texts(&ids), ["22", "1"]);
    let logprobs = post(json!({"prompt": "one", "logprobs": 0})).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&json!(["1"]), &json!([0])));
    assert_eq!(logprobs["top_logprobs"][0].as_object().map(|top| top.len()), Some(1));
    let answer = post(json!({"prompt": "two", "stream": true, "stream_options": {"include_usage": true}})).await;
    let stream = Stream::read(&answer);
    let streamed: String = stream.choice(0).iter().filter_map(|choice| choice["text"].as_str()).collect();
    assert_eq!((streamed.as_str(), stream.done), ("22", true));
    assert_eq!(stream.usage()["completion_tokens"], 2);
    assert_eq!(stream.choice(0).last().expect("chunks")["finish_reason"], "stop");
}

#[tokio::test]
async fn tokens_and_back() {
    let server = server(json!({"tokens": ["x"], "special": ["<|s|>"]}));
    let tokens = server.post("/tokenize", &json!({"prompt": "hi<|s|>", "return_token_strs": true})).await.json();
    assert_eq!((&tokens["count"], &tokens["token_strs"]), (&json!(3), &json!(["h", "i", "<|s|>"])));
    assert_eq!(tokens["max_model_len"], 32_768);
    let text = server.post("/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(text, json!({"prompt": "hi<|s|>"}));
    let chat = server.post("/tokenize", &hi(json!({}))).await.json();
    let rendered = server.post("/v1/chat/completions/render", &hi(json!({}))).await.json();
    assert_eq!((&chat["tokens"], &chat["count"]), (&rendered["token_ids"], &rendered["count"]));
    assert!(rendered["prompt"].as_str().is_some_and(|prompt| prompt.contains("hi")));
}

#[tokio::test]
async fn models_version_plugins_health() {
    let server = server(json!({"tokens": ["x"]}));
    let list = server.get("/v1/models").await.json();
    let row = &list["data"][0];
    assert_eq!(
        (&row["id"], &row["root"], &row["owned_by"]),
        (&json!("scripted"), &json!("script:test"), &json!("tokenloom"))
    );
    assert_eq!(row["max_model_len"], 32_768);
    assert_eq!(server.get("/v1/models/scripted").await.json(), *row);
    assert!(server.get("/version").await.json()["version"].is_string());
    let plugins = server.get("/plugins").await.json();
    assert_eq!((&plugins["object"], &plugins["data"]), (&json!("list"), &json!([])));
    // Nothing here is a plugin, which the number 0 says.
    let place =
        |kind: &str, name: &str| json!({"target": "scripted", "kind": kind, "chain": [{"name": name, "id": 0}]});
    let mut scheduler = place("scheduler", "fcfs (native)");
    scheduler["state"] = json!("native");
    scheduler["strikes"] = json!(0);
    assert_eq!(plugins["places"], json!([place("output", "calls"), place("template", "plain"), scheduler]));
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
}

#[tokio::test]
async fn readiness_has_a_pulse() {
    let server = server(json!({"tokens": ["x"]}));
    let before = server.get("/ready").await.json();
    assert_eq!((&before["status"], &before["models"][0]["last_token_age_ms"]), (&json!("ready"), &Value::Null));
    server.chat(json!({})).await;
    let after = server.get("/ready").await.json();
    assert!(after["models"][0]["last_token_age_ms"].is_u64(), "{after}");
    assert_eq!((&after["degraded"], &after["reasons"]), (&json!([]), &json!([])));
}

#[tokio::test]
async fn metrics_count_answers_by_route() {
    let server = server(json!({"tokens": ["x"]}));
    server.chat(json!({})).await;
    server.get("/not/a/route").await;
    let text = server.get("/metrics").await.body;
    for line in [
        "tokenloom_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "tokenloom_http_requests_total{route=\"other\",status=\"404\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in {text}");
    }
    assert!(text.contains("vllm:num_requests_running"), "the engine's metrics are in the same registry");
}

#[tokio::test]
async fn browsers_and_request_ids() {
    let server = server(json!({"tokens": ["x"]}));
    let options = server.send(Method::OPTIONS, "/v1/chat/completions", &[], Body::empty()).await;
    assert_eq!(
        (options.status.as_u16(), &options.headers["access-control-allow-origin"]),
        (204, &"*".parse().expect("a value"))
    );
    let named = server.send(Method::GET, "/health", &[("x-request-id", "mine")], Body::empty()).await;
    assert_eq!(named.headers["x-request-id"], "mine");
    let head = server.send(Method::HEAD, "/health", &[], Body::empty()).await;
    assert_eq!((head.status.as_u16(), head.body.as_str()), (200, ""));
    assert!(head.headers["x-request-id"].to_str().is_ok_and(|id| id.starts_with("req-")));
}

/// A model's own context is below the engine's, and its end tokens may differ from the tokenizer's.
#[tokio::test]
async fn two_names_may_differ() {
    let model = ModelOptions {
        max_model_len: Some(64),
        end_tokens: vec![258],
        reasoning_field: ReasoningField::Reasoning,
        ..ModelOptions::default()
    };
    let server = serve(json!({"responses": [{"tokens": ["a", "b", "c"]}]}), Setup { model, ..Setup::default() });
    let answer = server.chat(json!({})).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "a");
    let long = server.post("/v1/completions", &json!({"prompt": "x".repeat(64)})).await;
    assert_eq!(long.error_code(), "context_length_exceeded");
}

/// One vector per input, of length 1, the same in both encodings, and the same however the prompt is cut into steps.
#[tokio::test]
async fn embeddings() {
    let at_rows = |max_rows| {
        let load = LoadOptions { max_rows, ..LoadOptions::default() };
        serve(json!({"responses": [{"text": "x"}]}), Setup { load, ..Setup::default() })
    };
    let (wide, narrow) = (at_rows(512), at_rows(7));
    let long = "word ".repeat(60);
    for pooling in ["last", "mean"] {
        let body = json!({"input": [long, "hi"], "pooling": pooling, "model": "scripted"});
        let answer = wide.post("/v1/embeddings", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer = answer.json();
        assert_eq!(answer["usage"], json!({"prompt_tokens": 302, "total_tokens": 302}));
        let vector = |answer: &Value, row: usize| -> Vec<f64> {
            let numbers = answer["data"][row]["embedding"].as_array().expect("numbers");
            numbers.iter().map(|x| x.as_f64().expect("a number")).collect()
        };
        let close = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        let (first, second) = (vector(&answer, 0), vector(&answer, 1));
        assert!((first.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5 && !close(&first, &second));
        let cut = narrow.post("/v1/embeddings", &body).await.json();
        assert!(close(&vector(&cut, 0), &first), "{pooling}: {cut}");
        let again = wide.post("/v1/embeddings", &body).await.json();
        assert_eq!(vector(&again, 0), first, "what the cache holds changes nothing");
        let short =
            wide.post("/v1/embeddings", &json!({"input": "hi", "pooling": pooling, "dimensions": 3})).await.json();
        assert_eq!(vector(&short, 0).len(), 3);
    }
    let coded = wide.post("/v1/embeddings", &json!({"input": [[104, 105]], "encoding_format": "base64"})).await.json();
    // Sixteen numbers of four bytes.
    assert_eq!(coded["data"][0]["embedding"].as_str().map(str::len), Some(88));
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input[0]"),
        (json!({"input": "hi", "dimensions": 17}), "dimensions"),
        (json!({"input": "hi", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": [[1 << 20]]}), "input[0]"),
    ] {
        let answer = wide.post("/v1/embeddings", &body).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
}
