//! Stages that rest: text that one would only pass on or relabel goes by without a call.
//!
//! The last event of a feed says how (`docs/protocols.md` section 2). Text that goes by leaves no trace in the stage, so
//! neither the journal nor the alignment of what it holds needs it.

use contract::output::{Channel, OutputEvent};
use serde::de::IgnoredAny;

use crate::bindings::output::wit;

/// What becomes of text meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Content,
    Reasoning,
    ContentToReasoning,
    ContentToJson,
    ContentToText,
}

/// Keys of the event that ends a feed.
const KEYS: [(&str, Kind); 5] = [
    ("rests", Kind::Content),
    ("rests-in-reasoning", Kind::Reasoning),
    ("rests-as-reasoning", Kind::ContentToReasoning),
    ("rests-as-json", Kind::ContentToJson),
    ("rests-as-text", Kind::ContentToText),
];

/// What a JSON string does not hold as it is: below U+0020, quotes and backslashes.
const NOT_PLAIN: u128 = 0xFFFF_FFFF | 1 << b'"' | 1 << b'\\';

#[derive(Debug)]
pub(crate) struct Rest {
    kind: Kind,
    /// The characters that the stage waits for: ASCII as a bit each, so that a text is looked through once.
    ascii: u128,
    others: String,
}

impl Rest {
    /// Takes it off the end of a stage's answer.
    pub fn take(events: &mut Vec<wit::Event>) -> Option<Self> {
        let Some(wit::Event::Ext(setting)) = events.last() else { return None };
        let (_, kind) = *KEYS.iter().find(|(key, _)| *key == setting.key)?;
        let mut rest = Self { kind, ascii: 0, others: String::new() };
        for c in setting.value.chars() {
            if c.is_ascii() {
                rest.ascii |= 1 << u32::from(c);
            } else {
                rest.others.push(c);
            }
        }
        events.pop();
        Some(rest)
    }

    /// Whether it holds inside a call, or outside of one.
    pub fn is_in_call(&self) -> bool {
        matches!(self.kind, Kind::ContentToJson | Kind::ContentToText)
    }

    /// The events as the stage would give them; back as they are when it has to be asked.
    pub fn pass(&self, events: Vec<OutputEvent>, open_call: Option<u32>) -> Result<Vec<OutputEvent>, Vec<OutputEvent>> {
        if !events.iter().all(|event| self.covers(event)) {
            return Err(events);
        }
        let relabel = |event| match (event, self.kind, open_call) {
            (OutputEvent::Text { text, .. }, Kind::ContentToReasoning, _) => {
                OutputEvent::Text { channel: Channel::Reasoning, text, token: None }
            }
            (OutputEvent::Text { text, .. }, Kind::ContentToJson, Some(index)) => {
                OutputEvent::CallArguments { index, fragment: text }
            }
            (OutputEvent::Text { text, .. }, Kind::ContentToText, Some(index)) => {
                OutputEvent::CallArguments { index, fragment: escaped(text) }
            }
            (event, ..) => event,
        };
        Ok(events.into_iter().map(relabel).collect())
    }

    fn covers(&self, event: &OutputEvent) -> bool {
        let OutputEvent::Text { channel, text, token: None } = event else { return false };
        let from = if self.kind == Kind::Reasoning { Channel::Reasoning } else { Channel::Content };
        let fits = self.kind != Kind::ContentToJson || is_inside_of_json(text);
        *channel == from && !text.is_empty() && !self.waits_for(text) && fits
    }

    fn waits_for(&self, text: &str) -> bool {
        has(text, self.ascii) || (!self.others.is_empty() && text.contains(|c| self.others.contains(c)))
    }
}

fn has(text: &str, ascii: u128) -> bool {
    text.bytes().any(|byte| byte.is_ascii() && ascii >> byte & 1 == 1)
}

/// Whether a string could hold it as it is, with whatever comes before and behind.
fn is_inside_of_json(text: &str) -> bool {
    !has(text, NOT_PLAIN) || serde_json::from_str::<IgnoredAny>(&format!("\"{text}\"")).is_ok()
}

fn escaped(text: String) -> String {
    if !has(&text, NOT_PLAIN) {
        return text;
    }
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What goes by, as channel and text; `None` where the stage is asked.
    fn pass(key: &str, until: &str, event: OutputEvent) -> Option<OutputEvent> {
        let mut events = vec![wit::Event::Ext(wit::Setting { key: key.into(), value: until.into() })];
        let rest = Rest::take(&mut events).expect("a known key");
        rest.pass(vec![event], rest.is_in_call().then_some(3)).ok()?.pop()
    }

    fn text(channel: Channel, text: &str) -> OutputEvent {
        OutputEvent::Text { channel, text: text.into(), token: None }
    }

    #[test]
    fn text_goes_by_until_what_is_waited_for() {
        use Channel::{Content, Reasoning};
        let arguments = |fragment: &str| OutputEvent::CallArguments { index: 3, fragment: fragment.into() };
        let cases = [
            ("rests", "<", text(Content, "a > b\n"), Some(text(Content, "a > b\n"))),
            ("rests", "<", text(Content, "a<"), None),
            ("rests", "", text(Content, "<x>"), Some(text(Content, "<x>"))),
            ("rests", "é", text(Content, "café"), None),
            ("rests", "é", text(Content, "cafè"), Some(text(Content, "cafè"))),
            ("rests", "", text(Reasoning, "a"), None),
            ("rests", "", text(Content, ""), None),
            ("rests", "", OutputEvent::Text { channel: Content, text: "a".into(), token: Some(1) }, None),
            ("rests", "", OutputEvent::CallEnd { index: 0, complete: true }, None),
            ("rests-in-reasoning", "<", text(Reasoning, "why"), Some(text(Reasoning, "why"))),
            ("rests-in-reasoning", "<", text(Content, "why"), None),
            ("rests-as-reasoning", "<", text(Content, "why"), Some(text(Reasoning, "why"))),
            ("rests-as-json", "<", text(Content, "a 你"), Some(arguments("a 你"))),
            ("rests-as-json", "<", text(Content, "\\n\\\"\\u00e9"), Some(arguments("\\n\\\"\\u00e9"))),
            ("rests-as-json", "<", text(Content, "a<"), None),
            ("rests-as-json", "", text(Content, "a\""), None),
            ("rests-as-json", "", text(Content, "a\n"), None),
            ("rests-as-json", "", text(Content, "a\\"), None),
            ("rests-as-json", "", text(Content, "\\u00"), None),
            ("rests-as-text", "<", text(Content, "\"a\"\n\\"), Some(arguments("\\\"a\\\"\\n\\\\"))),
            ("rests-as-text", "<", text(Content, "<"), None),
        ];
        for (key, until, event, expected) in cases {
            assert_eq!(pass(key, until, event.clone()), expected, "{key} until {until:?}: {event:?}");
        }
    }
}
