//! `GET /health`: the process lives and answers. It asks nothing else, so that a busy engine never looks dead.

use axum::Json;
use serde_json::{Value, json};

pub async fn get() -> Json<Value> {
    Json(json!({"status": "ok"}))
}
