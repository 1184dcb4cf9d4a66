//! Model files to a [`ModelSpec`]: a shape, named weights, and a list of block operations.
//!
//! It reads GGUF files ([`gguf`]) and knows what a model family is made of
//! ([`families`]). It must not know how an operation is computed or where: it only depends on `backend` for the words.
//!
//! Start with [`load`]. Files are mapped, not read; nothing in a file may panic, every count, offset and length is
//! checked against the bytes that are there.

pub mod decoder;
pub mod dummy;
pub mod error;
pub mod families;
pub mod gguf;
pub mod tokenizer;

use std::path::Path;

use backend::ops::ModelSpec;

pub use error::ModelError;
pub use gguf::Gguf;
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
}

impl LoadedModel {
    /// The GGUF file, for its metadata.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
        }
    }
}

/// Reads a model: a `.gguf` file.
pub fn load(path: &Path) -> Result<LoadedModel, ModelError> {
    let gguf = Gguf::open(path)?;
    let spec = families::from_gguf(&gguf)?;
    Ok(LoadedModel { spec, source: Source::Gguf(gguf) })
}
