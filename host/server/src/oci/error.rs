//! Why a plugin did not come from a registry, said so that the operator can act.

use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciError {
    #[error("`{text}` is no reference to a plugin: {wanted} is needed")]
    Reference { text: String, wanted: &'static str },
    #[error(
        "{reference}: the registry does not have it ({message}); is it pushed, and is the digest the image manifest's?"
    )]
    NotFound { reference: String, message: String },
    #[error(
        "{reference}: the registry `{registry}` refuses the access ({message}); put a login for it into the file of `registry_logins`"
    )]
    Unauthorised { reference: String, registry: String, message: String },
    #[error("{reference}: the registry `{registry}` cannot be reached ({message}), and the plugin is not in the cache")]
    Offline { reference: String, registry: String, message: String },
    #[error(
        "{reference}: {what} has the digest sha256:{found}, and sha256:{expected} was asked for; do not use this registry"
    )]
    WrongDigest { reference: String, what: String, expected: String, found: String },
    #[error("{reference}: no layer is a component; a layer of type application/wasm is needed, it has {found}")]
    NoComponent { reference: String, found: String },
    #[error("{reference}: {what} has {found_bytes} bytes or more, the limit is {limit_bytes}; push a smaller one")]
    TooBig { reference: String, what: &'static str, found_bytes: u64, limit_bytes: u64 },
    #[error("{reference}: the registry's answer cannot be used: {message}")]
    Registry { reference: String, message: String },
    #[error("{}: {message}", path.display())]
    File { path: PathBuf, message: String },
}

impl OciError {
    pub(super) fn file(path: &std::path::Path, error: impl std::fmt::Display) -> Self {
        Self::File { path: path.into(), message: error.to_string() }
    }
}
