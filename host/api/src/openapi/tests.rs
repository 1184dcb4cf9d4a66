//! The document is what the readers read.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::document;
use crate::messages::check as check_messages;
use crate::responses::check as check_responses;
use crate::wire::abort::AbortRequest;
use crate::wire::completion::{DetokenizeRequest, TokenizeRequest};
use crate::wire::embeddings::EmbeddingsRequest;
use crate::wire::fields::{Fields, asked};
use crate::wire::parse::ParseRequest;
use crate::wire::{decode_chat, decode_completion};

fn properties(schema: &str) -> BTreeSet<String> {
    let document = document("0");
    let properties = document["components"]["schemas"][schema]["properties"].as_object();
    properties.unwrap_or_else(|| panic!("no schema {schema}")).keys().cloned().collect()
}

/// Reads `body`, which must be a good request, and compares the fields that were asked for with the schema's.
fn compare(schema: &str, body: &Value, read: impl FnOnce(&[u8]) -> Result<(), crate::ApiError>) {
    let (asked, result) = asked(|| read(body.to_string().as_bytes()));
    result.unwrap_or_else(|error| panic!("{schema}: {error}"));
    let documented = properties(schema);
    let missing: Vec<&String> = asked.difference(&documented).collect();
    assert!(missing.is_empty(), "{schema} does not document {missing:?}");
}

#[test]
fn every_field_that_is_read_is_documented() {
    let hi = json!([{"role": "user", "content": "hi"}]);
    compare("ChatRequest", &json!({"messages": hi}), |body| decode_chat(body).map(drop));
    compare("CompletionRequest", &json!({"prompt": "hi"}), |body| decode_completion(body).map(drop));
    compare("ResponsesRequest", &json!({"input": "hi"}), check_responses);
    compare("MessagesRequest", &json!({"messages": hi, "max_tokens": 1}), check_messages);
    compare("ParseRequest", &json!({"text": "hi"}), |body| ParseRequest::try_from(Fields::parse(body)?).map(drop));
    compare("AbortRequest", &json!({"request_id": "x"}), |body| AbortRequest::try_from(Fields::parse(body)?).map(drop));
    compare("EmbeddingsRequest", &json!({"input": "hi"}), |body| {
        EmbeddingsRequest::try_from(Fields::parse(body)?).map(drop)
    });
    compare("DetokenizeRequest", &json!({"tokens": [1]}), |body| {
        DetokenizeRequest::try_from(Fields::parse(body)?).map(drop)
    });
}

/// `/tokenize` reads one of two shapes; the schema has the fields of both.
#[test]
fn tokenize_has_two_shapes() {
    let read = |body: Value| {
        let (asked, result) =
            asked(|| TokenizeRequest::try_from(Fields::parse(body.to_string().as_bytes())?).map(drop));
        result.expect("a good request");
        asked
    };
    let text = read(json!({"prompt": "hi"}));
    let chat = read(json!({"messages": [{"role": "user", "content": "hi"}]}));
    let both: BTreeSet<String> = text.union(&chat).cloned().collect();
    assert!(both.is_subset(&properties("TokenizeRequest")), "{both:?}");
}

#[test]
fn references_lead_somewhere() {
    let document = document("0");
    let text = document.to_string();
    for name in text.split("\"#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}
