//! Components: builds every guest of `plugins/` into `plugins/dist` and the hostile ones of the tests into
//! `plugins/fixtures/dist`, or says whether what lies there is stale.
//!
//! Builds are not bit for bit the same on every machine, so freshness goes by a hash over what a component is made
//! from: the guests' sources, their lockfile and `wit/`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::process::{Step, cargo};

/// One folder per kind, one folder per guest in it; the folder's name is the plugin's and its package's.
const KINDS: [&str; 3] = ["stages", "templates", "schedulers"];
/// A component above this is refused by the server without the operator's word (protocols.md section 4).
const COMPONENT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What the bundled components are made from.
const BUNDLED: [&str; 8] = [
    "plugins/sdk",
    "plugins/blocks",
    "plugins/stages",
    "plugins/templates",
    "plugins/schedulers",
    "wit",
    "plugins/Cargo.toml",
    "plugins/Cargo.lock",
];
/// What the hostile components of the plugin host's tests are made from.
const HOSTILE: [&str; 4] = ["plugins/fixtures", "plugins/fixtures/Cargo.lock", "plugins/sdk", "wit"];

/// `check` only compares the sources with the hash that lies beside the components.
pub fn run(root: &Path, check: bool) -> Result<()> {
    fresh(root, "plugins/dist", &BUNDLED, check, |dist| {
        let guests = guests(root)?;
        build_all(root, &guests, dist)?;
        remove_strangers(dist, &guests)
    })?;
    fresh(root, "plugins/fixtures/dist", &HOSTILE, check, |_| {
        let scratch = crate::demo::target_dir(root)?.join("fixtures");
        Step::new("sh", root).arg("plugins/fixtures/build.sh").arg(scratch).check()
    })
}

/// Makes the components of a folder when their sources are not those that the folder's hash names.
fn fresh(root: &Path, dist: &str, from: &[&str], check: bool, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let noted = root.join(dist).join("sources.sha256");
    let hash = sources_hash(root, from)?;
    if fs::read_to_string(&noted).unwrap_or_default().trim() == hash {
        return Ok(());
    }
    ensure!(!check, "{dist} is stale: run `cargo xtask plugins` and commit {dist}");
    build(&root.join(dist))?;
    Ok(fs::write(noted, format!("{hash}\n"))?)
}

/// Builds the bundled components beside the committed ones and runs the shared cases on them: what is committed can be
/// made from its sources, and what was made behaves.
pub fn rebuild_and_test(root: &Path) -> Result<()> {
    run(root, true)?;
    if let Err(error) = kit(root).arg("toolchain").output() {
        // CI installs a toolchain; a contributor's machine need not have one.
        ensure!(std::env::var_os("CI").is_none(), "{error:#}");
        println!("the plugins are not rebuilt");
        return Ok(());
    }
    let rebuilt = crate::demo::target_dir(root)?.join("rebuilt-plugins");
    build_all(root, &guests(root)?, &rebuilt)?;
    // The binary that the host's tests have just built: another selection of packages would build its libraries anew.
    let tokenloom = crate::demo::target_dir(root)?.join("debug/tokenloom");
    let alone = ["llama3_json", "pythonic", "mistral", "deepseek_v3", "deepseek_v32", "jinja"];
    let chains = [vec!["think", "hermes"], vec!["think", "qwen3_coder"]];
    for chain in chains.into_iter().chain(alone.map(|name| vec![name])) {
        let components = chain.iter().map(|name| rebuilt.join(format!("{name}.wasm")));
        let cases = ["--cases", "tests/cases/cases.jsonl"];
        Step::new(&tokenloom, root).args(["plugin", "test"]).args(components).args(cases).check()?;
    }
    Ok(())
}

fn build_all(root: &Path, guests: &[Guest], to: &Path) -> Result<()> {
    let folders = guests.iter().map(|guest| &guest.folder);
    kit(root).arg("bundle").arg(root.join("plugins")).arg(to).args(folders).check()?;
    for guest in guests {
        let bytes = fs::metadata(to.join(format!("{}.wasm", guest.name)))?.len();
        ensure!(bytes <= COMPONENT_BYTES_MAX, "{}: {bytes} bytes is too large", guest.name);
    }
    Ok(())
}

/// Builds a plugin that lies anywhere: its component and manifest are written into its own folder.
pub fn build_one(root: &Path, folder: &Path) -> Result<()> {
    kit(root).arg("build").arg(folder.canonicalize().with_context(|| format!("{}", folder.display()))?).check()
}

/// The author kit builds every plugin, ours and others' alike.
fn kit(root: &Path) -> Step {
    cargo(root).args(["run", "--quiet", "--package", "kit", "--"])
}

struct Guest {
    name: String,
    folder: PathBuf,
}

fn guests(root: &Path) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for kind in KINDS {
        for folder in entries(&root.join("plugins").join(kind))? {
            if !folder.join("Cargo.toml").is_file() {
                continue;
            }
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            guests.push(Guest { name, folder });
        }
    }
    Ok(guests)
}

/// A component whose guest is gone must not stay in the server.
fn remove_strangers(dist: &Path, guests: &[Guest]) -> Result<()> {
    for path in entries(dist)? {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let ours = path.extension().is_some_and(|e| e == "wasm" || e == "toml");
        if ours && !guests.iter().any(|guest| guest.name == stem) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn sources_hash(root: &Path, from: &[&str]) -> Result<String> {
    let mut files = Vec::new();
    for path in from.iter().map(|path| root.join(path)) {
        if path.is_dir() {
            sources(&path, &mut files)?;
        } else {
            files.push(path);
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let text = fs::read(&file).with_context(|| format!("{}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        hash.update(format!("{name}\0{}\0", text.len()));
        hash.update(&text);
    }
    Ok(hex(&hash.finalize()))
}

/// What a component is made from: not its tests, prose and cases.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "tests" | "target" | "dist" | "released" | "proptest-regressions") {
                sources(&path, files)?;
            }
        } else if matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "toml" | "wit" | "jinja" | "sh")) {
            files.push(path);
        }
    }
    Ok(())
}

/// Sorted, so that the order of a folder's listing does not count.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listing = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut paths = listing.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
