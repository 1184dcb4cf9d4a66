//! `GET /v1/models` and `GET /v1/models/NAME`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::common::PathName;
use crate::error::ApiError;
use crate::state::{ApiState, ServedModel};

pub async fn list(State(state): State<ApiState>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    state.0.keys.caller(&headers)?;
    let open = state.opened()?;
    let rows: Vec<Value> = open.models().iter().map(|model| row(model, open.since)).collect();
    Ok(Json(json!({"object": "list", "data": rows})))
}

pub async fn one(
    State(state): State<ApiState>,
    headers: HeaderMap,
    PathName(name): PathName,
) -> Result<Json<Value>, ApiError> {
    state.0.keys.caller(&headers)?;
    let model = state.model(Some(&name))?;
    Ok(Json(row(&model, state.opened()?.since)))
}

fn row(model: &ServedModel, since: u64) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": since,
        "owned_by": "tokenloom",
        "root": model.root,
        "parent": null,
        "max_model_len": model.context_len(),
    })
}
