//! `POST /detokenize`: token ids to text, special tokens included.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::common::{read_body, warnings, with_warnings};
use crate::error::ApiError;
use crate::state::ApiState;
use crate::wire::completion::DetokenizeRequest;
use crate::wire::fields::Fields;

pub async fn post(State(state): State<ApiState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = DetokenizeRequest::try_from(Fields::parse(&body)?)?;
    let model = state.model(request.model.as_deref())?;
    let warnings = warnings(&state, &request.ignored, Vec::new())?;
    let vocab = model.engine.limits().vocab;
    crate::prepare::check_vocabulary("tokens", &request.tokens, vocab)?;
    let text = model.text.tokenizer().decode(&request.tokens, false);
    Ok(with_warnings(Json(json!({"prompt": text})).into_response(), &warnings))
}
