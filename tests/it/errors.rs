//! Bad input: each gets a typed error that names the field and the limit, and the server goes on.

use serde_json::{Value, json};
use testkit::TestServer;

use crate::{CHAT, chat, message, script};

fn server() -> anyhow::Result<TestServer> {
    TestServer::script(&script(json!({"text": "fine"})), &["--max-model-len", "2048"])
}

#[test]
fn bad_requests_name_the_field() -> anyhow::Result<()> {
    let server = server()?;
    for (extra, status, needle) in [
        (json!({"temperature": -1}), 400, "temperature"),
        (json!({"temperature": "hot"}), 400, "temperature"),
        (json!({"max_tokens": -5}), 400, "max_tokens"),
        (json!({"n": 0}), 400, "n"),
        (json!({"top_p": 1.5}), 400, "top_p"),
        (json!({"messages": "hi"}), 400, "messages"),
        (json!({"messages": []}), 400, "messages"),
        (json!({"stream_options": {"include_usage": true}}), 400, "stream_options"),
        (
            json!({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}),
            400,
            "tool_choice",
        ),
        (json!({"model": "other"}), 404, "other"),
    ] {
        let answer = chat(&server, extra.clone())?;
        assert_eq!(answer.status, status, "{extra}: {}", answer.text);
        assert!(answer.error_message().contains(needle), "{extra}: {}", answer.text);
    }
    for body in ["", "{", "[]", "{\"messages\": [}"] {
        let answer = server.post_with(CHAT, &[], body)?;
        assert_eq!((answer.status, answer.json()["error"]["message"].is_string()), (400, true), "{body}");
    }
    assert_eq!(message(&server, json!({}))?["message"]["content"], "fine");
    Ok(())
}

#[test]
fn api_14_context_overflow() -> anyhow::Result<()> {
    for (prompt, max_tokens, status, numbers) in [
        (8, Some(2045), 400, vec!["2048", "8", "2045"]),
        (3000, None, 400, vec!["2048", "3000"]),
        (2048, None, 400, vec!["2048"]),
        (2047, None, 200, vec![]),
    ] {
        let response = json!({"prompt_tokens": prompt, "tokens": ["a", "b", "c"]});
        let server = TestServer::script(&script(response), &["--max-model-len", "2048"])?;
        let answer = chat(&server, max_tokens.map_or(json!({}), |n| json!({"max_tokens": n})))?;
        assert_eq!(answer.status, status, "{prompt}: {}", answer.text);
        if status == 400 {
            assert_eq!(answer.error_code(), "context_length_exceeded");
            assert!(numbers.iter().all(|n| answer.error_message().contains(n)), "{}", answer.text);
        } else {
            let choice = &answer.json()["choices"][0];
            assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("a"), &json!("length")));
        }
    }
    Ok(())
}

#[test]
fn a_prompt_no_response_matches_is_refused() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"match": "weather", "text": "sunny"})), &[])?;
    let answer = chat(&server, json!({}))?;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.error_message().contains("no response of the script matches"), "{}", answer.text);
    Ok(())
}

#[test]
fn a_full_queue_says_when_to_come_back() -> anyhow::Result<()> {
    let response = json!({"match": "slow", "tokens": ["x"], "then": "hang"});
    let flags = ["--max-num-seqs", "1", "--max-num-queued-reqs", "0"];
    let server = TestServer::script(&script(response), &flags)?;
    let slow = json!({"model": "m", "messages": [{"role": "user", "content": "slow"}], "stream": true});
    let mut open = server.open_stream(CHAT, &slow)?;
    assert!(open.next().is_some());
    let answer = server.post(CHAT, &slow)?;
    assert_eq!(answer.status, 429, "{}", answer.text);
    assert!(answer.header("retry-after").and_then(|s| s.parse::<u32>().ok()).is_some_and(|s| s > 0));
    Ok(())
}

#[test]
fn keys_are_asked_for() -> anyhow::Result<()> {
    // The digest of `secret`.
    let keys = "[[key]]\nsha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"\ntenant = \"t\"";
    let config = "[server]\nkeys_file = \"keys.toml\"\n[engine.e]\nsource = \"script:s.json\"\n[[model]]\nname = \"m\"";
    let server = TestServer::config(config, &[("s.json", &script(json!({"text": "fine"}))), ("keys.toml", keys)])?;
    let body = crate::request(json!({})).to_string();
    let status = |headers: &[(&str, &str)]| server.post_with(CHAT, headers, &body).map(|answer| answer.status);
    assert_eq!(status(&[])?, 401);
    assert_eq!(status(&[("authorization", "Bearer wrong")])?, 401);
    assert_eq!(status(&[("authorization", "Bearer secret")])?, 200);
    Ok(())
}

#[test]
fn the_other_endpoints_answer() -> anyhow::Result<()> {
    let server = server()?;
    for path in ["/health", "/ready", "/metrics", "/version", "/plugins", "/v1/models"] {
        assert_eq!(server.get(path)?.status, 200, "{path}");
    }
    let tokens = server.post("/tokenize", &json!({"model": "m", "prompt": "hé"}))?.json()["tokens"].clone();
    assert_eq!(tokens, json!([104, 195, 169]));
    let back = server.post("/detokenize", &json!({"model": "m", "tokens": tokens}))?.json();
    assert_eq!(back["prompt"], "hé");
    let models = server.get("/v1/models")?.json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("m"), &json!(2048)));
    let unknown = server.get("/v1/nothing")?;
    assert_eq!((unknown.status, unknown.json()["error"]["message"].is_string()), (404, true));
    let completion = server.post("/v1/completions", &json!({"model": "m", "prompt": "hi", "max_tokens": 2}))?.json();
    assert_eq!(completion["choices"][0]["text"], Value::from("fi"));
    Ok(())
}
