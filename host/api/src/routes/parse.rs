//! `POST /parse`: a model's chain of output stages on given text, without generating.
//!
//! The answer is the message that a chat request would have got if the model had said this. Text is tokenised as a
//! prompt is, so that markers become the tokens they are; token ids are taken as they are.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use contract::output::StageRequest;
use contract::template::Rendered;
use serde_json::{Value, json};
use text::{EndOfStream, OutputJob};

use super::common::{read_body, warnings, with_warnings};
use super::steps;
use crate::clock;
use crate::error::ApiError;
use crate::fold::message_of;
use crate::prepare::{self, text_error};
use crate::state::{ApiState, ServedModel};
use crate::wire::fields::Fields;
use crate::wire::parse::{Before, ParseRequest, Said};

/// With each step some hundred bytes of JSON, megabytes at most.
const STEPS_MAX: usize = 8192;

pub async fn post(State(state): State<ApiState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = ParseRequest::try_from(Fields::parse(&body)?)?;
    let model = state.model(request.model.as_deref())?;
    let warnings = warnings(&state, &request.ignored, Vec::new())?;
    let on = Arc::clone(&model);
    let answer = prepare::blocking(move || parse(&on, request)).await?;
    Ok(with_warnings(Json(answer).into_response(), &warnings))
}

fn parse(model: &ServedModel, request: ParseRequest) -> Result<Value, ApiError> {
    let ParseRequest { said, prompt, before, cut, steps, .. } = request;
    let tokens = match said {
        Said::Text(text) => model.text.tokenizer().encode(&text, false).map_err(|e| text_error(&e))?,
        Said::Tokens(tokens) => tokens,
    };
    prepare::check_vocabulary("tokens", &tokens, model.engine.limits().vocab)?;
    if steps && tokens.len() > STEPS_MAX {
        let message = format!("are shown for at most {STEPS_MAX} tokens, and these are {}", tokens.len());
        return Err(ApiError::invalid("steps", message));
    }
    let rendered = match before {
        Before::Prefix(turn_prefix) => Rendered { turn_prefix, ..Rendered::default() },
        Before::Messages => {
            let job = prepare::chat_job(model, &prompt, clock::rfc3339(clock::unix_seconds()));
            model.text.render_chat(&job).map_err(|e| text_error(&e))?
        }
    };
    let output = OutputJob {
        stage_request: StageRequest {
            tools: text::prepare::stage_tools(&prompt.tools).map_err(|e| text_error(&e))?,
            tool_choice: prompt.tool_choice,
            parallel_calls: prompt.parallel_calls,
            starts_in: rendered.starts_in,
            turn_prefix: rendered.turn_prefix,
            markers: Vec::new(),
        },
        skip_special_tokens: true,
        record_steps: steps,
        ..OutputJob::default()
    };
    let mut pipeline = model.text.open_output(&output).map_err(|e| text_error(&e))?;
    let mut pieces = Vec::with_capacity(tokens.len());
    let mut shown = Vec::new();
    for token in &tokens {
        let piece = pipeline.push(&[*token], Vec::new()).map_err(|e| text_error(&e))?;
        shown.extend(pipeline.last_step().map(|step| steps::row(model.text.tokenizer(), Some(*token), step, &piece)));
        pieces.push(piece);
    }
    // A stop that is no token: what ended the text is not part of it.
    let end = if cut { EndOfStream::Length } else { EndOfStream::StopToken(u32::MAX) };
    let piece = pipeline.finish(end).map_err(|e| text_error(&e))?;
    shown.extend(pipeline.last_step().map(|step| steps::row(model.text.tokenizer(), None, step, &piece)));
    pieces.push(piece);
    let usage = pipeline.usage();
    let mut answer = json!({
        "object": "parsed",
        "model": model.name,
        "message": message_of(pieces, model.options.reasoning_field),
        "finish_reason": pipeline.finish_reason(),
        "tokens": tokens.len(),
        "reasoning_tokens": usage.reasoning_tokens,
        "undeclared_calls": usage.undeclared_calls,
        "stage_violations": usage.stage_violations,
        "reasoning_disagrees": usage.reasoning_disagrees,
    });
    if steps {
        let stages: Vec<&str> = model.text.stages().iter().map(|stage| stage.name()).collect();
        answer["stages"] = json!(stages);
        answer["steps"] = Value::Array(shown);
    }
    Ok(answer)
}
