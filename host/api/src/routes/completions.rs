//! `POST /v1/completions`: text or token ids, one prompt or several, without template and stages.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::RequestId;
use super::chat::frame;
use super::common::{collected, json_text, read_body, streamed, terms, warnings, with_warnings};
use crate::error::ApiError;
use crate::fold::{Asked, TextChunks, TextFold};
use crate::generate::Events;
use crate::prepare::Job;
use crate::state::{ApiState, ServedModel};
use crate::wire::completion::Prompt;
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
    let (request, mut jobs, echoes) = prepare::blocking(move || {
        let jobs = request
            .prompts
            .iter()
            .map(|prompt| prepare::completion(&on, &request, prompt))
            .collect::<Result<Vec<Job>, ApiError>>()?;
        let echo = |(prompt, job): (&Prompt, &Job)| request.echo.then(|| echo(&on, prompt, job));
        let echoes: Vec<Option<Arc<str>>> = request.prompts.iter().zip(&jobs).map(echo).collect();
        Ok((request, jobs, echoes))
    })
    .await?;
    let common = request.common;
    // All prompts have one form: what holds for the first holds for all.
    let unheld = jobs.first_mut().map(|job| std::mem::take(&mut job.warnings)).unwrap_or_default();
    let warnings = warnings(&state, &common.ignored, unheld)?;

    let frame = frame(&state, &model, &common, "cmpl-", clock::unix_seconds());
    let asked = jobs.iter().zip(echoes).map(|(job, echo)| Asked { prompt_ids: Arc::clone(&job.prompt), echo });
    let asked = asked.flat_map(|asked| std::iter::repeat_n(asked, common.n as usize)).collect();
    let terms = terms(&state, id, &caller, &common, &frame.id);
    let events = Events::start(&state, &model, jobs, &terms, permit)?;
    let response = if common.stream {
        streamed(&state, events, TextChunks::new(frame, asked)).await?
    } else {
        let mut fold = TextFold::new(frame, asked);
        let events = collected(events, |event| fold.take(event)).await?;
        json_text(fold.finish(events.usage()))
    };
    Ok(with_warnings(response, &warnings))
}

/// A prompt as a text: as it was sent, or what its tokens spell.
fn echo(model: &ServedModel, prompt: &Prompt, job: &Job) -> Arc<str> {
    match prompt {
        Prompt::Text(text) => text.as_str().into(),
        Prompt::Tokens(_) => model.text.tokenizer().decode(&job.prompt, false).into(),
    }
}
