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
    let text = || json!({"type": "string"});
    let count = || json!({"type": "integer", "minimum": 0});
    let maybe = || json!({"type": ["string", "null"]});
    let list = || json!({"type": "array"});
    let any = || json!({"type": "object"});
    let mut schemas = Map::new();
    let mut add = |name: &str, properties: &[(&str, Value)]| {
        let required: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
        let properties: Map<String, Value> =
            properties.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        schemas.insert(name.to_owned(), json!({"type": "object", "required": required, "properties": properties}));
    };
    let error = json!({
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": text(), "type": text(), "param": maybe(), "code": text()},
    });
    add("Error", &[("error", error)]);
    let error =
        json!({"type": "object", "required": ["type", "message"], "properties": {"type": text(), "message": text()}});
    add("MessagesError", &[("type", json!({"const": "error"})), ("error", error)]);
    let usage = json!({
        "type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
        "properties": {"prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count()},
    });
    let frame = |object: &str, choice: Value| {
        let choices = json!({"type": "array", "minItems": 1, "items": choice});
        [
            ("id", text()),
            ("object", json!({"const": object})),
            ("created", count()),
            ("model", text()),
            ("choices", choices),
            ("usage", usage.clone()),
        ]
    };
    let reason = json!({"enum": ["stop", "length", "tool_calls"]});
    let message = json!({
        "type": "object", "required": ["role", "content"],
        "properties": {
            "role": {"const": "assistant"}, "content": maybe(), "reasoning": text(), "reasoning_content": text(),
            "tool_calls": list(),
        },
    });
    let choice = json!({
        "type": "object", "required": ["index", "message", "finish_reason", "logprobs"],
        "properties": {"index": count(), "message": message, "finish_reason": reason, "logprobs": {"type": ["object", "null"]}},
    });
    add("ChatCompletion", &frame("chat.completion", choice));
    let choice = json!({
        "type": "object", "required": ["index", "text", "finish_reason", "logprobs"],
        "properties": {"index": count(), "text": text(), "finish_reason": reason, "logprobs": {"type": ["object", "null"]}},
    });
    add("Completion", &frame("text_completion", choice));
    let row = json!({
        "type": "object", "required": ["object", "index", "embedding"],
        "properties": {"object": {"const": "embedding"}, "index": count(), "embedding": {"type": ["array", "string"]}},
    });
    let counts = json!({
        "type": "object", "required": ["prompt_tokens", "total_tokens"],
        "properties": {"prompt_tokens": count(), "total_tokens": count()},
    });
    let rows = json!({"type": "array", "minItems": 1, "items": row});
    add("Embeddings", &[("object", json!({"const": "list"})), ("data", rows), ("model", text()), ("usage", counts)]);
    let status = json!({"enum": ["completed", "incomplete", "failed", "in_progress"]});
    add(
        "Response",
        &[
            ("id", text()),
            ("object", json!({"const": "response"})),
            ("created_at", count()),
            ("status", status),
            ("model", text()),
            ("output", json!({"type": "array", "items": any()})),
            ("usage", json!({"type": ["object", "null"]})),
            ("error", json!({"type": ["object", "null"]})),
            ("previous_response_id", maybe()),
        ],
    );
    add(
        "ResponseDeleted",
        &[("id", text()), ("object", json!({"const": "response"})), ("deleted", json!({"const": true}))],
    );
    add("Items", &[("object", json!({"const": "list"})), ("data", list()), ("has_more", json!({"type": "boolean"}))]);
    let stop = json!({"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]});
    add(
        "Message",
        &[
            ("id", text()),
            ("type", json!({"const": "message"})),
            ("role", json!({"const": "assistant"})),
            ("model", text()),
            ("content", json!({"type": "array", "items": any()})),
            ("stop_reason", stop),
            ("stop_sequence", maybe()),
            ("usage", any()),
        ],
    );
    add("TokenCount", &[("input_tokens", count())]);
    add(
        "Rendered",
        &[("model", text()), ("prompt", text()), ("token_ids", list()), ("count", count()), ("max_model_len", count())],
    );
    add(
        "Tokens",
        &[
            ("count", count()),
            ("max_model_len", count()),
            ("tokens", list()),
            ("token_strs", json!({"type": ["array", "null"]})),
        ],
    );
    add("Text", &[("prompt", text())]);
    add(
        "Parsed",
        &[
            ("object", json!({"const": "parsed"})),
            ("model", text()),
            ("message", message),
            ("finish_reason", reason),
            ("tokens", count()),
            ("reasoning_tokens", count()),
            ("undeclared_calls", count()),
            ("stage_violations", count()),
            ("reasoning_disagrees", json!({"type": "boolean"})),
        ],
    );
    add("Aborted", &[("object", json!({"const": "abort"})), ("request_id", text()), ("aborted", count())]);
    let model = [
        ("id", text()),
        ("object", json!({"const": "model"})),
        ("created", count()),
        ("owned_by", text()),
        ("max_model_len", count()),
    ];
    add("Model", &model);
    let models = json!({"type": "array", "items": {"$ref": "#/components/schemas/Model"}});
    add("Models", &[("object", json!({"const": "list"})), ("data", models)]);
    add("Plugins", &[("object", json!({"const": "list"})), ("data", list())]);
    add("Health", &[("status", json!({"const": "ok"}))]);
    let words = json!({"enum": ["ready", "degraded", "failed", "draining", "loading"]});
    add("Ready", &[("status", words), ("reasons", list()), ("degraded", list())]);
    add("Version", &[("version", text()), ("server", text())]);
    add("Document", &[("openapi", text()), ("paths", any())]);
    schemas
}
