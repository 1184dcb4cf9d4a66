//! `GET /plugins`: what is loaded and how it behaves. `POST /plugins/{engine|model}/{kind}` exchanges one while streams
//! run, `.../rollback` goes back; both for a key with `admin = true`.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::common::read_body;
use crate::error::{ApiError, Code};
use crate::exchange::{ExchangeError, ExchangeOrder, Place, allow};
use crate::state::ApiState;

pub async fn get(State(state): State<ApiState>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    state.0.keys.caller(&headers)?;
    Ok(Json(json!({"object": "list", "data": state.opened()?.plugins.rows()})))
}

pub async fn exchange(
    State(state): State<ApiState>,
    Path((target, kind)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    allow(&state.0.keys.caller(&headers)?)?;
    let body = read_body(&state, &headers, body).await?;
    let order = ExchangeOrder::read(Place { target, kind }, &body)?;
    let plugins = state.opened()?.plugins.clone();
    blocking(move || plugins.exchange(&order)).await
}

pub async fn roll_back(
    State(state): State<ApiState>,
    Path((target, kind)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    allow(&state.0.keys.caller(&headers)?)?;
    let plugins = state.opened()?.plugins.clone();
    blocking(move || plugins.roll_back(&Place { target, kind })).await
}

/// Compiling and a shadow period take seconds: not a task for the runtime's own threads.
async fn blocking(
    work: impl FnOnce() -> Result<Value, ExchangeError> + Send + 'static,
) -> Result<Json<Value>, ApiError> {
    let outcome = tokio::task::spawn_blocking(work).await;
    let outcome = outcome.map_err(|e| ApiError::new(Code::Internal, format!("the exchange broke off: {e}")))?;
    Ok(Json(outcome?))
}
