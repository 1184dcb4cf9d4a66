//! One store, and the only way to call into it: with a deadline, fuel, an answer limit and quotas, timed and counted.
//!
//! After any failed call a store is dead: wasmtime refuses every instance in it. [`Sandbox`] remembers that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::{PluginError, Severity};
use wasmtime::{ResourceLimiter, Store, Trap};

use crate::bindings::output::types;
use crate::caps::Quotas;
use crate::clean::{clean, plugin_error};
use crate::error::PluginLoadError;
use crate::limits::OUTPUT_PER_INPUT;
use crate::metrics::Export;
use crate::plugin::Plugin;

/// Core instances, tables and memories of one store. A component made from one module has about four instances, a Python one
/// some fifty: the interpreter and each of its libraries is a module with others around it.
const INSTANCES_MAX: usize = 128;
const TABLES_MAX: usize = 16;
const MEMORIES_MAX: usize = 8;
/// Function tables of large guests have some ten thousand elements.
const TABLE_ELEMENTS_MAX: usize = 200_000;
/// Live handles; a stage needs one per stream.
const HANDLES_MAX: usize = 4096;

/// Why a call was stopped, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// Deadline or fuel.
    Late,
    Memory,
    /// An answer over the size limit.
    Output,
    Stack,
    /// A panic, or any other wasm trap.
    Trap,
    /// Too many or too large calls of host functions.
    Quota,
    /// An answer that breaks the interface's rules.
    Violation,
    /// The plugin's own typed error.
    Refused,
    /// Another stream's failure took the shared store along; not counted as this plugin's trap again.
    Neighbour,
}

impl Cause {
    pub const ALL: [Self; 9] = [
        Self::Late,
        Self::Memory,
        Self::Output,
        Self::Stack,
        Self::Trap,
        Self::Quota,
        Self::Violation,
        Self::Refused,
        Self::Neighbour,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Memory => "memory",
            Self::Output => "output",
            Self::Stack => "stack",
            Self::Trap => "trap",
            Self::Quota => "quota",
            Self::Violation => "violation",
            Self::Refused => "refused",
            Self::Neighbour => "neighbour",
        }
    }
}

/// A call that did not end well. `message` names the limit and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub export: Export,
    pub cause: Cause,
    pub message: String,
    /// The plugin's own error, when it is the cause.
    pub refusal: Option<PluginError>,
}

impl Stopped {
    pub fn new(export: Export, cause: Cause, message: impl Into<String>) -> Self {
        Self { export, cause, message: message.into(), refusal: None }
    }

    /// As what the host's caller sees. `severity` is for a failure that is not the plugin's own typed error.
    pub fn into_error(self, plugin: &str, severity: Severity) -> PluginError {
        let code = format!("plugin-{}", self.cause.as_str());
        let message = format!("{}: {}", self.export.as_str(), self.message);
        self.refusal.unwrap_or_else(|| PluginError::new(plugin, severity, code, message))
    }

    /// As what the operator sees when it happens at load.
    pub fn into_load_error(self, plugin: &str) -> PluginLoadError {
        let (plugin, export) = (plugin.to_string(), self.export.as_str());
        match self.refusal {
            Some(PluginError { code, message, .. }) => PluginLoadError::Refused { plugin, export, code, message },
            None => PluginLoadError::Failed { plugin, export, cause: self.message },
        }
    }
}

/// What a call may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub time: Duration,
    /// Only read by the metered engine.
    pub fuel: u64,
    /// Size of what is handed in.
    pub input_bytes: usize,
}

/// Fuel of a call that only time bounds: more than any call spends.
pub(crate) const TIMED: u64 = u64::MAX >> 1;

#[derive(Debug, thiserror::Error)]
#[error("memory limit of {limit_bytes} bytes: {wanted_bytes} were asked for")]
struct MemoryLimit {
    limit_bytes: u64,
    wanted_bytes: u64,
}

/// Stops a guest from inside a host function.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct QuotaSpent(pub String);

pub(crate) struct StoreData {
    limiter: Limiter,
    pub plugin: Arc<Plugin>,
    pub quotas: Quotas,
}

/// Counts all linear memories of a store together; wasmtime's own limiter would look at each alone.
struct Limiter {
    limit_bytes: u64,
    used_bytes: u64,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let wanted_bytes = self.used_bytes.saturating_add(desired.saturating_sub(current) as u64);
        if wanted_bytes > self.limit_bytes {
            return Err(wasmtime::Error::new(MemoryLimit { limit_bytes: self.limit_bytes, wanted_bytes }));
        }
        self.used_bytes = wanted_bytes;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS_MAX)
    }

    fn instances(&self) -> usize {
        INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }
}

