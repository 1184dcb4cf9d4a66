//! Hugging Face folders: `config.json` and safetensors files, whole or in shards.
//!
//! [`load`] reads both, [`dummy`] only the settings. What the text side needs (tokenizer, template) is its business; here
//! are the folder's path and the token ids of `config.json`.

mod config;
mod error;
mod index;
mod rope;
mod safetensors;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use backend::ops::ModelSpec;
use serde::de::DeserializeOwned;

pub use config::Config;
pub use error::HfError;
pub use index::Shards;
pub use safetensors::{Shard, TensorInfo, parse};

use crate::ModelError;
use crate::decoder::assemble;

const CONFIG: &str = "config.json";
/// A config is a page of text.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A folder whose settings were read.
#[derive(Debug)]
pub struct HfFolder {
    pub path: PathBuf,
    pub config: Config,
}

impl HfFolder {
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let file = path.join(CONFIG);
        let config = Config::parse(&file, &read_text(&file, CONFIG_BYTES_MAX)?)?;
        Ok(Self { path: path.to_owned(), config })
    }

    /// The model with the folder's weights, still in their files.
    pub fn spec(&self) -> Result<ModelSpec, ModelError> {
        let spec = assemble(&self.config.settings, &Shards::open(&self.path, self.config.skipped)?)?;
        if spec.vocab != self.config.vocab {
            let found = format!("{}", self.config.vocab);
            let expected = format!("the embedding has {} rows", spec.vocab);
            return Err(ModelError::Setting { key: "vocab_size".into(), found, expected });
        }
        Ok(spec)
    }

    /// The model with random weights.
    pub fn dummy(&self, seed: u64) -> Result<ModelSpec, ModelError> {
        crate::dummy::spec(&self.config.settings, self.config.vocab, seed)
    }
}

fn read_text(path: &Path, limit: u64) -> Result<String, ModelError> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(io)?.len();
    if size > limit {
        return Err(ModelError::Hf { path: path.to_owned(), source: HfError::TooLarge { size, limit } });
    }
    std::fs::read_to_string(path).map_err(io)
}

fn read_json<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ModelError> {
    let fail = |e: serde_json::Error| ModelError::Hf { path: path.to_owned(), source: HfError::Json(e.to_string()) };
    serde_json::from_str(text).map_err(fail)
}
