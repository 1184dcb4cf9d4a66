//! Plugins from OCI registries: `oci://HOST/REPOSITORY@sha256:DIGEST`.
//!
//! A reference names the digest of an image manifest, and that the digests of its layers, so what is fetched is known to
//! the byte before it is asked for. It is kept by that digest and checked again at each start; a registry is asked only
//! for what is not there.
//!
//! Layers, by media type: the component (`application/wasm`, as other tools push it), its `plugin.toml` and its cases.

mod auth;
mod cache;
mod client;
mod error;

use std::fmt;
use std::path::{Path, PathBuf};

pub use auth::Logins;
pub use client::push;
pub use error::OciError;

/// The beginning of a reference.
const SCHEME: &str = "oci://";
const COMPONENT_TYPE: &str = "application/wasm";
const MANIFEST_TYPE: &str = "application/vnd.tokenloom.plugin.manifest.v1+toml";
const CASES_TYPE: &str = "application/vnd.tokenloom.plugin.cases.v1+jsonl";
const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";

/// A plugin in a registry, by the digest of its image manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciPlugin {
    place: OciPlace,
    /// 64 lower-case hex digits.
    digest: String,
}

/// A repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciPlace {
    /// Host, with its port.
    registry: String,
    repository: String,
}

impl OciPlace {
    /// Reads `oci://HOST/REPOSITORY`.
    pub fn parse(text: &str) -> Result<Self, OciError> {
        let fault = || OciError::Reference { text: text.into(), wanted: "oci://HOST[:PORT]/REPOSITORY" };
        let (registry, repository) =
            text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).ok_or_else(fault)?;
        let host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
        let part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_'))
        };
        let good = !registry.is_empty() && registry.chars().all(host) && repository.split('/').all(part);
        good.then(|| Self { registry: registry.into(), repository: repository.into() }).ok_or_else(fault)
    }

    /// What files of it are called: the last word of the repository.
    fn name(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or(&self.repository)
    }

    /// A registry on this machine is spoken to without encryption, as other clients do.
    fn is_here(&self) -> bool {
        let host = self.registry.rsplit_once(':').map_or(self.registry.as_str(), |(host, _)| host);
        matches!(host, "localhost" | "[::1]") || host.starts_with("127.")
    }
}

impl fmt::Display for OciPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)
    }
}

impl OciPlugin {
    pub fn is_reference(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Reads a reference. A tag is none: it may mean something else tomorrow.
    pub fn parse(text: &str) -> Result<Self, OciError> {
        let wanted = "oci://HOST[:PORT]/REPOSITORY@sha256:DIGEST, with the 64 hex digits of the image manifest";
        let fault = || OciError::Reference { text: text.into(), wanted };
        let (place, digest) = text.rsplit_once("@sha256:").ok_or_else(fault)?;
        let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if digest.len() != 64 || !digest.bytes().all(hex) {
            return Err(fault());
        }
        Ok(Self { place: OciPlace::parse(place)?, digest: digest.into() })
    }

    /// The component's file in the cache, `NAME.wasm`, fetched if it is not there whole.
    pub fn fetch(&self, cache: &Path, name: &str, logins: &Logins) -> Result<PathBuf, OciError> {
        let folder = cache.join(&self.digest);
        if let Some(component) = cache::find(&folder, &self.digest, name) {
            return Ok(component);
        }
        tracing::info!("fetching plugin {self}");
        let fetched = client::pull(self, logins)?;
        cache::keep(&folder, name, &fetched)
    }

    /// Fetches into a folder, under the repository's name.
    pub fn fetch_to(&self, folder: &Path, logins: &Logins) -> Result<PathBuf, OciError> {
        cache::write(folder, self.place.name(), &client::pull(self, logins)?)
    }
}

impl fmt::Display for OciPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@sha256:{}", self.place, self.digest)
    }
}

/// What a registry gave, each part checked against its digest.
struct Fetched {
    /// The image manifest, as it was sent.
    image: Vec<u8>,
    component: Vec<u8>,
    manifest: Option<Vec<u8>>,
    cases: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_by_digest() {
        let digest = "a".repeat(64);
        let good = format!("oci://127.0.0.1:5000/team/hermes@sha256:{digest}");
        let plugin = OciPlugin::parse(&good).unwrap();
        assert_eq!((plugin.to_string(), plugin.place.name(), plugin.place.is_here()), (good, "hermes", true));
        let far = OciPlugin::parse(&format!("oci://localhost.example.org/x@sha256:{digest}")).unwrap();
        assert!(!far.place.is_here());
        for wrong in [
            "oci://host/x:latest".to_owned(),
            "oci://host/x".into(),
            format!("oci://host@sha256:{digest}"),
            format!("oci:///x@sha256:{digest}"),
            format!("oci://host/../x@sha256:{digest}"),
            format!("oci://host/X@sha256:{digest}"),
            format!("oci://host/x@sha256:{}", "A".repeat(64)),
            format!("oci://ho st/x@sha256:{digest}"),
        ] {
            let error = OciPlugin::parse(&wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")) || error.contains("HOST"), "{error}");
        }
    }
}
