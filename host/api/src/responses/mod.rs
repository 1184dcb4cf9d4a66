//! The Responses API: a chat request in another shape, whose answers are kept by their id.
//!
//! `request` turns a body into a chat request, `items` its input into messages; `answer` turns the events of generation
//! into output items and the events of a stream; `custom` makes functions of tools that take free text; `store` keeps
//! answers. A turn that goes on from an earlier answer reads
//! that answer's input and output, and those of the answers before it, from the store.

mod answer;
mod custom;
mod items;
mod request;
pub(crate) mod routes;
mod store;

pub use store::{Store, StoreError};

/// Reads a body as the route does, for the test of the OpenAPI document.
#[cfg(test)]
pub(crate) fn check(body: &[u8]) -> Result<(), crate::ApiError> {
    request::ResponsesRequest::try_from(crate::wire::fields::Fields::parse(body)?)?.into_chat(&[]).map(drop)
}
