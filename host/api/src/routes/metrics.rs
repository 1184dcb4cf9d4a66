//! `GET /metrics`: everything the process measures, in the Prometheus text format.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, Code};
use crate::state::ApiState;

const CONTENT_TYPE: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

pub async fn get(State(state): State<ApiState>) -> Result<Response, ApiError> {
    let open = state.opened()?;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &open.registry)
        .map_err(|error| ApiError::new(Code::Internal, format!("the metrics could not be written: {error}")))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
