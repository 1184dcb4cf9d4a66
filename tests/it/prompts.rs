//! How likely a prompt was: `echo` and `prompt_logprobs`, on a small real model.

use serde_json::{Value, json};
use testkit::{Folder, TestServer};

use crate::{chat, script};

const COMPLETIONS: &str = "/v1/completions";

/// A prompt of `len` tokens over few chunks of prefill.
fn server() -> anyhow::Result<TestServer> {
    TestServer::model(Folder::whole()?.path(), &["--threads", "1", "--max-num-batched-tokens", "70"])
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| 0x20 + (at * 7 + at * at) % 90).collect()
}

fn request(prompt: &[u32], extra: Value) -> Value {
    let mut request = json!({"model": "m", "prompt": prompt, "temperature": 0, "ignore_eos": true, "max_tokens": 5});
    if let (Value::Object(request), Value::Object(extra)) = (&mut request, extra) {
        request.extend(extra);
    }
    request
}

fn complete(server: &TestServer, prompt: &[u32], extra: Value) -> anyhow::Result<Value> {
    let answer = server.post(COMPLETIONS, &request(prompt, extra))?;
    anyhow::ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text);
    Ok(answer.json())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What the model said is as likely when it is read as part of a prompt, whatever of it the prefix cache holds.
#[test]
fn a_prompt_is_as_likely_as_the_answer_that_it_was() -> anyhow::Result<()> {
    let server = server()?;
    let said = complete(&server, &prompt(150), json!({"logprobs": 3, "max_tokens": 60, "return_token_ids": true}))?;
    let said = &said["choices"][0];
    let ids = list(&said["token_ids"]).iter().filter_map(Value::as_u64).map(|id| id as u32);
    let whole: Vec<u32> = prompt(150).into_iter().chain(ids).collect();
    let read = complete(&server, &whole, json!({"logprobs": 3, "max_tokens": 0, "echo": true}))?;
    assert_eq!(read["usage"]["completion_tokens"], 0);
    assert_eq!(read["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let read = &read["choices"][0];
    assert_eq!(read["finish_reason"], "length");
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let (said, read) = (list(&said["logprobs"][name]), list(&read["logprobs"][name]));
        assert_eq!((said.len(), read.len()), (60, 210), "{name}");
        if name == "text_offset" {
            continue;
        }
        assert_eq!(said, &read[150..], "{name}");
    }
    assert_eq!(read["logprobs"]["token_logprobs"][0], Value::Null);
    assert_eq!(read["logprobs"]["top_logprobs"][0], Value::Null);
    // What was computed for the reading serves the next one as any other prompt.
    let again = complete(&server, &whole, json!({}))?;
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
    Ok(())
}

/// The echoed text and its offsets, in front of the answer's; joined chunks are the plain answer.
#[test]
fn an_echo_comes_before_the_answer() -> anyhow::Result<()> {
    let server = server()?;
    let plain = complete(&server, &prompt(20), json!({}))?;
    let text: String = prompt(20).into_iter().filter_map(char::from_u32).collect();
    let wanted = format!("{text}{}", plain["choices"][0]["text"].as_str().unwrap_or_default());
    for logprobs in [Value::Null, json!(2)] {
        for n in [1, 2] {
            let extra = json!({"echo": true, "logprobs": logprobs, "n": n});
            let echo = complete(&server, &prompt(20), extra.clone())?;
            let mut body = request(&prompt(20), extra);
            body["stream"] = true.into();
            let events = server.stream(COMPLETIONS, &body)?;
            for index in 0..n {
                let choice = &echo["choices"][index];
                assert_eq!(choice["text"], wanted);
                let chunks = events.iter().filter_map(|event| match event {
                    testkit::Event::Data(data) => Some(&data["choices"][0]).filter(|choice| choice["index"] == index),
                    testkit::Event::Done => None,
                });
                let chunks: Vec<&Value> = chunks.collect();
                let joined: String = chunks.iter().filter_map(|chunk| chunk["text"].as_str()).collect();
                assert_eq!(joined, wanted);
                assert_eq!(chunks[0]["text"], text);
                for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                    let streamed: Vec<&Value> =
                        chunks.iter().flat_map(|chunk| list(&chunk["logprobs"][name])).collect();
                    assert_eq!(streamed, list(&choice["logprobs"][name]).iter().collect::<Vec<_>>(), "{name}");
                }
                if logprobs.is_number() {
                    let offsets: Vec<u64> =
                        list(&choice["logprobs"]["text_offset"]).iter().filter_map(Value::as_u64).collect();
                    assert_eq!(offsets.iter().take(21).copied().collect::<Vec<_>>(), (0..=20).collect::<Vec<u64>>());
                } else {
                    assert_eq!(choice["logprobs"], Value::Null);
                }
            }
        }
    }
    // A text is echoed as it was sent.
    let body = json!({"model": "m", "prompt": "héllo <|im_end|>", "max_tokens": 0, "echo": true, "logprobs": 0});
    let echo = server.post(COMPLETIONS, &body)?.json()["choices"][0].clone();
    assert_eq!(echo["text"], "héllo <|im_end|>");
    assert_eq!(echo["logprobs"]["text_offset"], json!([0, 1, 2, 2, 3, 4, 5, 6]), "{echo}");
    Ok(())
}

