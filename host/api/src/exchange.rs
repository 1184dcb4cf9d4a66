//! Exchanging a plugin while streams run: what is asked, what comes of it, and who may ask.
//!
//! The request names a file below the operator's plugin folder and its digest; code never comes in a request.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::auth::Caller;
use crate::error::{ApiError, Code};
use crate::wire::fields::{Fields, missing};

const FILE_BYTES_MAX: usize = 512;
const NAME_BYTES_MAX: usize = 256;
/// Streams that a shadow period may wait for.
const SHADOW_STREAMS_MAX: u32 = 100_000;
/// The request waits for the end of the period.
const SHADOW_SECONDS_MAX: u32 = 600;

/// What an exchange is about: `/plugins/{target}/{kind}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A model's name for `output` and `template`, an engine's for `scheduler`.
    pub target: String,
    pub kind: String,
}

/// A checked request for an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeOrder {
    pub place: Place,
    /// Below the plugin folder.
    pub file: String,
    /// Lower-case hex of the component.
    pub sha256: String,
    /// The stage of the chain that it takes the place of; `None`: the only one, or the one of the same name.
    pub replaces: Option<String>,
    pub settings: Option<Map<String, Value>>,
    /// The candidate runs beside the live one until this many streams (of a scheduler: decisions) were compared, or for
    /// this long.
    pub shadow_streams: u64,
    pub shadow_time: Duration,
    /// More differences than these refuse the candidate; `None`: none is allowed, and any number of a scheduler, whose
    /// decisions may differ.
    pub differences_max: Option<u64>,
}

impl ExchangeOrder {
    pub(crate) fn read(place: Place, body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let file = fields.string("file", FILE_BYTES_MAX)?.ok_or_else(|| missing("file"))?;
        let sha256 = fields.string("sha256", 64)?.ok_or_else(|| missing("sha256"))?;
        if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(ApiError::invalid("sha256", "64 lower-case hex digits are needed: the component's SHA-256"));
        }
        let replaces = fields.string("replaces", NAME_BYTES_MAX)?;
        let settings = fields.object("settings")?;
        let mut count = |name: &str, most: u32| fields.count(name, 0..=most).map(|count| count.map(u64::from));
        let shadow_streams = count("shadow_streams", SHADOW_STREAMS_MAX)?.unwrap_or(20);
        let shadow_time = Duration::from_secs(count("shadow_seconds", SHADOW_SECONDS_MAX)?.unwrap_or(30));
        let differences_max = count("differences_max", SHADOW_STREAMS_MAX)?;
        if let Some((name, _)) = fields.into_rest().first() {
            return Err(ApiError::field(Code::UnknownField, name, "there is no such field in an exchange"));
        }
        Ok(Self { place, file, sha256, replaces, settings, shadow_streams, shadow_time, differences_max })
    }
}

/// Why nothing was exchanged. The live plugin goes on in every case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExchangeError {
    /// No such model, engine, kind or stage.
    NotFound(String),
    /// Another exchange of the same place runs, or there is nothing to go back to.
    Conflict(String),
    /// The server is not set up for it.
    Forbidden(String),
    /// The candidate did not pass the gate; says which check and how.
    Refused(String),
}

impl From<ExchangeError> for ApiError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::NotFound(message) => Self::new(Code::RouteNotFound, message),
            ExchangeError::Conflict(message) => Self::new(Code::PluginConflict, message),
            ExchangeError::Forbidden(message) => Self::new(Code::Forbidden, message),
            ExchangeError::Refused(message) => Self::new(Code::PluginRefused, message),
        }
    }
}

/// Exchanges are for the operator: a key with `admin = true`. A server without keys has no operator to tell apart.
pub(crate) fn allow(caller: &Caller) -> Result<(), ApiError> {
    if caller.is_admin() {
        return Ok(());
    }
    let message = "exchanging plugins needs a key with `admin = true` in the server's key file";
    Err(ApiError::new(Code::Forbidden, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<ExchangeOrder, String> {
        let place = Place { target: "m".into(), kind: "output".into() };
        ExchangeOrder::read(place, body.as_bytes()).map_err(|e| e.message)
    }

    #[test]
    fn bodies_are_checked() {
        let sha256 = "a".repeat(64);
        let order = read(&format!(r#"{{"file": "x.wasm", "sha256": "{sha256}", "shadow_seconds": 0}}"#));
        let order = order.expect("a good body");
        assert_eq!((order.shadow_streams, order.shadow_time, order.differences_max), (20, Duration::ZERO, None));
        for (body, needle) in [
            (r#"{"sha256": "x"}"#.to_owned(), "file"),
            (r#"{"file": "x.wasm", "sha256": "x"}"#.to_owned(), "64 lower-case hex digits"),
            (format!(r#"{{"file": "x.wasm", "sha256": "{sha256}", "code": "AGFz"}}"#), "no such field"),
            (format!(r#"{{"file": "x.wasm", "sha256": "{sha256}", "shadow_seconds": 601}}"#), "600"),
        ] {
            assert!(read(&body).is_err_and(|message| message.contains(needle)), "{body}");
        }
    }
}
