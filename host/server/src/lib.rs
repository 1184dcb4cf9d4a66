//! The binary `tokenloom`: settings, wiring, command line.
//!
//! It is the only crate that reads the environment ([`env`]), the config file and flags, and the one place where
//! engines, models, plugins and the API meet. It holds no behaviour of its own: what a request does is in the crates it
//! wires together.
//!
//! Start with [`run`], then [`settings`] (what was asked), [`wire`] (from settings to a running server) and [`report`]
//! (what became of it). `plugin_cmd` is `tokenloom plugin …`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod choose;
pub mod cli;
pub mod config;
pub mod device;
pub mod env;
mod flags;
pub mod hub;
mod keys;
pub mod oci;
pub mod plugin_cmd;
mod progress;
mod rehearsal;
pub mod report;
pub mod settings;
mod shutdown;
pub mod source;
pub mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

pub use report::Report;
pub use settings::Settings;
pub use wire::{Running, serve};

/// Runs a command line. Errors go to stderr with the whole chain of causes.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let command = match cli::parse(args) {
        Ok(command) => command,
        Err(message) => return message.print(),
    };
    let outcome = match command {
        cli::Command::Serve(args) => serve_command(&args),
        cli::Command::Plugin { command } => plugin_cmd::run(&command),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The runtime that requests are served on. Plugins are called on its threads: more of them than cores, so that a plugin
/// that takes its whole time holds up the streams of its own thread at most until the others have taken them over.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    const THREADS_MIN: usize = 8;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread().worker_threads((2 * cores).max(THREADS_MIN)).enable_all().build()
}

fn serve_command(args: &cli::ServeArgs) -> anyhow::Result<ExitCode> {
    let environment = env::Environment::read()?;
    environment.start_logging()?;
    let settings = Settings::gather(args, environment.config.as_deref())?;
    let runtime = runtime()?;
    runtime.block_on(async {
        let running = serve(settings).await?;
        eprint!("{}", running.report());
        shutdown::until_signal(running).await
    })?;
    // Threads that still compile or load something must not hold up the end.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}
