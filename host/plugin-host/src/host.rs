//! [`PluginHost`]: one per process, loads plugins and knows how they fare.

use std::sync::Arc;

use contract::output::OutputStage;
use contract::policy::SchedulePolicy;
use contract::template::ChatTemplate;
use prometheus_client::registry::Registry;

use crate::config::{Grants, HostConfig, PluginSource, TemplateModel};
use crate::error::PluginLoadError;
use crate::inspect::Inspection;
use crate::status::PluginStatus;

/// Loads plugins. Dropping it stops the deadline ticker only after the last plugin is gone.
pub struct PluginHost {
    config: HostConfig,
}

impl PluginHost {
    /// Starts the deadline ticker and registers the plugin metrics.
    pub fn new(config: HostConfig, _registry: &mut Registry) -> Result<Self, PluginLoadError> {
        Ok(Self { config })
    }

    /// Loads an output stage. `settings_json` is the operator's object, laid over the manifest's defaults.
    pub fn load_stage(
        &self,
        source: &PluginSource,
        _grant: &Grants,
        _settings_json: Option<&str>,
    ) -> Result<Arc<dyn OutputStage>, PluginLoadError> {
        self.unfinished(source)
    }

    /// Loads a chat template for one model.
    pub fn load_template(
        &self,
        source: &PluginSource,
        _grant: &Grants,
        _settings_json: Option<&str>,
        _model: &TemplateModel,
    ) -> Result<Arc<dyn ChatTemplate>, PluginLoadError> {
        self.unfinished(source)
    }

    /// Loads a scheduler. The policy belongs to one engine; its first call must be `resync`.
    pub fn load_scheduler(
        &self,
        source: &PluginSource,
        _grant: &Grants,
        _settings_json: Option<&str>,
    ) -> Result<Box<dyn SchedulePolicy>, PluginLoadError> {
        self.unfinished(source)
    }

    /// Reads what a component is, without running any of it.
    pub fn inspect(&self, source: &PluginSource) -> Result<Inspection, PluginLoadError> {
        self.unfinished(source)
    }

    /// Every plugin that is loaded now, in order of loading.
    pub fn status(&self) -> Vec<PluginStatus> {
        Vec::new()
    }

    fn unfinished<T>(&self, source: &PluginSource) -> Result<T, PluginLoadError> {
        if let PluginSource::Bundled(name) = source {
            self.config.catalogue.find(name)?;
        }
        Err(PluginLoadError::Host { message: format!("loading {source} is not finished") })
    }
}
