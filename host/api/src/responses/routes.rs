//! `POST /v1/responses`, and what was kept: `GET` and `DELETE /v1/responses/{id}`, `GET …/{id}/input_items`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::{Answer, PREFIX, ResponseChunks};
use super::items::reference;
use super::request::{ID_BYTES_MAX, NAMES, ResponsesRequest};
use super::store::{Keeper, Record, Store, StoreError};
use crate::error::{ApiError, Code, quoted};
use crate::generate::Events;
use crate::routes::RequestId;
use crate::routes::chat::frame;
use crate::routes::common::{PathName, collected, json_text, read_body, streamed, terms, warnings, with_warnings};
use crate::state::ApiState;
use crate::translate::renamed;
use crate::wire::fields::Fields;
use crate::{clock, prepare};

/// Turns that one request may go back. A longer conversation is one whose client should send its messages.
const TURNS_MAX: usize = 1024;

pub async fn post(
    State(state): State<ApiState>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let body = read_body(&state, &headers, body).await?;
    let request = ResponsesRequest::try_from(Fields::parse(&body)?)?;
    drop(body);
    let tenant = caller.keyed().map(|name| name.to_string());
    let (request, history) = load(&state, request, tenant.clone()).await?;
    let (input, store, mut echo) = (request.input.clone(), request.store, request.echo.clone());
    let chat = request.into_chat(&history)?;
    let model = state.model(chat.common.model.as_deref())?;
    let permit = state.0.admission.admit(1)?;
    let created = clock::unix_seconds();

    let (common, job, unread) =
        prepare::chat(&model, chat.common, chat.prompt, created).await.map_err(|error| renamed(error, NAMES))?;
    let warnings = warnings(&state, &common.ignored, unread)?;
    echo.insert("temperature".into(), json!(job.sampling.temperature));
    echo.insert("top_p".into(), json!(job.sampling.top_p));
    let parallel = echo["parallel_tool_calls"].as_bool().unwrap_or(true);
    echo.insert("parallel_tool_calls".into(), json!(parallel));

    let frame = frame(&state, &model, &common, PREFIX, created);
    let terms = terms(&state, id, &caller, &common, &frame.id);
    let mut answer = Answer::new(frame, echo);
    let keeper = store.then(|| Keeper { store: Arc::clone(&state.0.responses), tenant, input });
    let events = Events::start(&state, &model, vec![job], &terms, permit)?;
    let response = if common.stream {
        streamed(&state, events, ResponseChunks { answer, keeper }).await?
    } else {
        let events = collected(events, |event| answer.take(event, &mut Vec::new())).await?;
        let response = answer.finish(events.usage());
        if let Some(keeper) = keeper {
            keeper.keep(response.clone()).await;
        }
        json_text(response.to_string())
    };
    Ok(with_warnings(response, &warnings))
}

/// The items of the turns before, and the request with its references resolved.
async fn load(
    state: &ApiState,
    mut request: ResponsesRequest,
    tenant: Option<String>,
) -> Result<(ResponsesRequest, Vec<Value>), ApiError> {
    if request.previous.is_none() && !request.input.iter().any(|item| reference(item).is_some()) {
        return Ok((request, Vec::new()));
    }
    let store = Arc::clone(&state.0.responses);
    prepare::blocking(move || {
        for (i, item) in request.input.iter_mut().enumerate() {
            if let Some(id) = reference(item) {
                *item = referred(&store, id, tenant.as_deref()).map_err(|mut error| {
                    error.param = Some(format!("input[{i}].id"));
                    error
                })?;
            }
        }
        let mut turns: Vec<Record> = Vec::new();
        let mut next = request.previous.clone();
        while let Some(id) = next {
            let mut record = find(&store, &id, tenant.as_deref());
            if let Err(error) = &mut record {
                error.param = Some("previous_response_id".into());
            }
            let record = record?;
            if turns.len() == TURNS_MAX {
                let message = format!("goes back more than {TURNS_MAX} turns; send the messages as input");
                return Err(ApiError::invalid("previous_response_id", message));
            }
            next = record.previous().map(str::to_owned);
            turns.push(record);
        }
        let items = |record: &Record| record.input.iter().chain(record.output()).cloned().collect::<Vec<_>>();
        let history = turns.iter().rev().flat_map(items).collect();
        Ok((request, history))
    })
    .await
}

/// An item of an earlier answer, by the id that [`Answer`] gave it: a prefix, the answer's own name, its place.
fn referred(store: &Store, id: &str, tenant: Option<&str>) -> Result<Value, ApiError> {
    let unknown = || not_found(&format!("there is no item \"{}\" here", quoted(id)));
    let (_, rest) = id.split_once('_').ok_or_else(unknown)?;
    let (name, at) = rest.rsplit_once('_').ok_or_else(unknown)?;
    let at: usize = at.parse().map_err(|_| unknown())?;
    let record = find(store, &format!("{PREFIX}{name}"), tenant).map_err(|_| unknown())?;
    record.output().get(at).filter(|item| item["id"] == id).cloned().ok_or_else(unknown)
}

/// Another tenant's answers are not there.
fn find(store: &Store, id: &str, tenant: Option<&str>) -> Result<Record, ApiError> {
    let record = if id.len() > ID_BYTES_MAX { None } else { store.get(id).map_err(|e| broken(&e))? };
    record.filter(|record| record.tenant.as_deref() == tenant).ok_or_else(|| {
        let why = "it was never kept, was deleted, or made room for younger ones";
        not_found(&format!("there is no response \"{}\" here: {why}", quoted(id)))
    })
}

fn not_found(message: &str) -> ApiError {
    ApiError::new(Code::ResponseNotFound, message)
}

fn broken(error: &StoreError) -> ApiError {
    tracing::error!(%error, "the store of responses");
    ApiError::new(Code::Internal, "the store of responses failed inside the server")
}

async fn kept(state: &ApiState, headers: &HeaderMap, id: String) -> Result<Record, ApiError> {
    let tenant = state.0.keys.caller(headers)?.keyed().map(|name| name.to_string());
    let store = Arc::clone(&state.0.responses);
    prepare::blocking(move || find(&store, &id, tenant.as_deref())).await
}

pub async fn get(
    State(state): State<ApiState>,
    headers: HeaderMap,
    PathName(id): PathName,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    if query.is_some_and(|query| query.split('&').any(|pair| pair == "stream=true")) {
        let message = "is not supported: only false is accepted; an answer is kept once it is whole";
        return Err(ApiError::field(Code::UnsupportedField, "stream", message));
    }
    Ok(Json(kept(&state, &headers, id).await?.response))
}

pub async fn delete(
    State(state): State<ApiState>,
    headers: HeaderMap,
    PathName(id): PathName,
) -> Result<Json<Value>, ApiError> {
    kept(&state, &headers, id.clone()).await?;
    let (store, name) = (Arc::clone(&state.0.responses), id.clone());
    prepare::blocking(move || store.remove(&name).map_err(|e| broken(&e))).await?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

pub async fn input_items(
    State(state): State<ApiState>,
    headers: HeaderMap,
    PathName(id): PathName,
) -> Result<Json<Value>, ApiError> {
    let input = kept(&state, &headers, id).await?.input;
    let end = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    let (first, last) = (end(input.first()), end(input.last()));
    Ok(Json(json!({"object": "list", "data": input, "first_id": first, "last_id": last, "has_more": false})))
}
