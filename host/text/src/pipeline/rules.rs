//! What the host holds every stage to: the order of call events, and how much text may be held.

use std::collections::VecDeque;

use contract::TokenId;
use contract::output::{Channel, OutputEvent};

/// Longest tool name. OpenAI allows 64 characters, gateways that prefix names a few hundred.
pub(super) const CALL_NAME_BYTES_MAX: usize = 1024;

/// Calls are numbered from 0 without gaps, never overlap, and hold no text.
#[derive(Default)]
pub(super) struct CallOrder {
    next: u32,
    open: Option<u32>,
}

impl CallOrder {
    pub(super) fn open(&self) -> Option<u32> {
        self.open
    }

    /// Takes the next event of a stage, or says which rule it breaks.
    pub(super) fn check(&mut self, event: &OutputEvent, calls_allowed: bool) -> Result<(), String> {
        match event {
            OutputEvent::Text { text, .. } => match self.open {
                Some(open) if !text.is_empty() => Err(format!("text inside call {open}")),
                _ => Ok(()),
            },
            OutputEvent::Ext { .. } => Ok(()),
            OutputEvent::CallStart { index, name, .. } => {
                if !calls_allowed {
                    return Err("a call although the request allows none".to_owned());
                }
                if let Some(open) = self.open {
                    return Err(format!("call {index} starts inside call {open}"));
                }
                if *index != self.next {
                    return Err(format!("call {index} starts where call {} is due", self.next));
                }
                if name.is_empty() || name.len() > CALL_NAME_BYTES_MAX {
                    return Err(format!(
                        "a tool name of {} bytes; 1 to {CALL_NAME_BYTES_MAX} are possible",
                        name.len()
                    ));
                }
                self.open = Some(*index);
                self.next += 1;
                Ok(())
            }
            OutputEvent::CallArguments { index, .. } => self.in_open(*index, "arguments"),
            OutputEvent::CallEnd { index, .. } => {
                self.in_open(*index, "an end")?;
                self.open = None;
                Ok(())
            }
        }
    }

    /// Closes the open call from outside.
    pub(super) fn close(&mut self) -> Option<OutputEvent> {
        self.open.take().map(|index| OutputEvent::CallEnd { index, complete: false })
    }

    fn in_open(&self, index: u32, what: &str) -> Result<(), String> {
        match self.open {
            Some(open) if open == index => Ok(()),
            Some(open) => Err(format!("{what} of call {index} inside call {open}")),
            None => Err(format!("{what} of call {index}, which is not open")),
        }
    }
}

/// The text that a stage was given and has not yet accounted for, kept so that it can be passed on without the stage.
///
/// A stage emits what it was given in order, leaving out markers. So an emitted text accounts for everything up to its
/// end in the given text, and a call event for everything.
#[derive(Default)]
pub(super) struct Unaccounted {
    /// All of it, joined.
    text: String,
    pieces: VecDeque<Piece>,
}

/// An event's share of the joined text.
struct Piece {
    channel: Channel,
    token: Option<TokenId>,
    bytes: usize,
}

impl Unaccounted {
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn given(&mut self, event: &OutputEvent) {
        if let OutputEvent::Text { channel, text, token } = event
            && !text.is_empty()
        {
            self.text.push_str(text);
            self.pieces.push_back(Piece { channel: channel.clone(), token: *token, bytes: text.len() });
        }
    }

    pub(super) fn emitted(&mut self, event: &OutputEvent) {
        match event {
            OutputEvent::Text { text, .. } => self.emitted_text(text),
            OutputEvent::CallStart { .. } | OutputEvent::CallArguments { .. } | OutputEvent::CallEnd { .. } => {
                self.text.clear();
                self.pieces.clear();
            }
            OutputEvent::Ext { .. } => {}
        }
    }

    pub(super) fn take(&mut self) -> Vec<OutputEvent> {
        let mut text = std::mem::take(&mut self.text);
        let event = |Piece { channel, token, bytes }: Piece| {
            let rest = text.split_off(bytes);
            OutputEvent::Text { channel, text: std::mem::replace(&mut text, rest), token }
        };
        self.pieces.drain(..).map(event).collect()
    }

    fn emitted_text(&mut self, emitted: &str) {
        if emitted.is_empty() || self.text.is_empty() {
            return;
        }
        // Nearly always it is what was given first, and a search begins with preparing itself.
        let found = if self.text.starts_with(emitted) { Some(0) } else { self.text.find(emitted) };
        let end = match found {
            Some(at) => at + emitted.len(),
            None => subsequence_end(&self.text, emitted).unwrap_or(self.text.len()),
        };
        self.drop_front(end);
    }

    fn drop_front(&mut self, bytes: usize) {
        self.text.drain(..bytes);
        let mut left = bytes;
        while let Some(piece) = self.pieces.front_mut().filter(|_| left > 0) {
            if piece.bytes > left {
                piece.bytes -= left;
                piece.token = None;
                return;
            }
            left -= piece.bytes;
            self.pieces.pop_front();
        }
    }
}

/// Where the earliest occurrence of `part` as a subsequence of `whole` ends.
fn subsequence_end(whole: &str, part: &str) -> Option<usize> {
    let mut chars = whole.char_indices();
    let mut end = None;
    for wanted in part.chars() {
        let (at, found) = chars.find(|(_, c)| *c == wanted)?;
        end = Some(at + found.len_utf8());
    }
    end
}
