//! The request of `/abort`.

use super::fields::{Fields, missing};
use super::foreign::Ignored;
use crate::error::ApiError;

/// Longest name of a request; ours are shorter.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortRequest {
    /// The `x-request-id` of the request, or the `id` of its answer.
    pub request_id: String,
    pub ignored: Ignored,
}

impl TryFrom<Fields> for AbortRequest {
    type Error = ApiError;

    fn try_from(mut fields: Fields) -> Result<Self, ApiError> {
        let request_id = fields.string("request_id", REQUEST_ID_BYTES_MAX)?.ok_or_else(|| missing("request_id"))?;
        Ok(Self { request_id, ignored: Ignored::sort(fields)? })
    }
}
