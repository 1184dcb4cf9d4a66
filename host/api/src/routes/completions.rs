//! `POST /v1/completions`: text or token ids, one prompt or several, without template and stages.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use contract::TokenId;

use super::RequestId;
use super::chat::frame;
use super::common::{collected, json_text, read_body, streamed, terms, warnings, with_warnings};
use crate::error::ApiError;
use crate::fold::{TextChunks, TextFold};
use crate::generate::Events;
use crate::prepare::Job;
use crate::state::ApiState;
use crate::{clock, prepare, wire};

pub async fn post(
    State(state): State<ApiState>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = wire::decode_completion(&body)?;
    drop(body);
    let model = state.model(request.common.model.as_deref())?;
    let sequences = u32::try_from(request.prompts.len()).unwrap_or(u32::MAX).saturating_mul(request.common.n);
    let permit = state.0.admission.admit(sequences)?;

    let on = Arc::clone(&model);
    let (request, mut jobs) = prepare::blocking(move || {
        let jobs = request
            .prompts
            .iter()
            .map(|prompt| prepare::completion(&on, &request.common, prompt, request.add_special_tokens))
            .collect::<Result<Vec<Job>, ApiError>>()?;
        Ok((request, jobs))
    })
    .await?;
    let common = request.common;
    // All prompts have one form: what holds for the first holds for all.
    let unheld = jobs.first_mut().map(|job| std::mem::take(&mut job.warnings)).unwrap_or_default();
    let warnings = warnings(&state, &common.ignored, unheld)?;

    let frame = frame(&state, &model, &common, "cmpl-", clock::unix_seconds());
    let prompts: Vec<Arc<[TokenId]>> =
        jobs.iter().flat_map(|job| (0..common.n).map(|_| Arc::clone(&job.prompt))).collect();
    let terms = terms(&state, id, &caller, &common, &frame.id);
    let events = Events::start(&state, &model, jobs, &terms, permit)?;
    let response = if common.stream {
        streamed(&state, events, TextChunks::new(frame, prompts)).await?
    } else {
        let mut fold = TextFold::new(frame, prompts);
        let events = collected(events, |event| fold.take(event)).await?;
        json_text(fold.finish(events.usage()))
    };
    Ok(with_warnings(response, &warnings))
}
