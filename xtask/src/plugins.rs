//! Components: builds every guest of `plugins/` into `plugins/dist` and the hostile ones of the tests into
//! `plugins/fixtures/dist`, or says whether what lies there is stale.
//!
//! Builds are not bit for bit the same on every machine, so freshness goes by a hash over what a component is made
//! from: the guests' sources, their lockfile and `wit/`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::process::{Step, cargo, has};

const TARGET: &str = "wasm32-unknown-unknown";
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
const HOSTILE: [&str; 3] = ["plugins/fixtures", "plugins/fixtures/Cargo.lock", "wit"];

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
    let plugins = root.join("plugins");
    if let Err(error) = Toolchain::find(&plugins) {
        // CI installs a toolchain; a contributor's machine need not have one.
        ensure!(std::env::var_os("CI").is_none(), "{error:#}");
        println!("not rebuilt: {error:#}");
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
    let example = root.join("examples/write-a-tool-parser");
    cargo(&example).args(["test", "--quiet"]).check()?;
    build_one(root, &example)
}

fn build_all(root: &Path, guests: &[Guest], to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    cargo(root).args(["build", "--quiet", "--package", "componentize"]).check()?;
    let plugins = root.join("plugins");
    let metadata = metadata(&plugins)?;
    Toolchain::find(&plugins)?.build(&plugins, &metadata, guests)?;
    guests.iter().try_for_each(|guest| componentize(root, &metadata, guest, to))
}

/// Builds a plugin that lies anywhere: its component and manifest are written into its own folder.
pub fn build_one(root: &Path, folder: &Path) -> Result<()> {
    let folder = folder.canonicalize().with_context(|| format!("{}", folder.display()))?;
    let manifest = folder.join("plugin.toml");
    let manifest = fs::read_to_string(&manifest).with_context(|| format!("{}", manifest.display()))?;
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let name = name.context("plugin.toml has no line `name = \"…\"`")?.to_owned();
    let guest = Guest { name, folder: folder.clone(), manifest };
    cargo(root).args(["build", "--quiet", "--package", "componentize"]).check()?;
    let metadata = metadata(&folder)?;
    Toolchain::find(&folder)?.build(&folder, &metadata, std::slice::from_ref(&guest))?;
    componentize(root, &metadata, &guest, &folder)
}

/// A guest's core module to a component in `to`, with its manifest beside it.
fn componentize(root: &Path, metadata: &Metadata, guest: &Guest, to: &Path) -> Result<()> {
    // Cargo spells a library's file with underscores.
    let file = guest.name.replace('-', "_");
    let module = metadata.target.join(TARGET).join("release").join(format!("{file}.wasm"));
    let component = to.join(format!("{}.wasm", guest.name));
    let tool = ["run", "--quiet", "--package", "componentize", "--"];
    cargo(root).args(tool).arg(&module).arg(&component).check()?;
    let bytes = fs::read(&component)?;
    ensure!(bytes.len() as u64 <= COMPONENT_BYTES_MAX, "{}: {} bytes is too large", guest.name, bytes.len());
    let manifest = with_digest(&guest.manifest, &hex(&Sha256::digest(&bytes)))
        .with_context(|| format!("{}/plugin.toml", guest.folder.display()))?;
    fs::write(to.join(format!("{}.toml", guest.name)), manifest)?;
    println!("{}: {} KiB", component.strip_prefix(root).unwrap_or(&component).display(), bytes.len() / 1024);
    Ok(())
}

struct Guest {
    name: String,
    folder: PathBuf,
    manifest: String,
}

fn guests(root: &Path) -> Result<Vec<Guest>> {
    let mut guests = Vec::new();
    for kind in KINDS {
        for folder in entries(&root.join("plugins").join(kind))? {
            if !folder.join("Cargo.toml").is_file() {
                continue;
            }
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let manifest = folder.join("plugin.toml");
            let manifest = fs::read_to_string(&manifest).with_context(|| format!("{}", manifest.display()))?;
            guests.push(Guest { name, folder, manifest });
        }
    }
    Ok(guests)
}

