//! What can be wrong with a file of a Hugging Face folder.

/// Each variant names the tensor, key or file, what was found, and the limit or what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HfError {
    #[error("{size} bytes, the limit is {limit}")]
    TooLarge { size: u64, limit: u64 },
    #[error("not usable: {0}")]
    Json(String),
    #[error(
        "no model.safetensors.index.json and no model*.safetensors in this folder; `--load-format dummy` runs without \
         weights"
    )]
    NoWeights,
    #[error("more than {limit} shards")]
    ShardCount { limit: usize },
    #[error("tensor `{tensor}` is said to be in `{shard}`, which is not a plain file name")]
    ShardName { tensor: String, shard: String },
    #[error("tensor `{tensor}` should be in the shard `{shard}`, which is missing; download it again")]
    MissingShard { tensor: String, shard: String },
    #[error("tensor `{tensor}` should be in the shard `{shard}`, which does not have it")]
    NotInShard { tensor: String, shard: String },
    #[error("tensor `{tensor}` comes twice, also in `{other}`")]
    Twice { tensor: String, other: String },
    #[error("truncated: {what} needs {needed} bytes, the file has {size}")]
    Truncated { what: String, needed: u64, size: u64 },
    #[error("tensor `{name}` has the type {found}; BF16, F16, F32 and F8_E4M3 can be read")]
    Type { name: String, found: String },
    #[error("tensor `{name}` has the shape {shape:?}; dimensions above 0 can be read")]
    Dims { name: String, shape: Vec<u64> },
    #[error("tensor `{name}` has {found} bytes in the file, its shape and type need {expected}")]
    Bytes { name: String, found: u64, expected: u64 },
    #[error("tensor `{name}` begins at byte {found} of the data, expected {expected}: tensors follow each other")]
    Offset { name: String, found: u64, expected: u64 },
    #[error("tensor `{name}` is FP8 and has no usable `{name}_scale_inv`: {reason}")]
    Scales { name: String, reason: String },
    #[error("{found} bytes follow the last tensor; the header describes none of them")]
    Trailing { found: u64 },
}
