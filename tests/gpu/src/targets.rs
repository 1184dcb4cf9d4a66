//! Every kernel for every card, without one.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

/// Compiled code is kept by content, so only what changed is compiled again.
const CACHE: &str = "target/kernels";

/// `machines` empty: all of them.
pub fn run(machines: &[u32]) -> Result<()> {
    let machines = if machines.is_empty() { &backend_cuda::TARGETS[..] } else { machines };
    for &machine in machines {
        let started = Instant::now();
        let (compiled, cached) =
            backend_cuda::compile_for(machine, Some(Path::new(CACHE))).with_context(|| format!("sm_{machine}"))?;
        println!("sm_{machine}: {compiled} compiled, {cached} cached, {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}
