//! One call, read character by character.

use blocks::json;
use blocks::markers::{Towards, towards};
use blocks::tool::{CallOut, NAME_BYTES_MAX, Step};

use crate::FUNCTION;
use crate::types::{Kind, Tools};

const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const END_FUNCTION: &str = "</function>";

/// White space between two tags. More is text.
const SPACE_BYTES_MAX: usize = 64;

/// What a call needs to know of its stream.
pub struct Markers<'a> {
    /// `</tool_call>`, unless it is a token of its own.
    pub close: Option<&'a str>,
    pub tools: &'a Tools,
}

#[derive(Clone, Debug)]
enum State {
    /// Behind the opening marker: the function's tag must come.
    Opened,
    /// The function's name.
    Name,
    /// Between parameters.
    Body,
    /// A parameter's name.
    Key,
    Value(Value),
    /// Behind `</function>`: the closing marker may come.
    Closing,
}

#[derive(Clone, Debug)]
struct Value {
    kind: Kind,
    /// The value so far, unless it is text, which is sent at once.
    text: String,
    /// The line break behind the tag is not part of the value.
    first: bool,
}

#[derive(Clone, Debug)]
pub struct Call {
    state: State,
    /// Text that is not decided: part of a tag, or of a name.
    tail: String,
    name: String,
    /// The opening marker was missing.
    bare: bool,
    started: bool,
    parameters: u32,
}

impl Call {
    pub fn after_marker() -> Self {
        let (tail, name) = (String::new(), String::new());
        Self { state: State::Opened, tail, name, bare: false, started: false, parameters: 0 }
    }

    pub fn bare() -> Self {
        Self { state: State::Name, bare: true, ..Self::after_marker() }
    }

    pub fn whole(&self) -> bool {
        matches!(self.state, State::Closing)
    }

    /// Whether the closing marker, as a token, ends the call here: not in the middle of a name or a value.
    pub fn takes_close(&self) -> bool {
        match &self.state {
            State::Body | State::Closing => self.tail.trim().is_empty(),
            State::Value(_) => self.tail.trim_end().strip_prefix('\n').unwrap_or(self.tail.trim_end()) == END_PARAMETER,
            _ => false,
        }
    }

    pub fn closed(&mut self, out: &mut CallOut) -> Step {
        if let State::Value(value) = &self.state {
            value.end(out);
        }
        if !self.whole() {
            self.end_arguments(out);
        }
        Step::Ended(String::new())
    }

    pub fn push_text(&mut self, text: &str, markers: &Markers, out: &mut CallOut) -> Step {
        for (at, c) in text.char_indices() {
            let after = &text[at + c.len_utf8()..];
            match self.push(c, markers, out) {
                Step::More => {}
                Step::NotACall(rest) => return Step::NotACall(rest + after),
                Step::Broken(rest) => return Step::Broken(rest + after),
                Step::Ended(rest) => return Step::Ended(rest + after),
            }
        }
        Step::More
    }

    pub fn push(&mut self, c: char, markers: &Markers, out: &mut CallOut) -> Step {
        self.tail.push(c);
        match &mut self.state {
            State::Opened => match self.tag(&[Some(FUNCTION)]) {
                Towards::Yes(_) => self.enter(State::Name),
                Towards::Maybe => Step::More,
                Towards::No => self.broken(),
            },
            State::Name => self.name(c, markers, out),
            State::Body => match self.tag(&[Some(PARAMETER), Some(END_FUNCTION), markers.close]) {
                Towards::Yes(0) => self.enter(State::Key),
                Towards::Yes(which) => {
                    self.end_arguments(out);
                    if which == 1 { self.enter(State::Closing) } else { Step::Ended(String::new()) }
                }
                Towards::Maybe => Step::More,
                Towards::No => self.broken(),
            },
            State::Key => self.key(c, markers, out),
            State::Value(_) => self.value(markers, out),
            State::Closing => match self.tag(&[markers.close]) {
                Towards::Yes(_) => Step::Ended(String::new()),
                Towards::Maybe => Step::More,
                Towards::No => Step::Ended(std::mem::take(&mut self.tail)),
            },
        }
    }

