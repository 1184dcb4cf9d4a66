//! Text from a guest, made fit for a log line, an error body and a terminal.

use contract::plugin::MESSAGE_BYTES_MAX;
use contract::{PluginError, Severity};

use crate::bindings::output::types;

/// Cuts at 512 bytes and takes out control characters, so that a plugin can neither fill the log nor steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    cut(text, MESSAGE_BYTES_MAX)
}

/// The same with another limit. A line break becomes a space.
pub(crate) fn cut(text: &str, bytes_max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(bytes_max));
    for c in text.chars() {
        let c = if c == '\n' || c == '\t' { ' ' } else { c };
        if c.is_control() || is_bidi_control(c) {
            continue;
        }
        if out.len() + c.len_utf8() > bytes_max {
            break;
        }
        out.push(c);
    }
    out
}

/// Characters that reorder the text around them: they make a log line read as something else.
fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Longest error code that is kept.
const CODE_BYTES_MAX: usize = 64;

/// A guest's typed error as the contract's.
pub(crate) fn plugin_error(plugin: &str, error: types::PluginError) -> PluginError {
    let severity = match error.severity {
        types::Severity::RejectRequest => Severity::RejectRequest,
        types::Severity::RetryOnce => Severity::RetryOnce,
        types::Severity::DisablePlugin => Severity::DisablePlugin,
    };
    PluginError::new(plugin, severity, cut(&error.code, CODE_BYTES_MAX), clean(&error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escape sequences lose their escape, long text is cut at a character.
    #[test]
    fn guest_text_is_harmless() {
        assert_eq!(clean("\u{1b}[31mred\nline\u{202e}"), "[31mred line");
        let long = clean(&"é".repeat(1000));
        assert_eq!((long.len(), long.chars().count()), (512, 256));
    }
}
