//! Model files to a [`ModelSpec`]: a shape, named weights, and a list of block operations.
//!
//! It reads GGUF files ([`gguf`]) and Hugging Face folders ([`hf`]) and knows what a model family is made of
//! ([`families`]). It must not know how an operation is computed or where: it only depends on `backend` for the words.
//!
//! Start with [`load`]. Files are mapped, not read; nothing in a file may panic, every count, offset and length is
//! checked against the bytes that are there.

pub mod decoder;
pub mod dummy;
pub mod error;
pub mod families;
pub mod gguf;
pub mod hf;
pub mod tokenizer;

use std::path::Path;

use backend::ops::ModelSpec;

pub use error::ModelError;
pub use gguf::Gguf;
pub use hf::HfFolder;
pub use tokenizer::GgufTokenizerData;

/// A model that was read: what a backend loads, and what the text side needs.
#[derive(Debug)]
pub struct LoadedModel {
    pub spec: ModelSpec,
    pub source: Source,
}

/// Where a model came from, for what is not a weight: tokenizer, template, names.
#[derive(Debug)]
pub enum Source {
    Gguf(Gguf),
    Folder(Box<HfFolder>),
}

/// Reads a model: a `.gguf` file, or a folder with `config.json` and safetensors files.
pub fn load(path: &Path) -> Result<LoadedModel, ModelError> {
    if path.is_dir() {
        let folder = HfFolder::open(path)?;
        return Ok(LoadedModel { spec: folder.spec()?, source: Source::Folder(Box::new(folder)) });
    }
    let gguf = Gguf::open(path)?;
    let spec = families::from_gguf(&gguf)?;
    Ok(LoadedModel { spec, source: Source::Gguf(gguf) })
}

/// A folder's model with random weights; only its `config.json` is read.
pub fn load_dummy(path: &Path, seed: u64) -> Result<LoadedModel, ModelError> {
    let folder = HfFolder::open(path)?;
    Ok(LoadedModel { spec: folder.dummy(seed)?, source: Source::Folder(Box::new(folder)) })
}
