//! The header reader: every count, offset and length is checked before it is used.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use backend::weights::WeightType;

use super::error::GgufError;
use super::metadata::{Array, Entry, ValueType};

/// The largest models have a few thousand tensors; a count above this is a damaged file, not a model.
const TENSORS_MAX: u64 = 1 << 18;
/// Files hold a few dozen keys.
const KEYS_MAX: u64 = 1 << 16;
/// The format's own limit of a key's length.
const NAME_BYTES_MAX: u64 = 65_535;
/// The format's own limit.
const DIMS_MAX: u32 = 4;
/// Alignments are 32 in practice; a page is the most that a mapped file could ask for.
const ALIGNMENT_MAX: u64 = 65_536;

/// What stands before the tensor bytes.
#[derive(Debug)]
pub struct Header {
    pub(super) metadata: HashMap<String, Entry>,
    pub tensors: Vec<TensorInfo>,
}

/// One tensor's description, checked: its bytes lie inside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub ty: WeightType,
    /// Innermost first, as stored: `[in, out]` for a matrix.
    pub dims: Vec<usize>,
    /// Range in the file.
    pub bytes: Range<usize>,
}

impl TensorInfo {
    pub fn cols(&self) -> usize {
        self.dims[0]
    }

    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }
}

/// Reads a whole header. Never panics, whatever the bytes are.
pub fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let magic = cursor.take(4, "magic")?;
    if magic != b"GGUF" {
        return Err(GgufError::Magic { found: magic.to_vec() });
    }
    let version = cursor.u32("version")?;
    if version != 3 {
        return Err(GgufError::Version { found: version });
    }
    let tensor_count = cursor.count("tensor count", TENSORS_MAX)?;
    let key_count = cursor.count("metadata count", KEYS_MAX)?;
    let metadata = read_metadata(&mut cursor, key_count)?;
    let raw = read_tensor_infos(&mut cursor, tensor_count)?;
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Entry::Unsigned(value)) if value.is_power_of_two() && *value <= ALIGNMENT_MAX => *value,
        Some(Entry::Unsigned(value)) => {
            let field = "general.alignment (a power of two)".to_owned();
            return Err(GgufError::Limit { field, value: *value, limit: ALIGNMENT_MAX });
        }
        Some(other) => return Err(other.wrong_type("general.alignment", "an unsigned integer")),
    };
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    let place = Placement { data_start, alignment, size: bytes.len() as u64 };
    let tensors = raw.into_iter().map(|raw| place.check(raw)).collect::<Result<_, _>>()?;
    Ok(Header { metadata, tensors })
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<HashMap<String, Entry>, GgufError> {
    let mut metadata = HashMap::new();
    for i in 0..count {
        let key = cursor.name(|| format!("metadata key {i}"))?;
        let entry = read_value(cursor, &key)?;
        if metadata.insert(key.clone(), entry).is_some() {
            return Err(GgufError::Duplicate { what: "metadata key", name: key });
        }
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Entry, GgufError> {
    let field = || format!("the value of `{key}`");
    let ty = cursor.value_type(key)?;
    Ok(match ty {
        ValueType::U8 => Entry::Unsigned(u64::from(cursor.array::<1>(field)?[0])),
        ValueType::U16 => Entry::Unsigned(u64::from(u16::from_le_bytes(cursor.array(field)?))),
        ValueType::U32 => Entry::Unsigned(u64::from(u32::from_le_bytes(cursor.array(field)?))),
        ValueType::U64 => Entry::Unsigned(u64::from_le_bytes(cursor.array(field)?)),
        ValueType::I8 => Entry::Signed(i64::from(i8::from_le_bytes(cursor.array(field)?))),
        ValueType::I16 => Entry::Signed(i64::from(i16::from_le_bytes(cursor.array(field)?))),
        ValueType::I32 => Entry::Signed(i64::from(i32::from_le_bytes(cursor.array(field)?))),
        ValueType::I64 => Entry::Signed(i64::from_le_bytes(cursor.array(field)?)),
        ValueType::F32 => Entry::Float(f64::from(f32::from_le_bytes(cursor.array(field)?))),
        ValueType::F64 => Entry::Float(f64::from_le_bytes(cursor.array(field)?)),
        ValueType::Bool => match cursor.array::<1>(field)?[0] {
            byte @ (0 | 1) => Entry::Bool(byte == 1),
            byte => return Err(GgufError::Limit { field: field(), value: u64::from(byte), limit: 1 }),
        },
        ValueType::String => Entry::String(cursor.string(field)?),
        ValueType::Array => Entry::Array(read_array(cursor, key)?),
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Array, GgufError> {
    let element = cursor.value_type(key)?;
    let count = u64::from_le_bytes(cursor.array(|| format!("the length of `{key}`"))?);
    let start = cursor.at;
    match element.size() {
        Some(size) => {
            cursor.skip(count.saturating_mul(size), || format!("the {count} elements of `{key}`"))?;
        }
        None if element == ValueType::String => {
            // Each string has at least its length field, so a lying count fails before the loop runs long.
            cursor.need(count.saturating_mul(8), || format!("the {count} strings of `{key}`"))?;
            for i in 0..count {
                cursor.string(|| format!("string {i} of `{key}`"))?;
            }
        }
        None => return Err(GgufError::ValueType { key: key.to_owned(), id: element as u32 }),
    }
    Ok(Array { element, count: count as usize, bytes: start..cursor.at })
}

struct RawTensor {
    name: String,
    dims: Vec<u64>,
    type_id: u32,
    offset: u64,
}

fn read_tensor_infos(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<RawTensor>, GgufError> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for i in 0..count {
        let name = cursor.name(|| format!("the name of tensor {i}"))?;
        if !names.insert(name.clone()) {
            return Err(GgufError::Duplicate { what: "tensor", name });
        }
        let field = || format!("the description of tensor `{name}`");
        let dim_count = u32::from_le_bytes(cursor.array(field)?);
        if dim_count == 0 || dim_count > DIMS_MAX {
            let field = format!("the number of dimensions of tensor `{name}` (at least 1)");
            return Err(GgufError::Limit { field, value: u64::from(dim_count), limit: u64::from(DIMS_MAX) });
        }
        let mut dims = Vec::with_capacity(dim_count as usize);
        for _ in 0..dim_count {
            dims.push(u64::from_le_bytes(cursor.array(field)?));
        }
        let type_id = u32::from_le_bytes(cursor.array(field)?);
        let offset = u64::from_le_bytes(cursor.array(field)?);
        tensors.push(RawTensor { name, dims, type_id, offset });
    }
    Ok(tensors)
}

struct Placement {
    data_start: u64,
    alignment: u64,
    size: u64,
}

impl Placement {
    fn check(&self, raw: RawTensor) -> Result<TensorInfo, GgufError> {
        let RawTensor { name, dims, type_id, offset } = raw;
        let Some(ty) = weight_type(type_id) else {
            return Err(GgufError::TensorType { name, id: type_id, known: KNOWN_TYPES });
        };
        let fail = |reason: String| GgufError::Tensor { name: name.clone(), reason };
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let elements = elements.ok_or_else(|| fail(format!("the product of its dimensions {dims:?} overflows")))?;
        if elements == 0 {
            return Err(fail(format!("one of its dimensions {dims:?} is 0")));
        }
        let block = ty.block_len() as u64;
        if !dims[0].is_multiple_of(block) {
            return Err(fail(format!("its rows of {} elements are not whole {ty:?} blocks of {block}", dims[0])));
        }
        let len = (elements / block).checked_mul(ty.block_bytes() as u64);
        let len = len.ok_or_else(|| fail(format!("the bytes of its {elements} elements overflow")))?;
        if !offset.is_multiple_of(self.alignment) {
            return Err(fail(format!("its offset {offset} is not a multiple of the alignment {}", self.alignment)));
        }
        let start = self.data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(len)).filter(|&end| end <= self.size);
        let (Some(start), Some(end)) = (start, end) else {
            let at = self.data_start.saturating_add(offset);
            let field = format!("tensor `{name}`");
            return Err(GgufError::Truncated { field, at, needed: len, size: self.size });
        };
        // Every dimension is at most the file's size here, so the conversions hold.
        let dims = dims.into_iter().map(|dim| dim as usize).collect();
        Ok(TensorInfo { name, ty, dims, bytes: start as usize..end as usize })
    }
}

const KNOWN_TYPES: &str = "0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 12 Q4_K, 13 Q5_K, 14 Q6_K, 20 IQ4_NL, 23 IQ4_XS, 30 BF16, \
     39 MXFP4";

/// Type ids of the GGUF format.
fn weight_type(id: u32) -> Option<WeightType> {
    Some(match id {
        0 => WeightType::F32,
        1 => WeightType::F16,
        2 => WeightType::Q4_0,
        3 => WeightType::Q4_1,
        6 => WeightType::Q5_0,
        7 => WeightType::Q5_1,
        8 => WeightType::Q8_0,
        12 => WeightType::Q4_K,
        13 => WeightType::Q5_K,
        14 => WeightType::Q6_K,
        20 => WeightType::IQ4_NL,
        23 => WeightType::IQ4_XS,
        30 => WeightType::BF16,
        39 => WeightType::MXFP4,
        _ => return None,
    })
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn need(&self, len: u64, field: impl FnOnce() -> String) -> Result<(), GgufError> {
        if len > (self.bytes.len() - self.at) as u64 {
            let size = self.bytes.len() as u64;
            return Err(GgufError::Truncated { field: field(), at: self.at as u64, needed: len, size });
        }
        Ok(())
    }

    fn skip(&mut self, len: u64, field: impl FnOnce() -> String) -> Result<Range<usize>, GgufError> {
        self.need(len, field)?;
        let start = self.at;
        self.at += len as usize;
        Ok(start..self.at)
    }

    fn take(&mut self, len: u64, field: &str) -> Result<&'a [u8], GgufError> {
        let range = self.skip(len, || field.to_owned())?;
        Ok(&self.bytes[range])
    }

    fn array<const N: usize>(&mut self, field: impl FnOnce() -> String) -> Result<[u8; N], GgufError> {
        let range = self.skip(N as u64, field)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[range]);
        Ok(out)
    }

    fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(|| field.to_owned())?))
    }

    fn count(&mut self, field: &str, limit: u64) -> Result<u64, GgufError> {
        let value = u64::from_le_bytes(self.array(|| field.to_owned())?);
        if value > limit {
            return Err(GgufError::Limit { field: field.to_owned(), value, limit });
        }
        Ok(value)
    }

    /// The range of a string's bytes.
    fn string(&mut self, field: impl Fn() -> String) -> Result<Range<usize>, GgufError> {
        let len = u64::from_le_bytes(self.array(&field)?);
        self.skip(len, field)
    }

    fn name(&mut self, field: impl Fn() -> String) -> Result<String, GgufError> {
        let range = self.string(&field)?;
        if range.len() as u64 > NAME_BYTES_MAX {
            let field = format!("the length of {}", field());
            return Err(GgufError::Limit { field, value: range.len() as u64, limit: NAME_BYTES_MAX });
        }
        let text = std::str::from_utf8(&self.bytes[range]).map_err(|_| GgufError::Text { field: field() })?;
        Ok(text.to_owned())
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let id = u32::from_le_bytes(self.array(|| format!("the type of `{key}`"))?);
        ValueType::from_id(id).ok_or_else(|| GgufError::ValueType { key: key.to_owned(), id })
    }
}
