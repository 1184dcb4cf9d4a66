//! Sandboxed plugins: output stages, chat templates and schedulers as WebAssembly components.
//!
//! The only crate that knows wasmtime. It knows no tokio, no HTTP, no engine: it turns a component into one of the
//! three traits of `contract` ([`contract::output::OutputStage`], [`contract::template::ChatTemplate`],
//! [`contract::policy::SchedulePolicy`]) and makes sure that nothing a component does costs more than one request.
//!
//! Start with [`PluginHost`] in `host.rs`; `load.rs` is what happens to a component before its first call, `engine.rs`
//! and `sandbox.rs` the limits every call runs under, `stage.rs`, `template.rs` and `scheduler.rs` the three adapters; `trace.rs` records what a
//! scheduler was told and runs it again.

mod bindings;
pub mod bundled;
mod cache;
mod caps;
mod clean;
mod config;
mod convert;
mod digest;
mod engine;
mod error;
mod events;
mod host;
mod inspect;
mod instance;
mod journal;
mod limits;
mod load;
mod manifest;
mod metrics;
mod plugin;
mod rest;
mod sandbox;
mod scheduler;
mod session;
mod settings;
mod signature;
mod stage;
mod status;
mod template;
pub mod trace;
mod unsent;

pub use bundled::{Catalogue, CatalogueEntry};
pub use config::{
    COMPONENT_BYTES_DEFAULT, COMPONENT_BYTES_MAX, Capability, Grants, HostConfig, LimitOverrides, PluginSource,
    PluginTokenizer, TemplateModel,
};
pub use error::PluginLoadError;
pub use host::{PluginHost, SchedulerPlugin};
pub use inspect::Inspection;
pub use limits::Limits;
pub use manifest::{Alias, Failure, FailurePolicy, Kind, Manifest, ManifestLimits};
pub use signature::{PublicKey, PublicKeys, SigningKey};
pub use status::{PluginState, PluginStatus};
