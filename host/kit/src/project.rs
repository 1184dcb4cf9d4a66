//! A plugin's folder: `plugin.toml`, its cases, and sources in one language.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::KitError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Output,
    Template,
    Scheduler,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Output, Self::Template, Self::Scheduler];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Template => "template",
            Self::Scheduler => "scheduler",
        }
    }

    /// The world a component of this kind is made for.
    pub fn world(self) -> String {
        format!("{}-plugin", self.as_str())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lang {
    Rust,
    Python,
    JavaScript,
    C,
}

impl Lang {
    pub const ALL: [Self; 4] = [Self::Rust, Self::Python, Self::JavaScript, Self::C];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::C => "c",
        }
    }

    /// The file that says a folder is in this language.
    pub fn source(self) -> &'static str {
        match self {
            Self::Rust => "Cargo.toml",
            Self::Python => "plugin.py",
            Self::JavaScript => "plugin.js",
            Self::C => "plugin.c",
        }
    }
}

impl fmt::Display for Lang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the build reads of a manifest; the server checks the rest.
#[derive(Deserialize)]
struct Manifest {
    name: String,
    kind: Kind,
    wit: String,
    sha256: Option<String>,
}

/// A plugin's folder, read.
#[derive(Clone, Debug)]
pub struct Project {
    pub folder: PathBuf,
    pub name: String,
    pub kind: Kind,
    pub lang: Lang,
    /// The text of `plugin.toml`.
    pub manifest: String,
}

impl Project {
    pub fn read(folder: &Path) -> Result<Self, KitError> {
        let folder = folder.canonicalize().map_err(|e| KitError::io(folder, &e))?;
        let path = folder.join("plugin.toml");
        let text = fs::read_to_string(&path).map_err(|e| KitError::io(&path, &e))?;
        let fault = |message: String| KitError::Manifest { path: path.clone(), message };
        let manifest: Manifest = toml::from_str(&text).map_err(|e| fault(e.to_string()))?;
        if manifest.sha256.is_some() {
            return Err(fault("`sha256` is filled in by the build; remove the line".into()));
        }
        if !manifest.wit.starts_with(&format!("tokenloom:{}@", manifest.kind)) {
            let kind = manifest.kind;
            return Err(fault(format!("wit is `{}`, and kind `{kind}` needs `tokenloom:{kind}@…`", manifest.wit)));
        }
        let lang = Lang::ALL.into_iter().find(|lang| folder.join(lang.source()).is_file());
        let lang = lang.ok_or_else(|| KitError::NoSource { folder: folder.clone() })?;
        Ok(Self { folder, name: manifest.name, kind: manifest.kind, lang, manifest: text })
    }

    pub fn component(&self) -> PathBuf {
        self.folder.join(format!("{}.wasm", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_the_file_and_the_fix() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let message = |manifest: &str| {
            fs::write(folder.path().join("plugin.toml"), manifest).expect("it can be written");
            Project::read(folder.path()).map(|p| p.lang).map_err(|e| e.to_string())
        };
        let good = "name = \"a\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n";
        assert!(message(good).is_err_and(|m| m.contains("Cargo.toml, plugin.py, plugin.js or plugin.c")));
        fs::write(folder.path().join("plugin.c"), "").expect("it can be written");
        assert_eq!(message(good), Ok(Lang::C));
        assert!(
            message(&good.replace("0.1.0\"", "0.1.0\"\nsha256 = \"00\"")).is_err_and(|m| m.contains("remove the line"))
        );
        assert!(message(&good.replace(":output", ":template")).is_err_and(|m| m.contains("needs `tokenloom:output@")));
        assert!(message("name = 1").is_err_and(|m| m.contains("plugin.toml")));
    }
}
