//! The OpenAI API: the only crate that knows HTTP.
//!
//! It owns JSON shapes, status codes, keys, admission and the framing of streams. It must not know plugins, WebAssembly,
//! weights or where settings come from: it is handed models that are a [`text::TextModel`] over an [`engine::Handle`].
//!
//! Start reading at [`router`] and `routes/chat.rs`; a request passes `wire` (bytes to a checked request), `admission`,
//! `prepare` (template, tokens, limits), `generate` (the engine's events to deltas) and then either `sse` or `fold`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
pub mod auth;
mod clock;
pub mod error;
pub mod exchange;
mod fold;
mod generate;
mod ids;
mod messages;
mod metrics;
mod openapi;
mod prepare;
mod responses;
mod routes;
mod running;
mod serve;
mod sse;
mod state;
mod translate;
pub mod wire;

pub use auth::{KeyError, KeyRow, Keys};
pub use error::ApiError;
pub use responses::{Store, StoreError};
pub use routes::router;
pub use serve::serve;
pub use state::{
    ApiOptions, ApiState, Loaded, ModelOptions, NoPlugins, PluginRows, PromptRule, ReasoningField, SamplingDefaults,
    ServedModel, StateError, WeakState,
};
