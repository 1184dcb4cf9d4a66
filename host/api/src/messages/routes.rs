//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::answer::{Answer, MessageChunks, PREFIX};
use super::error;
use super::request::{NAMES, Purpose, chat_request};
use crate::error::ApiError;
use crate::generate::Events;
use crate::routes::RequestId;
use crate::routes::chat::frame;
use crate::routes::common::{collected, json_text, read_body, streamed, terms, warnings, with_warnings};
use crate::state::ApiState;
use crate::translate::renamed;
use crate::wire::fields::Fields;
use crate::{clock, prepare};

pub async fn post(
    State(state): State<ApiState>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let name = Arc::clone(&id.0);
    answer(state, id, headers, body).await.unwrap_or_else(|e| error::response(e, &name))
}

async fn answer(state: ApiState, id: RequestId, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = chat_request(Fields::parse(&body)?, Purpose::Generate)?;
    drop(body);
    let model = state.model(request.common.model.as_deref())?;
    let permit = state.0.admission.admit(1)?;
    let created = clock::unix_seconds();

    let (common, job, unread) =
        prepare::chat(&model, request.common, request.prompt, created).await.map_err(|error| renamed(error, NAMES))?;
    let warnings = warnings(&state, &common.ignored, unread)?;

    let frame = frame(&state, &model, &common, PREFIX, created);
    let terms = terms(&state, id, &caller, &common, &frame.id);
    let mut answer = Answer::new(frame);
    let events = Events::start(&state, &model, vec![job], &terms, permit)?;
    let response = if common.stream {
        streamed(&state, events, MessageChunks(answer)).await?
    } else {
        let events = collected(events, |event| answer.take(event, Default::default(), &mut Vec::new())).await?;
        json_text(answer.finish(events.usage()).to_string())
    };
    Ok(with_warnings(response, &warnings))
}

pub async fn count_tokens(
    State(state): State<ApiState>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    count(state, headers, body).await.unwrap_or_else(|e| error::response(e, &id.0))
}

async fn count(state: ApiState, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = chat_request(Fields::parse(&body)?, Purpose::Count)?;
    let model = state.model(request.common.model.as_deref())?;
    let (prompt, on) = (request.prompt, Arc::clone(&model));
    let prepared = prepare::blocking(move || {
        let job = prepare::chat_job(&on, &prompt, clock::rfc3339(clock::unix_seconds()));
        on.text.prepare_chat(&job).map_err(|e| prepare::text_error(&e))
    })
    .await?;
    let warnings = warnings(&state, &request.common.ignored, prepared.warnings)?;
    Ok(with_warnings(Json(json!({"input_tokens": prepared.prompt.len()})).into_response(), &warnings))
}
