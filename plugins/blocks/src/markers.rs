//! Markers in a stream that is cut anywhere.

use tokenloom_sdk::output::Request;

/// A marker as the host resolved it: with a token it is matched by id only, without one by its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub text: String,
    pub token: Option<u32>,
}

impl Tag {
    /// A marker that the host did not hand back counts as one that no token spells.
    pub fn of(request: &Request, text: &str) -> Self {
        let token = request.markers.iter().find(|marker| marker.text == text).and_then(|marker| marker.token);
        Self { text: text.into(), token }
    }

    /// Whether an event is this marker.
    pub fn is(&self, token: Option<u32>) -> bool {
        self.token.is_some() && self.token == token
    }

    /// The text to search for, if the marker is found by text.
    pub fn by_text(&self) -> Option<&str> {
        self.token.is_none().then_some(self.text.as_str())
    }
}

/// The characters that the markers begin with which are found by their text.
pub fn first_chars<'a>(tags: impl IntoIterator<Item = &'a Tag>) -> String {
    let mut chars = String::new();
    for c in tags.into_iter().filter_map(Tag::by_text).filter_map(|text| text.chars().next()) {
        if !chars.contains(c) {
            chars.push(c);
        }
    }
    chars
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Marker number `which` begins at `at`.
    Whole { at: usize, which: usize },
    /// From `at` on the text may still become a marker; `at` is the text's length when nothing may.
    Part { at: usize },
}

/// The first of `markers` in `text`. Of two that begin at one place the first in the list wins.
pub fn find<'a>(text: &str, markers: impl Iterator<Item = Option<&'a str>> + Clone) -> Found {
    for (at, _) in text.char_indices() {
        let rest = &text[at..];
        for (which, marker) in markers.clone().enumerate() {
            let Some(marker) = marker else { continue };
            if rest.starts_with(marker) {
                return Found::Whole { at, which };
            }
            if marker.starts_with(rest) {
                return Found::Part { at };
            }
        }
    }
    Found::Part { at: text.len() }
}

/// How far a text has come towards one of `markers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    No,
    Maybe,
    Yes(usize),
}

pub fn towards(text: &str, markers: &[Option<&str>]) -> Towards {
    let whole = markers.iter().position(|marker| *marker == Some(text));
    match whole {
        Some(which) => Towards::Yes(which),
        None if markers.iter().flatten().any(|marker| marker.starts_with(text)) => Towards::Maybe,
        None => Towards::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_whole_and_part() {
        let search = |text: &str| find(text, [Some("<call>"), None, Some("</x>")].into_iter());
        assert_eq!(search("a<call>b"), Found::Whole { at: 1, which: 0 });
        assert_eq!(search("é</x>"), Found::Whole { at: 2, which: 2 });
        assert_eq!(search("a <ca"), Found::Part { at: 2 });
        assert_eq!(search("a <cb"), Found::Part { at: 5 });
        assert_eq!(search("<<"), Found::Part { at: 1 });
        assert_eq!(search(""), Found::Part { at: 0 });
    }
}
