//! Rust: a library crate for `wasm32-unknown-unknown`, whose bindings carry the world's description.

use std::path::{Path, PathBuf};

use super::{Built, encode, finish, read};
use crate::error::KitError;
use crate::project::Project;
use crate::run::{Tool, has};

const TARGET: &str = "wasm32-unknown-unknown";

pub fn component(project: &Project) -> Result<Vec<u8>, KitError> {
    let workspace = Workspace::of(&project.folder)?;
    // Cargo names a project's own files by their paths within it. Flags that are the same for every project let several
    // share a target folder, and with it the standard library.
    workspace.compile(&[project], Vec::new())?;
    workspace.component(project)
}

/// Builds several plugins of one cargo workspace into one folder: the components a server brings along.
pub fn bundle(workspace: &Path, folders: &[PathBuf], to: &Path) -> Result<Vec<Built>, KitError> {
    let projects = folders.iter().map(|folder| Project::read(folder)).collect::<Result<Vec<_>, _>>()?;
    let workspace = Workspace::of(workspace)?;
    let own = format!("--remap-path-prefix={}=plugins", workspace.folder.display());
    workspace.compile(&projects.iter().collect::<Vec<_>>(), vec![own])?;
    std::fs::create_dir_all(to).map_err(|e| KitError::io(to, &e))?;
    projects.iter().map(|project| finish(project, &workspace.component(project)?, to)).collect()
}

/// Whether plugins in Rust can be built here; the error says what to install.
pub fn toolchain(folder: &Path) -> Result<(), KitError> {
    Compiler::find(folder).map(drop)
}

/// What cargo says about the folder's workspace.
struct Workspace {
    folder: PathBuf,
    target: PathBuf,
    /// Where cargo unpacked the dependencies; such paths must not end up inside components.
    registry: Option<String>,
}

impl Workspace {
    fn of(folder: &Path) -> Result<Self, KitError> {
        let tool = Tool::new("cargo", folder).args(["metadata", "--format-version", "1"]);
        let text = tool.args(locked(folder)).run()?;
        let fault = |message: String| KitError::Io { path: folder.join("Cargo.toml"), message };
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| fault(e.to_string()))?;
        let target =
            json["target_directory"].as_str().ok_or_else(|| fault("cargo names no target directory".into()))?;
        let manifests = json["packages"].as_array().into_iter().flatten().filter_map(|p| p["manifest_path"].as_str());
        // `.../registry/src/INDEX/CRATE-VERSION/Cargo.toml`
        let registry = manifests
            .filter(|path| path.contains("/registry/src/"))
            .find_map(|path| Some(Path::new(path).parent()?.parent()?.to_str()?.to_string()));
        Ok(Self { folder: folder.into(), target: target.into(), registry })
    }

    fn compile(&self, projects: &[&Project], mut flags: Vec<String>) -> Result<(), KitError> {
        flags.extend(self.registry.iter().map(|path| format!("--remap-path-prefix={path}=registry")));
        let tool = Compiler::find(&self.folder)?.tool(&self.folder);
        let tool = tool.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        let tool = tool.args(["build", "--quiet", "--release", "--target", TARGET]).args(locked(&self.folder));
        let packages = projects.iter().flat_map(|project| ["--package", project.name.as_str()]);
        tool.args(packages).run().map(drop)
    }

    fn component(&self, project: &Project) -> Result<Vec<u8>, KitError> {
        // Cargo spells a library's file with underscores.
        let file = format!("{}.wasm", project.name.replace('-', "_"));
        let module = self.target.join(TARGET).join("release").join(file);
        encode(&read(&module)?, &module)
    }
}

/// A project that was built once keeps its versions.
fn locked(folder: &Path) -> Option<&'static str> {
    folder.join("Cargo.lock").is_file().then_some("--locked")
}

/// Who compiles guests.
enum Compiler {
    /// The rustup toolchain in use has the target.
    Rustup,
    /// Debian's compiler, which builds the standard library for the target itself.
    Debian { linker: &'static str },
}

/// What Debian's toolchain compiles of the standard library is for speed, as rustup's is, whatever the project's own profile
/// says: a policy's call is a tenth shorter.
const LIBRARY: [&str; 3] = ["core", "alloc", "std"];

impl Compiler {
    fn find(folder: &Path) -> Result<Self, KitError> {
        let sysroot = Tool::new("rustc", folder).args(["--print", "sysroot"]).run().unwrap_or_default();
        if !sysroot.is_empty() && Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).is_dir() {
            return Ok(Self::Rustup);
        }
        let linker = ["wasm-ld-19", "wasm-ld"].into_iter().find(|linker| has(linker, "--version"));
        let debian = Path::new("/usr/bin/rustc").is_file() && Path::new("/usr/bin/cargo").is_file();
        let library = Path::new("/usr/lib/rustlib/src/rust/library").is_dir();
        match linker {
            Some(linker) if debian && library => Ok(Self::Debian { linker }),
            _ => Err(KitError::ToolMissing {
                tool: format!("a Rust compiler for {TARGET}"),
                fix: format!(
                    "either `rustup target add {TARGET}`, or on Debian `apt-get install rustc-web cargo-web \
                     rust-web-src lld-19`"
                ),
            }),
        }
    }

    fn tool(&self, folder: &Path) -> Tool {
        match self {
            Self::Rustup => Tool::new("cargo", folder),
            Self::Debian { linker } => Tool::new("/usr/bin/cargo", folder)
                .env("RUSTC", "/usr/bin/rustc")
                // Cargo's `-Z build-std` is behind this switch on a stable compiler.
                .env("RUSTC_BOOTSTRAP", "1")
                // A compiler wrapper of the user's setup may not know this compiler.
                .env("RUSTC_WRAPPER", "")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker)
                .args(["-Z", "build-std=std,panic_abort"])
                .args(LIBRARY.map(|name| format!("--config=profile.release.package.{name}.opt-level=3"))),
        }
    }
}
