//! Separates reasoning between two tags from the answer.
//!
//! Where the stream starts is the template's word: it may have opened the block, or closed an empty one. Only the first
//! block counts; later tags are text. The end without a closing tag (a tool call inside the block) is the tool reader's
//! to see, which reads reasoning as well.

use serde::Deserialize;

use tokenloom_sdk::output::{Channel, Event, ReasoningSpan, Request, Rest, RestKind, Text};
use tokenloom_sdk::{PluginError, disable};

use crate::markers::{Found, Tag, find, first_chars};
use crate::out::Out;

/// How reasoning is marked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reasoning {
    /// Any of these opens the block.
    pub open: Vec<String>,
    /// Any of these closes it; of as many as there are in `open`, in that order.
    pub close: Vec<String>,
    /// A word of the format right behind the opening.
    pub label: String,
    /// What the host writes when the thinking budget is spent; empty: the first closing tag and an empty line.
    pub forced_close: String,
    /// When the prompt does not say: the output begins inside the block.
    pub assume_open: bool,
}

/// Tags of one format; more are a mistake.
const TAGS_MAX: usize = 8;
const TAG_BYTES_MAX: usize = 128;

impl Reasoning {
    pub fn tags(open: &str, close: &str) -> Self {
        Self { open: vec![open.into()], close: vec![close.into()], ..Self::default() }
    }

    /// Says what is wrong with a description that somebody wrote.
    pub fn check(&self) -> Result<(), PluginError> {
        let lengths = self.open.iter().chain(&self.close).map(String::len);
        let wrong = match () {
            () if self.open.is_empty() || self.open.len() != self.close.len() || self.open.len() > TAGS_MAX => {
                format!("`open` and `close` must have equally many tags, 1 to {TAGS_MAX}")
            }
            () if lengths.clone().any(|bytes| bytes == 0 || bytes > TAG_BYTES_MAX)
                || self.label.len() > TAG_BYTES_MAX =>
            {
                format!("a tag must have 1 to {TAG_BYTES_MAX} bytes, a label no more")
            }
            () => return Ok(()),
        };
        Err(disable("invalid-settings", format!("settings: reasoning: {wrong}")))
    }

    pub fn markers(&self) -> Vec<String> {
        self.open.iter().chain(&self.close).cloned().collect()
    }

    pub fn spans(&self) -> Vec<ReasoningSpan> {
        let span = |(open, close): (&String, &String)| {
            let forced_close = match self.forced_close.as_str() {
                "" => close.clone() + "\n\n",
                text => text.into(),
            };
            ReasoningSpan { open: open.clone(), close: close.clone(), forced_close }
        };
        self.open.iter().zip(&self.close).map(span).collect()
    }

    pub fn session(&self, request: &Request) -> ReasoningSession {
        let tag = |text: &String| Tag::of(request, text);
        ReasoningSession {
            state: self.start(request),
            open: self.open.iter().map(tag).collect(),
            close: self.close.iter().map(tag).collect(),
            label: self.label.clone(),
            held: String::new(),
            out: Out::default(),
        }
    }

    /// The template's word first, then the text it left at the prompt's end.
    fn start(&self, request: &Request) -> State {
        let last = |tags: &[String]| tags.iter().filter_map(|tag| request.turn_prefix.rfind(tag.as_str())).max();
        let (open, close) = (last(&self.open), last(&self.close));
        match &request.starts_in {
            Some(Channel::Reasoning) => State::Opened,
            // The block in the prompt is the one block there is.
            _ if close.is_some() && close > open => State::Answer,
            _ if open.is_some() => State::Opened,
            None if self.assume_open => State::Opened,
            _ => State::Start,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far; the opening tag may come.
    Start,
    /// Inside the block, nothing but white space so far; the tag may come again.
    Opened,
    Thinking,
    /// Behind the closing tag: line breaks belong to the format.
    Closed,
    Answer,
}

pub struct ReasoningSession {
    state: State,
    open: Vec<Tag>,
    close: Vec<Tag>,
    label: String,
    /// White space at a border, or the beginning of a tag.
    held: String,
    out: Out,
}

impl ReasoningSession {
    fn text(&mut self, text: Text) {
        if text.channel != Channel::Content {
            // A stage before this one has found the reasoning.
            if text.channel == Channel::Reasoning && self.takes_open() {
                self.flush();
                self.state = State::Answer;
            }
            self.out.text(&text.channel, &text.text, text.token);
            return;
        }
        if self.state == State::Answer {
            self.out.text(&Channel::Content, &text.text, text.token);
            return;
        }
        if self.takes_open() && self.open.iter().any(|tag| tag.is(text.token)) {
            self.opened();
        } else if self.takes_close() && self.close.iter().any(|tag| tag.is(text.token)) {
            self.closed();
        } else if text.token.is_some() && !self.may_be_tag(&text.text) {
            // An added token of somebody else's format keeps its id.
            self.release();
            self.out.text(&self.channel(), &text.text, text.token);
        } else {
            let all = std::mem::take(&mut self.held) + &text.text;
            self.plain(all);
        }
    }

    fn takes_open(&self) -> bool {
        matches!(self.state, State::Start | State::Opened)
    }

    fn takes_close(&self) -> bool {
        matches!(self.state, State::Opened | State::Thinking)
    }

    /// White space alone is held at a border as well, with the token lost, which nobody misses.
    fn may_be_tag(&self, text: &str) -> bool {
        !self.held.trim().is_empty() || text.trim().is_empty() || self.search(text) != Found::Part { at: text.len() }
    }

    /// Finds the tags that count now: openings first, then closings.
    fn search(&self, text: &str) -> Found {
        let (opens, closes) = (self.takes_open(), self.takes_close());
        let open = self.open.iter().map(move |tag| tag.by_text().filter(|_| opens));
        let close = self.close.iter().map(move |tag| tag.by_text().filter(|_| closes));
        find(text, open.chain(close))
    }

    fn channel(&self) -> Channel {
        if self.takes_close() { Channel::Reasoning } else { Channel::Content }
    }

    fn opened(&mut self) {
        self.held.clear();
        self.state = State::Opened;
    }

    fn closed(&mut self) {
        if self.state == State::Thinking {
            let held = std::mem::take(&mut self.held);
            self.out.text(&Channel::Reasoning, &held, None);
        }
        self.held.clear();
        self.state = State::Closed;
    }

    /// The held text is neither a tag nor a border.
    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start => self.state = State::Answer,
            State::Opened => {
                self.state = State::Thinking;
                self.out.text(&Channel::Reasoning, held.trim_start(), None);
                return;
            }
            State::Closed => {
                self.state = State::Answer;
                self.out.text(&Channel::Content, held.trim_start_matches(['\r', '\n']), None);
                return;
            }
            State::Thinking | State::Answer => {}
        }
        self.out.text(&self.channel(), &held, None);
    }