/// vLLM's shape: null for the first token, then the token's own entry beside the likeliest, by id, with ranks.
#[test]
fn prompt_logprobs_are_maps_by_id() -> anyhow::Result<()> {
    let server = server()?;
    let answer = complete(&server, &prompt(100), json!({"prompt_logprobs": 2, "logprobs": 4, "echo": true}))?;
    let choice = &answer["choices"][0];
    let places = list(&choice["prompt_logprobs"]);
    assert_eq!((places.len(), &places[0]), (100, &Value::Null));
    for (at, (place, id)) in places.iter().zip(prompt(100)).enumerate().skip(1) {
        let own = &place[id.to_string()];
        let rank = own["rank"].as_u64().unwrap_or_default();
        assert_eq!(place.as_object().map(serde_json::Map::len), Some(if rank <= 2 { 2 } else { 3 }), "{place}");
        assert_eq!(own["logprob"], choice["logprobs"]["token_logprobs"][at]);
        assert_eq!(own["decoded_token"], char::from_u32(id).map(String::from).unwrap_or_default());
        let best = place.as_object().into_iter().flatten().find(|(_, entry)| entry["rank"] == 1).map(|(_, best)| best);
        assert!(best.is_some_and(|best| best["logprob"].as_f64() >= own["logprob"].as_f64()), "{place}");
    }
    let answer =
        chat(&server, json!({"prompt_logprobs": 0, "max_tokens": 2, "n": 2, "return_token_ids": true}))?.json();
    let (places, ids) = (list(&answer["prompt_logprobs"]), list(&answer["prompt_token_ids"]));
    assert_eq!((places.len(), &places[0]), (ids.len(), &Value::Null), "{answer}");
    for (place, id) in places.iter().zip(ids).skip(1) {
        assert!(place[id.to_string()]["logprob"].is_number() && place.as_object().is_some_and(|map| map.len() == 1));
    }
    Ok(())
}

#[test]
fn what_cannot_be_scored_is_said() -> anyhow::Result<()> {
    let server = server()?;
    let scripted = TestServer::script(&script(json!({"text": "hi"})), &[])?;
    let cases = [
        (&server, json!({"stream": true, "prompt_logprobs": 1}), "prompt_logprobs", "is part of whole answers only"),
        (&server, json!({"prompt_logprobs": -1}), "prompt_logprobs", "must be a whole number from 0 to 20, not -1"),
        (&server, json!({"max_tokens": 0}), "max_tokens", "must be a whole number from 1"),
        (&scripted, json!({"prompt_logprobs": 1}), "", "gives no logprobs of prompts"),
        (&scripted, json!({"echo": true, "logprobs": 1}), "", "gives no logprobs of prompts"),
    ];
    for (server, extra, param, message) in cases {
        let answer = server.post(COMPLETIONS, &request(&prompt(3), extra.clone()))?;
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, 400, "{extra}: {error}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{extra}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{extra}: {error}");
    }
    let echoed = scripted.post(COMPLETIONS, &json!({"model": "m", "prompt": "say ", "echo": true}))?.json();
    assert_eq!(echoed["choices"][0]["text"], "say hi");
    let refused = chat(&server, json!({"echo": true}))?;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("echo")));
    Ok(())
}
