//! The plugins that are inside the binary. They are ordinary components without privileges.

use std::borrow::Cow;

use crate::error::PluginLoadError;
use crate::manifest::Manifest;

/// Component and manifest of each; `build.rs` makes the list.
const BUNDLED: &[(&[u8], &str)] = include!(concat!(env!("OUT_DIR"), "/bundled.in"));

/// One component with its manifest, as bytes.
#[derive(Clone, Debug)]
pub struct CatalogueEntry {
    pub wasm: Cow<'static, [u8]>,
    pub manifest: Cow<'static, str>,
}

/// What names mean. [`Catalogue::bundled`] is the server's; tests make their own.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
}

/// What a name was found to be.
#[derive(Clone, Debug)]
pub(crate) struct Found<'a> {
    pub wasm: &'a [u8],
    pub manifest: Manifest,
    /// Settings of the name, when it is one of the manifest's `provides`.
    pub alias_settings: Option<toml::Table>,
}

impl Catalogue {
    /// The bundled plugins, from `plugins/dist/`.
    pub fn bundled() -> Self {
        let entry = |(wasm, manifest): &(&'static [u8], &'static str)| CatalogueEntry {
            wasm: Cow::Borrowed(wasm),
            manifest: Cow::Borrowed(manifest),
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
        for entry in &self.entries {
            let manifest = Manifest::parse("bundled", &entry.manifest)?;
            let alias_settings = manifest.provides.iter().find(|a| a.name == name).map(|a| a.settings.clone());
            if manifest.name == name || alias_settings.is_some() {
                return Ok(Found { wasm: &entry.wasm, manifest, alias_settings });
            }
            let names = std::iter::once(&manifest.name).chain(manifest.provides.iter().map(|a| &a.name));
            available.extend(names.map(|n| format!("{n} ({})", manifest.kind)));
        }
        Err(PluginLoadError::UnknownName { name: name.into(), available: available.join(", ") })
    }
}
