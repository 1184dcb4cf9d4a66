//! `GET /plugins`: what is loaded and how it behaves. `POST /plugins/{engine|model}/{kind}` exchanges one while streams
//! run, `.../rollback` goes back; both for a key with `admin = true`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::common::read_body;
use crate::error::{ApiError, Code};
use crate::exchange::{ExchangeError, ExchangeOrder, Place, allow};
use crate::state::{ApiState, ServedModel};

pub async fn get(State(state): State<ApiState>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    let caller = state.0.keys.caller(&headers)?;
    let open = state.opened()?;
    let places = places(&open.models());
    let mut rows = open.plugins.rows();
    for row in &mut rows {
        if !caller.is_admin() {
            withhold(row);
        }
        let Some(id) = row["id"].as_u64() else { continue };
        let serving = places.iter().filter(|place| place.chain.iter().any(|(_, serial)| *serial == id));
        row["serves"] = serving.map(|place| json!(format!("{}/{}", place.target, place.kind))).collect();
    }
    let places: Vec<Value> = places.iter().map(PluginPlace::row).collect();
    Ok(Json(json!({"object": "list", "data": rows, "places": places})))
}

/// What made a candidate differ quotes somebody's answer: it is for who may exchange plugins.
fn withhold(row: &mut Value) {
    let Some(exchange) = row.get_mut("exchange").and_then(Value::as_object_mut) else { return };
    if exchange.get("state").is_some_and(|state| state == "refused") {
        exchange.remove("why");
    }
    if let Some(shadow) = exchange.get_mut("shadow").and_then(Value::as_object_mut) {
        shadow.remove("first_difference");
    }
}

/// Where plugins serve, and which ones do now.
struct PluginPlace {
    target: String,
    kind: &'static str,
    /// Names and numbers; a number of 0 is the host's own.
    chain: Vec<(String, u64)>,
    /// Of a scheduler: who decides, and strikes that count.
    policy: Option<(&'static str, u32)>,
}

impl PluginPlace {
    fn row(&self) -> Value {
        let chain: Vec<Value> = self.chain.iter().map(|(name, id)| json!({"name": name, "id": id})).collect();
        let mut row = json!({"target": self.target, "kind": self.kind, "chain": chain});
        if let Some((state, strikes)) = self.policy {
            row["state"] = json!(state);
            row["strikes"] = json!(strikes);
        }
        row
    }
}

/// The places of `POST /plugins/…`, as new requests find them.
fn places(models: &[Arc<ServedModel>]) -> Vec<PluginPlace> {
    let mut places: Vec<PluginPlace> = Vec::new();
    for model in models {
        let target = || model.name.clone();
        let stages = model.text.stages().iter().map(|stage| (stage.name().to_owned(), stage.serial()));
        places.push(PluginPlace { target: target(), kind: "output", chain: stages.collect(), policy: None });
        let template = model.text.template().map(|template| (template.name().to_owned(), template.serial()));
        places.push(PluginPlace {
            target: target(),
            kind: "template",
            chain: template.into_iter().collect(),
            policy: None,
        });
        let engine = model.engine.status();
        // Two names may share an engine.
        if places.iter().all(|place| place.kind != "scheduler" || place.target != engine.name) {
            let policy = Some((engine.policy_state.as_str(), engine.strikes));
            let chain = vec![(engine.policy, engine.policy_serial)];
            places.push(PluginPlace { target: engine.name, kind: "scheduler", chain, policy });
        }
    }
    places
}

pub async fn exchange(
    State(state): State<ApiState>,
    Path((target, kind)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    allow(&state.0.keys.caller(&headers)?)?;
    let body = read_body(&state, &headers, body).await?;
    let order = ExchangeOrder::read(Place { target, kind }, &body)?;
    let plugins = state.opened()?.plugins.clone();
    blocking(move || plugins.exchange(&order)).await
}

pub async fn roll_back(
    State(state): State<ApiState>,
    Path((target, kind)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    allow(&state.0.keys.caller(&headers)?)?;
    let plugins = state.opened()?.plugins.clone();
    blocking(move || plugins.roll_back(&Place { target, kind })).await
}

/// Compiling and a shadow period take seconds: not a task for the runtime's own threads.
async fn blocking(
    work: impl FnOnce() -> Result<Value, ExchangeError> + Send + 'static,
) -> Result<Json<Value>, ApiError> {
    let outcome = tokio::task::spawn_blocking(work).await;
    let outcome = outcome.map_err(|e| ApiError::new(Code::Internal, format!("the exchange broke off: {e}")))?;
    Ok(Json(outcome?))
}
