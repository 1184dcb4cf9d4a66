//! A call as one JSON object that holds its name and its arguments, read as it comes.

use crate::json::Checker;
use crate::tool::{CallOut, NAME_BYTES_MAX};

/// A top-level key that is longer than this is none of ours; it is read but not kept.
const KEY_BYTES_MAX: usize = 64;

/// Which top-level keys hold what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub name: Vec<String>,
    pub arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    More,
    /// The object is closed and its call has ended.
    Done,
    /// The character cannot follow, or the object is no call.
    Broken,
}

/// What the top-level value being read is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Other,
    Name,
    Arguments,
}

#[derive(Clone, Debug, Default)]
pub struct Object {
    json: Checker,
    field: Field,
    /// The top-level key or name being read, as raw JSON.
    word: String,
    name: Option<String>,
    /// The arguments, while the name is not known.
    waiting: String,
    arguments_seen: bool,
    arguments_done: bool,
    /// Without a marker before it, the object is believed only if it begins like a call.
    bare: bool,
    keys_seen: u32,
}

/// Keys with which a call without a marker may begin, beside those of its name and arguments.
const FIRST_KEYS: [&str; 2] = ["type", "id"];

impl Object {
    pub fn new(bare: bool) -> Self {
        Self { bare, ..Self::default() }
    }

    /// Inside a text of arguments that are sent as they come.
    pub fn in_text(&self) -> bool {
        let sent = self.field == Field::Arguments && !self.arguments_done && self.name.is_some();
        sent && self.json.in_text()
    }

    pub fn push(&mut self, c: char, keys: &Keys, out: &mut CallOut) -> Read {
        let before = self.json.depth();
        let (key, value) = (self.json.wants_key() && before == 1, self.json.wants_value() && before == 1);
        let mut bytes = [0; 4];
        let first = before == 0 && !c.is_ascii_whitespace();
        let mut checked = c.encode_utf8(&mut bytes).bytes();
        if (first && c != '{') || checked.any(|byte| self.json.push(byte).is_err()) {
            return Read::Broken;
        }
        if c.is_ascii_whitespace() && (key || value || before == 0) {
            return Read::More;
        }
        self.track(c, (key, value), keys, out)
    }

    /// Follows the top-level object: which key, and what of its value to keep or to send.
    fn track(&mut self, c: char, (key, value): (bool, bool), keys: &Keys, out: &mut CallOut) -> Read {
        let depth = self.json.depth();
        if key && c == '"' {
            self.word.clear();
            self.field = Field::Other;
        }
        if value && !self.begin_value(c, keys) {
            return Read::Broken;
        }
        match self.field {
            Field::Arguments if !self.arguments_done => {
                self.argument(c, out);
                self.arguments_done = depth == 1 && self.json.wants_next();
            }
            _ if depth <= 1 && self.word.len() <= NAME_BYTES_MAX => self.word.push(c),
            _ => {}
        }
        if self.field == Field::Name && self.name.is_none() && self.json.wants_next() && !self.named(out) {
            return Read::Broken;
        }
        if self.json.done() { self.end(out) } else { Read::More }
    }

    /// The first character of a top-level value. False when the object is no call.
    fn begin_value(&mut self, c: char, keys: &Keys) -> bool {
        let key = self.word.find('"').and_then(|at| {
            let rest = &self.word[at..];
            let end = rest.rfind('"')? + 1;
            (end <= KEY_BYTES_MAX).then(|| serde_json::from_str::<String>(&rest[..end]).ok()).flatten()
        });
        self.word.clear();
        let among = |keys: &[String]| key.as_ref().is_some_and(|key| keys.contains(key));
        let (name, arguments) = (among(&keys.name), among(&keys.arguments));
        self.keys_seen += 1;
        let known = name || arguments || key.as_deref().is_some_and(|key| FIRST_KEYS.contains(&key));
        if self.bare && self.keys_seen == 1 && !known {
            return false;
        }
        self.field = match () {
            () if name && self.name.is_none() && c == '"' => Field::Name,
            () if arguments && !self.arguments_seen => Field::Arguments,
            () => Field::Other,
        };
        self.arguments_seen |= self.field == Field::Arguments;
        self.field != Field::Arguments || c == '{'
    }

    fn argument(&mut self, c: char, out: &mut CallOut) {
        match &self.name {
            Some(name) => {
                if !out.is_open() {
                    out.start(name, None);
                }
                out.argument(c);
            }
            None => self.waiting.push(c),
        }
    }

    /// The name's string is complete. Its call begins with its arguments, which may have come already.
    fn named(&mut self, out: &mut CallOut) -> bool {
        let name = serde_json::from_str::<String>(&self.word).unwrap_or_default();
        self.field = Field::Other;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return false;
        }
        if self.arguments_seen {
            out.start(&name, None);
            out.arguments(&std::mem::take(&mut self.waiting));
        }
        self.name = Some(name);
        true
    }

    /// The object is closed. A call without arguments has none: `{}`.
    fn end(&mut self, out: &mut CallOut) -> Read {
        let Some(name) = &self.name else { return Read::Broken };
        if !out.is_open() {
            if self.bare && !self.arguments_seen {
                return Read::Broken;
            }
            out.start(name, None);
            out.arguments("{}");
        }
        out.end();
        Read::Done
    }
}
