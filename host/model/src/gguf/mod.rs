//! GGUF version 3: a header of typed metadata and tensor descriptions, then aligned tensor bytes, little endian.
//!
//! [`Gguf::open`] maps a file; [`parse`] is the whole reader over plain bytes and what the fuzz tests call. The header
//! keeps byte ranges, so a vocabulary of 150,000 strings is walked when asked for and never copied.

mod error;
mod metadata;
mod reader;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use backend::weights::{SharedBytes, Weight};

pub use error::GgufError;
pub use metadata::{Array, Metadata, Required, Value, ValueType};
pub use reader::{Header, TensorInfo, parse};

use crate::ModelError;

type Owner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A GGUF file: its header, and its bytes for as long as any weight of it lives.
#[derive(Clone)]
pub struct Gguf {
    owner: Owner,
    header: Arc<Header>,
    by_name: Arc<HashMap<String, usize>>,
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gguf({} keys, {} tensors)", self.header.metadata.len(), self.header.tensors.len())
    }
}

impl Gguf {
    /// Maps a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only. Should another process shorten the file while it is served, reading it raises a
        // signal; model files are written once and then only read, as with every program that maps them.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Self::from_owner(Arc::new(map)).map_err(|source| ModelError::Gguf { path: path.to_owned(), source })
    }

    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_owner(Arc::new(bytes))
    }

    fn from_owner(owner: Owner) -> Result<Self, GgufError> {
        let header = parse((*owner).as_ref())?;
        let by_name = header.tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { owner, header: Arc::new(header), by_name: Arc::new(by_name) })
    }

    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.header.metadata, (*self.owner).as_ref())
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.header.tensors[i])
    }

    /// A tensor as a matrix of `[product of the outer dimensions, innermost dimension]`, still in the mapped file.
    pub fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        let info = self.tensor(name).ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })?;
        let bad = || GgufError::Tensor { name: name.to_owned(), reason: "its bytes are not whole rows".into() };
        let bytes = SharedBytes::new(Arc::clone(&self.owner), info.bytes.clone()).ok_or_else(bad)?;
        Weight::new(name, info.ty, info.rows(), info.cols(), bytes).ok_or_else(bad)
    }
}
