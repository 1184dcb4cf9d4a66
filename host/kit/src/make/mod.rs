//! From a project to a component with its manifest beside it, one file per language.

mod c;
mod javascript;
mod python;
mod rust;

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::component;
use crate::embedded;
use crate::error::KitError;
use crate::project::{Lang, Project};

pub use rust::{bundle, toolchain as rust_toolchain};

/// The most that a server takes, with the operator's word (`docs/protocols.md` section 4).
const COMPONENT_BYTES_MAX: u64 = 64 << 20;

/// What a build left.
#[derive(Clone, Debug)]
pub struct Built {
    pub component: PathBuf,
    pub manifest: PathBuf,
    pub bytes: u64,
    pub sha256: String,
}

/// Builds the plugin of a folder: `NAME.wasm` and `NAME.toml` are written beside its sources.
pub fn build(folder: &Path) -> Result<Built, KitError> {
    let project = Project::read(folder)?;
    embedded::support(&project.folder, project.kind, project.lang)?;
    let component = match project.lang {
        Lang::Rust => rust::component(&project)?,
        Lang::C => c::component(&project)?,
        Lang::Python => python::component(&project)?,
        Lang::JavaScript => javascript::component(&project)?,
    };
    finish(&project, &component, &project.folder)
}

/// Writes a component and its manifest, which names the component's digest.
fn finish(project: &Project, component: &[u8], to: &Path) -> Result<Built, KitError> {
    let path = to.join(format!("{}.wasm", project.name));
    let found_bytes = component.len() as u64;
    if found_bytes > COMPONENT_BYTES_MAX {
        return Err(KitError::TooBig { path, found_bytes, limit_bytes: COMPONENT_BYTES_MAX });
    }
    let sha256: String = Sha256::digest(component).iter().map(|byte| format!("{byte:02x}")).collect();
    let manifest = path.with_extension("toml");
    fs::write(&path, component).map_err(|e| KitError::io(&path, &e))?;
    fs::write(&manifest, with_digest(&project.manifest, &sha256)).map_err(|e| KitError::io(&manifest, &e))?;
    Ok(Built { component: path, manifest, bytes: found_bytes, sha256 })
}

/// The manifest as its author wrote it, with the digest of the component below its `wit` line.
fn with_digest(manifest: &str, digest: &str) -> String {
    let line = |line: &str| match line.split_once('=') {
        Some((key, _)) if key.trim() == "wit" => format!("{line}\nsha256 = \"{digest}\"\n"),
        _ => format!("{line}\n"),
    };
    manifest.lines().map(line).collect()
}

/// The component of a core module, for languages whose compiler stops there.
fn encode(module: &[u8], path: &Path) -> Result<Vec<u8>, KitError> {
    component::encode(module).map_err(|message| KitError::Component { path: path.into(), message })
}

/// Makes a component of a core module whose bindings describe its world.
pub fn encode_file(module: &Path, to: &Path) -> Result<(), KitError> {
    let component = encode(&read(module)?, module)?;
    fs::write(to, component).map_err(|e| KitError::io(to, &e))
}

fn read(path: &Path) -> Result<Vec<u8>, KitError> {
    fs::read(path).map_err(|e| KitError::io(path, &e))
}

/// Where a build keeps what it may throw away.
fn scratch(project: &Project) -> Result<PathBuf, KitError> {
    let folder = project.folder.join("target");
    fs::create_dir_all(&folder).map_err(|e| KitError::io(&folder, &e))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::with_digest;

    #[test]
    fn digest_goes_below_the_wit_line() {
        let manifest = "name = \"a\"\nwit = \"tokenloom:output@0.1.0\"\n\n[limits]\n";
        let expected = "name = \"a\"\nwit = \"tokenloom:output@0.1.0\"\nsha256 = \"ff\"\n\n[limits]\n";
        assert_eq!(with_digest(manifest, "ff"), expected);
    }
}
