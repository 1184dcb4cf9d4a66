//! Which input of a stage has not come out of it yet: what must be passed on when the stage is given up.
//!
//! A stage relabels text, swallows markers and turns text into calls, so the host cannot know exactly. It aligns: output
//! text is looked for in the pending input, as it is or without JSON's escapes, and everything up to its end is settled.
//! Output that does not occur there (arguments that were rewritten) settles all input before the current feed. The end of
//! a call settles everything up to the last of the stage's declared markers. Where this is wrong it errs towards passing
//! text on twice.

use std::collections::VecDeque;
use std::sync::Arc;

use contract::output::OutputEvent;

use crate::bindings::output::{types, wit};
use crate::convert;

pub(crate) struct Unsent {
    markers: Arc<[String]>,
    /// The pending text, joined.
    text: String,
    pieces: VecDeque<Piece>,
    /// Bytes of `text` that came before the current feed.
    before_feed: usize,
}

enum Piece {
    Text {
        channel: types::Channel,
        token: Option<u32>,
        bytes: usize,
        cut: bool,
    },
    /// Anything else, from an earlier stage.
    Event(wit::Event),
}

impl Unsent {
    pub fn new(markers: Arc<[String]>) -> Self {
        Self { markers, text: String::new(), pieces: VecDeque::new(), before_feed: 0 }
    }

    /// Bytes that a stage holds.
    pub fn held_bytes(&self) -> usize {
        self.text.len()
    }

    /// Takes note of what goes in.
    pub fn fed(&mut self, events: &[wit::Event]) {
        self.before_feed = self.text.len();
        for event in events {
            self.pieces.push_back(match event {
                wit::Event::Text(text) => {
                    self.text.push_str(&text.text);
                    let (channel, token) = (text.channel.clone(), text.token);
                    Piece::Text { channel, token, bytes: text.text.len(), cut: false }
                }
                other => Piece::Event(other.clone()),
            });
        }
    }

    /// Takes note of what comes out of the call that follows [`Unsent::fed`].
    pub fn came_out(&mut self, events: &[wit::Event]) {
        // After one failed search the rest of this answer is not searched: a search costs the whole pending text.
        let mut lost = false;
        for event in events {
            if self.forwarded(event) {
                continue;
            }
            match event {
                wit::Event::Text(wit::Text { text, .. })
                | wit::Event::CallArguments(wit::CallArguments { fragment: text, .. })
                    if !text.is_empty() && !lost =>
                {
                    match self.end_of(text).or_else(|| self.end_of(&unescaped(event)?)) {
                        Some(end) => self.settle(end),
                        None => {
                            lost = true;
                            self.settle(self.before_feed);
                        }
                    }
                }
                wit::Event::CallEnd(_) => {
                    let ends = self.markers.iter().filter_map(|m| self.text.rfind(m.as_str()).map(|at| at + m.len()));
                    if let Some(end) = ends.max() {
                        self.settle(end);
                    }
                }
                _ => {}
            }
        }
    }

    /// Where a text ends in what is pending.
    fn end_of(&self, text: &str) -> Option<usize> {
        // Nearly always it is what is pending first, and a search begins with preparing itself.
        let at = if self.text.starts_with(text) { Some(0) } else { self.text.find(text) };
        Some(at? + text.len())
    }

    /// What is pending, as it came; nothing is pending afterwards.
    pub fn take(&mut self) -> Vec<OutputEvent> {
        let mut text = std::mem::take(&mut self.text);
        self.before_feed = 0;
        let pieces = std::mem::take(&mut self.pieces);
        let events = pieces.into_iter().map(|piece| match piece {
            Piece::Text { channel, token, bytes, cut } => {
                let rest = text.split_off(bytes);
                let text = std::mem::replace(&mut text, rest);
                OutputEvent::Text { channel: convert::channel(channel), text, token: token.filter(|_| !cut) }
            }
            Piece::Event(event) => convert::event(event),
        });
        events.filter(|event| !matches!(event, OutputEvent::Text { text, .. } if text.is_empty())).collect()
    }

    /// An event of an earlier stage that was passed on settles itself and all before it.
    fn forwarded(&mut self, event: &wit::Event) -> bool {
        if matches!(event, wit::Event::Text(_)) {
            return false;
        }
        let mut before = 0;
        let position = self.pieces.iter().position(|piece| match piece {
            Piece::Text { bytes, .. } => {
                before += bytes;
                false
            }
            Piece::Event(pending) => same(pending, event),
        });
        if let Some(position) = position {
            self.text.drain(..before);
            self.before_feed = self.before_feed.saturating_sub(before);
            self.pieces.drain(..=position);
        }
        position.is_some()
    }

