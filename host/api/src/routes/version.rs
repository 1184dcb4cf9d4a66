//! `GET /version`.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::state::ApiState;

pub async fn get(State(state): State<ApiState>) -> Json<Value> {
    Json(json!({"version": state.0.options.version, "server": "tokenloom"}))
}
