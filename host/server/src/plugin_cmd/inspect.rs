//! `plugin inspect`: what a component really is.

use std::process::ExitCode;

use plugin_host::{Capability, Inspection, PluginSource};

use super::host;

pub(super) fn inspect(word: &str) -> anyhow::Result<ExitCode> {
    let inspection = host()?.inspect(&PluginSource::parse(word))?;
    print!("{}", inspection_text(&inspection));
    Ok(ExitCode::SUCCESS)
}

fn inspection_text(found: &Inspection) -> String {
    let list = |words: Vec<String>| if words.is_empty() { "none".to_string() } else { words.join(", ") };
    let capabilities = |all: &[Capability]| list(all.iter().map(|c| c.as_str().to_string()).collect());
    let (version, pinned, signed) = match &found.manifest {
        Some(manifest) => (manifest.version.as_str(), manifest.sha256.is_some(), manifest.signature.is_some()),
        None => ("no manifest", false, false),
    };
    let mut lines = vec![
        format!("name          {} ({version})", found.name),
        format!("kind          {}", found.kind.map_or_else(|| "none of this server's".into(), |kind| kind.to_string())),
        format!("wit           {}", found.wit.as_deref().unwrap_or("none")),
        format!("size          {} bytes", found.size_bytes),
        format!("sha256        {}", found.digest),
        format!("signature     {}", if signed { "there is one; a server that has its key checks it" } else { "none" }),
        format!("exports       {}", list(found.exports.clone())),
        format!("imports       {}", list(found.imports.clone())),
        format!(
            "capabilities  asked {}; needed {}",
            capabilities(&found.capabilities_asked),
            capabilities(&found.capabilities_needed)
        ),
    ];
    if !found.imports_unknown.is_empty() {
        lines.push(format!("refused       imports that nobody can grant: {}", list(found.imports_unknown.clone())));
    }
    if !pinned {
        lines.push(format!("to pin it     sha256 = \"{}\"", found.digest));
    }
    lines.join("\n") + "\n"
}
