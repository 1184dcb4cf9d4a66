//! `GET /openapi.json`: the HTTP surface as a document that tools read.
//!
//! Requests are read by hand ([`crate::wire`]), so their schemas are written by hand from the same limits; a test asks
//! every reader which fields it takes and compares. A status that a route can answer with is listed, and no other.

mod answers;
mod requests;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::state::ApiState;

pub async fn get(State(state): State<ApiState>) -> Json<Value> {
    Json(document(&state.0.options.version))
}

/// What can go wrong with any request of a kind, beside what its own route adds.
const READS_A_BODY: &[u16] = &[400, 401, 404, 413, 500, 503];
const GENERATES: &[u16] = &[400, 401, 404, 413, 429, 499, 500, 503];
const LOOKS_UP: &[u16] = &[400, 401, 404, 500, 503];
const LOOKS: &[u16] = &[401, 500, 503];

/// The whole document.
pub fn document(version: &str) -> Value {
    let mut paths = Map::new();
    let mut add = |path: &str, method: &str, operation: Value| {
        let place = paths.entry(path).or_insert_with(|| json!({}));
        place[method] = operation;
    };
    for route in POSTS {
        add(route.path, "post", route.operation());
    }
    for (path, summary, answer, errors) in GETS {
        add(path, "get", operation(path, summary, None, answers::json(answer), errors));
    }
    let deleted = operation(RESPONSE, "Forgets a kept response", None, answers::json("ResponseDeleted"), LOOKS_UP);
    add(RESPONSE, "delete", deleted);
    add("/metrics", "get", operation("/metrics", "Prometheus metrics", None, answers::text(), &[500, 503]));
    let mut schemas = requests::schemas();
    schemas.extend(answers::schemas());
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Tokenloom", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    })
}

const RESPONSE: &str = "/v1/responses/{id}";

struct Post {
    path: &'static str,
    summary: &'static str,
    request: &'static str,
    answer: &'static str,
    /// May answer as an event stream.
    streams: bool,
    errors: &'static [u16],
}

const fn post(
    path: &'static str,
    summary: &'static str,
    [request, answer]: [&'static str; 2],
    streams: bool,
    errors: &'static [u16],
) -> Post {
    Post { path, summary, request, answer, streams, errors }
}

const POSTS: &[Post] = &[
    post("/v1/chat/completions", "Answers a conversation", ["ChatRequest", "ChatCompletion"], true, GENERATES),
    post(
        "/v1/chat/completions/render",
        "The prompt of a conversation",
        ["ChatRequest", "Rendered"],
        false,
        READS_A_BODY,
    ),
    post("/v1/completions", "Goes on with a text", ["CompletionRequest", "Completion"], true, GENERATES),
    post("/v1/embeddings", "Vectors of texts", ["EmbeddingsRequest", "Embeddings"], false, GENERATES),
    post("/v1/responses", "Answers and keeps the answer", ["ResponsesRequest", "Response"], true, GENERATES),
    post("/v1/messages", "Answers in the shape of the Messages API", ["MessagesRequest", "Message"], true, GENERATES),
    post("/v1/messages/count_tokens", "Counts a prompt", ["CountTokensRequest", "TokenCount"], false, READS_A_BODY),
    post("/tokenize", "Text or messages to token ids", ["TokenizeRequest", "Tokens"], false, READS_A_BODY),
    post("/detokenize", "Token ids to text", ["DetokenizeRequest", "Text"], false, READS_A_BODY),
    post("/parse", "Runs a model's output stages on a text", ["ParseRequest", "Parsed"], false, READS_A_BODY),
    post("/abort", "Calls a running request off", ["AbortRequest", "Aborted"], false, &[400, 401, 413, 500]),
];

const GETS: &[(&str, &str, &str, &[u16])] = &[
    ("/v1/models", "The models", "Models", LOOKS),
    ("/v1/models/{id}", "One model", "Model", LOOKS_UP),
    (RESPONSE, "A kept response", "Response", LOOKS_UP),
    ("/v1/responses/{id}/input_items", "What a kept response answered", "Items", LOOKS_UP),
    ("/plugins", "The plugins and how they behave", "Plugins", LOOKS),
    ("/health", "Whether the process lives", "Health", &[]),
    ("/ready", "Whether requests can be served", "Ready", &[]),
    ("/version", "The server's version", "Version", &[]),
    ("/openapi.json", "This document", "Document", &[]),
];

impl Post {
    fn operation(&self) -> Value {
        let mut answer = answers::json(self.answer);
        if self.streams {
            answer["content"]["text/event-stream"] = json!({"schema": {"type": "string"}});
        }
        operation(self.path, self.summary, Some(self.request), answer, self.errors)
    }
}

fn operation(path: &str, summary: &str, request: Option<&str>, answer: Value, errors: &[u16]) -> Value {
    let error = if path.starts_with("/v1/messages") { "MessagesError" } else { "Error" };
    let mut responses = Map::from_iter([("200".to_owned(), answer)]);
    for status in errors {
        responses.insert(status.to_string(), answers::error(*status, error));
    }
    if path == "/ready" {
        responses.insert("503".into(), answers::json("Ready"));
    }
    let mut operation = json!({"summary": summary, "responses": responses});
    if let Some(request) = request {
        let schema = json!({"$ref": format!("#/components/schemas/{request}")});
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if path.contains("{id}") {
        operation["parameters"] =
            json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}]);
    }
    operation
}

#[cfg(test)]
mod tests;
