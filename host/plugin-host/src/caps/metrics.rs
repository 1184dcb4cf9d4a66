//! `tokenloom:host/metrics`: numbers of the plugin's own, under the server's `/metrics`.

use crate::bindings::host::metrics::Host;
use crate::sandbox::StoreData;

impl StoreData {
    /// Whether one more point may be recorded; points over the quota of a call are dropped.
    fn metric_allowed(&mut self, value: f64) -> bool {
        let allowed = self.quotas.metric_points > 0 && value.is_finite();
        self.quotas.metric_points = self.quotas.metric_points.saturating_sub(1);
        allowed
    }
}

impl Host for StoreData {
    /// Counters only go up: a negative value is dropped.
    fn add(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        if self.metric_allowed(value) && value >= 0.0 {
            self.plugin.meters.own_add(&name, value);
        }
        Ok(())
    }

    fn observe(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        if self.metric_allowed(value) {
            self.plugin.meters.own_observe(&name, value);
        }
        Ok(())
    }
}
