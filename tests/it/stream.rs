//! Streamed answers: framing, order, and the same result as plain ones.

use serde_json::json;
use testkit::{Event, TestServer, chunks};

use crate::{CHAT, message, request, script, streamed};

#[test]
fn api_01_usage_in_stream() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"prompt_tokens": 16, "tokens": ["He", "llo", "!"]})), &[])?;
    let folded = streamed(&server, json!({"stream_options": {"include_usage": true}}))?;
    assert_eq!((folded.choices[0].content.as_str(), folded.choices[0].roles, folded.done), ("Hello!", 1, true));
    let usage = folded.usage.unwrap_or_default();
    assert_eq!([&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"]], [16, 3, 19]);
    assert_eq!(streamed(&server, json!({}))?.usage, None);
    Ok(())
}

#[test]
fn api_05_n2_streams_do_not_mix() -> anyhow::Result<()> {
    let choices = json!([{"tokens": ["a1", "a2", "a3"]}, {"tokens": ["b1"], "finish": "length"}]);
    let server = TestServer::script(&script(json!({"choices": choices})), &[])?;
    let folded = streamed(&server, json!({"n": 2}))?;
    let told = folded.choices.iter().map(|c| (c.content.as_str(), c.finish_reason.as_deref(), c.roles));
    assert_eq!(told.collect::<Vec<_>>(), [("a1a2a3", Some("stop"), 1), ("b1", Some("length"), 1)]);
    Ok(())
}

/// However the text is cut, and streamed or not, the answer is the same.
#[test]
fn cutting_does_not_matter() -> anyhow::Result<()> {
    let text = "naïve 🌶 text with a STOP in it";
    for size in chunks::SIZES {
        let server = TestServer::script(&chunks::script(text, size).to_string(), &[])?;
        for (extra, expected) in [(json!({}), text), (json!({"stop": ["a STOP"]}), "naïve 🌶 text with ")] {
            assert_eq!(streamed(&server, extra.clone())?.choices[0].content, expected, "size {size}");
            assert_eq!(message(&server, extra)?["message"]["content"], expected, "size {size}");
        }
    }
    Ok(())
}

#[test]
fn api_07_stop_string_across_tokens() -> anyhow::Result<()> {
    let tokens = [" A", "BC", " D", "E", "FX", " D", "EF", "GH", " tail"];
    let server = TestServer::script(&script(json!({"tokens": tokens})), &[])?;
    let extra = json!({"stop": ["DEFG"]});
    let folded = streamed(&server, extra.clone())?;
    assert_eq!(folded.choices[0].content, " ABC DEFX ");
    assert_eq!(folded.choices[0].finish_reason.as_deref(), Some("stop"));
    assert_eq!(message(&server, extra)?["message"]["content"], " ABC DEFX ");
    Ok(())
}

#[test]
fn api_11_error_in_mid_stream() -> anyhow::Result<()> {
    for then in ["error", "abort"] {
        let responses = json!({"responses": [
            {"match": "fail", "tokens": ["par", "tial"], "then": then}, {"text": "fine"}]});
        let server = TestServer::script(&responses.to_string(), &[])?;
        let folded = streamed(&server, json!({"messages": [{"role": "user", "content": "fail"}]}))?;
        assert_eq!(folded.choices[0].content, "partial");
        assert_eq!(folded.choices[0].finish_reason, None);
        assert!(!folded.done, "[DONE] after an error");
        let error = folded.error.unwrap_or_default();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert_eq!(message(&server, json!({}))?["message"]["content"], "fine");
    }
    Ok(())
}

#[test]
fn api_21_multibyte_text_in_stream() -> anyhow::Result<()> {
    let pieces = ["6e", "c3", "a920", "f0", "9f8c", "b6", "e2", "80"];
    let server = TestServer::script(&script(json!({"token_bytes_hex": pieces, "finish": "length"})), &[])?;
    let folded = streamed(&server, json!({"stream_options": {"include_usage": true}}))?;
    let plain = message(&server, json!({}))?["message"]["content"].clone();
    assert_eq!(plain, folded.choices[0].content);
    assert!(["né 🌶", "né 🌶\u{fffd}"].contains(&folded.choices[0].content.as_str()), "{plain}");
    assert_eq!(folded.usage.unwrap_or_default()["completion_tokens"], 8);
    Ok(())
}

/// A client that goes away gives its seat back: the next request on a one-seat server is answered.
#[test]
fn api_13_disconnect_frees() -> anyhow::Result<()> {
    let responses = json!({"responses": [{"match": "long", "tokens": ["x"], "delay_ms": 5}, {"text": "fine"}]});
    let server = TestServer::script(&responses.to_string(), &["--max-num-seqs", "1"])?;
    for _ in 0..5 {
        let mut long = request(json!({"messages": [{"role": "user", "content": "long"}], "stream": true}));
        (long["ignore_eos"], long["max_tokens"]) = (true.into(), 8000.into());
        let mut events = server.open_stream(CHAT, &long)?;
        for _ in 0..3 {
            assert!(matches!(events.next(), Some(Ok(Event::Data(_)))));
        }
        drop(events);
        assert_eq!(message(&server, json!({}))?["message"]["content"], "fine");
    }
    Ok(())
}
