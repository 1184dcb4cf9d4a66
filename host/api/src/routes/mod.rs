//! The routes, and what they have in common. One file per endpoint.

mod abort;
pub(crate) mod chat;
pub(crate) mod common;
mod completions;
mod detokenize;
mod embeddings;
mod health;
mod metrics;
mod models;
mod parse;
mod plugins;
mod ready;
mod render;
mod steps;
mod tokenize;
mod ui;
mod version;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::error::{ApiError, Code, quoted};
use crate::messages::routes as messages;
use crate::responses::routes as responses;
use crate::state::ApiState;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer request id of a client is replaced by one of ours.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The whole HTTP surface over `state`.
pub fn router(state: ApiState) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::post))
        .route("/v1/chat/completions/render", post(render::post))
        .route("/v1/completions", post(completions::post))
        .route("/v1/embeddings", post(embeddings::post))
        .route("/v1/responses", post(responses::post))
        .route("/v1/responses/{id}", get(responses::get).delete(responses::delete))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(messages::post))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/tokenize", post(tokenize::post))
        .route("/parse", post(parse::post))
        .route("/abort", post(abort::post))
        .route("/detokenize", post(detokenize::post))
        .route("/plugins", get(plugins::get))
        .route("/plugins/{target}/{kind}", post(plugins::exchange))
        .route("/plugins/{target}/{kind}/rollback", post(plugins::roll_back))
        .route("/health", get(health::get))
        .route("/ready", get(ready::get))
        .route("/metrics", get(metrics::get))
        .route("/version", get(version::get))
        .route("/openapi.json", get(crate::openapi::get))
        .route("/ui", get(ui::page))
        .route("/ui/app.js", get(ui::script))
        .route("/ui/style.css", get(ui::style))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), around))
        .with_state(state)
}

/// A request's name in logs: the client's own, or ours.
#[derive(Clone)]
pub(crate) struct RequestId(pub Arc<str>);

/// Around every route: the request id, the CORS answer, one count.
async fn around(State(state): State<ApiState>, mut request: Request, next: Next) -> Response {
    let id = request_id(&state, request.headers());
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = if request.method() == Method::OPTIONS {
        StatusCode::NO_CONTENT.into_response()
    } else {
        next.run(request).await
    };
    state.0.metrics.answered(&route, response.status());
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, value);
    }
    cors(headers, state.0.options.cors_origin.as_deref());
    response
}

fn request_id(state: &ApiState, headers: &HeaderMap) -> Arc<str> {
    let own = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    match own.filter(|id| !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX) {
        Some(id) => id.into(),
        None => state.0.ids.name("req-").into(),
    }
}

fn cors(headers: &mut HeaderMap, origin: Option<&str>) {
    let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(origin).ok()) else { return };
    const SHOWN: &str = "x-request-id, retry-after, x-tokenloom-warning";
    const SENT: &str = "authorization, content-type, x-request-id, x-tenant, x-slo-ttft-ms, x-api-key, anthropic-version, anthropic-beta";
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(SENT));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SHOWN));
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::new(Code::RouteNotFound, format!("there is no route {}", quoted(request.uri().path())))
}

async fn wrong_method(request: Request) -> ApiError {
    let (method, path) = (request.method().as_str(), request.uri().path());
    ApiError::new(Code::MethodNotAllowed, format!("{} is not allowed on {}", quoted(method), quoted(path)))
}
