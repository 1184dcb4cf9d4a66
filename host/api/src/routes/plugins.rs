//! `GET /plugins`: what is loaded and how it behaves.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::ApiState;

pub async fn get(State(state): State<ApiState>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    state.0.keys.caller(&headers)?;
    Ok(Json(json!({"object": "list", "data": state.opened()?.plugins.rows()})))
}
