//! What can be wrong with a model file.

use std::path::PathBuf;

use crate::gguf::GgufError;
use crate::hf::HfError;

/// A model that cannot be read: the file, key or tensor at fault, what was found, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Gguf { path: PathBuf, source: GgufError },
    #[error("{}: {source}", path.display())]
    Hf { path: PathBuf, source: HfError },
    /// A key or a tensor of a readable file is missing, of the wrong type, or out of its range.
    #[error(transparent)]
    Content(#[from] GgufError),
    #[error("architecture `{found}` is not one of: {known}")]
    Architecture { found: String, known: String },
    #[error("`{key}` is {found}; {expected}")]
    Setting { key: String, found: String, expected: String },
    #[error("tensor `{name}` has the shape {found:?}; the model's settings need {expected:?} (outputs, inputs)")]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor `{name}` is stored as {found:?}; it must be plain numbers of f32, f16 or bf16")]
    NotPlain { name: String, found: backend::weights::WeightType },
    #[error("tensor `{name}` is missing; a {family} model needs it")]
    MissingTensor { name: String, family: String },
    #[error("tensor `{name}` is not part of a {family} model; leaving it out would give wrong results")]
    UnusedTensor { name: String, family: String },
}
