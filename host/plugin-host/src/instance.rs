//! A store with a configured instance in it, ready for its first real call. The same for all kinds.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::Store;

use crate::bindings::Lifecycle;
use crate::metrics::Export;
use crate::plugin::Plugin;
use crate::sandbox::{Budget, Sandbox, Stopped, StoreData};

/// Fuel of instantiating, `configure` and the constructor of a scheduler: about a second.
pub(crate) const START_FUEL: u64 = 2_000_000_000;

pub(crate) struct Instance<B> {
    pub sandbox: Sandbox,
    pub bindings: B,
}

impl<B: Lifecycle> Instance<B> {
    /// Instantiates (which runs `start` functions) and configures, each within `time`.
    pub fn start(
        plugin: &Arc<Plugin>,
        time: Duration,
        instantiate: impl FnOnce(&mut Store<StoreData>) -> wasmtime::Result<B>,
    ) -> Result<Self, Stopped> {
        let budget = Budget { time, fuel: START_FUEL, input_bytes: 0 };
        let mut sandbox = Sandbox::new(plugin);
        let bindings = sandbox.call(Export::Instantiate, budget, instantiate)?;
        let settings = plugin.settings_json.as_str();
        let budget = Budget { input_bytes: settings.len(), ..budget };
        sandbox.ask(Export::Configure, budget, |store| bindings.configure(store, settings))?;
        Ok(Self { sandbox, bindings })
    }

    /// Name and version by the component's own account.
    pub fn describe(&mut self, time: Duration) -> Result<(String, String), Stopped> {
        let budget = Budget { time, fuel: START_FUEL, input_bytes: 0 };
        self.sandbox.call(Export::Describe, budget, |store| self.bindings.describe(store))
    }
}
