//! Where the assistant's turn begins in a prompt, and which channel the template left open in it.

use tokenloom_sdk::Channel;

/// Longest turn prefix that is handed on; the end decides.
const PREFIX_BYTES_MAX: usize = 64 * 1024;

/// What of `prompt` was rendered after `before`, the rendering of everything up to the last user or tool turn.
///
/// A template may render earlier turns differently when later ones follow; then the two differ before the end of
/// `before`, and the part in which they differ belongs to the turn.
pub fn prefix<'a>(prompt: &'a str, before: &str) -> &'a str {
    let common = prompt.bytes().zip(before.bytes()).take_while(|(a, b)| a == b).count();
    tail(prompt, common.max(prompt.len().saturating_sub(PREFIX_BYTES_MAX)))
}

fn tail(text: &str, mut at: usize) -> &str {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    &text[at..]
}

/// The channel that is open at the end of the prefix; `None` when it holds no marker.
pub fn starts_in(prefix: &str, markers: &[(String, String)]) -> Option<Channel> {
    let last = |mark: &str| prefix.rfind(mark).map(|at| at + mark.len());
    // The marker that ends last decides, whichever format it belongs to.
    let open = markers.iter().filter_map(|(open, _)| last(open)).max();
    let close = markers.iter().filter_map(|(_, close)| last(close)).max();
    match (open, close) {
        (None, None) => None,
        (open, close) if open > close => Some(Channel::Reasoning),
        _ => Some(Channel::Content),
    }
}

/// Cuts a prompt behind the last message's text, so that the model goes on with it. The rule is transformers': the last
/// occurrence counts, and white space at the end of the message stays if the template kept it.
pub fn cut_after_final<'a>(prompt: &'a str, text: &str) -> Result<&'a str, &'static str> {
    let trimmed = text.trim();
    let Some(at) = prompt.rfind(trimmed) else {
        return Err("continue_final_message is set but the final message does not appear in the rendered prompt");
    };
    let kept = text.trim_start();
    let len = if prompt[at..].starts_with(kept) && kept.len() == text.len() { kept.len() } else { trimmed.len() };
    Ok(&prompt[..at + len])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn think() -> Vec<(String, String)> {
        vec![("<think>".into(), "</think>".into())]
    }

    #[test]
    fn the_last_marker_decides() {
        assert_eq!(starts_in("<|assistant|>\n", &think()), None);
        assert_eq!(starts_in("<|assistant|>\n<think>\n", &think()), Some(Channel::Reasoning));
        assert_eq!(starts_in("<|assistant|>\n<think>\n\n</think>\n\n", &think()), Some(Channel::Content));
        assert_eq!(starts_in("\n</think>\n<think>", &think()), Some(Channel::Reasoning));
    }

    #[test]
    fn the_prefix_is_what_follows() {
        assert_eq!(prefix("<u>é<a><think>", "<u>é"), "<a><think>");
        // The two differ inside a code point, which is not cut.
        assert_eq!(prefix("<u>é<a>", "<u>è<b>"), "<a>");
        assert_eq!(prefix("same", "same"), "");
    }

    #[test]
    fn the_final_message_is_continued() {
        assert_eq!(cut_after_final("<a>So far<e>", "So far"), Ok("<a>So far"));
        assert_eq!(cut_after_final("<a>So far <e>", "So far "), Ok("<a>So far "));
        assert_eq!(cut_after_final("<a>So far<e>", "So far "), Ok("<a>So far"));
        assert!(cut_after_final("<a><e>", "gone").is_err());
    }
}
