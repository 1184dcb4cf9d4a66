//! Schemas of answers: what a client may rely on.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

/// A 200 whose body is the schema of that name.
pub fn json(schema: &str) -> Value {
    let content = json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}});
    json!({"description": schema, "content": {"application/json": content}})
}

/// A 200 of plain text.
pub fn text() -> Value {
    json!({"description": "OpenMetrics", "content": {"application/openmetrics-text": {"schema": {"type": "string"}}}})
}

pub fn error(status: u16, schema: &str) -> Value {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let mut answer = json(schema);
    answer["description"] = json!(reason.unwrap_or("The request was called off"));
    answer
}

pub fn schemas() -> Map<String, Value> {
    let mut schemas = Schemas::default();
    errors(&mut schemas);
    openai(&mut schemas);
    other_shapes(&mut schemas);
    around_texts(&mut schemas);
    about_the_server(&mut schemas);
    schemas.0
}

#[derive(Default)]
struct Schemas(Map<String, Value>);

impl Schemas {
    /// An object that always has these properties.
    fn add(&mut self, name: &str, properties: &[(&str, Value)]) {
        let required: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
        let properties: Map<String, Value> =
            properties.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        self.0.insert(name.to_owned(), json!({"type": "object", "required": required, "properties": properties}));
    }
}

fn string() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn maybe() -> Value {
    json!({"type": ["string", "null"]})
}

fn list() -> Value {
    json!({"type": "array"})
}

fn any() -> Value {
    json!({"type": "object"})
}

fn reason() -> Value {
    json!({"enum": ["stop", "length", "tool_calls"]})
}

fn message() -> Value {
    json!({
        "type": "object", "required": ["role", "content"],
        "properties": {
            "role": {"const": "assistant"}, "content": maybe(), "reasoning": string(), "reasoning_content": string(),
            "tool_calls": list(),
        },
    })
}

fn errors(schemas: &mut Schemas) {
    let error = json!({
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": string(), "type": string(), "param": maybe(), "code": string()},
    });
    schemas.add("Error", &[("error", error)]);
    let error = json!({"type": "object", "required": ["type", "message"], "properties": {"type": string(), "message": string()}});
    schemas.add("MessagesError", &[("type", json!({"const": "error"})), ("error", error)]);
}

fn openai(schemas: &mut Schemas) {
    let usage = json!({
        "type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
        "properties": {"prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count()},
    });
    let frame = |object: &str, choice: Value| {
        let choices = json!({"type": "array", "minItems": 1, "items": choice});
        [
            ("id", string()),
            ("object", json!({"const": object})),
            ("created", count()),
            ("model", string()),
            ("choices", choices),
            ("usage", usage.clone()),
        ]
    };
    let (reason, message) = (reason(), message());
    let choice = json!({
        "type": "object", "required": ["index", "message", "finish_reason", "logprobs"],
        "properties": {"index": count(), "message": message, "finish_reason": reason, "logprobs": {"type": ["object", "null"]}},
    });
    schemas.add("ChatCompletion", &frame("chat.completion", choice));
    let choice = json!({
        "type": "object", "required": ["index", "text", "finish_reason", "logprobs"],
        "properties": {"index": count(), "text": string(), "finish_reason": reason, "logprobs": {"type": ["object", "null"]}},
    });
    schemas.add("Completion", &frame("text_completion", choice));
    let row = json!({
        "type": "object", "required": ["object", "index", "embedding"],
        "properties": {"object": {"const": "embedding"}, "index": count(), "embedding": {"type": ["array", "string"]}},
    });
    let counts = json!({
        "type": "object", "required": ["prompt_tokens", "total_tokens"],
        "properties": {"prompt_tokens": count(), "total_tokens": count()},
    });
    let rows = json!({"type": "array", "minItems": 1, "items": row});
    schemas.add(
        "Embeddings",
        &[("object", json!({"const": "list"})), ("data", rows), ("model", string()), ("usage", counts)],
    );
}

fn other_shapes(schemas: &mut Schemas) {
    let status = json!({"enum": ["completed", "incomplete", "failed", "in_progress"]});
    schemas.add(
        "Response",
        &[
            ("id", string()),
            ("object", json!({"const": "response"})),
            ("created_at", count()),
            ("status", status),
            ("model", string()),
            ("output", json!({"type": "array", "items": any()})),
            ("usage", json!({"type": ["object", "null"]})),
            ("error", json!({"type": ["object", "null"]})),
            ("previous_response_id", maybe()),
        ],
    );
    schemas.add(
        "ResponseDeleted",
        &[("id", string()), ("object", json!({"const": "response"})), ("deleted", json!({"const": true}))],
    );
    schemas.add(
        "Items",
        &[("object", json!({"const": "list"})), ("data", list()), ("has_more", json!({"type": "boolean"}))],
    );
    let stop = json!({"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]});
    schemas.add(
        "Message",
        &[
            ("id", string()),
            ("type", json!({"const": "message"})),
            ("role", json!({"const": "assistant"})),
            ("model", string()),
            ("content", json!({"type": "array", "items": any()})),
            ("stop_reason", stop),
            ("stop_sequence", maybe()),
            ("usage", any()),
        ],
    );
}

fn around_texts(schemas: &mut Schemas) {
    schemas.add("TokenCount", &[("input_tokens", count())]);
    schemas.add(
        "Rendered",
        &[
            ("model", string()),
            ("prompt", string()),
            ("token_ids", list()),
            ("count", count()),
            ("max_model_len", count()),
        ],
    );
    schemas.add(
        "Tokens",
        &[
            ("count", count()),
            ("max_model_len", count()),
            ("tokens", list()),
            ("token_strs", json!({"type": ["array", "null"]})),
        ],
    );
    schemas.add("Text", &[("prompt", string())]);
    schemas.add(
        "Parsed",
        &[
            ("object", json!({"const": "parsed"})),
            ("model", string()),
            ("message", message()),
            ("finish_reason", reason()),
            ("tokens", count()),
            ("reasoning_tokens", count()),
            ("undeclared_calls", count()),
            ("stage_violations", count()),
            ("reasoning_disagrees", json!({"type": "boolean"})),
        ],
    );
}

fn about_the_server(schemas: &mut Schemas) {
    schemas.add("Aborted", &[("object", json!({"const": "abort"})), ("request_id", string()), ("aborted", count())]);
    let model = [
        ("id", string()),
        ("object", json!({"const": "model"})),
        ("created", count()),
        ("owned_by", string()),
        ("max_model_len", count()),
    ];
    schemas.add("Model", &model);
    let models = json!({"type": "array", "items": {"$ref": "#/components/schemas/Model"}});
    schemas.add("Models", &[("object", json!({"const": "list"})), ("data", models)]);
    schemas.add("Plugins", &[("object", json!({"const": "list"})), ("data", list()), ("places", list())]);
    schemas.add("Health", &[("status", json!({"const": "ok"}))]);
    let words = json!({"enum": ["ready", "degraded", "failed", "draining", "loading"]});
    schemas.add("Ready", &[("status", words), ("reasons", list()), ("degraded", list())]);
    schemas.add("Version", &[("version", string()), ("server", string())]);
    schemas.add("Document", &[("openapi", string()), ("paths", any())]);
}
