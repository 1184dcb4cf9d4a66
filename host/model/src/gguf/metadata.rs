//! Typed access to the metadata of a header.

use std::collections::HashMap;
use std::ops::Range;

use super::error::GgufError;

/// Types of metadata values; the numbers are the format's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    pub(super) fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of one value of a fixed size.
    pub(super) fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// An array's place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub element: ValueType,
    pub count: usize,
    pub(super) bytes: Range<usize>,
}

/// A value as the header keeps it: small ones decoded, long ones as ranges.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(Range<usize>),
    Array(Array),
}

impl Entry {
    pub(super) fn wrong_type(&self, key: &str, expected: &'static str) -> GgufError {
        let found = match self {
            Self::Unsigned(value) => format!("the integer {value}"),
            Self::Signed(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Bool(value) => format!("{value}"),
            Self::String(_) => "text".to_owned(),
            Self::Array(array) => format!("an array of {} {:?}", array.count, array.element),
        };
        GgufError::WrongType { key: key.to_owned(), found, expected }
    }
}

/// A value on its way out.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(&'a str),
    Array(&'a Array),
}

/// The metadata of a file. Getters answer `None` for a missing key and an error for a value of another type.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    entries: &'a HashMap<String, Entry>,
    bytes: &'a [u8],
}

impl<'a> Metadata<'a> {
    pub(super) fn new(entries: &'a HashMap<String, Entry>, bytes: &'a [u8]) -> Self {
        Self { entries, bytes }
    }

    /// Every key, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.entries.keys().map(String::as_str)
    }

    pub fn value(&self, key: &str) -> Result<Option<Value<'a>>, GgufError> {
        let Some(entry) = self.entries.get(key) else { return Ok(None) };
        Ok(Some(match entry {
            Entry::Unsigned(value) => Value::Unsigned(*value),
            Entry::Signed(value) => Value::Signed(*value),
            Entry::Float(value) => Value::Float(*value),
            Entry::Bool(value) => Value::Bool(*value),
            Entry::String(range) => Value::String(self.text(range.clone(), || format!("the value of `{key}`"))?),
            Entry::Array(array) => Value::Array(array),
        }))
    }

    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Entry::Unsigned(value)) => Ok(Some(*value)),
            Some(Entry::Signed(value)) if *value >= 0 => Ok(Some(*value as u64)),
            Some(other) => Err(other.wrong_type(key, "an integer of at least 0")),
        }
    }

    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let Some(value) = self.u64(key)? else { return Ok(None) };
        let limit = u64::from(u32::MAX);
        u32::try_from(value).map(Some).map_err(|_| GgufError::Limit { field: key.to_owned(), value, limit })
    }

    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Entry::Float(value)) if value.is_finite() => Ok(Some(*value as f32)),
            Some(other) => Err(other.wrong_type(key, "a finite number")),
        }
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Entry::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(other.wrong_type(key, "true or false")),
        }
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Entry::String(range)) => self.text(range.clone(), || format!("the value of `{key}`")).map(Some),
            Some(other) => Err(other.wrong_type(key, "text")),
        }
    }

    /// The strings of an array, one by one, without copying; each may turn out not to be UTF-8.
    pub fn strings(
        &self,
        key: &str,
    ) -> Result<Option<impl ExactSizeIterator<Item = Result<&'a str, GgufError>> + use<'a>>, GgufError> {
        let array = match self.entries.get(key) {
            None => return Ok(None),
            Some(Entry::Array(array)) if array.element == ValueType::String => array,
            Some(other) => return Err(other.wrong_type(key, "an array of text")),
        };
        let (this, key, mut at) = (*self, key.to_owned(), array.bytes.start);
        Ok(Some((0..array.count).map(move |i| {
            // The reader walked this array already: the lengths are inside the file.
            let mut len = [0; 8];
            len.copy_from_slice(&this.bytes[at..at + 8]);
            let start = at + 8;
            at = start + u64::from_le_bytes(len) as usize;
            this.text(start..at, || format!("string {i} of `{key}`"))
        })))
    }

    /// An array of 32-bit integers of either sign; negative ones are refused.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        let Some((array, bytes)) = self.array(key)? else { return Ok(None) };
        if !matches!(array.element, ValueType::U32 | ValueType::I32) {
            return Err(Entry::Array(array.clone()).wrong_type(key, "an array of 32-bit integers"));
        }
        let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let limit = if array.element == ValueType::I32 { i32::MAX as u32 } else { u32::MAX };
        let checked = words.enumerate().map(|(i, value)| {
            let field = || format!("element {i} of `{key}` (at least 0)");
            let fail = || GgufError::Limit { field: field(), value: value.into(), limit: limit.into() };
            if value > limit { Err(fail()) } else { Ok(value) }
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some((array, bytes)) = self.array(key)? else { return Ok(None) };
        if array.element != ValueType::F32 {
            return Err(Entry::Array(array.clone()).wrong_type(key, "an array of 32-bit numbers"));
        }
        Ok(Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()))
    }

    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        let Some((array, bytes)) = self.array(key)? else { return Ok(None) };
        if array.element != ValueType::Bool {
            return Err(Entry::Array(array.clone()).wrong_type(key, "an array of true and false"));
        }
        Ok(Some(bytes.iter().map(|&b| b != 0).collect()))
    }

    fn array(&self, key: &str) -> Result<Option<(&'a Array, &'a [u8])>, GgufError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Entry::Array(array)) => Ok(Some((array, &self.bytes[array.bytes.clone()]))),
            Some(other) => Err(other.wrong_type(key, "an array")),
        }
    }

    fn text(&self, range: Range<usize>, field: impl FnOnce() -> String) -> Result<&'a str, GgufError> {
        std::str::from_utf8(&self.bytes[range]).map_err(|_| GgufError::Text { field: field() })
    }
}

/// Turns a missing key into an error.
pub trait Required<T> {
    fn required(self, key: &str) -> Result<T, GgufError>;
}

impl<T> Required<T> for Result<Option<T>, GgufError> {
    fn required(self, key: &str) -> Result<T, GgufError> {
        self?.ok_or_else(|| GgufError::MissingKey { key: key.to_owned() })
    }
}
