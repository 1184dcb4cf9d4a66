//! `tokenloom plugin inspect`: what a component really is, whatever its manifest says.

use crate::config::Capability;
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
