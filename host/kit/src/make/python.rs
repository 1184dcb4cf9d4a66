//! Python: `plugin.py` with an interpreter around it, by componentize-py; WASI is stubbed, so nothing is imported.

use std::path::PathBuf;

use super::{read, scratch};
use crate::embedded::SUPPORT;
use crate::error::KitError;
use crate::project::Project;
use crate::run::{Tool, has};

pub fn component(project: &Project) -> Result<Vec<u8>, KitError> {
    let tool = find(project)?;
    let out = scratch(project)?.join(format!("{}.wasm", project.name));
    let world = project.kind.world();
    Tool::new(tool, &project.folder)
        .args([
            "--wit-path",
            &format!("{SUPPORT}/wit"),
            "--world",
            &world,
            "componentize",
            "--stub-wasi",
            "plugin",
            "-o",
        ])
        .arg(&out)
        .run()?;
    read(&out)
}

/// The project's own environment first.
fn find(project: &Project) -> Result<PathBuf, KitError> {
    let own = project.folder.join(".venv/bin/componentize-py");
    let found = [own, "componentize-py".into()].into_iter().find(|tool| has(tool, "--version"));
    found.ok_or_else(|| KitError::ToolMissing {
        tool: "componentize-py".into(),
        fix: format!(
            "python3 -m venv {0}/.venv && {0}/.venv/bin/pip install componentize-py",
            project.folder.display()
        ),
    })
}
