//! Why a project could not be written or built, said so that its author can act.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum KitError {
    #[error("the name `{name}` is not possible: a lower-case letter, then at most 63 of a-z, 0-9, `-` and `_`")]
    Name { name: String },
    #[error("{} exists already; choose another name or remove it", path.display())]
    Exists { path: PathBuf },
    #[error("{}: {message}", path.display())]
    Io { path: PathBuf, message: String },
    #[error("{}: {message}", path.display())]
    Manifest { path: PathBuf, message: String },
    #[error(
        "{} holds no plugin in a language that is known; there must be a Cargo.toml, plugin.py, plugin.js or plugin.c beside plugin.toml",
        folder.display()
    )]
    NoSource { folder: PathBuf },
    #[error("{} is not in Rust, so it has no native build to compare with", folder.display())]
    NotRust { folder: PathBuf },
    #[error(
        "{} exports no plugin that can be built natively: `export_stage!`, `export_template!`, `export_scheduler!` or \
         `export_rank!` with a public type is needed there",
        path.display()
    )]
    NoExport { path: PathBuf },
    #[error("`{tool}` is not here: {fix}")]
    ToolMissing { tool: String, fix: String },
    #[error("`{command}` in {} failed ({status}):\n{output}", folder.display())]
    ToolFailed { command: String, folder: PathBuf, status: String, output: String },
    #[error("{} does not become a component: {message}", path.display())]
    Component { path: PathBuf, message: String },
    #[error("{} is {found_bytes} bytes, more than a server ever takes ({limit_bytes})", path.display())]
    TooBig { path: PathBuf, found_bytes: u64, limit_bytes: u64 },
}

impl KitError {
    pub(crate) fn io(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::Io { path: path.into(), message: error.to_string() }
    }
}