    fn enter(&mut self, state: State) -> Step {
        self.state = state;
        self.tail.clear();
        Step::More
    }

    /// White space, then one of `tags`.
    fn tag(&self, tags: &[Option<&str>]) -> Towards {
        let text = self.tail.trim_start();
        match self.tail.len() - text.len() {
            space if space > SPACE_BYTES_MAX => Towards::No,
            _ if text.is_empty() => Towards::Maybe,
            _ => towards(text, tags),
        }
    }

    fn broken(&mut self) -> Step {
        let tail = std::mem::take(&mut self.tail);
        if self.started { Step::Broken(tail) } else { Step::NotACall(tail) }
    }

    fn name(&mut self, c: char, markers: &Markers, out: &mut CallOut) -> Step {
        if c != '>' {
            return self.in_name(c);
        }
        let name = self.tail.trim_end_matches('>').trim().to_string();
        // Without the marker only a declared tool is believed.
        if name.is_empty() || (self.bare && !markers.tools.has(&name)) {
            return self.broken();
        }
        out.start(&name);
        self.started = true;
        self.name = name;
        self.enter(State::Body)
    }

    fn in_name(&mut self, c: char) -> Step {
        let fits = self.tail.len() <= NAME_BYTES_MAX && !matches!(c, '\n' | '<');
        if fits { Step::More } else { self.broken() }
    }

    fn key(&mut self, c: char, markers: &Markers, out: &mut CallOut) -> Step {
        if c != '>' {
            return self.in_name(c);
        }
        let key = self.tail.trim_end_matches('>').trim().to_string();
        let kind = markers.tools.kind(&self.name, &key);
        out.arguments(if self.parameters == 0 { "{" } else { ", " });
        out.arguments(&json::quoted(&key));
        out.arguments(": ");
        if kind.is_text() {
            out.arguments("\"");
        }
        self.parameters += 1;
        self.enter(State::Value(Value { kind, text: String::new(), first: true }))
    }

    /// The end is a closing tag with another tag behind it: the value may hold look-alikes.
    fn value(&mut self, markers: &Markers, out: &mut CallOut) -> Step {
        loop {
            let State::Value(value) = &mut self.state else { return Step::More };
            match value_end(&self.tail, markers.close) {
                Towards::Maybe => return Step::More,
                Towards::Yes(which) => {
                    value.end(out);
                    return match which {
                        0 => self.enter(State::Key),
                        1 => {
                            self.end_arguments(out);
                            self.enter(State::Closing)
                        }
                        _ => {
                            self.end_arguments(out);
                            Step::Ended(String::new())
                        }
                    };
                }
                Towards::No => {
                    let c = self.tail.remove(0);
                    value.push(c, out);
                }
            }
        }
    }

    fn end_arguments(&self, out: &mut CallOut) {
        out.arguments(if self.parameters == 0 { "{}" } else { "}" });
    }
}

/// How far `tail` has come towards a value's end: a line break, the closing tag, white space, the next tag.
fn value_end(tail: &str, close: Option<&str>) -> Towards {
    let text = tail.strip_prefix('\n').unwrap_or(tail);
    let Some(behind) = text.strip_prefix(END_PARAMETER) else {
        return if END_PARAMETER.starts_with(text) { Towards::Maybe } else { Towards::No };
    };
    let next = behind.trim_start();
    match behind.len() - next.len() {
        space if space > SPACE_BYTES_MAX => Towards::No,
        _ if next.is_empty() => Towards::Maybe,
        _ => towards(next, &[Some(PARAMETER), Some(END_FUNCTION), close]),
    }
}

impl Value {
    fn push(&mut self, c: char, out: &mut CallOut) {
        if std::mem::take(&mut self.first) && c == '\n' {
            return;
        }
        if self.kind.is_text() {
            let mut escaped = String::new();
            json::escape(c, &mut escaped);
            out.arguments(&escaped);
        } else {
            self.text.push(c);
        }
    }

    fn end(&self, out: &mut CallOut) {
        if self.kind.is_text() {
            out.arguments("\"");
        } else {
            out.arguments(&self.kind.json(&self.text));
        }
    }
}
