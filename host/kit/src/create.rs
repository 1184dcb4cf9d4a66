//! `plugin new`: an example of the repository under another name.

use std::path::{Path, PathBuf};

use crate::embedded;
use crate::error::KitError;
use crate::project::{Kind, Lang, Project};

/// A component's name is also a metric label and a crate's name.
const NAME_BYTES_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct NewPlugin {
    pub kind: Kind,
    pub lang: Lang,
    pub name: String,
}

/// Writes the project into the folder of its name below `parent`.
pub fn create(new: &NewPlugin, parent: &Path) -> Result<PathBuf, KitError> {
    check_name(&new.name)?;
    let folder = parent.join(&new.name);
    if folder.exists() {
        return Err(KitError::Exists { path: folder });
    }
    let example = format!("examples/{}/{}", new.lang, new.kind);
    let own = example_name(&example).ok_or_else(|| KitError::NoSource { folder: example.clone().into() })?;
    let renamed = |text: &str| {
        let text = text.replace(&own, &new.name);
        // Cargo spells a library's name with underscores.
        text.replace(&own.replace('-', "_"), &new.name.replace('-', "_"))
    };
    for (path, text) in embedded::below(&example) {
        embedded::write(&folder.join(path), &renamed(text))?;
    }
    embedded::support(&folder, new.kind, new.lang)?;
    Project::read(&folder).map(|_| folder)
}

fn check_name(name: &str) -> Result<(), KitError> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts && name.len() <= NAME_BYTES_MAX && name.chars().all(good) {
        return Ok(());
    }
    Err(KitError::Name { name: name.into() })
}

fn example_name(example: &str) -> Option<String> {
    let (_, manifest) = embedded::below(example).find(|(path, _)| *path == "plugin.toml")?;
    manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind in every language: the folder is a project of that name, with cases and a page for its author, and the
    /// example's own name is nowhere in it.
    #[test]
    fn every_kind_in_every_language() {
        let parent = tempfile::tempdir().expect("a folder can be made");
        for lang in Lang::ALL {
            for kind in Kind::ALL {
                let new = NewPlugin { kind, lang, name: format!("my-{lang}-{kind}") };
                let folder = create(&new, parent.path()).expect("it is written");
                let project = Project::read(&folder).expect("it is a project");
                assert_eq!((project.kind, project.lang, &project.name), (kind, lang, &new.name));
                let own = example_name(&format!("examples/{lang}/{kind}")).expect("an example");
                for file in ["README.md", "cases.jsonl", lang.source()] {
                    let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
                    assert!(!text.is_empty(), "{lang} {kind}: {file} is missing");
                    assert!(!text.contains(&own), "{lang} {kind}: {file} still says {own}");
                }
                assert!(folder.join("tokenloom").is_dir());
            }
        }
    }

    #[test]
    fn names_and_folders_are_checked() {
        let parent = tempfile::tempdir().expect("a folder can be made");
        let new = |name: &str| {
            create(&NewPlugin { kind: Kind::Output, lang: Lang::C, name: name.into() }, parent.path())
                .map_err(|e| e.to_string())
        };
        for name in ["", "A", "1a", "a b", "../a", &"a".repeat(65)] {
            assert!(new(name).is_err_and(|m| m.contains("not possible")), "{name}");
        }
        assert!(new("a").is_ok());
        assert!(new("a").is_err_and(|m| m.contains("exists already")));
    }
}
