//! What a model's SRC means.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::bail;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Gguf(PathBuf),
    /// A Hugging Face folder.
    Folder(PathBuf),
    Script(PathBuf),
}

const SCRIPT: &str = "script:";
const HUB: &str = "hf:";

impl Source {
    /// Says what is wrong with a source before anything is loaded.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        if let Some(file) = text.strip_prefix(SCRIPT) {
            return Ok(Self::Script(existing(file, "script")?));
        }
        if let Some(repository) = text.strip_prefix(HUB) {
            bail!(
                "model `{text}`: fetching from the hub is not supported yet; download {repository} (a GGUF file) \
                 and give its path"
            );
        }
        let path = existing(text, "model")?;
        if path.is_dir() {
            return Ok(Self::Folder(path));
        }
        Ok(Self::Gguf(path))
    }

    /// What the model is called when nobody gives it a name: the file's or folder's own.
    pub fn default_name(&self) -> String {
        let (Self::Gguf(path) | Self::Folder(path) | Self::Script(path)) = self;
        let name = if matches!(self, Self::Folder(_)) { path.file_name() } else { path.file_stem() };
        name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf(path) | Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Script(path) => write!(f, "{SCRIPT}{}", path.display()),
        }
    }
}

fn existing(text: &str, what: &str) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(text);
    if !path.exists() {
        bail!("{what} `{text}` does not exist; give a GGUF file, a folder, or {SCRIPT}FILE.json");
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
        assert_eq!(Source::Gguf("a/SmolLM2.Q4_1.gguf".into()).default_name(), "SmolLM2.Q4_1");
    }

    #[test]
    fn what_cannot_be_loaded_is_said() {
        let error = |text: &str| Source::parse(text).unwrap_err().to_string();
        assert!(error("no/such.gguf").contains("`no/such.gguf` does not exist"));
        assert!(error("script:no.json").starts_with("script `no.json`"));
        assert!(error("hf:a/b").contains("not supported yet"));
    }

    #[test]
    fn config_paths_are_relative_to_the_config() {
        assert_eq!(rebase(Path::new("/c"), "m.gguf"), "/c/m.gguf");
        assert_eq!(rebase(Path::new("/c"), "script:s.json"), "script:/c/s.json");
        assert_eq!(rebase(Path::new("/c"), "/abs/m.gguf"), "/abs/m.gguf");
        assert_eq!(rebase(Path::new("/c"), "hf:a/b"), "hf:a/b");
    }
}