/// The manifest as committed beside the sources, with the digest of the component after its `wit` line.
fn with_digest(manifest: &str, digest: &str) -> Result<String> {
    ensure!(!manifest.contains("\nsha256"), "`sha256` is filled in by the build");
    let at = manifest.find("\nwit = ").context("no `wit` line")? + 1;
    let end = at + manifest[at..].find('\n').context("`wit` must not be the last line")? + 1;
    Ok(format!("{}sha256 = \"{digest}\"\n{}", &manifest[..end], &manifest[end..]))
}

struct Metadata {
    target: PathBuf,
    /// Where cargo unpacked the dependencies; such paths must not end up inside components.
    registry: Option<String>,
}

fn metadata(plugins: &Path) -> Result<Metadata> {
    let text = cargo(plugins).args(["metadata", "--format-version", "1", "--locked"]).output()?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    let target = json["target_directory"].as_str().context("cargo metadata names no target directory")?.into();
    let manifests = json["packages"].as_array().into_iter().flatten().filter_map(|p| p["manifest_path"].as_str());
    // `.../registry/src/INDEX/CRATE-VERSION/Cargo.toml`
    let registry = manifests
        .filter(|path| path.contains("/registry/src/"))
        .find_map(|path| Some(Path::new(path).parent()?.parent()?.to_str()?.to_string()));
    Ok(Metadata { target, registry })
}

/// Who compiles guests.
enum Toolchain {
    /// The rustup toolchain in use has the target.
    Rustup,
    /// Debian's compiler, which builds the standard library for the target itself.
    Debian { linker: &'static str },
}

impl Toolchain {
    fn find(plugins: &Path) -> Result<Self> {
        let sysroot = Step::new("rustc", plugins).args(["--print", "sysroot"]).output()?;
        if Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
            return Ok(Self::Rustup);
        }
        let linker = ["wasm-ld-19", "wasm-ld"].into_iter().find(|linker| has(linker, &[]));
        let debian = Path::new("/usr/bin/rustc").is_file() && Path::new("/usr/bin/cargo").is_file();
        let library = Path::new("/usr/lib/rustlib/src/rust/library").is_dir();
        match linker {
            Some(linker) if debian && library => Ok(Self::Debian { linker }),
            _ => bail!(
                "no Rust compiler for {TARGET}. Either `rustup target add {TARGET}`, or on Debian \
                 `apt-get install rustc-web cargo-web rust-web-src lld-19`"
            ),
        }
    }

    fn build(&self, plugins: &Path, metadata: &Metadata, guests: &[Guest]) -> Result<()> {
        let mut flags = vec![format!("--remap-path-prefix={}=plugins", plugins.display())];
        flags.extend(metadata.registry.iter().map(|path| format!("--remap-path-prefix={path}=registry")));
        let mut step = match self {
            Self::Rustup => Step::new("cargo", plugins),
            Self::Debian { linker } => Step::new("/usr/bin/cargo", plugins)
                .env("RUSTC", "/usr/bin/rustc")
                // Cargo's `-Z build-std` is behind this switch on a stable compiler.
                .env("RUSTC_BOOTSTRAP", "1")
                // A compiler wrapper of the user's setup may not know this compiler.
                .env("RUSTC_WRAPPER", "")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker)
                .args(["-Z", "build-std=std,panic_abort"]),
        };
        step = step.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        step = step.args(["build", "--release", "--locked", "--target", TARGET]);
        for guest in guests {
            step = step.args(["--package", guest.name.as_str()]);
        }
        step.check()
    }
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

#[cfg(test)]
mod tests {
    use super::with_digest;

    #[test]
    fn digest_goes_below_the_wit_line() {
        let manifest = "name = \"a\"\nwit = \"tokenloom:output@0.1.0\"\n\n[limits]\n";
        let expected = "name = \"a\"\nwit = \"tokenloom:output@0.1.0\"\nsha256 = \"ff\"\n\n[limits]\n";
        assert_eq!(with_digest(manifest, "ff").ok().as_deref(), Some(expected));
        assert!(with_digest("name = \"a\"\n", "ff").is_err());
        assert!(with_digest(expected, "ff").is_err());
    }
}
