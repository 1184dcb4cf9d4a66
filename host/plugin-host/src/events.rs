//! The rules of the event stream, enforced on whatever a stage answers: calls are numbered from 0 without gaps, never
//! overlap, and arguments lie between a call's start and its end.

use contract::output::{StageRequest, ToolChoice};

use crate::bindings::output::{types, wit};

/// Events of one answer. A step carries a few tokens; a stage that gives back 256 KiB held as one text per byte is wrong.
const EVENTS_PER_CALL_MAX: usize = 16_384;
/// Calls of one stream; the largest seen in the wild is a few dozen.
const CALLS_MAX: u32 = 4096;
const NAME_BYTES_MAX: usize = 256;
const CHANNEL_BYTES_MAX: usize = 64;

/// Where the stream of one stage is. Two equal checkers have seen streams that may go on the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checker {
    calls_allowed: bool,
    next_index: u32,
    open: Option<u32>,
}

impl Checker {
    /// A request without tools, or with `tool_choice: none`, has no place for a call.
    pub fn new(request: &StageRequest) -> Self {
        let calls_allowed = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        Self { calls_allowed, next_index: 0, open: None }
    }

    /// The call that was started and not ended.
    pub fn open_call(&self) -> Option<u32> {
        self.open
    }

    /// The host ends the open call itself.
    pub fn close(&mut self) -> Option<u32> {
        self.open.take()
    }

    /// The host starts the next call itself, for an earlier stage's; `None` where there is no place for one.
    pub fn begin(&mut self) -> Option<u32> {
        if !self.calls_allowed || self.open.is_some() || self.next_index >= CALLS_MAX {
            return None;
        }
        self.open = Some(self.next_index);
        self.next_index += 1;
        self.open
    }

    pub fn check_count(count: usize) -> Result<(), String> {
        if count > EVENTS_PER_CALL_MAX {
            return Err(format!("{count} events in one answer; at most {EVENTS_PER_CALL_MAX} are allowed"));
        }
        Ok(())
    }

    /// Takes the next event, or says which rule it breaks.
    pub fn step(&mut self, event: &wit::Event) -> Result<(), String> {
        match event {
            wit::Event::Text(text) => match &text.channel {
                types::Channel::Other(name) if name.len() > CHANNEL_BYTES_MAX => {
                    Err(format!("a channel name of {} bytes; at most {CHANNEL_BYTES_MAX} are allowed", name.len()))
                }
                _ => Ok(()),
            },
            wit::Event::CallStart(call) => self.start(call),
            wit::Event::CallArguments(call) => self.inside(call.index, "arguments"),
            wit::Event::CallEnd(call) => {
                self.inside(call.index, "end")?;
                self.open = None;
                Ok(())
            }
            wit::Event::Ext(_) => Ok(()),
        }
    }

    fn start(&mut self, call: &wit::CallStart) -> Result<(), String> {
        if !self.calls_allowed {
            return Err("a call, and the request has no tools or forbids them".into());
        }
        if let Some(open) = self.open {
            return Err(format!("the start of call {} while call {open} is open", call.index));
        }
        if call.index != self.next_index || call.index >= CALLS_MAX {
            return Err(format!("the start of call {}; the next is {} of {CALLS_MAX}", call.index, self.next_index));
        }
        let name_bytes = call.name.len().max(call.id.as_ref().map_or(0, String::len));
        if call.name.is_empty() || name_bytes > NAME_BYTES_MAX {
            return Err(format!("a call name or id of {name_bytes} bytes; 1 to {NAME_BYTES_MAX} are allowed"));
        }
        self.open = Some(call.index);
        self.next_index += 1;
        Ok(())
    }

    fn inside(&self, index: u32, what: &str) -> Result<(), String> {
        match self.open {
            Some(open) if open == index => Ok(()),
            Some(open) => Err(format!("{what} of call {index} while call {open} is open")),
            None => Err(format!("{what} of call {index} while no call is open")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::output::{CallKind, Tool};

    fn start(index: u32) -> wit::Event {
        wit::Event::CallStart(wit::CallStart { index, id: None, name: "f".into(), kind: wit::CallKind::Json })
    }

    fn arguments(index: u32) -> wit::Event {
        wit::Event::CallArguments(wit::CallArguments { index, fragment: "{}".into() })
    }

    fn end(index: u32) -> wit::Event {
        wit::Event::CallEnd(wit::CallEnd { index, complete: true })
    }

    fn run(tool_choice: ToolChoice, events: &[wit::Event]) -> Result<(), String> {
        let tool = Tool { name: "f".into(), kind: CallKind::Json, schema_json: None, strict: false };
        let mut checker = Checker::new(&StageRequest { tools: vec![tool], tool_choice, ..StageRequest::default() });
        events.iter().try_for_each(|event| checker.step(event))
    }

    #[test]
    fn order_is_enforced() {
        let auto = |events: &[wit::Event]| run(ToolChoice::Auto, events).err().unwrap_or_default();
        assert_eq!(auto(&[start(0), arguments(0), end(0), start(1), end(1)]), "");
        assert_eq!(auto(&[arguments(0)]), "arguments of call 0 while no call is open");
        assert_eq!(auto(&[start(1)]), "the start of call 1; the next is 0 of 4096");
        assert_eq!(auto(&[start(0), start(1)]), "the start of call 1 while call 0 is open");
        assert_eq!(auto(&[start(0), arguments(1)]), "arguments of call 1 while call 0 is open");
        assert_eq!(auto(&[start(0), end(0), end(0)]), "end of call 0 while no call is open");
        assert!(run(ToolChoice::None, &[start(0)]).is_err());
    }
}
