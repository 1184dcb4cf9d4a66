//! Why a constraint cannot be enforced, and where in it the reason lies.

/// Longest explanation kept, in bytes: the library's messages may quote whole grammars.
const MESSAGE_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A JSON schema is wrong, or says what cannot be enforced. `pointer` is a JSON pointer into the schema; the root is
    /// the empty text.
    #[error("{}{}: {message}", place(.pointer), .keyword.as_ref().map_or(String::new(), |k| format!(", keyword `{k}`")))]
    Schema { pointer: String, keyword: Option<String>, message: String },
    /// A regular expression, a choice, a Lark grammar or a structural tag is wrong.
    #[error("{0}")]
    Grammar(String),
    /// The client sends too much, or something that grows too large.
    #[error("{what} is {value}, the limit is {limit}")]
    TooLarge { what: &'static str, value: u64, limit: u64 },
    /// Compiling took too long.
    #[error("compiling took longer than {limit_ms} ms; make the constraint smaller")]
    TooSlow { limit_ms: u64 },
    /// All compilers are busy.
    #[error("{waiting} constraints wait to be compiled, the limit is {limit}; try again")]
    Busy { waiting: usize, limit: usize },
    /// A fault of the server.
    #[error("the grammar compiler failed: {0}")]
    Internal(String),
}

impl GrammarError {
    pub(crate) fn schema(pointer: impl Into<String>, keyword: Option<&str>, message: impl Into<String>) -> Self {
        Self::Schema { pointer: pointer.into(), keyword: keyword.map(str::to_owned), message: short(&message.into()) }
    }

    pub(crate) fn grammar(message: impl AsRef<str>) -> Self {
        Self::Grammar(short(message.as_ref()))
    }

    /// Whether the client can fix it.
    pub fn is_request_fault(&self) -> bool {
        !matches!(self, Self::Busy { .. } | Self::Internal(_))
    }
}

fn place(pointer: &str) -> String {
    if pointer.is_empty() { "at the schema's root".into() } else { format!("at `{pointer}`") }
}

/// The library's message without its dump of state and grammar, on as few lines as may be.
pub(crate) fn short(message: &str) -> String {
    let head = message.split("\n<state>").next().unwrap_or_default();
    let head = head.split("\n<backtrace>").next().unwrap_or_default();
    let head = head.replace("\n<non-verbose/>", "");
    let mut text = head.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.len() > MESSAGE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX - 3));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_error_names_its_place() {
        let error = GrammarError::schema("/properties/a", Some("not"), "is not supported");
        assert_eq!(error.to_string(), "at `/properties/a`, keyword `not`: is not supported");
        assert_eq!(GrammarError::schema("", None, "is false").to_string(), "at the schema's root: is false");
    }

    #[test]
    fn messages_are_short_and_whole() {
        assert_eq!(short("a\n  b\n<state>\nTokens: …"), "a b");
        assert!(short(&"é".repeat(4000)).len() <= MESSAGE_BYTES_MAX);
    }
}
