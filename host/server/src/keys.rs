//! The key file: digests of API keys, never the keys.

use std::path::Path;

use anyhow::{Context, ensure};
use api::{KeyRow, Keys};
use serde::Deserialize;

use crate::config::FILE_BYTES_MAX;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    key: Vec<KeyTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    sha256: String,
    tenant: String,
    #[serde(default = "one")]
    weight: f64,
    /// May exchange plugins.
    #[serde(default)]
    admin: bool,
}

fn one() -> f64 {
    1.0
}

/// Reads a key file; a file without keys is an error, because it would let nobody in or everybody.
pub fn read(path: &Path) -> anyhow::Result<Keys> {
    let read = || -> anyhow::Result<Keys> {
        let size = std::fs::metadata(path)?.len();
        ensure!(size <= FILE_BYTES_MAX, "{size} bytes, the limit is {FILE_BYTES_MAX}");
        let file: KeyFile = toml::from_str(&std::fs::read_to_string(path)?)?;
        ensure!(!file.key.is_empty(), "no [[key]] in it; add one, or start without a key file");
        let row =
            |key: KeyTable| KeyRow { sha256: key.sha256, tenant: key.tenant, weight: key.weight, admin: key.admin };
        Ok(Keys::new(&file.key.into_iter().map(row).collect::<Vec<_>>())?)
    };
    read().with_context(|| format!("key file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_the_file_and_the_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let error = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path).map(|_| ()).map_err(|e| format!("{e:#}"))
        };
        let digest = "a".repeat(64);
        assert_eq!(error(&format!("[[key]]\nsha256 = \"{digest}\"\ntenant = \"t\"")), Ok(()));
        for (text, needle) in [
            ("key = []", "no [[key]] in it"),
            ("[[key]]\nsha256 = \"zz\"\ntenant = \"t\"", "64 hexadecimal digits"),
            ("[[key]]\nkey = \"secret\"", "unknown field `key`"),
        ] {
            let message = error(text).unwrap_err();
            assert!(message.contains(needle) && message.contains("keys.toml"), "{message}");
        }
    }
}
