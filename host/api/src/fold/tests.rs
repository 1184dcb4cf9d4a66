//! The plain answer is the fold of the streamed one, whatever the pieces.

use ::text::{ByteVocabToken, Delta, OutputUsage, Piece, Tokenizer};
use contract::sampling::TokenLogprobs;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{ChatChunks, ChatFold, Frame};
use crate::generate::{End, Event};
use crate::state::ReasoningField;
use crate::wire::reply::Usage;

fn frame() -> Frame {
    Frame {
        id: "chatcmpl-1".into(),
        created: 1,
        model: "m".into(),
        tokenizer: Tokenizer::from_bytes_vocab(vec![ByteVocabToken { bytes: b"x".to_vec(), added: false }]),
        logprobs: Some(1),
        prompt_logprobs: None,
        wants_token_ids: true,
        include_usage: false,
        continuous_usage: false,
    }
}

/// Joins chunks as a client does: strings are concatenated, lists are extended, `index` groups calls.
fn join(chunks: &[Value]) -> Value {
    let mut message = json!({"role": "", "content": "", "reasoning": "", "reasoning_content": ""});
    let (mut calls, mut logprobs, mut ids) = (Vec::<Value>::new(), Vec::new(), Vec::new());
    let mut finish_reason = Value::Null;
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        for (name, value) in choice["delta"].as_object().expect("a delta") {
            if let Some(text) = value.as_str() {
                let joined = message[name].as_str().expect("a string field").to_owned() + text;
                message[name] = joined.into();
            }
        }
        for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().expect("an index") as usize;
            if index == calls.len() {
                calls.push(json!({"id": part["id"], "type": part["type"], "function": part["function"]}));
            } else {
                let earlier = calls[index]["function"]["arguments"].as_str().expect("text").to_owned();
                let joined = earlier + part["function"]["arguments"].as_str().expect("text");
                calls[index]["function"]["arguments"] = joined.into();
            }
        }
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        finish_reason = choice["finish_reason"].clone();
    }
    json!({"message": message, "calls": calls, "logprobs": logprobs, "ids": ids, "finish_reason": finish_reason})
}

/// The plain answer in the same shape.
fn plain(answer: &Value) -> Value {
    let choice = &answer["choices"][0];
    let text = |name: &str| choice["message"][name].as_str().unwrap_or_default().to_owned();
    json!({
        "message": {
            "role": text("role"), "content": text("content"),
            "reasoning": text("reasoning"), "reasoning_content": text("reasoning_content")
        },
        "calls": choice["message"].get("tool_calls").cloned().unwrap_or_else(|| json!([])),
        "logprobs": choice["logprobs"]["content"],
        "ids": choice["token_ids"],
        "finish_reason": choice["finish_reason"]
    })
}

#[derive(Clone, Debug)]
enum Said {
    Content(String),
    Reasoning(String),
    Call(Vec<String>),
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        ".{0,6}".prop_map(Said::Content),
        ".{0,6}".prop_map(Said::Reasoning),
        prop::collection::vec(".{0,4}", 0..4).prop_map(Said::Call),
    ]
}

fn deltas(said: &[Said]) -> Vec<Delta> {
    let mut calls = 0..;
    let mut deltas = Vec::new();
    for part in said {
        match part {
            Said::Content(text) => deltas.push(Delta::Content(text.clone())),
            Said::Reasoning(text) => deltas.push(Delta::Reasoning(text.clone())),
            Said::Call(fragments) => {
                let index = calls.next().expect("an endless range");
                deltas.push(Delta::CallStart { index, id: format!("id{index}"), name: "f".into() });
                let arguments = |fragment: &String| Delta::CallArguments { index, fragment: fragment.clone() };
                deltas.extend(fragments.iter().map(arguments));
                deltas.push(Delta::CallEnd { index, complete: true });
            }
        }
    }
    deltas
}

proptest! {
    #[test]
    fn plain_is_the_fold_of_streamed(said in prop::collection::vec(said(), 0..8), sizes in prop::collection::vec(0_usize..4, 1..20)) {
        let mut rest = deltas(&said).into_iter().peekable();
        let mut events = || {
            let mut events = Vec::new();
            for size in sizes.iter().cycle().take(64) {
                let token = TokenLogprobs { token: 257, logprob: f32::NEG_INFINITY, rank: 2, top: vec![(97, -0.5)] };
                let deltas: Vec<Delta> = rest.by_ref().take(*size).collect();
                events.push(Piece { deltas, logprobs: vec![token], token_ids: vec![257], stopped: None, enough: false });
            }
            events.push(Piece { deltas: rest.by_ref().collect(), ..Piece::default() });
            events
        };
        let pieces = events();
        let end = || End { finish_reason: "stop", stop_reason: None, usage: OutputUsage::default() };
        let mut fold = ChatFold::new(frame(), ReasoningField::Both, [].into(), 1);
        let mut chunks = ChatChunks::new(frame(), ReasoningField::Both, [].into(), 1);
        let mut wire: Vec<String> = Vec::new();
        for piece in pieces {
            fold.take(Event::Piece { index: 0, piece: piece.clone() });
            wire.extend(chunks.json(Event::Piece { index: 0, piece }, Usage::default()));
        }
        fold.take(Event::Done { index: 0, end: end() });
        wire.extend(chunks.json(Event::Done { index: 0, end: end() }, Usage::default()));
        let wire: Vec<Value> = wire.iter().map(|json| serde_json::from_str(json).expect("JSON")).collect();
        let answer: Value = serde_json::from_str(&fold.finish(Usage::default())).expect("JSON");
        prop_assert_eq!(join(&wire), plain(&answer));
        prop_assert_eq!(&answer["choices"][0]["logprobs"]["content"][0]["logprob"], &json!(-9999.0));
        let (last, before) = wire.split_last().expect("a last chunk");
        prop_assert_eq!(&last["choices"][0]["delta"], &json!({}));
        prop_assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    }
}
