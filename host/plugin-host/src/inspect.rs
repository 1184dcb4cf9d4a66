//! `tokenloom plugin inspect`: what a component really is, whatever its manifest says.

use crate::clean::clean;
use crate::config::Capability;
use crate::digest::hex;
use crate::load::{Artifact, Surface, capability};
use crate::manifest::{Kind, Manifest};

/// Read from the component itself; it is compiled but nothing of it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    pub name: String,
    pub manifest: Option<Manifest>,
    /// `None`: it exports none of the three kinds.
    pub kind: Option<Kind>,
    /// The kind's interface with the version found, as `tokenloom:output/stage@0.1.0`.
    pub wit: Option<String>,
    pub size_bytes: u64,
    pub digest: String,
    /// Imports that carry functions; type-only imports are left out.
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    pub capabilities_asked: Vec<Capability>,
    /// What of the imports is a capability of this host.
    pub capabilities_needed: Vec<Capability>,
    /// Imports nobody could grant.
    pub imports_unknown: Vec<String>,
}

pub(crate) fn inspection(artifact: &Artifact, surface: &Surface) -> Inspection {
    let kind = surface.kind();
    let needed = surface.imports.iter().filter_map(|import| capability(import)?.ok());
    let unknown = surface.imports.iter().filter(|import| !matches!(capability(import), Some(Ok(_))));
    Inspection {
        name: artifact.name.clone(),
        kind: kind.map(|(kind, _)| kind),
        wit: kind.map(|(_, wit)| wit.to_string()),
        size_bytes: artifact.bytes.len() as u64,
        digest: hex(&artifact.digest),
        imports: surface.imports.iter().map(|name| clean(name)).collect(),
        exports: surface.exports.iter().map(|name| clean(name)).collect(),
        capabilities_asked: artifact.manifest.as_ref().map(|m| m.capabilities.clone()).unwrap_or_default(),
        capabilities_needed: needed.collect(),
        imports_unknown: unknown.map(|name| clean(name)).collect(),
        manifest: artifact.manifest.clone(),
    }
}
