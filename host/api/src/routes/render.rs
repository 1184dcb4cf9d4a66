//! `POST /v1/chat/completions/render`: the prompt a chat request would get, without generating.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use contract::output::Channel;
use serde_json::json;

use super::common::{read_body, warnings, with_warnings};
use crate::error::ApiError;
use crate::state::ApiState;
use crate::{clock, prepare, wire};

pub async fn post(State(state): State<ApiState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = wire::decode_chat(&body)?;
    let model = state.model(request.common.model.as_deref())?;
    let prompt = request.prompt;
    let on = Arc::clone(&model);
    let prepared = prepare::blocking(move || {
        let now = clock::rfc3339(clock::unix_seconds());
        on.text.prepare_chat(&prepare::chat_job(&on, &prompt, now)).map_err(|e| prepare::text_error(&e))
    })
    .await?;
    let warnings = warnings(&state, &request.common.ignored, prepared.warnings)?;
    let starts_in = prepared.rendered.starts_in.map(|channel| match channel {
        Channel::Content => "content".to_owned(),
        Channel::Reasoning => "reasoning".to_owned(),
        Channel::Other(name) => name.to_string(),
    });
    let answer = json!({
        "model": model.name,
        "prompt": prepared.rendered.prompt,
        "token_ids": prepared.prompt,
        "count": prepared.prompt.len(),
        "max_model_len": model.context_len(),
        "starts_in": starts_in,
        "stop": prepared.stops.strings,
        "stop_token_ids": prepared.stops.tokens,
    });
    Ok(with_warnings(Json(answer).into_response(), &warnings))
}
