//! Arguments as a tag for each: `<parameter=KEY>VALUE</parameter>` and its relatives.

use tokenloom_sdk::output::{Rest, RestKind};

use crate::json;
use crate::layout::Tags;
use crate::markers::{Tag, Towards};
use crate::reader::SPACE_MAX;
use crate::symbols::{Symbol, literal, literals, towards_groups, trim_start};
use crate::tool::CallOut;
use crate::types::Kind;

pub(crate) struct Tagged {
    key_open: Vec<Vec<Symbol>>,
    key_close: Vec<Symbol>,
    /// By how the value is typed: by the schema, text, JSON.
    openings: [Vec<Vec<Symbol>>; 3],
    value_close: Vec<Symbol>,
    trim_newline: bool,
}

const BY_SCHEMA: usize = 0;
const TEXT: usize = 1;

impl Tagged {
    pub fn new(layout: &Tags, tags: &[Tag]) -> Self {
        Self {
            key_open: literals(std::slice::from_ref(&layout.key_open), tags),
            key_close: literal(&layout.key_close, tags),
            openings: [&layout.value_open, &layout.text_open, &layout.json_open].map(|texts| literals(texts, tags)),
            value_close: literal(&layout.value_close, tags),
            trim_newline: layout.trim_newline,
        }
    }

    pub fn key_open(&self) -> &[Vec<Symbol>] {
        &self.key_open
    }

    pub fn openings(&self) -> [&[Vec<Symbol>]; 3] {
        let [by_schema, text, json] = &self.openings;
        [by_schema, text, json]
    }

    /// How long the key's end is, and how the value behind it is typed if its opening is the end.
    pub fn key_end(&self, tail: &[Symbol]) -> Option<(usize, Option<usize>)> {
        if !self.key_close.is_empty() {
            return tail.ends_with(&self.key_close).then_some((self.key_close.len(), None));
        }
        let numbered = self.openings.iter().enumerate();
        let ends = numbered.flat_map(|(number, texts)| texts.iter().map(move |text| (text, number)));
        let here = ends.filter(|(text, _)| tail.ends_with(text));
        here.max_by_key(|(text, _)| text.len()).map(|(text, number)| (text.len(), Some(number)))
    }

    /// Surely part of a value, whatever follows.
    pub fn is_plain(&self, symbol: Symbol) -> bool {
        symbol.as_char().is_some()
            && self.value_close.first() != Some(&symbol)
            && !(self.trim_newline && symbol.is('\n'))
    }

    /// How far `tail` has come towards a value's end: a line break, the closing text, white space, one of `groups`.
    pub fn value_end(&self, tail: &[Symbol], groups: &[&[Vec<Symbol>]]) -> Towards {
        let text = match tail.split_first() {
            Some((first, rest)) if self.trim_newline && first.is('\n') => rest,
            _ => tail,
        };
        let Some(behind) = text.strip_prefix(self.value_close.as_slice()) else {
            return if self.value_close.starts_with(text) { Towards::Maybe } else { Towards::No };
        };
        let next = trim_start(behind);
        match behind.len() - next.len() {
            space if space > SPACE_MAX => Towards::No,
            _ if next.is_empty() => Towards::Maybe,
            _ => towards_groups(next, groups),
        }
    }
}

pub(crate) struct Value {
    kind: Kind,
    /// JSON, whatever the schema says.
    json: bool,
    /// The value so far, unless it is text, which is sent at once.
    text: String,
    /// A line break behind the opening may not be part of the value.
    first: bool,
}

impl Value {
    /// `opening` is the number of the group in [`Tagged::openings`].
    pub fn begin(opening: usize, declared: Kind, out: &mut CallOut) -> Self {
        let kind = if opening == BY_SCHEMA { declared } else { Kind::default() };
        let value = Self { kind, json: opening > TEXT, text: String::new(), first: true };
        if value.is_text() {
            out.arguments("\"");
        }
        value
    }

    fn is_text(&self) -> bool {
        !self.json && self.kind.is_text()
    }

    pub fn push(&mut self, c: char, tagged: &Tagged, out: &mut CallOut) {
        if std::mem::take(&mut self.first) && tagged.trim_newline && c == '\n' {
            return;
        }
        if self.is_text() {
            let mut escaped = String::new();
            json::escape(c, &mut escaped);
            out.arguments(&escaped);
        } else {
            self.text.push(c);
        }
    }

    /// Inside a value that is sent as it comes only what may end it counts.
    pub fn rest(&self, tagged: &Tagged) -> Option<Rest> {
        let end = tagged.value_close.first().and_then(|symbol| symbol.as_char());
        let line_end = tagged.trim_newline.then_some('\n');
        let begun = !self.first || !tagged.trim_newline;
        let until = || end.into_iter().chain(line_end).collect::<String>();
        (self.is_text() && begun).then(|| Rest::new(RestKind::ContentToText, until()))
    }

    pub fn end(&self, out: &mut CallOut) {
        if self.is_text() {
            out.arguments("\"");
        } else if self.json {
            let valid = json::is_valid(&self.text);
            out.arguments(&if valid { self.text.trim().into() } else { json::quoted(&self.text) });
        } else {
            out.arguments(&self.kind.json(&self.text));
        }
    }
}
