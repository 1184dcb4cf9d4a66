//! The stream: headers and messages in turn.

use blocks::json::Checker;
use blocks::markers::{Found, Tag, find, first_chars};
use blocks::out::Out;
use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{Channel, EndReason, Event, Request, Rest, RestKind, Session, Text};

use crate::MARKERS;
use crate::header::{BYTES_MAX, Mark, Purpose, left_open, purpose};

enum State {
    /// Before the first message, or between two: a header may come without its start.
    Between,
    /// Inside a header, whose text so far is in `header`.
    Header,
    Text(Channel),
    /// A message with a recipient: only white space so far.
    Call(String, Channel),
    Arguments(Checker),
    /// The arguments are complete; what is left of the message is white space.
    Called,
}

pub struct GptOssSession {
    state: State,
    tags: Vec<Tag>,
    header: String,
    /// Part of a marker that is written as text.
    part: String,
    /// White space that is text only if more text follows.
    gap: String,
    out: Out,
    index: u32,
}

impl GptOssSession {
    pub fn new(request: &Request) -> Self {
        let (mut header, open) = left_open(&request.turn_prefix);
        // A bare role is no beginning that anything could go on with.
        if !header.contains(MARKERS[1]) && !header.contains("to=") {
            header.clear();
        }
        let state = match (open, &request.starts_in) {
            (Some(purpose), _) => begin(purpose),
            (None, Some(Channel::Reasoning)) => State::Text(Channel::Reasoning),
            (None, _) if !header.is_empty() => State::Header,
            (None, _) => State::Between,
        };
        let tags = MARKERS.iter().map(|marker| Tag::of(request, marker)).collect();
        let (part, gap) = (String::new(), String::new());
        Self { state, tags, header, part, gap, out: Out::default(), index: 0 }
    }

    fn text(&mut self, text: Text) {
        if text.channel != Channel::Content {
            self.out.text(&text.channel, &text.text, text.token);
            return;
        }
        if let Some(position) = self.tags.iter().position(|tag| tag.is(text.token)) {
            let part = std::mem::take(&mut self.part);
            self.plain(&part);
            self.mark(position);
        } else {
            self.search(&text.text);
        }
    }

    /// Finds markers that are written as text, and holds back what may still become one.
    fn search(&mut self, text: &str) {
        let mut text = std::mem::take(&mut self.part) + text;
        while !text.is_empty() {
            let markers = self.tags.iter().map(Tag::by_text);
            match find(&text, markers) {
                Found::Whole { at, which } => {
                    let rest = text[at + MARKERS[which].len()..].to_string();
                    self.plain(&text[..at]);
                    self.mark(which);
                    text = rest;
                }
                Found::Part { at } => {
                    self.plain(&text[..at]);
                    self.part = text[at..].to_string();
                    return;
                }
            }
        }
    }

    fn mark(&mut self, position: usize) {
        match (Mark::of(position), &self.state) {
            (Mark::Start, _) => {
                self.close();
                self.header.clear();
                self.state = State::Header;
            }
            (Mark::Channel, State::Header) => self.header.push_str(MARKERS[1]),
            // A message may follow without its start.
            (Mark::Channel, _) => {
                self.close();
                self.header.push_str(MARKERS[1]);
                self.state = State::Header;
            }
            (Mark::Constrain, State::Header) => self.header.push_str(MARKERS[2]),
            (Mark::Message, State::Header | State::Between) => {
                self.gap.clear();
                self.state = begin(purpose(&std::mem::take(&mut self.header)));
            }
            (Mark::End, _) => {
                self.close();
                self.state = State::Between;
            }
            // A marker out of place says nothing.
            (Mark::Constrain | Mark::Message, _) => {}
        }
    }

    /// The message ends.
    fn close(&mut self) {
        if let State::Arguments(_) = self.state {
            self.out.end(self.index, false);
            self.index += 1;
        }
        if let State::Call(name, _) = &self.state {
            // A call of a function without parameters may have an empty message.
            self.out.start(self.index, name, None);
            self.out.arguments(self.index, "{}");
            self.out.end(self.index, true);
            self.index += 1;
        }
        if !matches!(self.state, State::Header | State::Between) {
            self.header.clear();
        }
        self.gap.clear();
    }

