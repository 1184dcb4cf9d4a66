//! Plain chat answers.

use serde_json::{Value, json};
use testkit::TestServer;

use crate::{chat, message, script};

#[test]
fn says_the_script_and_counts_tokens() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"prompt_tokens": 16, "tokens": ["He", "llo", "!"]})), &[])?;
    let answer = chat(&server, json!({}))?.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello!");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let usage = &answer["usage"];
    let counts = [&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]];
    assert_eq!(counts, [16, 3, 19]);
    Ok(())
}

/// Choices are told apart, and usage is their sum.
#[test]
fn n_choices() -> anyhow::Result<()> {
    let choices = json!([{"tokens": ["a1", "a2", "a3"]}, {"tokens": ["b1"], "finish": "length"}]);
    let server = TestServer::script(&script(json!({"prompt_tokens": 5, "choices": choices})), &[])?;
    let answer = chat(&server, json!({"n": 2}))?.json();
    let told = |i: usize| {
        let choice = &answer["choices"][i];
        [&choice["message"]["content"], &choice["finish_reason"]].map(|v| v.as_str().unwrap_or_default().to_string())
    };
    assert_eq!([told(0), told(1)], [["a1a2a3", "stop"], ["b1", "length"]]);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    Ok(())
}

#[test]
fn max_tokens_and_stop_strings() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"tokens": ["one", " two", " three", " four"]})), &[])?;
    let told = |extra: Value| -> anyhow::Result<[String; 2]> {
        let choice = message(&server, extra)?;
        Ok([&choice["message"]["content"], &choice["finish_reason"]].map(|v| v.as_str().unwrap_or_default().into()))
    };
    assert_eq!(told(json!({"max_tokens": 3}))?, ["one two three", "length"]);
    assert_eq!(told(json!({"max_completion_tokens": 1}))?, ["one", "length"]);
    assert_eq!(told(json!({"stop": ["o th"]}))?, ["one tw", "stop"]);
    assert_eq!(told(json!({"stop": "o th", "include_stop_str_in_output": true}))?, ["one two th", "stop"]);
    assert_eq!(told(json!({"ignore_eos": true, "max_tokens": 6}))?, ["one two three fourone two", "length"]);
    assert_eq!(told(json!({"min_tokens": 5, "max_tokens": 9}))?, ["one two three fourone", "stop"]);
    Ok(())
}

/// A conversation's second turn finds its beginning in the prefix cache.
#[test]
fn the_prefix_cache_is_reported() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"text": "ok"})), &[])?;
    let long = "word ".repeat(100);
    let ask = || chat(&server, json!({"messages": [{"role": "user", "content": long}]}));
    let cached = |answer: testkit::Answer| answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(ask()?), Some(0));
    let again = cached(ask()?).unwrap_or(0);
    assert!(again >= 448 && again.is_multiple_of(64), "{again}");
    Ok(())
}

#[test]
fn logprobs_have_real_bytes() -> anyhow::Result<()> {
    let pieces = json!({"token_bytes_hex": ["4f6b20", "f09f", "988a"], "logprobs": [-0.1, -0.2, -0.3]});
    let server = TestServer::script(&script(pieces), &[])?;
    let choice = message(&server, json!({"logprobs": true, "top_logprobs": 2}))?;
    assert_eq!(choice["message"]["content"], "Ok 😊");
    let entries = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
    let bytes = entries.iter().map(|entry| entry["bytes"].clone()).collect::<Vec<_>>();
    assert_eq!(bytes, [json!([79, 107, 32]), json!([240, 159]), json!([152, 138])]);
    assert!(entries.iter().all(|entry| entry["top_logprobs"].as_array().is_some_and(|top| top.len() == 2)));
    assert!(message(&server, json!({}))?["logprobs"].is_null());
    Ok(())
}
