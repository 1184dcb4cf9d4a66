//! What was fetched, on disk: a folder named by the digest, with the image manifest that says what its files must be.

use std::fs;
use std::path::{Path, PathBuf};

use oci_client::manifest::OciImageManifest;
use sha2::{Digest, Sha256};

use super::{CASES_TYPE, COMPONENT_TYPE, Fetched, MANIFEST_TYPE, OciError};

const IMAGE: &str = "image.json";

pub(super) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The component, if everything in the folder is what the digest says. Anything else is fetched again.
pub(super) fn find(folder: &Path, digest: &str, name: &str) -> Option<PathBuf> {
    let image = fs::read(folder.join(IMAGE)).ok()?;
    if hex(&image) != digest {
        return None;
    }
    let image: OciImageManifest = serde_json::from_slice(&image).ok()?;
    let whole = image.layers.iter().all(|layer| match file_of(name, &layer.media_type) {
        Some(file) => fs::read(folder.join(file)).is_ok_and(|bytes| layer.digest == format!("sha256:{}", hex(&bytes))),
        None => true,
    });
    whole.then(|| folder.join(file_of(name, COMPONENT_TYPE).unwrap_or_default()))
}

fn file_of(name: &str, media_type: &str) -> Option<String> {
    match media_type {
        COMPONENT_TYPE => Some(format!("{name}.wasm")),
        MANIFEST_TYPE => Some(format!("{name}.toml")),
        CASES_TYPE => Some(format!("{name}.cases.jsonl")),
        _ => None,
    }
}

/// Keeps it. The image manifest comes last: without it, the folder counts as empty.
pub(super) fn keep(folder: &Path, name: &str, fetched: &Fetched) -> Result<PathBuf, OciError> {
    let component = write(folder, name, fetched)?;
    put(&folder.join(IMAGE), &fetched.image)?;
    Ok(component)
}

/// Writes the files into a folder.
pub(super) fn write(folder: &Path, name: &str, fetched: &Fetched) -> Result<PathBuf, OciError> {
    fs::create_dir_all(folder).map_err(|e| OciError::file(folder, e))?;
    let parts = [
        (MANIFEST_TYPE, fetched.manifest.as_ref()),
        (CASES_TYPE, fetched.cases.as_ref()),
        (COMPONENT_TYPE, Some(&fetched.component)),
    ];
    let mut last = folder.to_path_buf();
    for (media_type, bytes) in parts {
        if let (Some(file), Some(bytes)) = (file_of(name, media_type), bytes) {
            last = folder.join(file);
            put(&last, bytes)?;
        }
    }
    Ok(last)
}

/// Written beside and renamed, so that a server that starts meanwhile reads all of it or nothing.
fn put(path: &Path, bytes: &[u8]) -> Result<(), OciError> {
    let beside = path.with_extension(format!("part-{}", std::process::id()));
    fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path)).map_err(|e| OciError::file(path, e))
}
