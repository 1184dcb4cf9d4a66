//! `tokenloom:host/log`: lines in the server's log, marked with the plugin's name.

use crate::bindings::host::log::{Host, Level};
use crate::clean::clean;
use crate::sandbox::StoreData;

impl Host for StoreData {
    /// Lines over the quota of a call are dropped: a talkative plugin is no reason to fail a request.
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        let plugin = &self.plugin.name;
        match self.quotas.log_lines {
            0 => return Ok(()),
            1 => tracing::warn!(plugin, "more log lines than one call may write; the rest of this call's are dropped"),
            _ => {
                let message = clean(&message);
                match level {
                    Level::Debug => tracing::debug!(plugin, "{message}"),
                    Level::Info => tracing::info!(plugin, "{message}"),
                    Level::Warn => tracing::warn!(plugin, "{message}"),
                    Level::Error => tracing::error!(plugin, "{message}"),
                }
            }
        }
        self.quotas.log_lines -= 1;
        Ok(())
    }
}
