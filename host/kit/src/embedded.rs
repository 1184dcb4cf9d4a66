//! The files inside this crate, and the folder `tokenloom/` of a project that is made of them.

use std::fs;
use std::path::Path;

use crate::error::KitError;
use crate::project::{Kind, Lang};

/// Path within the repository, and text.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/files.in"));

/// The folder of a project that holds the SDK or the WIT. It belongs to the kit, not to the author.
pub const SUPPORT: &str = "tokenloom";

/// What the SDK's crates find above them: the repository's workspace without the bundled plugins.
const SDK_WORKSPACE: &str = r#"# Written by `tokenloom plugin new`: the SDK of this server's version.
[workspace]
resolver = "3"
members = ["sdk", "sdk/bindings/*"]

[workspace.package]
version = "0.1.0"
edition = "2024"
rust-version = "1.95"
license = "Apache-2.0"
publish = false

[workspace.dependencies]
tokenloom-sdk-scheduler = { path = "sdk/bindings/scheduler" }
tokenloom-sdk-template = { path = "sdk/bindings/template" }
tokenloom-sdk-output = { path = "sdk/bindings/output" }
tokenloom-sdk-types = { path = "sdk/bindings/types" }
wit-bindgen = { version = "0.57", default-features = false, features = ["macros", "realloc"] }
serde = { version = "1", features = ["derive"] }
serde_json = { version = "1", features = ["preserve_order"] }
proptest = "1"

[workspace.lints.rust]
unsafe_op_in_unsafe_fn = "deny"
"#;

/// The files below a folder, with their paths in it.
pub fn below(folder: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let prefix = format!("{folder}/");
    FILES.iter().filter_map(move |(path, text)| Some((path.strip_prefix(prefix.as_str())?, *text)))
}

pub fn write(path: &Path, text: &str) -> Result<(), KitError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| KitError::io(folder, &e))?;
    }
    fs::write(path, text).map_err(|e| KitError::io(path, &e))
}

/// Writes `tokenloom/` into a project that lacks it. What is there stays: it is what the author's code was written for.
pub fn support(project: &Path, kind: Kind, lang: Lang) -> Result<(), KitError> {
    let to = project.join(SUPPORT);
    if to.is_dir() {
        return Ok(());
    }
    if lang == Lang::Rust {
        write(&to.join("plugins/Cargo.toml"), SDK_WORKSPACE)?;
        for (path, text) in below("plugins/sdk").filter(|(path, _)| !path.starts_with("c/")) {
            write(&to.join("plugins/sdk").join(path), text)?;
        }
        return below("wit").try_for_each(|(path, text)| write(&to.join("wit").join(path), text));
    }
    // One package with the others below it, which is how every generator of bindings reads a folder.
    for (path, text) in below("wit") {
        let Some((package, file)) = path.split_once('/') else { continue };
        if package == kind.as_str() {
            write(&to.join("wit").join(file), text)?;
        } else if matches!(package, "types" | "plugin" | "host") {
            write(&to.join("wit/deps").join(path), text)?;
        }
    }
    if lang == Lang::C {
        let bindings = format!("bindings/{}_plugin.", kind.as_str());
        for (path, text) in below("plugins/sdk/c") {
            if let Some(file) = path.strip_prefix("bindings/").filter(|_| path.starts_with(&bindings)) {
                write(&to.join("c").join(file), text)?;
            } else if let Some(file) = path.strip_prefix("runtime/") {
                write(&to.join("c").join(file), text)?;
            }
        }
    }
    Ok(())
}
