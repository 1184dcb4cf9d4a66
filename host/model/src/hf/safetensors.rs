//! One safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes one after the other.
//!
//! The format: <https://huggingface.co/docs/safetensors>. Every length is checked against the file before it is used.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backend::weights::{SharedBytes, Weight, WeightType};
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::HfError;
use crate::ModelError;

/// The format's own limit of a header.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const LENGTH_BYTES: u64 = 8;

/// A mapped file with its header read.
pub struct Shard {
    pub path: PathBuf,
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    tensors: HashMap<String, TensorInfo>,
}

/// One tensor's description, checked: its bytes lie inside the file and are as many as its shape needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub ty: WeightType,
    /// A vector is one row.
    pub rows: usize,
    pub cols: usize,
    /// Range in the file.
    pub bytes: Range<usize>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({}, {} tensors)", self.path.display(), self.tensors.len())
    }
}

impl Shard {
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |source| ModelError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read-only. Should another process shorten the file while it is served, reading it raises a
        // signal; model files are written once and then only read, as with every program that maps them.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let tensors = parse(&map).map_err(|source| ModelError::Hf { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), owner: Arc::new(map), tensors })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor, still in the mapped file.
    pub fn weight(&self, name: &str) -> Option<Weight> {
        let info = self.tensors.get(name)?;
        let bytes = SharedBytes::new(Arc::clone(&self.owner), info.bytes.clone())?;
        Weight::new(name, info.ty, info.rows, info.cols, bytes)
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Reads a whole header. Never panics, whatever the bytes are.
pub fn parse(bytes: &[u8]) -> Result<HashMap<String, TensorInfo>, HfError> {
    let size = bytes.len() as u64;
    let truncated = |what: &str, needed| HfError::Truncated { what: what.to_owned(), needed, size };
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| truncated("the header's length", LENGTH_BYTES))?;
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX {
        return Err(HfError::TooLarge { size: length, limit: HEADER_BYTES_MAX });
    }
    let header = rest.get(..length as usize).ok_or_else(|| truncated("the header", LENGTH_BYTES + length))?;
    let entries: Entries = serde_json::from_slice(header).map_err(|e| HfError::Json(format!("the header: {e}")))?;
    let mut raw = Vec::with_capacity(entries.0.len());
    for (name, entry) in entries.0.into_iter().filter(|(name, _)| name != "__metadata__") {
        let tensor: RawTensor = serde_json::from_str(entry.get())
            .map_err(|e| HfError::Json(format!("tensor `{name}` in the header: {e}")))?;
        raw.push((name, tensor));
    }
    place(raw, (LENGTH_BYTES + length) as usize, rest.len() as u64 - length)
}

/// Tensors must fill the data without gaps and without sharing bytes, as the format says.
fn place(
    mut raw: Vec<(String, RawTensor)>,
    data_start: usize,
    data_len: u64,
) -> Result<HashMap<String, TensorInfo>, HfError> {
    raw.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let mut tensors = HashMap::with_capacity(raw.len());
    let mut next = 0;
    for (name, tensor) in raw {
        let [start, end] = tensor.data_offsets;
        if start != next {
            return Err(HfError::Offset { name, found: start, expected: next });
        }
        if end > data_len {
            let what = format!("tensor `{name}` (offsets {start} to {end})");
            return Err(HfError::Truncated { what, needed: end, size: data_len });
        }
        let ty = match tensor.dtype.as_str() {
            "BF16" => WeightType::BF16,
            "F16" => WeightType::F16,
            "F32" => WeightType::F32,
            "F8_E4M3" => WeightType::F8_E4M3,
            _ => return Err(HfError::Type { name, found: tensor.dtype }),
        };
        // Outer dimensions are rows: a convolution of [channels, 1, taps] is a matrix of channels by taps.
        let rows = |outer: &[u64]| outer.iter().try_fold(1u64, |rows, &n| rows.checked_mul(n)).filter(|&rows| rows > 0);
        let shape = tensor.shape.split_last().and_then(|(&cols, outer)| Some((rows(outer)?, cols)));
        let Some((rows, cols)) = shape.filter(|&(_, cols)| cols > 0) else {
            return Err(HfError::Dims { name, shape: tensor.shape });
        };
        let expected = rows.checked_mul(cols).and_then(|n| n.checked_mul(ty.block_bytes() as u64)).unwrap_or(u64::MAX);
        let found = end.saturating_sub(start);
        if found != expected {
            return Err(HfError::Bytes { name, found, expected });
        }
        next = end;
        // The end lies inside the file, so the conversions hold.
        let bytes = data_start + start as usize..data_start + end as usize;
        tensors.insert(name, TensorInfo { ty, rows: rows as usize, cols: cols as usize, bytes });
    }
    if next != data_len {
        return Err(HfError::Trailing { found: data_len - next });
    }
    Ok(tensors)
}

/// A JSON object's entries, none of which may come twice: a plain map would keep the last one without a word.
struct Entries(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry per tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let (mut entries, mut names) = (Vec::new(), HashSet::new());
        while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
            if !names.insert(name.clone()) {
                return Err(serde::de::Error::custom(format!("`{name}` comes twice")));
            }
            entries.push((name, value));
        }
        Ok(Entries(entries))
    }
}
