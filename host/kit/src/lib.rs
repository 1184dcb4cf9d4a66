//! The author's side of plugins: a project is written out by [`create`] and becomes a component by [`build`].
//!
//! It knows languages and their compilers, and nothing of servers: whether a component is any good is for `plugin-host`
//! and the case runner to say. Everything a project needs besides a compiler (SDK, WIT, C bindings, examples) is inside
//! this crate, so it works far from a checkout.
//!
//! Start with `project.rs`, which reads a project's folder, then `make/`, one file per language; `component.rs` is the
//! last step of those whose compiler gives a core module; `native.rs` times a Rust project without a sandbox. The binary `kit` is what `cargo xtask plugins` calls.

mod component;
mod create;
mod embedded;
mod error;
pub mod make;
pub mod native;
mod project;
mod run;

pub use create::{NewPlugin, create};
pub use error::KitError;
pub use make::{Built, build, bundle};
pub use project::{Kind, Lang, Project};
