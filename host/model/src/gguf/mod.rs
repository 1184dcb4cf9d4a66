//! GGUF version 3: a header of typed metadata and tensor descriptions, then aligned tensor bytes, little endian.
//!
//! [`Gguf::open`] maps a file; [`parse`] is the whole reader over plain bytes and what the fuzz tests call. The header
//! keeps byte ranges, so a vocabulary of 150,000 strings is walked when asked for and never copied. A large model may
//! be several files: see [`split`].

mod error;
mod metadata;
mod reader;
pub mod split;
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

/// A GGUF model: its headers, and its bytes for as long as any weight of it lives.
#[derive(Clone)]
pub struct Gguf {
    /// One file, or the parts of a split one in order. The first has the metadata.
    files: Arc<[Part]>,
    /// The tensors of all files, in the files' order.
    tensors: Arc<[TensorInfo]>,
    /// Each tensor's index, and its file's.
    by_name: Arc<HashMap<String, (usize, usize)>>,
}

struct Part {
    owner: Owner,
    header: Header,
}

impl Part {
    fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.header.metadata, (*self.owner).as_ref())
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (files, keys, tensors) = (self.files.len(), self.files[0].header.metadata.len(), self.tensors.len());
        write!(f, "Gguf({files} files, {keys} keys, {tensors} tensors)")
    }
}

impl Gguf {
    /// Maps a file, and with the first part of a split model all others, and reads their headers.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let first = map(path)?;
        let in_file = |source| ModelError::Gguf { path: path.to_owned(), source };
        let Some(split) = split::Split::read(&first.metadata()).map_err(in_file)? else {
            return Self::from_parts(vec![first]).map_err(in_file);
        };
        let paths = split.paths(path).map_err(in_file)?;
        let mut parts = vec![first];
        for (number, path) in paths.iter().enumerate().skip(1) {
            let part = map(path)?;
            split
                .check_part(&part.metadata(), number)
                .map_err(|source| ModelError::Gguf { path: path.clone(), source })?;
            parts.push(part);
        }
        let gguf = Self::from_parts(parts).map_err(in_file)?;
        split.check_tensors(gguf.tensors.len()).map_err(in_file)?;
        Ok(gguf)
    }

    /// A whole file's bytes. One part of a split model is not whole.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        let header = parse(&bytes)?;
        Self::from_parts(vec![Part { owner: Arc::new(bytes), header }])
    }

    /// At least one part.
    fn from_parts(mut parts: Vec<Part>) -> Result<Self, GgufError> {
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for (number, part) in parts.iter_mut().enumerate() {
            for tensor in std::mem::take(&mut part.header.tensors) {
                if by_name.insert(tensor.name.clone(), (tensors.len(), number)).is_some() {
                    return Err(GgufError::Duplicate { what: "tensor", name: tensor.name });
                }
                tensors.push(tensor);
            }
        }
        Ok(Self { files: parts.into(), tensors: tensors.into(), by_name: Arc::new(by_name) })
    }

    pub fn metadata(&self) -> Metadata<'_> {
        self.files[0].metadata()
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&(tensor, _)| &self.tensors[tensor])
    }

    /// A tensor as a matrix of `[product of the outer dimensions, innermost dimension]`, still in the mapped file.
    pub fn weight(&self, name: &str) -> Result<Weight, GgufError> {
        let found = self.by_name.get(name).map(|&(tensor, file)| (&self.tensors[tensor], &self.files[file]));
        let (info, file) = found.ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })?;
        let bad = || GgufError::Tensor { name: name.to_owned(), reason: "its bytes are not whole rows".into() };
        let bytes = SharedBytes::new(Arc::clone(&file.owner), info.bytes.clone()).ok_or_else(bad)?;
        Weight::new(name, info.ty, info.rows(), info.cols(), bytes).ok_or_else(bad)
    }
}

fn map(path: &Path) -> Result<Part, ModelError> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read-only. Should another process shorten the file while it is served, reading it raises a
    // signal; model files are written once and then only read, as with every program that maps them.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    let header = parse(&map).map_err(|source| ModelError::Gguf { path: path.to_owned(), source })?;
    Ok(Part { owner: Arc::new(map), header })
}
