//! The nouns and traits that every other crate shares.
//!
//! It knows no tokio, no serde, no wasmtime and no HTTP, and it does no IO: a crate that needs only the words of the
//! project (a token id, a sampling parameter, an output event) depends on this and nothing else.
//!
//! Start with [`generation`], what the engine is asked for and what it answers; [`output`] and [`template`] are the
//! text side, [`policy`] the scheduling side. The three plugin kinds are the traits [`output::OutputStage`],
//! [`template::ChatTemplate`] and [`policy::SchedulePolicy`].

pub mod constraint;
pub mod cost;
pub mod generation;
pub mod ids;
pub mod output;
pub mod plugin;
pub mod policy;
pub mod reasoning;
pub mod sampling;
pub mod template;

pub use ids::{PAGE_TOKENS, PageId, Seat, Slot, TokenId};
pub use plugin::{Failures, PluginError, Severity};