    fn plain(&mut self, mut text: String) {
        while !text.is_empty() {
            text = match self.state {
                State::Answer => {
                    self.out.text(&Channel::Content, &text, None);
                    String::new()
                }
                State::Closed => self.border(text),
                State::Start | State::Opened => self.at_start(text),
                State::Thinking => self.thinking(&text),
            };
        }
    }

    /// Behind the closing tag: white space is held until text comes.
    fn border(&mut self, text: String) -> String {
        if text.trim().is_empty() {
            self.held = text;
            return String::new();
        }
        self.state = State::Answer;
        text.trim_start_matches(['\r', '\n']).to_string()
    }

    /// Before anything but white space: a tag here counts, whatever else comes first ends the start.
    fn at_start(&mut self, text: String) -> String {
        let space = text.len() - text.trim_start().len();
        if let Some(rest) = self.labelled(&text[space..]) {
            return rest;
        }
        match self.search(&text) {
            Found::Whole { at, which } if at == space => {
                let openings = self.open.len();
                let tag = if which < openings { &self.open[which] } else { &self.close[which - openings] };
                let end = at + tag.text.len();
                if which < openings {
                    self.opened()
                } else {
                    self.closed()
                }
                text[end..].to_string()
            }
            Found::Part { at } if at == space => {
                self.held = text;
                String::new()
            }
            _ if space == text.len() => {
                self.held = text;
                String::new()
            }
            _ if self.may_be_label(&text[space..]) => {
                self.held = text;
                String::new()
            }
            _ if self.state == State::Start => {
                self.state = State::Answer;
                text
            }
            _ => {
                self.state = State::Thinking;
                text.trim_start().to_string()
            }
        }
    }

    /// Behind the format's word, if that is what the block begins with.
    fn labelled(&mut self, text: &str) -> Option<String> {
        if self.state != State::Opened || self.label.is_empty() {
            return None;
        }
        let rest = text.strip_prefix(self.label.as_str())?.to_string();
        self.label.clear();
        Some(rest)
    }

    fn may_be_label(&self, text: &str) -> bool {
        self.state == State::Opened && !self.label.is_empty() && self.label.starts_with(text)
    }

    fn thinking(&mut self, text: &str) -> String {
        match self.search(text) {
            Found::Whole { at, which } => {
                self.out.text(&Channel::Reasoning, &text[..at], None);
                self.closed();
                // Only closings count here.
                text[at + self.close[which - self.open.len()].text.len()..].to_string()
            }
            Found::Part { at } => {
                self.out.text(&Channel::Reasoning, &text[..at], None);
                self.held = text[at..].to_string();
                String::new()
            }
        }
    }

    /// Gives back what is held: white space at a border is only a border.
    fn flush(&mut self) {
        let border = matches!(self.state, State::Opened | State::Closed) && self.held.trim().is_empty();
        let held = std::mem::take(&mut self.held);
        if !border {
            self.out.text(&self.channel(), &held, None);
        }
    }

    /// Relabels what it knows and passes on the rest.
    pub fn read(&mut self, events: Vec<Event>) -> Vec<Event> {
        for event in events {
            match event {
                Event::Text(text) => self.text(text),
                other => {
                    self.flush();
                    self.out.events.push(other);
                }
            }
        }
        self.out.take()
    }

    /// Inside the block only what closes it counts, and behind it nothing: there is one block.
    pub fn rest(&self) -> Option<Rest> {
        match self.state {
            State::Answer if self.held.is_empty() => Some(Rest::new(RestKind::Content, "")),
            State::Thinking if self.held.is_empty() => {
                Some(Rest::new(RestKind::ContentToReasoning, first_chars(&self.close)))
            }
            _ => None,
        }
    }

    /// The stream is over: what is held comes out.
    pub fn end(&mut self) -> Vec<Event> {
        self.flush();
        self.out.take()
    }
}
