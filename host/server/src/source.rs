//! What a model's SRC means.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use model::gguf::split::part_of;

use crate::hub::HubModel;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Gguf(PathBuf),
    /// A Hugging Face folder.
    Folder(PathBuf),
    Script(PathBuf),
    /// `hf:ORG/NAME`: fetched when it is loaded.
    Hub(HubModel),
}

const SCRIPT: &str = "script:";
const HUB: &str = "hf:";

impl Source {
    /// Says what is wrong with a source before anything is loaded.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        if let Some(file) = text.strip_prefix(SCRIPT) {
            return Ok(Self::Script(existing(file, "script")?));
        }
        if let Some(model) = text.strip_prefix(HUB) {
            return Ok(Self::Hub(HubModel::parse(model)?));
        }
        let path = existing(text, "model")?;
        if path.is_dir() {
            return Ok(Self::Folder(path));
        }
        Ok(Self::Gguf(path))
    }

    /// What the model is called when nobody gives it a name: the file's or folder's own.
    pub fn default_name(&self) -> String {
        let path = match self {
            Self::Hub(model) => return model.default_name(),
            Self::Gguf(path) | Self::Folder(path) | Self::Script(path) => path,
        };
        let name = if matches!(self, Self::Folder(_)) { path.file_name() } else { path.file_stem() };
        let Some(name) = name.map(|name| name.to_string_lossy().into_owned()) else {
            return path.display().to_string();
        };
        // The first part of several stands for all.
        part_of(&format!("{name}.gguf")).map_or(name.clone(), |part| part.stem.to_owned())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf(path) | Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Script(path) => write!(f, "{SCRIPT}{}", path.display()),
            Self::Hub(model) => model.fmt(f),
        }
    }
}

fn existing(text: &str, what: &str) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(text);
    if !path.exists() {
        bail!("{what} `{text}` does not exist; give a GGUF file, a folder, {HUB}ORG/NAME, or {SCRIPT}FILE.json");
    }
    Ok(path)
}

/// A source of a config file, relative to the file's folder.
pub fn rebase(base: &Path, text: &str) -> String {
    if text.starts_with(HUB) {
        return text.to_string();
    }
    match text.strip_prefix(SCRIPT) {
        Some(file) => format!("{SCRIPT}{}", base.join(file).display()),
        None => base.join(text).display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.gguf");
        std::fs::write(&file, "").unwrap();
        let text = file.display().to_string();
        assert_eq!(Source::parse(&text).unwrap(), Source::Gguf(file.clone()));
        assert_eq!(Source::parse(&format!("script:{text}")).unwrap(), Source::Script(file));
        let parsed = Source::parse(&folder.path().display().to_string()).unwrap();
        assert_eq!(parsed, Source::Folder(folder.path().into()));
        for (source, name) in [
            (Source::Gguf("a/SmolLM2.Q4_1.gguf".into()), "SmolLM2.Q4_1"),
            (Source::Gguf("a/m-00001-of-00003.gguf".into()), "m"),
            (Source::Folder("a/b.c".into()), "b.c"),
            (Source::parse("hf:org/m").unwrap(), "m"),
        ] {
            assert_eq!(source.default_name(), name);
        }
    }

    #[test]
    fn what_cannot_be_loaded_is_said() {
        let error = |text: &str| Source::parse(text).unwrap_err().to_string();
        assert!(error("no/such.gguf").contains("`no/such.gguf` does not exist"));
        assert!(error("script:no.json").starts_with("script `no.json`"));
        assert!(error("hf:a").contains("`hf:a` is not hf:ORG/NAME"));
    }

    #[test]
    fn config_paths_are_relative_to_the_config() {
        assert_eq!(rebase(Path::new("/c"), "m.gguf"), "/c/m.gguf");
        assert_eq!(rebase(Path::new("/c"), "script:s.json"), "script:/c/s.json");
        assert_eq!(rebase(Path::new("/c"), "/abs/m.gguf"), "/abs/m.gguf");
        assert_eq!(rebase(Path::new("/c"), "hf:a/b"), "hf:a/b");
    }
}
