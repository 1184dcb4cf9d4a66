//! `tokenloom plugin …`: one file per command, `author.rs` for those that need no component yet.

mod author;
pub mod bench;
pub(crate) mod conform;
mod inspect;
mod registry;
mod replay;
pub(crate) mod schedule;
mod sign;
mod tape;
mod test;

use std::process::ExitCode;

use plugin_host::{COMPONENT_BYTES_MAX, Catalogue, HostConfig, Manifest, PluginHost};
use prometheus_client::registry::Registry;

pub use test::results;
pub use text::cases::{CaseResult, Outcome, Summary};

use crate::cli::PluginCommand;

pub fn run(command: &PluginCommand) -> anyhow::Result<ExitCode> {
    match command {
        PluginCommand::New { kind, lang, name } => author::new(*kind, *lang, name),
        PluginCommand::Build { folder } => author::build(folder),
        PluginCommand::Keygen { file } => sign::keygen(file),
        PluginCommand::Sign { component, key } => sign::sign(component, key),
        PluginCommand::Pull { reference, to, logins } => registry::pull(reference, to, logins.as_deref()),
        PluginCommand::Push { component, to, logins } => registry::push(component, to, logins.as_deref()),
        PluginCommand::List => list(),
        PluginCommand::Inspect { plugin } => inspect::inspect(plugin),
        PluginCommand::Test { plugins, cases, json } => test::test(plugins, cases.as_deref(), *json),
        PluginCommand::Bench { plugin, cases, native, json } => {
            let order = bench::Order { plugin: plugin.clone(), cases: cases.clone(), native: native.clone() };
            bench::bench(&order, *json)
        }
        PluginCommand::Replay { trace, scheduler, settings } => {
            replay::replay(trace, scheduler.as_deref(), settings.as_deref())
        }
    }
}

/// A host that loads whatever some server might: its operator decides about size and digests.
fn host() -> anyhow::Result<PluginHost> {
    Ok(PluginHost::new(host_config(), &mut Registry::default())?)
}

fn host_config() -> HostConfig {
    HostConfig {
        cache_dir: crate::env::plugin_cache_default(),
        component_bytes_max: COMPONENT_BYTES_MAX,
        ..HostConfig::default()
    }
}

fn list() -> anyhow::Result<ExitCode> {
    for manifest in Catalogue::bundled().manifests()? {
        println!("{}", list_line(&manifest));
    }
    Ok(ExitCode::SUCCESS)
}

fn list_line(manifest: &Manifest) -> String {
    let provides = match manifest.provides.as_slice() {
        [] => String::new(),
        some => format!(" provides {}", some.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ")),
    };
    let summary = manifest.summary.as_ref().map_or_else(String::new, |summary| format!(": {summary}"));
    let Manifest { name, version, kind, .. } = manifest;
    format!("{name} {version} ({kind}){provides}{summary}")
}
