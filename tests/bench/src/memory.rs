//! How much memory this process has.

use anyhow::{Context, Result};

/// Resident bytes by the system's account: all, and those that are this process's own. A page of a component's data that
/// no instance has written to is one page of memory, and resident in every instance.
pub fn resident_bytes() -> Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/self/status").context("the memory of this process")?;
    let bytes = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>().context("a size")? << 10)
    };
    Ok((bytes("VmRSS:")?, bytes("RssAnon:")?))
}

/// Resident bytes, all of them.
pub fn rss_bytes() -> Result<u64> {
    resident_bytes().map(|(all, _)| all)
}
