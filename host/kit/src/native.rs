//! The native build of a Rust project: the same crate without a sandbox, timed on the same calls.
//!
//! A small program is written into the project's `target` folder, with the project as its dependency. It reads the calls
//! from a file and prints the nanoseconds of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::embedded::write;
use crate::error::KitError;
use crate::project::{Kind, Lang, Project};
use crate::run::Tool;

const COMMON: &str = include_str!("native/common.rs");

/// The macros that say which type the plugin is. The type is their first argument.
const MACROS: [&str; 5] =
    ["export_stage!(", "described_stage!(", "export_template!(", "export_scheduler!(", "export_rank!("];

/// Nanoseconds of every call, by export.
pub type Times = BTreeMap<String, Vec<u64>>;

/// Builds a project natively and times it on `work`, the JSON of its kind, `rounds` times over.
pub fn times(folder: &Path, work: &str, rounds: usize) -> Result<Times, KitError> {
    let project = Project::read(folder)?;
    if project.lang != Lang::Rust {
        return Err(KitError::NotRust { folder: project.folder });
    }
    let source = project.folder.join("src/lib.rs");
    let text = std::fs::read_to_string(&source).map_err(|e| KitError::io(&source, &e))?;
    let (name, plugin) = exported(&text).ok_or_else(|| KitError::NoExport { path: source.clone() })?;
    let bench = project.folder.join("target/native-bench");
    let workspace = Workspace::of(&project.folder)?;
    write(&bench.join("Cargo.toml"), &manifest(&project, &workspace)?)?;
    write(&bench.join("src/common.rs"), COMMON)?;
    write(&bench.join("src/main.rs"), &program(project.kind, name, plugin))?;
    let lock = workspace.root.join("Cargo.lock");
    if lock.is_file() {
        // The versions that the component was built with.
        let to = bench.join("Cargo.lock");
        std::fs::copy(&lock, &to).map_err(|e| KitError::io(&to, &e))?;
    }
    let file = bench.join("work.json");
    write(&file, work)?;
    let tool = Tool::new("cargo", &bench).args(["run", "--release", "--quiet", "--"]).arg(&file);
    let printed = tool.arg(rounds.to_string()).run()?;
    serde_json::from_str(&printed).map_err(|e| KitError::Io { path: bench, message: format!("its figures: {e}") })
}

/// The macro without its `!(`, and the type it exports.
fn exported(source: &str) -> Option<(&'static str, &str)> {
    let code = source.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    let mut found = code.filter_map(|line| {
        let (name, rest) = MACROS.iter().find_map(|name| Some((*name, line.split_once(name)?.1)))?;
        let end = rest.find([',', ')'])?;
        Some((name, rest[..end].trim()))
    });
    found.next_back()
}

fn program(kind: Kind, name: &str, plugin: &str) -> String {
    let text = match kind {
        Kind::Output => include_str!("native/output.rs"),
        Kind::Template => include_str!("native/template.rs"),
        Kind::Scheduler => include_str!("native/scheduler.rs"),
    };
    let policy = match name {
        "export_rank!(" => {
            "(|settings: &str| tokenloom_sdk::rank::Ranked::new(\
             <Plugin as tokenloom_sdk::rank::Rank>::configure(settings).expect(\"its settings\")))"
        }
        _ => {
            "(|settings: &str| tokenloom_sdk::scheduler::Scheduler::policy(\
             &<Plugin as tokenloom_sdk::scheduler::Scheduler>::configure(settings).expect(\"its settings\")))"
        }
    };
    text.replace("plugin::PLUGIN", &format!("plugin::{plugin}")).replace("POLICY", policy)
}

/// What cargo says of a project.
struct Workspace {
    root: PathBuf,
    sdk: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

impl Workspace {
    fn of(folder: &Path) -> Result<Self, KitError> {
        let printed = Tool::new("cargo", folder).args(["metadata", "--format-version", "1"]).run()?;
        let fault = |message: String| KitError::Io { path: folder.join("Cargo.toml"), message };
        let metadata: Metadata = serde_json::from_str(&printed).map_err(|e| fault(e.to_string()))?;
        let sdk = metadata.packages.into_iter().find(|package| package.name == "tokenloom-sdk");
        let sdk = sdk.ok_or_else(|| fault("it does not depend on `tokenloom-sdk`".into()))?;
        let sdk = sdk.manifest_path.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { root: metadata.workspace_root, sdk })
    }
}

/// Optimised as the project's own release profile says; a component is small, and so is what it is compared with.
fn manifest(project: &Project, workspace: &Workspace) -> Result<String, KitError> {
    let path = workspace.root.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| KitError::io(&path, &e))?;
    let table: toml::Table = toml::from_str(&text).map_err(|e| KitError::Manifest { path, message: e.to_string() })?;
    let own = table.get("profile").and_then(|profile| profile.get("release")?.get("opt-level"));
    let level = own.map_or("3".to_owned(), ToString::to_string);
    let (name, folder, sdk) = (&project.name, project.folder.display(), workspace.sdk.display());
    Ok(format!(
        "# Written by `tokenloom plugin bench`.\n[workspace]\n\n[package]\nname = \"native-bench\"\nversion = \"0.0.0\"\n\
         edition = \"2024\"\npublish = false\n\n[dependencies]\nplugin = {{ package = \"{name}\", path = \"{folder}\" }}\n\
         tokenloom-sdk = {{ path = \"{sdk}\" }}\nserde_json = \"1\"\n\n[profile.release]\nopt-level = {level}\n\
         lto = \"fat\"\ncodegen-units = 1\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exported_type_is_found() {
        for (source, expected) in [
            ("tokenloom_sdk::export_stage!(Bang);", Some(("export_stage!(", "Bang"))),
            (
                "// export_stage!(No)\nblocks::described_stage!(Hermes, describe);",
                Some(("described_stage!(", "Hermes")),
            ),
            ("export_rank!(Shortest);\n", Some(("export_rank!(", "Shortest"))),
            ("fn main() {}", None),
        ] {
            assert_eq!(exported(source), expected, "{source}");
        }
    }

    /// The program names the plugin's type, and a scheduler's policy is made as its macro makes it.
    #[test]
    fn the_program_is_of_the_kind() {
        assert!(program(Kind::Output, "export_stage!(", "Bang").contains("use plugin::Bang as Plugin;"));
        assert!(program(Kind::Scheduler, "export_rank!(", "Short").contains("Ranked::new("));
        assert!(program(Kind::Scheduler, "export_scheduler!(", "Own").contains("Scheduler::policy("));
        assert!(!program(Kind::Scheduler, "export_scheduler!(", "Own").contains("POLICY"));
    }
}
