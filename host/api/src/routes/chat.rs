//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::RequestId;
use super::common::{collected, json_text, read_body, streamed, terms, warnings, with_warnings};
use crate::error::ApiError;
use crate::fold::{ChatChunks, ChatFold, Frame};
use crate::generate::Events;
use crate::state::{ApiState, ServedModel};
use crate::wire::common::Common;
use crate::{clock, prepare, wire};

pub async fn post(
    State(state): State<ApiState>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = wire::decode_chat(&body)?;
    drop(body);
    let model = state.model(request.common.model.as_deref())?;
    let permit = state.0.admission.admit(request.common.n)?;
    let created = clock::unix_seconds();

    let (common, job, unread) = prepare::chat(&model, request.common, request.prompt, created).await?;
    let warnings = warnings(&state, &common.ignored, unread)?;

    let frame = frame(&state, &model, &common, "chatcmpl-", created);
    let (field, prompt_ids) = (model.options.reasoning_field, Arc::clone(&job.prompt));
    let terms = terms(&state, id, &caller, &common, &frame.id);
    let events = Events::start(&state, &model, vec![job], &terms, permit)?;
    let choices = common.n as usize;
    let response = if common.stream {
        streamed(&state, events, ChatChunks::new(frame, field, prompt_ids, choices)).await?
    } else {
        let mut fold = ChatFold::new(frame, field, prompt_ids, choices);
        let events = collected(events, |event| fold.take(event)).await?;
        json_text(fold.finish(events.usage()))
    };
    Ok(with_warnings(response, &warnings))
}

/// What all parts of the answer share.
pub fn frame(state: &ApiState, model: &ServedModel, common: &Common, prefix: &str, created: u64) -> Frame {
    Frame {
        id: state.0.ids.name(prefix),
        created,
        model: model.name.clone(),
        tokenizer: model.text.tokenizer().clone(),
        logprobs: common.wishes.logprobs,
        prompt_logprobs: common.prompt_logprobs,
        wants_token_ids: common.return_token_ids,
        include_usage: common.include_usage,
        continuous_usage: common.continuous_usage,
    }
}
