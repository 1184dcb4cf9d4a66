//! `GET /ready`: whether requests can be served now, with reasons and the engines' pulse.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::EngineStatus;
use serde_json::{Value, json};

use crate::state::ApiState;

pub async fn get(State(state): State<ApiState>) -> (StatusCode, Json<Value>) {
    let Ok(open) = state.opened() else {
        let body = json!({"status": "loading", "reasons": ["the models are still loading"], "degraded": []});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body));
    };
    let mut reasons = Vec::new();
    let draining = state.0.admission.is_draining();
    if draining {
        reasons.push("the server is ending: running answers may finish, new requests are not taken".to_owned());
    }
    let mut degraded = open.plugins.degraded();
    let mut models = Vec::new();
    for model in &open.models() {
        let status = model.engine.status();
        if let Some(fault) = &status.fault {
            reasons.push(format!("model {}: the engine has stopped: {fault}", model.name));
        }
        // Two names over one engine share its fallbacks; each is listed once.
        for sentence in &status.degraded {
            if !degraded.contains(sentence) {
                degraded.push(sentence.clone());
            }
        }
        models.push(pulse(&model.name, &status));
    }
    let (code, word) = match (reasons.is_empty(), degraded.is_empty()) {
        _ if draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        (true, false) => (StatusCode::OK, "degraded"),
        (true, true) => (StatusCode::OK, "ready"),
    };
    (code, Json(json!({"status": word, "reasons": reasons, "degraded": degraded, "models": models})))
}

fn pulse(name: &str, status: &EngineStatus) -> Value {
    json!({
        "model": name,
        "waiting": status.waiting,
        "running": status.running,
        "steps": status.steps,
        "last_token_age_ms": status.last_token_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        "pages": {"used": status.pages_used, "cached": status.pages_cached, "total": status.pages_total},
        "engine": status.name,
        "scheduler": {"name": status.policy, "state": status.policy_state.as_str(), "strikes": status.strikes},
    })
}
