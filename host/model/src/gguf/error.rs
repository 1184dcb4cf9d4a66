//! What can be wrong with a GGUF file.

/// Each variant names the field, what was found, and the limit or what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    #[error("not a GGUF file: it begins with the bytes {found:02x?}, expected 47 47 55 46 (\"GGUF\")")]
    Magic { found: Vec<u8> },
    #[error("GGUF version {found} is not supported, only version 3 is; convert the model again")]
    Version { found: u32 },
    #[error("truncated: {field} needs {needed} bytes at byte {at}, the file ends at byte {size}")]
    Truncated { field: String, at: u64, needed: u64, size: u64 },
    #[error("{field} is {value}, the limit is {limit}")]
    Limit { field: String, value: u64, limit: u64 },
    #[error("{what} `{name}` comes twice")]
    Duplicate { what: &'static str, name: String },
    #[error("{field} is not UTF-8 text")]
    Text { field: String },
    #[error("metadata key `{key}` has the unknown value type {id}")]
    ValueType { key: String, id: u32 },
    #[error("metadata key `{key}` is missing")]
    MissingKey { key: String },
    #[error("metadata key `{key}` holds {found}, expected {expected}")]
    WrongType { key: String, found: String, expected: &'static str },
    #[error("tensor `{name}` has the type {id}, which this reader does not know; known are: {known}")]
    TensorType { name: String, id: u32, known: &'static str },
    #[error("tensor `{name}`: {reason}")]
    Tensor { name: String, reason: String },
    #[error("tensor `{name}` is missing")]
    MissingTensor { name: String },
    #[error("`{name}` is one of {parts} parts; give the first, {expected}")]
    SplitName { name: String, parts: usize, expected: String },
    #[error("`{name}` is missing: the model has {parts} parts, {missing} of them not beside this one")]
    SplitMissing { parts: usize, missing: usize, name: String },
    #[error("`{key}` is {found}, its name needs {expected}")]
    SplitPart { key: &'static str, found: u32, expected: usize },
    #[error("the parts have {found} tensors together, the first part says {expected}")]
    SplitTensors { found: usize, expected: u64 },
}
