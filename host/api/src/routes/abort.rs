//! `POST /abort`: calls off a request that runs or waits, by its request id or by the id of its answer.
//!
//! Its stream ends with an error event, its plain answer is a 499. A request that has ended already is no error: the
//! caller cannot know.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::common::{read_body, warnings, with_warnings};
use crate::error::ApiError;
use crate::state::ApiState;
use crate::wire::abort::AbortRequest;
use crate::wire::fields::Fields;

pub async fn post(State(state): State<ApiState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = AbortRequest::try_from(Fields::parse(&body)?)?;
    let warnings = warnings(&state, &request.ignored, Vec::new())?;
    let tenant = caller.keyed().map(|name| &**name);
    let aborted = state.0.running.abort(&request.request_id, tenant);
    let answer = json!({"object": "abort", "request_id": request.request_id, "aborted": aborted});
    Ok(with_warnings(Json(answer).into_response(), &warnings))
}
