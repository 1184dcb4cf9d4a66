//! From settings to a running server: engines, models, plugins and the API, tied together once.

mod backends;
mod engines;
mod exchange;
mod folder;
mod generation;
mod models;
mod plugins;
mod running;
mod script;

use std::sync::Arc;

use anyhow::Context;
use api::{ApiOptions, ApiState, Keys, Loaded, ServedModel, Store};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

pub use running::Running;

use crate::report::Report;
use crate::settings::{EngineSettings, Settings};
pub(crate) use exchange::OnlyTemplate;
use exchange::{EnginePlace, Exchange};
use plugins::{PluginTable, Plugins};

/// The plugin that renders templates that are plain Jinja source: the model's own, and FILE.jinja.
pub const TEMPLATE_PLUGIN: &str = "jinja";

/// Starts a server. It answers `/health` while the models load, and this returns when they are there.
pub async fn serve(settings: Settings) -> anyhow::Result<Running> {
    let keys = match &settings.server.keys_file {
        Some(path) => crate::keys::read(path)?,
        None => Keys::default(),
    };
    let address = settings.server.address;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let (file, mib) = (settings.server.responses_file.as_deref(), settings.server.responses_mib_max);
    let responses = Store::open(file, u64::from(mib) << 20)?;
    let state = ApiState::new(api_options(&settings), keys, responses);
    let mut running = Running::start(listener, state.clone(), settings.server.shutdown_grace)?;
    // Loading maps files, compiles components and starts threads: not a task for the runtime's own threads.
    let served = state.clone();
    let wired = tokio::task::spawn_blocking(move || wire(&settings, served)).await.context("loading")??;
    running.opened(wired.report, wired.engines);
    state.open(wired.loaded)?;
    Ok(running)
}

fn api_options(settings: &Settings) -> ApiOptions {
    let server = &settings.server;
    let defaults = ApiOptions::default();
    ApiOptions {
        body_bytes_max: server.body_mib_max.map_or(defaults.body_bytes_max, |mib| (mib as usize) << 20),
        sequences_max: server.sequences_max.map_or(defaults.sequences_max, |n| n as usize),
        strict_fields: server.strict_fields,
        cors_origin: server.cors_origin.clone().or(defaults.cors_origin).filter(|origin| !origin.is_empty()),
        version: env!("CARGO_PKG_VERSION").to_string(),
        keep_alive: server.keep_alive.unwrap_or(defaults.keep_alive),
        first_event_wait: defaults.first_event_wait,
    }
}

struct Wired {
    loaded: Loaded,
    report: Report,
    engines: Vec<engine::Handle>,
}

fn wire(settings: &Settings, state: ApiState) -> anyhow::Result<Wired> {
    let mut registry = Registry::default();
    let plugins = Arc::new(Plugins::new(settings, &mut registry)?);
    let mut report = Report::new(&settings.warnings);
    let mut engines = Vec::with_capacity(settings.engines.len());
    for engine in &settings.engines {
        let wired = engines::start(engine, &plugins, &mut registry)
            .with_context(|| format!("engine `{}`: {}", engine.name, engine.source))?;
        report.engine(engine, &wired);
        engines.push(wired);
    }
    let mut models: Vec<ServedModel> = Vec::with_capacity(settings.models.len());
    let mut places = Vec::with_capacity(settings.models.len());
    for model in &settings.models {
        let wired =
            models::open(model, &engines[model.engine], &plugins).with_context(|| format!("model `{}`", model.name))?;
        report.model(model, &settings.engines[model.engine].name, &wired);
        models.push(wired.served);
        places.push(wired.place);
    }
    report.plugins(&plugins.effective());
    let engine_place = |(settings, wired): (&EngineSettings, &WiredEngine)| EnginePlace {
        name: settings.name.clone(),
        handle: wired.handle.clone(),
        scheduler: wired.scheduler_plugin.clone(),
    };
    let engine_places = settings.engines.iter().zip(&engines).map(engine_place).collect();
    let folder = settings.server.plugins_dir.clone();
    let exchange = Exchange::new(Arc::clone(&plugins), &state, folder, places, engine_places);
    let engines = engines.into_iter().map(|engine| engine.handle).collect();
    let rows = Arc::new(PluginTable { plugins, exchange });
    Ok(Wired { loaded: Loaded { models, registry, plugins: rows }, report, engines })
}

pub use engines::WiredEngine;
pub use models::WiredModel;
pub use plugins::bundled;
