//! Lists the components of `plugins/dist`, so that `bundled.rs` embeds whatever `cargo xtask plugins` has put there. What
//! is in the binary cannot change any more, so its digests are computed here and not at every start.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use sha2::{Digest, Sha256};

fn main() -> io::Result<()> {
    // Cargo sets both for every build script.
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let dist = here.join("../../plugins/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut list = String::from("&[\n");
    for wasm in components(&dist)? {
        let manifest = wasm.with_extension("toml");
        println!("cargo::rerun-if-changed={}", wasm.display());
        println!("cargo::rerun-if-changed={}", manifest.display());
        let name = wasm.file_stem().unwrap_or_default();
        let digest: [u8; 32] = Sha256::digest(fs::read(&wasm)?).into();
        let entry = format!("    ({name:?}, {digest:?}, include_bytes!({wasm:?}), include_str!({manifest:?})),");
        writeln!(list, "{entry}").map_err(io::Error::other)?;
    }
    list.push(']');
    fs::write(out.join("bundled.in"), list)
}

/// The components in order of their names. One without a manifest fails the build at its `include_str!`.
fn components(dist: &Path) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(dist)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let mut paths: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "wasm")).collect();
    paths.sort();
    Ok(paths)
}
