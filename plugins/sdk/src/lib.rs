//! Write Tokenloom plugins as plain Rust.
//!
//! A plugin is a type with plain methods over plain data, tested like any other Rust; one macro per kind turns it into
//! a component: [`export_stage!`] for output stages, [`export_template!`] for chat templates, [`export_scheduler!`]
//! for scheduling policies and [`export_rank!`] for policies that only say who comes first. The shapes in [`output`],
//! [`template`] and [`scheduler`] are generated from `wit/`, so their documentation is the interface's own.
//!
//! A policy that is more than an order is written against [`queue`], which keeps the requests, and [`room`], which is
//! what a step has to give; [`testing`] is a host for its tests.
//!
//! The crate knows nothing of any model format, and a plugin built with it imports nothing: no clock, no randomness,
//! no files, no network. Start reading at the kind you write, then at `rank` for the shortest scheduler.

pub mod output;
pub mod queue;
pub mod rank;
pub mod room;
pub mod scheduler;
pub mod template;
pub mod testing;

#[doc(hidden)]
pub mod settings;

pub use tokenloom_sdk_types::{Channel, PluginError, Setting, Severity};

#[doc(hidden)]
pub use {
    tokenloom_sdk_output as output_bindings, tokenloom_sdk_scheduler as scheduler_bindings,
    tokenloom_sdk_template as template_bindings,
};

/// Reads the operator's settings; an unknown key or a wrong type is an error that names it.
pub use settings::{NoSettings, parse as parse_settings};

/// This request is at fault: the client gets a 400 with `message`.
pub fn reject(code: &str, message: impl Into<String>) -> PluginError {
    PluginError { severity: Severity::RejectRequest, code: code.into(), message: message.into() }
}

/// The plugin cannot work at all: it is not loaded, or taken out of service.
pub fn disable(code: &str, message: impl Into<String>) -> PluginError {
    PluginError { severity: Severity::DisablePlugin, code: code.into(), message: message.into() }
}

/// What `lifecycle.describe` answers.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Described {
    pub name: &'static str,
    pub version: &'static str,
    pub summary: &'static str,
}

/// A component has one thread and one configured plugin.
#[doc(hidden)]
#[macro_export]
macro_rules! plugin_global {
    ($plugin:ty, $global:path) => {
        std::thread_local! {
            static PLUGIN: std::cell::RefCell<Option<$plugin>> = const { std::cell::RefCell::new(None) };
        }
        impl $global for $plugin {
            const DESCRIPTOR: $crate::Described = $crate::Described {
                name: env!("CARGO_PKG_NAME"),
                version: env!("CARGO_PKG_VERSION"),
                summary: env!("CARGO_PKG_DESCRIPTION"),
            };
            fn with<R>(run: impl FnOnce(&mut Option<Self>) -> R) -> R {
                PLUGIN.with(|slot| run(&mut slot.borrow_mut()))
            }
        }
    };
}