    /// Drops the first `bytes` of the pending text and what lies between them.
    fn settle(&mut self, bytes: usize) {
        self.text.drain(..bytes);
        self.before_feed = self.before_feed.saturating_sub(bytes);
        let mut left = bytes;
        while left > 0 {
            match self.pieces.front_mut() {
                Some(Piece::Text { bytes, cut, .. }) if *bytes > left => {
                    *bytes -= left;
                    *cut = true;
                    left = 0;
                }
                Some(Piece::Text { bytes, .. }) => {
                    left -= *bytes;
                    self.pieces.pop_front();
                }
                Some(Piece::Event(_)) => {
                    self.pieces.pop_front();
                }
                None => left = 0,
            }
        }
    }
}

/// A fragment of arguments without JSON's escapes, for formats that write text without them.
fn unescaped(event: &wit::Event) -> Option<String> {
    let wit::Event::CallArguments(arguments) = event else { return None };
    serde_json::from_str(&format!("\"{}\"", arguments.fragment)).ok()
}

/// The generated types have no `PartialEq`.
fn same(a: &wit::Event, b: &wit::Event) -> bool {
    match (a, b) {
        (wit::Event::CallStart(a), wit::Event::CallStart(b)) => a.index == b.index && a.name == b.name,
        (wit::Event::CallArguments(a), wit::Event::CallArguments(b)) => a.index == b.index && a.fragment == b.fragment,
        (wit::Event::CallEnd(a), wit::Event::CallEnd(b)) => a.index == b.index,
        (wit::Event::Ext(a), wit::Event::Ext(b)) => a.key == b.key && a.value == b.value,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> wit::Event {
        wit::Event::Text(wit::Text { channel: types::Channel::Content, text: text.into(), token: None })
    }

    fn arguments(fragment: &str) -> wit::Event {
        wit::Event::CallArguments(wit::CallArguments { index: 0, fragment: fragment.into() })
    }

    fn end() -> wit::Event {
        wit::Event::CallEnd(wit::CallEnd { index: 0, complete: true })
    }

    /// Feeds and answers in turn; gives the text that is left.
    fn left(steps: &[(&[&str], &[wit::Event])]) -> String {
        let mut unsent = Unsent::new(vec!["<think>".to_string(), "</c>".to_string()].into());
        for (fed, out) in steps {
            unsent.fed(&fed.iter().map(|t| text(t)).collect::<Vec<_>>());
            unsent.came_out(out);
        }
        let text = |event| match event {
            OutputEvent::Text { text, .. } => text,
            other => format!("{other:?}"),
        };
        unsent.take().into_iter().map(text).collect()
    }

    #[test]
    fn passed_text_is_settled() {
        assert_eq!(left(&[(&["ab", "cd"], &[text("abcd")])]), "");
        assert_eq!(left(&[(&["ab", "cd<"], &[text("abcd")])]), "<");
        assert_eq!(left(&[(&["<think>", "why"], &[text("why")])]), "");
        assert_eq!(left(&[(&["<to"], &[]), (&["ol_call>"], &[])]), "<tool_call>");
    }

    /// Arguments taken over word for word settle to their end; the call's end settles its marker.
    #[test]
    fn calls_are_settled() {
        assert_eq!(left(&[(&["<c>{\"a\""], &[arguments("{\"a\"")]), (&[":1}"], &[])]), ":1}");
        assert_eq!(left(&[(&["<c>{}</c> x"], &[arguments("{}"), end()])]), " x");
    }

    /// Text that became JSON's is found without its escapes.
    #[test]
    fn escaped_text_is_settled() {
        assert_eq!(left(&[(&["<p>"], &[]), (&["a\n\"b\" <"], &[arguments("a\\n\\\"b\\\" ")])]), "<");
    }

    /// Rewritten arguments settle everything before the feed that brought them.
    #[test]
    fn rewritten_output_settles_what_was_before() {
        assert_eq!(left(&[(&["<p=a>"], &[]), (&["1</p>"], &[arguments("\"a\": ")]), (&["z"], &[])]), "1</p>z");
    }

    /// An earlier stage's call that was not passed on yet is given back in its place.
    #[test]
    fn events_of_earlier_stages_survive() {
        let mut unsent = Unsent::new(Arc::from([]));
        unsent.fed(&[text("a"), end(), text("b")]);
        unsent.came_out(&[text("a")]);
        let call_end = OutputEvent::CallEnd { index: 0, complete: true };
        assert_eq!(unsent.take(), [call_end, OutputEvent::content("b")]);
    }
}
