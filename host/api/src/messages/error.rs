//! Errors in Anthropic's shape: `{"type": "error", "error": {type, message}, "request_id"}`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::ApiError;

/// The `type` that Anthropic's clients know for a status. The field and the code stay in the message.
fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// The body of an error, plain or as the last event of a stream. `code` is ours: it tells apart what Anthropic's types
/// do not, such as a prompt that is too long.
pub fn body(error: &ApiError, request_id: Option<&str>) -> Value {
    let code = error.own_code.as_deref().unwrap_or(error.code.as_str());
    json!({
        "type": "error",
        "error": {"type": kind(error.status().as_u16()), "message": error.message, "code": code},
        "request_id": request_id,
    })
}

/// The OpenAI answer's status and headers around Anthropic's body.
pub fn response(error: ApiError, request_id: &str) -> Response {
    let body = Json(body(&error, Some(request_id))).into_response();
    let (mut parts, _) = error.into_response().into_parts();
    let (own, body) = body.into_parts();
    // The length is the other body's.
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    parts.headers.extend(own.headers);
    Response::from_parts(parts, body)
}
