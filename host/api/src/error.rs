//! Every error a client can see: an HTTP status, a stable code, the field at fault, and a message with the numbers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Longest error message sent, in bytes. A message may quote the request; without a cap, a bad request with one
/// wrong value per array entry would come back many times its size.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Longest quotation of a value or a field name from the request inside a message, in bytes.
pub const QUOTE_BYTES_MAX: usize = 64;

/// What went wrong, as a program reads it. The text of a code never changes; a new kind of failure gets a new code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidJson,
    InvalidValue,
    MissingField,
    UnsupportedField,
    UnknownField,
    ContextLengthExceeded,
    InvalidSchema,
    InvalidGrammar,
    TemplateFailed,
    NoScriptedResponse,
    InvalidApiKey,
    Forbidden,
    PluginConflict,
    PluginRefused,
    ModelNotFound,
    RouteNotFound,
    ResponseNotFound,
    RequestAborted,
    MethodNotAllowed,
    BodyTooLarge,
    QueueFull,
    Refused,
    Loading,
    EngineFailed,
    EngineAborted,
    GrammarFailed,
    ScriptViolatesGrammar,
    ShuttingDown,
    OutputStageFailed,
    Internal,
}

impl Code {
    /// The status, the `type` and the `code` of the error object.
    fn facts(self) -> (StatusCode, &'static str, &'static str) {
        use Code::*;
        const BAD: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "BadRequestError");
        const NOT_FOUND: (StatusCode, &str) = (StatusCode::NOT_FOUND, "NotFoundError");
        const BUSY: (StatusCode, &str) = (StatusCode::TOO_MANY_REQUESTS, "RateLimitError");
        const UNAVAILABLE: (StatusCode, &str) = (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError");
        const INTERNAL: (StatusCode, &str) = (StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError");
        // nginx's "client closed request": no registered status says that the work was called off.
        let client_closed = StatusCode::from_u16(499).expect("three digits");
        let ((status, kind), code) = match self {
            InvalidJson => (BAD, "invalid_json"),
            InvalidValue => (BAD, "invalid_value"),
            MissingField => (BAD, "missing_field"),
            UnsupportedField => (BAD, "unsupported_field"),
            UnknownField => (BAD, "unknown_field"),
            ContextLengthExceeded => (BAD, "context_length_exceeded"),
            InvalidSchema => (BAD, "invalid_schema"),
            InvalidGrammar => (BAD, "invalid_grammar"),
            TemplateFailed => (BAD, "template_failed"),
            NoScriptedResponse => (BAD, "no_scripted_response"),
            InvalidApiKey => ((StatusCode::UNAUTHORIZED, "AuthenticationError"), "invalid_api_key"),
            Forbidden => ((StatusCode::FORBIDDEN, "PermissionError"), "forbidden"),
            PluginConflict => ((StatusCode::CONFLICT, "ConflictError"), "plugin_conflict"),
            PluginRefused => ((StatusCode::UNPROCESSABLE_ENTITY, "PluginError"), "plugin_refused"),
            ModelNotFound => (NOT_FOUND, "model_not_found"),
            RouteNotFound => (NOT_FOUND, "route_not_found"),
            ResponseNotFound => (NOT_FOUND, "response_not_found"),
            // Clients repeat a 409 and every 5xx by themselves; what was aborted on purpose must not come back.
            RequestAborted => ((client_closed, "RequestAbortedError"), "request_aborted"),
            MethodNotAllowed => ((StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowedError"), "method_not_allowed"),
            BodyTooLarge => ((StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeError"), "body_too_large"),
            QueueFull => (BUSY, "queue_full"),
            Refused => (BUSY, "refused_by_scheduler"),
            Loading => (UNAVAILABLE, "model_loading"),
            ShuttingDown => (UNAVAILABLE, "shutting_down"),
            EngineFailed => (INTERNAL, "engine_failed"),
            EngineAborted => (INTERNAL, "engine_aborted"),
            GrammarFailed => (INTERNAL, "grammar_failed"),
            ScriptViolatesGrammar => (INTERNAL, "script_violates_grammar"),
            OutputStageFailed => (INTERNAL, "output_stage_failed"),
            Internal => (INTERNAL, "internal_error"),
        };
        (status, kind, code)
    }

    pub fn status(self) -> StatusCode {
        self.facts().0
    }

    pub fn as_str(self) -> &'static str {
        self.facts().2
    }
}

/// An error on its way to a client, as a response or as an event in a stream that has already begun.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: Code,
    pub message: String,
    /// The field at fault, as a path: `messages[1].role`.
    pub param: Option<String>,
    /// Whole seconds for the `Retry-After` header.
    pub retry_after_s: Option<u32>,
    /// A plugin's or scheduler's own code, sent in place of [`Code::as_str`].
    pub own_code: Option<String>,
}

impl ApiError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = capped(message.into(), MESSAGE_BYTES_MAX);
        Self { code, message, param: None, retry_after_s: None, own_code: None }
    }

    /// A value of the request that cannot be used: `field: message`.
    pub fn field(code: Code, field: &str, message: impl AsRef<str>) -> Self {
        let field = quoted(field);
        let mut error = Self::new(code, format!("{field}: {}", message.as_ref()));
        error.param = Some(field);
        error
    }

    pub fn invalid(field: &str, message: impl AsRef<str>) -> Self {
        Self::field(Code::InvalidValue, field, message)
    }

    pub fn retry_after_s(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    pub fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// `{"error": {message, type, param, code}}`, the shape of the OpenAI API.
    pub fn body(&self) -> Value {
        let (_, kind, code) = self.code.facts();
        let code = self.own_code.as_deref().unwrap_or(code);
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == Code::InvalidApiKey {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Cuts `text` to at most `bytes_max` bytes at a character boundary and marks the cut.
pub fn capped(mut text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    const MARK: &str = "...";
    let mut end = bytes_max.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
    text
}

/// A piece of the request as it may stand in a message: short, on one line.
pub fn quoted(text: &str) -> String {
    // Only the first bytes are looked at: the value may be megabytes long.
    let head: String = text.chars().take(QUOTE_BYTES_MAX + 1).map(|c| if c.is_control() { ' ' } else { c }).collect();
    capped(head, QUOTE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_is_openai() {
        let error = ApiError::invalid("temperature", "must be a number from 0 to 2, not -1");
        assert_eq!(
            error.body(),
            json!({"error": {
                "message": "temperature: must be a number from 0 to 2, not -1",
                "type": "BadRequestError", "param": "temperature", "code": "invalid_value"
            }})
        );
    }

    /// A bad input cannot come back larger than the caps, and never cut inside a character.
    #[test]
    fn messages_are_capped() {
        let huge = "é\n".repeat(1_000_000);
        let error = ApiError::field(Code::UnknownField, &huge, &huge);
        assert!(error.message.len() <= MESSAGE_BYTES_MAX);
        assert!(error.param.as_ref().is_some_and(|p| p.len() <= QUOTE_BYTES_MAX && !p.contains('\n')));
    }

    #[test]
    fn retry_after_is_a_header() {
        let response = ApiError::new(Code::QueueFull, "full").retry_after_s(0).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}
