//! Which of a repository's files make the model.

use anyhow::{bail, ensure};
use model::gguf::split::{part_name, part_of};

/// What a folder is read with, besides its weights.
const TEXTS: [&str; 5] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];
const SHARD_INDEX: &str = "model.safetensors.index.json";
/// More names than this do not help in an error.
const NAMED_MAX: usize = 12;

/// Files to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// All parts; the first is the model's path.
    Gguf(Vec<String>),
    /// Files of the repository's own folder.
    Folder(Vec<String>),
}

impl Want {
    pub(super) fn files(&self) -> &[String] {
        let (Self::Gguf(files) | Self::Folder(files)) = self;
        files
    }

    /// The model's path in the repository.
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Gguf(parts) => parts.first().map_or("", String::as_str),
            Self::Folder(_) => "",
        }
    }
}

/// Chooses among the repository's files: the named one, else safetensors with their texts, else the only GGUF model.
pub(super) fn choose(listed: &[String], file: Option<&str>, weights: bool) -> anyhow::Result<Want> {
    let models = gguf_models(listed);
    let names = || {
        let mut names = models.iter().take(NAMED_MAX).map(|model| model[0].as_str()).collect::<Vec<_>>().join(", ");
        if models.len() > NAMED_MAX {
            names += &format!(" and {} more", models.len() - NAMED_MAX);
        }
        names
    };
    if let Some(file) = file {
        let Some(parts) = models.iter().find(|parts| parts.iter().any(|part| part == file)) else {
            bail!("there is no {file}; GGUF models are: {}", if models.is_empty() { "none".into() } else { names() });
        };
        return whole(parts, listed);
    }
    let has = |name: &str| listed.iter().any(|listed| listed == name);
    let is_shard = |name: &&String| name.starts_with("model") && name.ends_with(".safetensors") && !name.contains('/');
    let shards: Vec<&String> = listed.iter().filter(is_shard).collect();
    if has("config.json") && (!shards.is_empty() || !weights) {
        let mut files: Vec<String> = TEXTS.iter().filter(|name| has(name)).map(ToString::to_string).collect();
        if weights {
            files.extend(has(SHARD_INDEX).then(|| SHARD_INDEX.to_owned()));
            files.extend(shards.into_iter().cloned());
        }
        return Ok(Want::Folder(files));
    }
    match models.as_slice() {
        [only] => whole(only, listed),
        [] => bail!("it has neither config.json with model*.safetensors nor a GGUF file"),
        _ => bail!("it has {} GGUF models: name one as hf:ORG/NAME:FILE: {}", models.len(), names()),
    }
}

/// GGUF models with all their parts that are there; not the image encoders that go beside them.
fn gguf_models(listed: &[String]) -> Vec<Vec<String>> {
    let mut models: Vec<Vec<String>> = Vec::new();
    let mut names: Vec<&String> = listed.iter().filter(|name| name.ends_with(".gguf")).collect();
    names.sort();
    for name in names {
        if name.rsplit('/').next().is_some_and(|own| own.starts_with("mmproj")) {
            continue;
        }
        let same = |model: &&mut Vec<String>| match (part_of(&model[0]), part_of(name)) {
            (Some(first), Some(own)) => (first.stem, first.count) == (own.stem, own.count),
            _ => false,
        };
        match models.iter_mut().find(same) {
            Some(model) => model.push(name.clone()),
            None => models.push(vec![name.clone()]),
        }
    }
    models
}

fn whole(parts: &[String], listed: &[String]) -> anyhow::Result<Want> {
    if let Some(part) = part_of(&parts[0]) {
        for number in 1..=part.count {
            let name = part_name(part.stem, number, part.count);
            ensure!(listed.contains(&name), "{name} is missing: the model has {} parts", part.count);
        }
    }
    Ok(Want::Gguf(parts.to_vec()))
}
