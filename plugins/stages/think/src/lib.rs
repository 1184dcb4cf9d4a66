//! Separates reasoning between `<think>` and `</think>` from the answer.
//!
//! Where the stream starts is the template's word: it may have opened the block, or closed an empty one. Only the first
//! block counts; later tags are text. The end without a closing tag (a tool call inside the block) is the tool stage's
//! to see, which reads reasoning as well.

use blocks::markers::{Found, Tag, find};
use blocks::out::Out;
use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{
    Channel, EndReason, Event, ReasoningSpan, Request, Requirements, Session, Stage, Text, rests,
};

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    open: String,
    close: String,
    /// What the host writes when the thinking budget is spent.
    forced_close: String,
    /// When the prompt does not say: the output begins inside the block.
    assume_open: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let close = "</think>".to_string();
        Self { open: "<think>".into(), forced_close: close.clone() + "\n\n", close, assume_open: false }
    }
}

pub struct Think(Settings);

impl Stage for Think {
    type Session = ThinkSession;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if settings.open.is_empty() || settings.close.is_empty() {
            return Err(tokenloom_sdk::disable("invalid-settings", "settings: `open` and `close` must not be empty"));
        }
        Ok(Self(settings))
    }

    fn requires(&self) -> Requirements {
        let Settings { open, close, forced_close, .. } = self.0.clone();
        Requirements {
            markers: vec![open.clone(), close.clone()],
            reasoning: vec![ReasoningSpan { open, close, forced_close }],
            tool_schemas: false,
            stop: Vec::new(),
            ext: Vec::new(),
        }
    }

    fn open(&self, request: Request) -> ThinkSession {
        let state = start(&request, &self.0);
        let open = Tag::of(&request, &self.0.open);
        let close = Tag::of(&request, &self.0.close);
        ThinkSession { state, open, close, held: String::new(), out: Out::default() }
    }
}

/// The template's word first, then the text it left at the prompt's end.
fn start(request: &Request, settings: &Settings) -> State {
    let last = |mark: &str| request.turn_prefix.rfind(mark);
    let (open, close) = (last(&settings.open), last(&settings.close));
    match &request.starts_in {
        Some(Channel::Reasoning) => State::Opened,
        // The block in the prompt is the one block there is.
        _ if close.is_some() && close > open => State::Answer,
        _ if open.is_some() => State::Opened,
        None if settings.assume_open => State::Opened,
        _ => State::Start,
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

pub struct ThinkSession {
    state: State,
    open: Tag,
    close: Tag,
    /// White space at a border, or the beginning of a tag.
    held: String,
    out: Out,
}

impl ThinkSession {
    fn text(&mut self, text: Text) {
        if text.channel != Channel::Content {
            self.out.text(&text.channel, &text.text, text.token);
            return;
        }
        if self.state == State::Answer {
            self.out.text(&Channel::Content, &text.text, text.token);
            return;
        }
        if self.takes_open() && self.open.is(text.token) {
            self.opened();
        } else if matches!(self.state, State::Opened | State::Thinking) && self.close.is(text.token) {
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

    /// White space alone is held at a border as well, with the token lost, which nobody misses.
    fn may_be_tag(&self, text: &str) -> bool {
        !self.held.trim().is_empty() || text.trim().is_empty() || self.search(text) != Found::Part { at: text.len() }
    }

    fn search(&self, text: &str) -> Found {
        let open = self.open.by_text().filter(|_| self.takes_open());
        let close = self.close.by_text().filter(|_| matches!(self.state, State::Opened | State::Thinking));
        find(text, [open, close].into_iter())
    }

    fn channel(&self) -> Channel {
        if matches!(self.state, State::Opened | State::Thinking) { Channel::Reasoning } else { Channel::Content }
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
        match self.search(&text) {
            Found::Whole { at, which } if at == space => {
                let mark = [&self.open, &self.close][which].text.len();
                if which == 0 {
                    self.opened()
                } else {
                    self.closed()
                }
                text[at + mark..].to_string()
            }
            Found::Part { at } if at == space => {
                self.held = text;
                String::new()
            }
            _ if space == text.len() => {
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

    fn thinking(&mut self, text: &str) -> String {
        match self.search(text) {
            Found::Whole { at, .. } => {
                self.out.text(&Channel::Reasoning, &text[..at], None);
                self.closed();
                text[at + self.close.text.len()..].to_string()
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
}

impl Session for ThinkSession {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        for event in events {
            match event {
                Event::Text(text) => self.text(text),
                other => {
                    self.flush();
                    self.out.events.push(other);
                }
            }
        }
        let mut out = self.out.take();
        // There is one block: whatever comes behind it is text.
        if self.state == State::Answer && self.held.is_empty() {
            out.push(rests(""));
        }
        Ok(out)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<Event>, PluginError> {
        self.flush();
        Ok(self.out.take())
    }
}

tokenloom_sdk::export_stage!(Think);