    fn plain(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.state {
            State::Text(channel) => {
                let channel = channel.clone();
                self.out.text(&channel, text, None);
            }
            State::Header => {
                self.header.push_str(text);
                if self.header.len() > BYTES_MAX {
                    let header = std::mem::take(&mut self.header);
                    self.state = State::Text(Channel::Content);
                    self.plain(&header);
                }
            }
            State::Between => self.between(text),
            State::Call(..) => self.begin_arguments(text),
            State::Arguments(_) => self.arguments(text),
            State::Called => self.show(text),
        }
    }

    /// Between messages a header may go on (` to=functions.f`); anything else is text.
    fn between(&mut self, text: &str) {
        self.header.push_str(text);
        let recipient = self.header.trim_start();
        let role = "assistant";
        let may_be_header = self.header.trim().is_empty()
            || "to=".starts_with(recipient)
            || recipient.starts_with("to=")
            || (!recipient.is_empty() && (role.starts_with(recipient) || recipient.starts_with(role)));
        if !may_be_header || self.header.len() > BYTES_MAX {
            let header = std::mem::take(&mut self.header);
            self.state = State::Text(Channel::Content);
            self.plain(&header);
        }
    }

    fn begin_arguments(&mut self, text: &str) {
        let space = text.len() - text.trim_start().len();
        self.gap.push_str(&text[..space]);
        let rest = &text[space..];
        let State::Call(name, channel) = &self.state else { return };
        if rest.is_empty() {
            return;
        }
        if rest.starts_with('{') {
            let name = name.clone();
            self.gap.clear();
            self.out.start(self.index, &name, None);
            self.state = State::Arguments(Checker::default());
            self.arguments(rest);
        } else {
            let text = std::mem::take(&mut self.gap) + rest;
            self.state = State::Text(channel.clone());
            self.plain(&text);
        }
    }

    fn arguments(&mut self, text: &str) {
        let State::Arguments(checker) = &mut self.state else { return };
        let (mut taken, mut broken) = (0, false);
        for c in text.chars() {
            if checker.done() {
                break;
            }
            broken = c.encode_utf8(&mut [0; 4]).bytes().any(|byte| checker.push(byte).is_err());
            if broken {
                break;
            }
            taken += c.len_utf8();
        }
        let done = checker.done();
        self.out.arguments(self.index, &text[..taken]);
        if done || broken {
            self.out.end(self.index, done);
            self.index += 1;
            self.state = State::Called;
            self.show(&text[taken..]);
        }
    }

    /// Text behind a call.
    fn show(&mut self, text: &str) {
        if text.trim().is_empty() && !text.is_empty() {
            self.gap.push_str(text);
        } else if !text.is_empty() {
            let text = std::mem::take(&mut self.gap) + text;
            self.state = State::Text(Channel::Content);
            self.plain(&text);
        }
    }
}

fn begin(purpose: Purpose) -> State {
    match purpose {
        Purpose::Text(channel) => State::Text(channel),
        Purpose::Call(name, channel) => State::Call(name, channel),
    }
}

impl GptOssSession {
    /// Inside a message's text, or a text of its arguments, only markers count, where they are written as text.
    fn rest(&self) -> Option<Rest> {
        let kind = match &self.state {
            State::Text(Channel::Content) => RestKind::Content,
            State::Text(Channel::Reasoning) => RestKind::ContentToReasoning,
            State::Arguments(checker) if checker.in_text() => RestKind::ContentToJson,
            _ => return None,
        };
        self.part.is_empty().then(|| Rest::new(kind, first_chars(&self.tags)))
    }
}

impl Session for GptOssSession {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        for event in events {
            match event {
                Event::Text(text) => self.text(text),
                other => self.out.events.push(other),
            }
        }
        let mut events = self.out.take();
        events.extend(self.rest().map(Rest::into_event));
        Ok(events)
    }

    fn finish(&mut self, reason: EndReason) -> Result<Vec<Event>, PluginError> {
        let part = std::mem::take(&mut self.part);
        self.plain(&part);
        match &self.state {
            // The call's own end may have been the stop string; at the length limit nothing is known to be whole.
            State::Arguments(_) => self.close(),
            State::Call(..) if !matches!(reason, EndReason::Length | EndReason::Cancelled | EndReason::Error) => {
                self.close()
            }
            State::Between if !self.header.trim().is_empty() => {
                let header = std::mem::take(&mut self.header);
                self.out.text(&Channel::Content, &header, None);
            }
            _ => {}
        }
        Ok(self.out.take())
    }
}
