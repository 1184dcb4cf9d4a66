//! The scripted model: a backend that plays a file.
//!
//! It stands in for a real model in tests and demonstrations: the scheduler, KV pages, the prefix cache, stop strings,
//! grammars and output stages run exactly as they do for weights, only the next token comes from a script. It checks
//! the protocol of [`backend::Backend`] more strictly than a device would (fed tokens, page tables, seat states), so
//! an engine that plays a script well also drives a device well.
//!
//! It knows no text beyond bytes, no HTTP and no clock but its own delays. Start with [`script`], the file's format;
//! [`seat`] is one sequence's walk through a script, [`player`] the backend itself.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod format;
pub mod player;
mod recall;
pub mod script;
mod seat;

pub use player::ScriptBackend;
pub use script::{Script, ScriptError};
