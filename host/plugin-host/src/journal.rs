//! The exact feed calls of one stream, so that a fresh store can be brought to where the broken one was.

use crate::bindings::output::wit;
use crate::convert::event_bytes;

/// A stream of 100,000 tokens takes about half of this. A longer one is not replayed any more.
const JOURNAL_BYTES_MAX: usize = 16 << 20;
/// What an event costs beside its text.
const EVENT_BYTES: usize = std::mem::size_of::<wit::Event>();

#[derive(Default)]
pub(crate) struct Journal {
    feeds: Vec<Vec<wit::Event>>,
    bytes: usize,
    /// Too much came; what is in `feeds` is only the last call.
    overflowed: bool,
}

impl Journal {
    /// Keeps a feed and lends it for the call.
    pub fn keep(&mut self, events: Vec<wit::Event>) -> &[wit::Event] {
        self.bytes += events.iter().map(|event| EVENT_BYTES + event_bytes(event)).sum::<usize>();
        if self.bytes > JOURNAL_BYTES_MAX {
            self.overflowed = true;
            self.feeds.clear();
        }
        self.feeds.push(events);
        self.last()
    }

    /// The feed that was kept last.
    pub fn last(&self) -> &[wit::Event] {
        self.feeds.last().map_or(&[], Vec::as_slice)
    }

    /// All feeds so far; `None` if they were too many to keep.
    pub fn feeds(&self) -> Option<&[Vec<wit::Event>]> {
        (!self.overflowed).then_some(self.feeds.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::output::types;

    /// The last feed can always be made, but a journal with a hole is not offered for replay.
    #[test]
    fn overflow_ends_replay() {
        let mut journal = Journal::default();
        let text = "x".repeat(JOURNAL_BYTES_MAX / 2);
        for fits in [true, false, false] {
            let event = wit::Text { channel: types::Channel::Content, text: text.clone(), token: None };
            assert_eq!(journal.keep(vec![wit::Event::Text(event)]).len(), 1);
            assert_eq!(journal.feeds().is_some(), fits);
        }
    }
}
