//! One call's JSON object, read as it comes.

use blocks::json::Checker;
use blocks::markers::{Towards, towards};
use blocks::tool::{CallOut, NAME_BYTES_MAX, Step};

/// A top-level key that is longer than this is none of ours; it is read but not kept.
const KEY_BYTES_MAX: usize = 64;

/// White space between the object and its end marker. More is text.
const SPACE_BYTES_MAX: usize = 64;

/// What the top-level value being read is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Other,
    Name,
    Arguments,
}

#[derive(Clone, Debug, Default)]
pub struct Call {
    json: Checker,
    field: Field,
    /// The top-level key or name being read, as raw JSON.
    word: String,
    name: Option<String>,
    /// The arguments, while the name is not known.
    waiting: String,
    arguments_seen: bool,
    arguments_done: bool,
    started: bool,
    /// White space and part of the end marker, behind the object.
    tail: String,
}

impl Call {
    /// The object is complete; only its end marker may be missing.
    pub fn whole(&self) -> bool {
        self.json.done() && self.started
    }

    pub fn push(&mut self, c: char, close: Option<&str>, out: &mut CallOut) -> Step {
        if self.json.done() {
            return self.behind(c, close);
        }
        let before = self.json.depth();
        let (key, value) = (self.json.wants_key() && before == 1, self.json.wants_value() && before == 1);
        let mut bytes = [0; 4];
        let first = before == 0 && !c.is_ascii_whitespace();
        let mut checked = c.encode_utf8(&mut bytes).bytes();
        if (first && c != '{') || checked.any(|byte| self.json.push(byte).is_err()) {
            return self.broken(c);
        }
        if c.is_ascii_whitespace() && (key || value || before == 0) {
            return Step::More;
        }
        self.track(c, key, value, out)
    }

    /// Text of a marker inside the object.
    pub fn push_text(&mut self, text: &str, out: &mut CallOut) -> Step {
        for (at, c) in text.char_indices() {
            match self.push(c, None, out) {
                Step::More => {}
                // The marker is read again as a whole.
                Step::NotACall(rest) => return Step::NotACall(rest + &text[at + c.len_utf8()..]),
                Step::Broken(rest) => return Step::Broken(rest + &text[at + c.len_utf8()..]),
                Step::Ended(rest) => return Step::Ended(rest + &text[at + c.len_utf8()..]),
            }
        }
        Step::More
    }

    /// Follows the top-level object: which key, and what of its value to keep or to send.
    fn track(&mut self, c: char, key: bool, value: bool, out: &mut CallOut) -> Step {
        let depth = self.json.depth();
        if key && c == '"' {
            self.word.clear();
            self.field = Field::Other;
        }
        if value {
            self.begin_value(c);
            if self.field == Field::Arguments && c != '{' {
                return self.broken(c);
            }
        }
        match self.field {
            Field::Arguments if !self.arguments_done => {
                self.argument(c, out);
                self.arguments_done = depth == 1 && self.json.wants_next();
            }
            _ if depth <= 1 && self.word.len() <= NAME_BYTES_MAX => self.word.push(c),
            _ => {}
        }
        if self.field == Field::Name && self.name.is_none() && self.json.wants_next() {
            return self.named(c, out);
        }
        if self.json.done() { self.end(c, out) } else { Step::More }
    }

    fn begin_value(&mut self, c: char) {
        let key = self.word.find('"').and_then(|at| {
            let rest = &self.word[at..];
            let end = rest.rfind('"')? + 1;
            (end <= KEY_BYTES_MAX).then(|| serde_json::from_str::<String>(&rest[..end]).ok()).flatten()
        });
        self.word.clear();
        self.field = match key.as_deref() {
            Some("name") if self.name.is_none() && c == '"' => Field::Name,
            Some("arguments") if !self.arguments_seen => Field::Arguments,
            _ => Field::Other,
        };
        self.arguments_seen |= self.field == Field::Arguments;
    }

    fn argument(&mut self, c: char, out: &mut CallOut) {
        let mut bytes = [0; 4];
        match &self.name {
            Some(name) => {
                if !self.started {
                    self.started = true;
                    out.start(name);
                }
                out.arguments(c.encode_utf8(&mut bytes));
            }
            None => self.waiting.push(c),
        }
    }

    /// The name's string is complete. Its call begins with its arguments, which may have come already.
    fn named(&mut self, c: char, out: &mut CallOut) -> Step {
        let name = serde_json::from_str::<String>(&self.word).unwrap_or_default();
        self.field = Field::Other;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return self.broken(c);
        }
        if self.arguments_seen {
            self.started = true;
            out.start(&name);
            out.arguments(&std::mem::take(&mut self.waiting));
        }
        self.name = Some(name);
        Step::More
    }

    /// The object is closed. A call without arguments has none: `{}`.
    fn end(&mut self, c: char, out: &mut CallOut) -> Step {
        let Some(name) = &self.name else { return self.broken(c) };
        if !self.started {
            self.started = true;
            out.start(name);
            out.arguments("{}");
        }
        Step::More
    }

    fn broken(&mut self, c: char) -> Step {
        if self.started { Step::Broken(c.into()) } else { Step::NotACall(c.into()) }
    }

    /// Behind the object: white space, then the end marker; the call is complete whether it comes or not.
    fn behind(&mut self, c: char, close: Option<&str>) -> Step {
        self.tail.push(c);
        let marker = self.tail.trim_start();
        match towards(marker, &[close]) {
            Towards::Yes(_) => Step::Ended(String::new()),
            Towards::Maybe if self.tail.len() - marker.len() <= SPACE_BYTES_MAX => Step::More,
            _ if marker.is_empty() && self.tail.len() <= SPACE_BYTES_MAX => Step::More,
            _ => Step::Ended(std::mem::take(&mut self.tail)),
        }
    }
}
