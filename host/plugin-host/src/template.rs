//! A template component as [`ChatTemplate`]: a small pool of stores, each with the model's template loaded.
//!
//! Rendering is a pure function, so any store will do; one is thrown away after a failure and after
//! [`RENDERS_PER_STORE`] renders. Whatever goes wrong is the request's fault towards the client, never a server error.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::output::{Channel, TURN_PREFIX_BYTES_MAX};
use contract::template::{ChatTemplate, Rendered};
use contract::{Failures, PluginError, Severity};

use crate::bindings::template::{TemplatePlugin, TemplatePluginPre, wit};
use crate::config::TemplateModel;
use crate::convert::{channel, cut_left};
use crate::error::PluginLoadError;
use crate::host::check_name;
use crate::instance::{Instance, START_FUEL};
use crate::metrics::Export;
use crate::plugin::Plugin;
use crate::sandbox::{Budget, Cause, Stopped, TIMED};

/// Idle stores that are kept. Rendering takes a millisecond, so few are ever needed at once.
const IDLE_MAX: usize = 8;
/// Stores at work at once; with the memory limit this bounds what templates can take (64 x 64 MiB by default).
const BUSY_MAX: usize = 64;
/// A store is renewed after this many renders, so that a slow leak in a guest never matters.
const RENDERS_PER_STORE: u32 = 256;
/// Stop strings and extras of one template.
const STOP_MAX: usize = 64;
const EXT_MAX: usize = 64;

pub(crate) struct WasmTemplate {
    plugin: Arc<Plugin>,
    pre: TemplatePluginPre<crate::sandbox::StoreData>,
    model: wit::ModelInfo,
    idle: Mutex<Vec<Loaded>>,
    busy: AtomicUsize,
}

struct Loaded {
    instance: Instance<TemplatePlugin>,
    renders: u32,
}

impl WasmTemplate {
    pub fn load(
        plugin: Arc<Plugin>,
        pre: TemplatePluginPre<crate::sandbox::StoreData>,
        model: &TemplateModel,
        time: Duration,
        has_manifest: bool,
    ) -> Result<Self, PluginLoadError> {
        let setting = |(key, value): &(String, String)| wit::Setting { key: key.clone(), value: value.clone() };
        let model = wit::ModelInfo {
            template_source: model.template_source.clone(),
            special_tokens: model.special_tokens.iter().map(setting).collect(),
            ext: Vec::new(),
        };
        let template = Self { plugin, pre, model, idle: Mutex::new(Vec::new()), busy: AtomicUsize::new(0) };
        let name = &template.plugin.name;
        let mut first = template.fresh(time).map_err(|stopped| stopped.into_load_error(name))?;
        let described = first.instance.describe(time).map_err(|stopped| stopped.into_load_error(name))?;
        if has_manifest {
            check_name(&template.plugin, described)?;
        }
        template.give_back(first);
        Ok(template)
    }

    fn fresh(&self, time: Duration) -> Result<Loaded, Stopped> {
        let mut instance = Instance::start(&self.plugin, time, |store| self.pre.instantiate(store))?;
        let input_bytes = self.model.template_source.as_ref().map_or(0, String::len);
        let budget = Budget { time, fuel: START_FUEL, input_bytes };
        let bindings = &instance.bindings;
        instance
            .sandbox
            .ask(Export::Load, budget, |store| bindings.tokenloom_template_template().call_load(store, &self.model))?;
        Ok(Loaded { instance, renders: 0 })
    }

    fn give_back(&self, loaded: Loaded) {
        if loaded.renders < RENDERS_PER_STORE && !loaded.instance.sandbox.is_dead() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(loaded);
            }
        }
    }

    /// One attempt. `reuse: false` insists on a fresh store.
    fn attempt(&self, request_json: &str, reuse: bool) -> Result<wit::Rendered, Stopped> {
        let time = self.plugin.limits.call;
        let idle = if reuse { self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() } else { None };
        let mut loaded = match idle {
            Some(loaded) => loaded,
            None => self.fresh(time)?,
        };
        loaded.renders += 1;
        let budget = Budget { time, fuel: TIMED, input_bytes: request_json.len() };
        let Instance { sandbox, bindings } = &mut loaded.instance;
        let rendered = sandbox.ask(Export::Render, budget, |store| {
            bindings.tokenloom_template_template().call_render(store, request_json)
        });
        self.give_back(loaded);
        rendered
    }

    fn render_within(&self, request_json: &str) -> Result<wit::Rendered, Stopped> {
        let retry = |stopped: &Stopped| match &stopped.refusal {
            Some(refusal) => refusal.severity == Severity::RetryOnce,
            // A late render would be late again, at the same cost; state of an earlier render may explain the rest.
            None => stopped.cause != Cause::Late,
        };
        match self.attempt(request_json, true) {
            Err(stopped) if retry(&stopped) => {
                self.plugin.meters.replayed();
                self.attempt(request_json, false)
            }
            other => other,
        }
    }

    fn checked(&self, rendered: wit::Rendered) -> Result<Rendered, Stopped> {
        if rendered.stop.len() > STOP_MAX || rendered.ext.len() > EXT_MAX {
            let message = format!(
                "{} stop strings and {} extras; at most {STOP_MAX} and {EXT_MAX} are allowed",
                rendered.stop.len(),
                rendered.ext.len()
            );
            let stopped = Stopped::new(Export::Render, Cause::Violation, message);
            self.plugin.meters.stopped(&stopped);
            return Err(stopped);
        }
        let starts_in: Option<Channel> = rendered.starts_in.map(channel);
        Ok(Rendered {
            prompt: rendered.prompt,
            turn_prefix: cut_left(rendered.turn_prefix, TURN_PREFIX_BYTES_MAX),
            starts_in,
            stop: rendered.stop.into_iter().filter(|stop| !stop.is_empty()).collect(),
            ext: rendered.ext.into_iter().map(|setting| (setting.key, setting.value)).collect(),
        })
    }
}

impl ChatTemplate for WasmTemplate {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn serial(&self) -> u64 {
        self.plugin.serial
    }

    fn failures(&self) -> Failures {
        self.plugin.meters.failures()
    }

    fn render(&self, request_json: &str) -> Result<Rendered, PluginError> {
        let name = &self.plugin.name;
        if self.busy.fetch_add(1, Relaxed) >= BUSY_MAX {
            self.busy.fetch_sub(1, Relaxed);
            let message = format!("{BUSY_MAX} requests are being rendered at this moment");
            return Err(PluginError::new(name, Severity::RetryOnce, "plugin-busy", message));
        }
        let rendered = self.render_within(request_json).and_then(|rendered| self.checked(rendered));
        self.busy.fetch_sub(1, Relaxed);
        rendered.map_err(|stopped| {
            if stopped.cause != Cause::Refused {
                self.plugin.meters.fell_back();
                tracing::warn!("template `{name}` failed in {}: {}", stopped.export.as_str(), stopped.message);
            }
            // Whatever the plugin thinks of it: a request that cannot be rendered is answered with a 400.
            PluginError { severity: Severity::RejectRequest, ..stopped.into_error(name, Severity::RejectRequest) }
        })
    }
}
