//! Reasoning over HTTP: grammars that wait for its end, budgets, hiding.

use serde_json::{Value, json};

use crate::fixture::{Setup, TestServer, Think, hi, serve};

const FORCED: &str = "\nTime is up.</think>\n\n";

/// A model that thinks, playing these tokens.
fn thinker(tokens: Value, turn_prefix: &'static str) -> TestServer {
    let response = json!({"tokens": tokens, "special": ["<think>", "</think>"], "finish": "stop"});
    let stages = Some(vec![Think::stage(FORCED)]);
    serve(json!({"responses": [response]}), Setup { stages, turn_prefix, ..Setup::default() })
}

async fn message(server: &TestServer, fields: Value) -> (Value, Value, u64) {
    let answer = server.chat(fields.clone()).await;
    let message = &answer["choices"][0]["message"];
    let stream = server.stream(fields).await;
    let folded = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assert_eq!(folded(&message["reasoning"]), stream.text(0, "reasoning"));
    assert_eq!(folded(&message["content"]), stream.text(0, "content"));
    let tokens = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap_or_default();
    (message["reasoning"].clone(), message["content"].clone(), tokens)
}

/// The grammar binds what comes after the reasoning, whether the prompt opened it, the model did, or nobody.
#[tokio::test]
async fn grammars_start_after_reasoning() {
    let form = || json!({"response_format": {"type": "json_object"}});
    let opened = thinker(json!(["hm, {not json", "</think>", "\n\n", "{\"a\":1}"]), "<think>");
    assert_eq!(message(&opened, form()).await, (json!("hm, {not json"), json!("{\"a\":1}"), 1));
    let opens = thinker(json!(["<think>", "hm", "</think>", "{\"a\":1}"]), "");
    assert_eq!(message(&opens, form()).await, (json!("hm"), json!("{\"a\":1}"), 1));
    let silent = thinker(json!(["{\"a\":1}"]), "");
    assert_eq!(message(&silent, form()).await, (Value::Null, json!("{\"a\":1}"), 0));
    let prose = thinker(json!(["hm", "</think>", "no json"]), "<think>");
    let answer = prose.post("/v1/chat/completions", &hi(form())).await;
    assert_eq!(answer.error_code(), "script_violates_grammar");
    // The template closed an empty block: the model does not think, and the grammar binds at once.
    let off = thinker(json!(["<think>", "hm", "</think>", "{}"]), "<think>\n\n</think>\n\n");
    let answer = off.post("/v1/chat/completions", &hi(form())).await;
    assert!(answer.error_message().contains("token 0 of the script"), "{}", answer.body);
}

/// A spent budget ends the reasoning. What the host writes for it is never shown, and the answer goes on.
#[tokio::test]
async fn budgets_close_reasoning_and_never_leak() {
    let tokens = json!(["one", " two", " three", " four", "</think>", "\n\n", "answer"]);
    let server = thinker(tokens.clone(), "<think>");
    let budget = |tokens: i64| json!({"thinking_token_budget": tokens});
    assert_eq!(message(&server, budget(2)).await, (json!("one two"), json!("answer"), 2));
    assert_eq!(message(&server, budget(0)).await, (Value::Null, json!("answer"), 0));
    assert_eq!(message(&server, budget(9)).await, (json!("one two three four"), json!("answer"), 4));
    assert_eq!(message(&server, budget(-1)).await.2, 4);
    // A block that the model opens is closed as well.
    let opens = thinker(json!(["<think>", "one", " two", "</think>", "answer"]), "");
    assert_eq!(message(&opens, budget(1)).await, (json!("one"), json!("answer"), 1));
    // With a form, which binds after the forced close.
    let json_after = thinker(json!(["one", " two", "</think>", "{}"]), "<think>");
    let mut both = budget(1);
    both["response_format"] = json!({"type": "json_object"});
    assert_eq!(message(&json_after, both).await, (json!("one"), json!("{}"), 1));
}

/// Hidden reasoning is counted all the same.
#[tokio::test]
async fn reasoning_can_be_hidden() {
    let server = thinker(json!(["one", " two", "</think>", "answer"]), "<think>");
    let hidden = json!({"include_reasoning": false});
    assert_eq!(message(&server, hidden.clone()).await, (Value::Null, json!("answer"), 2));
    let stream = server.stream(hidden).await;
    assert!(stream.choice(0).iter().all(|chunk| chunk["delta"].get("reasoning_content").is_none()));
}
