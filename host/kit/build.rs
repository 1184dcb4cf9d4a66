//! Lists what a plugin project is made of (the examples, the SDK's sources, the WIT), so that it is all in the binary
//! and `plugin new` works outside a checkout.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    // Cargo sets both for every build script.
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let root = here.join("../..").canonicalize()?;
    let mut files = Vec::new();
    for top in ["examples", "plugins/sdk", "wit"] {
        println!("cargo::rerun-if-changed={}", root.join(top).display());
        walk(&root.join(top), &mut files)?;
    }
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root).map_err(io::Error::other)?;
        writeln!(list, "    ({name:?}, include_str!({file:?})),").map_err(io::Error::other)?;
    }
    list.push(']');
    fs::write(out.join("files.in"), list)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            // Built, fetched or written out by `plugin build`.
            if !matches!(
                name.as_str(),
                "target" | "tokenloom" | "node_modules" | ".venv" | "tests" | "released" | "__pycache__"
            ) {
                walk(&path, files)?;
            }
        } else if is_source(&name) {
            files.push(path);
        }
    }
    Ok(())
}

/// What an author gets; not the components and manifests that a build leaves beside its sources.
fn is_source(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|e| e.to_str()).unwrap_or_default();
    let text = matches!(extension, "rs" | "c" | "h" | "py" | "js" | "mjs" | "wit" | "md" | "jsonl");
    text || matches!(name, "Cargo.toml" | "plugin.toml" | "server.toml" | "package.json" | "demo.json" | ".gitignore")
}
