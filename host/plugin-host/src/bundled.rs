//! The plugins that are inside the binary. They are ordinary components without privileges.

use std::borrow::Cow;

use crate::digest::{Sha, sha256};
use crate::error::PluginLoadError;
use crate::manifest::Manifest;

/// Name, digest, component and manifest of each; `build.rs` makes the list.
const BUNDLED: &[(&str, Sha, &[u8], &str)] = include!(concat!(env!("OUT_DIR"), "/bundled.in"));

/// One component with its manifest, as bytes.
#[derive(Clone, Debug)]
pub struct CatalogueEntry {
    wasm: Cow<'static, [u8]>,
    manifest: Cow<'static, str>,
    /// Name and digest, where the build knows them: a start parses one manifest then, and hashes nothing.
    known: Option<(&'static str, Sha)>,
}

impl CatalogueEntry {
    pub fn new(wasm: impl Into<Cow<'static, [u8]>>, manifest: impl Into<Cow<'static, str>>) -> Self {
        Self { wasm: wasm.into(), manifest: manifest.into(), known: None }
    }

    fn digest(&self) -> Sha {
        self.known.map_or_else(|| sha256(&self.wasm), |(_, digest)| digest)
    }
}

/// What names mean. [`Catalogue::bundled`] is the server's; tests make their own.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
}

/// What a name was found to be.
#[derive(Clone, Debug)]
pub(crate) struct Found<'a> {
    pub wasm: &'a Cow<'static, [u8]>,
    pub digest: Sha,
    pub manifest: Manifest,
    /// Settings of the name, when it is one of the manifest's `provides`.
    pub alias_settings: Option<toml::Table>,
}

impl Catalogue {
    /// The bundled plugins, from `plugins/dist/`.
    pub fn bundled() -> Self {
        let entry = |&(name, digest, wasm, manifest): &(&'static str, Sha, &'static [u8], &'static str)| {
            CatalogueEntry { known: Some((name, digest)), ..CatalogueEntry::new(wasm, manifest) }
        };
        Self::new(BUNDLED.iter().map(entry).collect())
    }

    pub fn new(entries: Vec<CatalogueEntry>) -> Self {
        Self { entries }
    }

    /// Every manifest of the catalogue, in order.
    pub fn manifests(&self) -> Result<Vec<Manifest>, PluginLoadError> {
        self.entries.iter().map(|entry| Manifest::parse("bundled", &entry.manifest)).collect()
    }

    /// Finds a plugin by its own name or by one it provides.
    pub(crate) fn find(&self, name: &str) -> Result<Found<'_>, PluginLoadError> {
        let mut available = Vec::new();
        let known = self.entries.iter().find(|entry| entry.known.is_some_and(|(known, _)| known == name));
        for entry in known.into_iter().chain(&self.entries) {
            let manifest = Manifest::parse("bundled", &entry.manifest)?;
            let alias_settings = manifest.provides.iter().find(|a| a.name == name).map(|a| a.settings.clone());
            if manifest.name == name || alias_settings.is_some() {
                return Ok(Found { wasm: &entry.wasm, digest: entry.digest(), manifest, alias_settings });
            }
            let names = std::iter::once(&manifest.name).chain(manifest.provides.iter().map(|a| &a.name));
            available.extend(names.map(|n| format!("{n} ({})", manifest.kind)));
        }
        Err(PluginLoadError::UnknownName { name: name.into(), available: available.join(", ") })
    }
}
