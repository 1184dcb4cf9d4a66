//! `POST /tokenize`: text or messages to token ids.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::common::{read_body, warnings, with_warnings};
use crate::error::ApiError;
use crate::state::ApiState;
use crate::wire::completion::{TokenizeInput, TokenizeRequest};
use crate::wire::fields::Fields;
use crate::{clock, prepare};

pub async fn post(State(state): State<ApiState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = TokenizeRequest::try_from(Fields::parse(&body)?)?;
    let model = state.model(request.model.as_deref())?;
    let (input, on) = (request.input, Arc::clone(&model));
    let (tokens, unread) = prepare::blocking(move || match input {
        TokenizeInput::Text { text, add_special } => {
            let tokens = on.text.tokenizer().encode(&text, add_special).map_err(|e| prepare::text_error(&e))?;
            Ok((tokens, Vec::new()))
        }
        TokenizeInput::Chat(prompt) => {
            let now = clock::rfc3339(clock::unix_seconds());
            let job = prepare::chat_job(&on, &prompt, now);
            let prepared = on.text.prepare_chat(&job).map_err(|e| prepare::text_error(&e))?;
            Ok((prepared.prompt, prepared.warnings))
        }
    })
    .await?;
    let warnings = warnings(&state, &request.ignored, unread)?;
    let tokenizer = model.text.tokenizer();
    let strings: Option<Vec<String>> = request.return_token_strs.then(|| {
        tokens.iter().map(|&token| String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned()).collect()
    });
    let answer = json!({
        "count": tokens.len(),
        "max_model_len": model.context_len(),
        "tokens": tokens,
        "token_strs": strings,
    });
    Ok(with_warnings(Json(answer).into_response(), &warnings))
}
