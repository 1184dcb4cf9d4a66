//! JSON from and to clients. A request becomes a checked type here or an error that names the field; nothing behind
//! this module sees an unchecked value.

pub mod abort;
pub mod chat;
pub mod common;
pub mod completion;
pub mod embeddings;
pub mod fields;
pub mod foreign;
mod messages;
pub mod parse;
pub(crate) mod reply;
pub mod structure;
#[cfg(test)]
mod tests;
pub mod thinking;
pub mod tools;

pub use chat::ChatRequest;
pub use completion::CompletionRequest;

use crate::error::ApiError;
use fields::Fields;

/// Any bytes to a checked chat request or a typed error; never panics.
pub fn decode_chat(body: &[u8]) -> Result<ChatRequest, ApiError> {
    Fields::parse(body)?.try_into()
}

/// As [`decode_chat`], for `/v1/completions`.
pub fn decode_completion(body: &[u8]) -> Result<CompletionRequest, ApiError> {
    Fields::parse(body)?.try_into()
}
