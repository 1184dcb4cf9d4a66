//! What the generating routes do alike: read the body, warn, wait for the first event, answer.

use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use super::RequestId;
use crate::auth::{Caller, namespace};
use crate::error::{ApiError, Code, capped};
use crate::generate::{Event, Events, Terms};
use crate::sse::{Chunks, Streamed};
use crate::state::ApiState;
use crate::wire::common::Common;
use crate::wire::foreign::Ignored;

/// What the client should know although its request was served.
pub const WARNING: HeaderName = HeaderName::from_static("x-tokenloom-warning");
/// Longest warning header, in bytes; proxies limit all headers together to a few kilobytes.
const WARNING_BYTES_MAX: usize = 1024;

/// The one variable part of a path. Bytes that are no text name nothing, which is a 404 like any other.
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(ApiError::new(Code::RouteNotFound, "the path is not UTF-8")),
        }
    }
}

/// Reads a body of at most the configured size.
pub async fn read_body(state: &ApiState, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let limit = state.0.options.body_bytes_max;
    let too_large =
        |found: &str| ApiError::new(Code::BodyTooLarge, format!("the body has {found}, the limit is {limit} bytes"));
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if let Some(length) = announced.filter(|&length| length > limit as u64) {
        return Err(too_large(&format!("{length} bytes")));
    }
    let mut data = body.into_data_stream();
    let mut whole = BytesMut::new();
    while let Some(part) = data.next().await {
        let part = part.map_err(|error| ApiError::new(Code::InvalidJson, format!("the body broke off: {error}")))?;
        if whole.len() + part.len() > limit {
            return Err(too_large("more bytes than were announced"));
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.freeze())
}

/// Strict mode, counting, and the text of the warning header.
pub fn warnings(state: &ApiState, ignored: &Ignored, mut more: Vec<String>) -> Result<Vec<String>, ApiError> {
    if state.0.options.strict_fields {
        ignored.check_strict()?;
    }
    let names: Vec<&str> = ignored.foreign.iter().chain(&ignored.unknown).map(String::as_str).collect();
    if !names.is_empty() {
        state.0.metrics.ignored_fields(names.len() as u64);
        more.insert(0, format!("ignored fields: {}", names.join(", ")));
    }
    Ok(more)
}

pub fn with_warnings(mut response: Response, warnings: &[String]) -> Response {
    if warnings.is_empty() {
        return response;
    }
    // A header holds visible ASCII only; field names come from the client.
    let text: String =
        warnings.join("; ").chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect();
    if let Ok(value) = HeaderValue::from_str(&capped(text, WARNING_BYTES_MAX)) {
        response.headers_mut().insert(WARNING, value);
    }
    response
}

pub fn terms(state: &ApiState, id: RequestId, caller: &Caller, common: &Common, answer_id: &str) -> Terms {
    let tenant = caller.tenant(common.user.as_deref());
    Terms {
        id: id.0,
        answer_id: answer_id.into(),
        namespace: namespace(&tenant, common.cache_salt.as_deref()),
        tenant,
        priority: common.priority,
        deadline: caller.deadline,
        seed: common.wishes.seed.unwrap_or_else(|| state.0.ids.number()),
        n: common.n,
    }
}

/// A streamed answer. The headers wait a moment for the first event, so that a request that is refused or fails at
/// once gets its own status instead of a 200.
pub async fn streamed<C: Chunks>(state: &ApiState, mut events: Events, chunks: C) -> Result<Response, ApiError> {
    let options = &state.0.options;
    let first = match tokio::time::timeout(options.first_event_wait, events.next()).await {
        Ok(Some(Ok(event))) => Some(event),
        Ok(Some(Err(error))) => return Err(error),
        Ok(None) | Err(_) => None,
    };
    let metrics = state.0.metrics.clone();
    Ok(Streamed { events, first, chunks, keep_alive: options.keep_alive, metrics }.into_response())
}

/// Feeds all events to `take` and gives back the finished stream for its usage.
pub async fn collected(mut events: Events, mut take: impl FnMut(Event)) -> Result<Events, ApiError> {
    while let Some(event) = events.next().await {
        take(event?);
    }
    Ok(events)
}

pub fn json_text(json: String) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response()
}
