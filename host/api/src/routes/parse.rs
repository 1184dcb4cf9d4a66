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
use crate::clock;
use crate::error::ApiError;
use crate::fold::message_of;
use crate::prepare::{self, text_error};
use crate::state::{ApiState, ServedModel};
use crate::wire::fields::Fields;
use crate::wire::parse::{Before, ParseRequest, Said};

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
    let ParseRequest { said, prompt, before, cut, .. } = request;
    let tokens = match said {
        Said::Text(text) => model.text.tokenizer().encode(&text, false).map_err(|e| text_error(&e))?,
        Said::Tokens(tokens) => tokens,
    };
    prepare::check_vocabulary("tokens", &tokens, model.engine.limits().vocab)?;
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
        ..OutputJob::default()
    };
    let mut pipeline = model.text.open_output(&output).map_err(|e| text_error(&e))?;
    let mut pieces = Vec::with_capacity(tokens.len());
    for token in &tokens {
        pieces.push(pipeline.push(&[*token], Vec::new()).map_err(|e| text_error(&e))?);
    }
    // A stop that is no token: what ended the text is not part of it.
    let end = if cut { EndOfStream::Length } else { EndOfStream::StopToken(u32::MAX) };
    pieces.push(pipeline.finish(end).map_err(|e| text_error(&e))?);
    let usage = pipeline.usage();
    Ok(json!({
        "object": "parsed",
        "model": model.name,
        "message": message_of(pieces, model.options.reasoning_field),
        "finish_reason": pipeline.finish_reason(),
        "tokens": tokens.len(),
        "reasoning_tokens": usage.reasoning_tokens,
        "undeclared_calls": usage.undeclared_calls,
        "stage_violations": usage.stage_violations,
        "reasoning_disagrees": usage.reasoning_disagrees,
    }))
}
