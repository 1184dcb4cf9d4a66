//! The Messages API of Anthropic: a chat request in another shape.
//!
//! `request` turns a body into a chat request, `blocks` its content blocks into messages; `answer` turns the events of
//! generation into content blocks and the events of a stream; `error` is the shape of its errors.

mod answer;
mod blocks;
mod error;
mod request;
pub(crate) mod routes;

/// Reads a body as the route does, for the test of the OpenAPI document.
#[cfg(test)]
pub(crate) fn check(body: &[u8]) -> Result<(), crate::ApiError> {
    let fields = crate::wire::fields::Fields::parse(body)?;
    request::chat_request(fields, request::Purpose::Generate).map(drop)
}