pub(crate) struct Sandbox {
    store: Store<StoreData>,
    dead: bool,
}

impl Sandbox {
    pub fn new(plugin: &Arc<Plugin>) -> Self {
        let limiter = Limiter { limit_bytes: plugin.limits.memory_bytes, used_bytes: 0 };
        let data = StoreData { limiter, plugin: plugin.clone(), quotas: Quotas::full() };
        let mut store = Store::new(plugin.engine(), data);
        store.limiter(|data| &mut data.limiter);
        store.set_max_component_handles(HANDLES_MAX);
        Self { store, dead: false }
    }

    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Memory in use, of all instances of the store.
    pub fn memory_bytes(&self) -> u64 {
        self.store.data().limiter.used_bytes
    }

    /// Calls into the guest under `budget`. An `Err` kills the store.
    pub fn call<T>(
        &mut self,
        export: Export,
        budget: Budget,
        call: impl FnOnce(&mut Store<StoreData>) -> wasmtime::Result<T>,
    ) -> Result<T, Stopped> {
        if self.dead {
            return Err(Stopped::new(export, Cause::Neighbour, "the store died in an earlier call"));
        }
        let plugin = self.store.data().plugin.clone();
        let answer_bytes =
            (plugin.limits.output_bytes as usize).saturating_add(OUTPUT_PER_INPUT.saturating_mul(budget.input_bytes));
        self.store.set_hostcall_fuel(answer_bytes);
        self.store.set_epoch_deadline(plugin.engines.ticks(budget.time));
        if plugin.metered {
            self.store.set_fuel(budget.fuel).map_err(|e| Stopped::new(export, Cause::Trap, e.to_string()))?;
        }
        self.store.data_mut().quotas = Quotas::full();
        let started = Instant::now();
        let outcome = call(&mut self.store);
        plugin.meters.called(export, started.elapsed(), self.memory_bytes());
        if plugin.metered && outcome.is_ok() {
            let left = self.store.get_fuel().unwrap_or_default();
            plugin.meters.spent(export, budget.fuel.saturating_sub(left));
        }
        outcome.map_err(|error| {
            self.dead = true;
            let (cause, message) = classify(&error, &budget, answer_bytes);
            let stopped = Stopped::new(export, cause, message);
            plugin.meters.stopped(&stopped);
            stopped
        })
    }

    /// [`Sandbox::call`] for functions that may answer with a typed error. Such an answer leaves the store alive.
    pub fn ask<T>(
        &mut self,
        export: Export,
        budget: Budget,
        call: impl FnOnce(&mut Store<StoreData>) -> wasmtime::Result<Result<T, types::PluginError>>,
    ) -> Result<T, Stopped> {
        self.call(export, budget, call)?.map_err(|error| {
            let plugin = &self.store.data().plugin;
            let refusal = plugin_error(&plugin.name, error);
            let message = format!("{}: {}", refusal.code, refusal.message);
            let stopped = Stopped { export, cause: Cause::Refused, message, refusal: Some(refusal) };
            plugin.meters.stopped(&stopped);
            stopped
        })
    }
}

/// Finds out which limit a wasmtime error is about.
fn classify(error: &wasmtime::Error, budget: &Budget, answer_bytes: usize) -> (Cause, String) {
    if let Some(limit) = error.downcast_ref::<MemoryLimit>() {
        return (Cause::Memory, limit.to_string());
    }
    if let Some(spent) = error.downcast_ref::<QuotaSpent>() {
        return (Cause::Quota, spent.to_string());
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => (Cause::Late, format!("the call took longer than {} ms", budget.time.as_millis())),
        Some(Trap::OutOfFuel) => (Cause::Late, format!("the call used more than {} fuel", budget.fuel)),
        Some(Trap::StackOverflow) => (Cause::Stack, "the guest's stack is exhausted".into()),
        Some(Trap::UnreachableCodeReached) => (Cause::Trap, "the guest panicked (unreachable)".into()),
        Some(trap) => (Cause::Trap, trap.to_string()),
        // The error of the answer limit has no public type. The hostile fixtures' `huge` fails if this text changes.
        None if format!("{error:#}").contains("allocated for hostcalls") => {
            (Cause::Output, format!("the answer is larger than {answer_bytes} bytes"))
        }
        None => (Cause::Trap, clean(&format!("{error:#}"))),
    }
}
