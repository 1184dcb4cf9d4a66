//! `plugin replay`: a recorded trace on another build of a plugin.

use std::path::Path;
use std::process::ExitCode;

use plugin_host::trace::{self, Difference};
use plugin_host::{Grants, PluginSource};

use super::host;

/// Differences that are shown; a policy that changed differs in most lines.
const DIFFERENCES_SHOWN: usize = 5;

pub(super) fn replay(path: &Path, scheduler: Option<&str>, settings: Option<&str>) -> anyhow::Result<ExitCode> {
    let recorded = trace::traced_policy(path)?;
    let word = scheduler.unwrap_or(&recorded);
    let mut policy = host()?.load_scheduler(&PluginSource::parse(word), &Grants::default(), settings)?;
    let found = trace::replay(path, policy.as_mut())?;
    for difference in found.differences.iter().take(DIFFERENCES_SHOWN) {
        let Difference { line, step, recorded, replayed } = difference;
        println!("DIFFERS line {line}, step {step}\n  recorded {recorded}\n  replayed {replayed}");
    }
    let (calls, different) = (found.calls, found.differences.len());
    println!("{} equal, {different} different of {calls} calls on `{word}`", calls - different);
    Ok(if different == 0 && calls > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
