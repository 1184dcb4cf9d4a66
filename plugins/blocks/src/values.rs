//! Values that are written as Python literals or in Gemma's notation, turned into JSON as they come.
//!
//! Both are nested lists and mappings of text, numbers and words; they differ in how text is quoted and keys are
//! written. Text is passed on while it is generated, numbers and words when they are whole.

use tokenloom_sdk::output::{Rest, RestKind};

use crate::json;
use crate::symbols::Symbol;

/// Values inside one another, as in `json`.
const DEPTH_MAX: usize = 128;

/// A bare key; longer ones do not exist.
const KEY_BYTES_MAX: usize = 512;

/// A number or a word: whatever a grammar lets a model write of one, as long as the host holds it.
const WORD_BYTES_MAX: usize = crate::tool::HELD_BYTES_MAX;

/// How text and keys are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notation {
    /// `name="text", other=[1, True, {'k': None}])`: a call's keyword arguments, up to the parenthesis.
    Python,
    /// `{name:<|"|>text<|"|>,other:[1,true]}`: keys are bare, text stands between two quotes of the format's own and
    /// knows no escapes.
    Bare { quote: Vec<Symbol> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// Keyword arguments: `key=value`, closed by `)`.
    Call,
    /// `key: value`, closed by `}`.
    Mapping,
    List,
    Tuple,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Key,
    BareKey,
    AfterKey,
    Value,
    Word,
    Text(Quoted),
    /// After a value: a comma or the end.
    Next,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Quoted {
    key: bool,
    end: Quote,
    escape: Escape,
    /// A high surrogate that waits for its other half.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    Python(char),
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    /// After a backslash.
    Begun,
    Code {
        value: u32,
        left: u8,
        radix: u32,
    },
}

/// A symbol that cannot follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

#[derive(Clone, Debug)]
pub struct Values {
    state: State,
    stack: Vec<Frame>,
    /// Members of the innermost container so far, for the comma.
    first: bool,
    word: String,
    /// Part of the format's own quote.
    tail: Vec<Symbol>,
    json: String,
    keys: u32,
}

impl Values {
    /// Behind `name(` or, in the bare notation, behind `name{`.
    pub fn new(notation: &Notation) -> Self {
        let frame = if *notation == Notation::Python { Frame::Call } else { Frame::Mapping };
        Self {
            state: State::Key,
            stack: vec![frame],
            first: true,
            word: String::new(),
            tail: Vec::new(),
            json: "{".into(),
            keys: 0,
        }
    }

    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// What was read cannot be anything but arguments: a key came, or the end.
    pub fn certain(&self) -> bool {
        self.keys > 0 || self.done()
    }

    /// Inside a text only what ends it or begins an escape in it counts.
    pub fn rest(&self, notation: &Notation) -> Option<Rest> {
        let State::Text(quoted) = &self.state else { return None };
        let plain = quoted.escape == Escape::None && quoted.high.is_none() && self.tail.is_empty();
        let until: String = match (quoted.end, notation) {
            (Quote::Python(quote), _) => ['\\', quote].into_iter().collect(),
            (Quote::Own, Notation::Bare { quote }) => {
                quote.first().and_then(|symbol| symbol.as_char()).into_iter().collect()
            }
            (Quote::Own, Notation::Python) => return None,
        };
        plain.then(|| Rest::new(RestKind::ContentToText, until))
    }

    /// The JSON that is settled and was not taken yet.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.json)
    }

    pub fn push(&mut self, symbol: Symbol, notation: &Notation) -> Result<(), Broken> {
        match &self.state {
            State::Text(_) => self.text(symbol, notation),
            State::Word => self.word(symbol, notation),
            State::BareKey => self.bare_key(symbol),
            State::Key | State::Value => self.begin(symbol, notation),
            _ if symbol.is_space() => Ok(()),
            State::AfterKey => {
                let sign = if self.stack.last() == Some(&Frame::Call) { '=' } else { ':' };
                if !symbol.is(sign) {
                    return Err(Broken);
                }
                self.state = State::Value;
                Ok(())
            }
            State::Next => self.next(symbol),
            State::Done => Err(Broken),
        }
    }

    /// A key or a value must begin, or the container ends.
    fn begin(&mut self, symbol: Symbol, notation: &Notation) -> Result<(), Broken> {
        if symbol.is_space() && self.tail.is_empty() {
            return Ok(());
        }
        let key = self.state == State::Key;
        if let Notation::Bare { quote } = notation {
            self.tail.push(symbol);
            if quote == &self.tail {
                self.tail.clear();
                return self.open_text(key, Quote::Own);
            }
            if quote.starts_with(&self.tail) {
                return Ok(());
            }
            if self.tail.len() > 1 {
                return Err(Broken);
            }
            self.tail.clear();
        }
        let c = symbol.as_char().ok_or(Broken)?;
        if closer(*self.stack.last().ok_or(Broken)?) == c {
            return self.close();
        }
        match c {
            '"' | '\'' if *notation == Notation::Python && !(key && self.stack.last() == Some(&Frame::Call)) => {
                self.open_text(key, Quote::Python(c))
            }
            _ if key => {
                self.state = State::BareKey;
                self.bare_key(symbol)
            }
            '[' => self.open(Frame::List),
            '{' => self.open(Frame::Mapping),
            '(' if *notation == Notation::Python => self.open(Frame::Tuple),
            _ => {
                self.separate();
                self.state = State::Word;
                self.word(symbol, notation)
            }
        }
    }

    fn open_text(&mut self, key: bool, end: Quote) -> Result<(), Broken> {
        self.separate();
        self.json.push('"');
        self.state = State::Text(Quoted { key, end, escape: Escape::None, high: None });
        Ok(())
    }

    fn open(&mut self, frame: Frame) -> Result<(), Broken> {
        if self.stack.len() == DEPTH_MAX {
            return Err(Broken);
        }
        self.separate();
        self.json.push(if frame == Frame::Mapping { '{' } else { '[' });
        self.stack.push(frame);
        self.first = true;
        self.state = if frame == Frame::Mapping { State::Key } else { State::Value };
        Ok(())
    }

    /// The comma before a member. A mapping's values follow their keys.
    fn separate(&mut self) {
        let value_of_key = self.state == State::Value && !self.in_list();
        if !std::mem::take(&mut self.first) && !value_of_key {
            self.json.push_str(", ");
        }
    }

    fn in_list(&self) -> bool {
        matches!(self.stack.last(), Some(Frame::List | Frame::Tuple))
    }

    fn close(&mut self) -> Result<(), Broken> {
        let frame = self.stack.pop().ok_or(Broken)?;
        self.json.push(if matches!(frame, Frame::List | Frame::Tuple) { ']' } else { '}' });
        self.first = false;
        self.state = if self.stack.is_empty() { State::Done } else { State::Next };
        Ok(())
    }

    fn next(&mut self, symbol: Symbol) -> Result<(), Broken> {
        let frame = *self.stack.last().ok_or(Broken)?;
        if symbol.is(',') {
            self.state = if self.in_list() { State::Value } else { State::Key };
            return Ok(());
        }
        if symbol.is(closer(frame)) { self.close() } else { Err(Broken) }
    }

    /// A key without quotes: a name before `=`, or anything but structure before `:`.
    fn bare_key(&mut self, symbol: Symbol) -> Result<(), Broken> {
        let call = self.stack.last() == Some(&Frame::Call);
        let c = symbol.as_char().ok_or(Broken)?;
        if c == if call { '=' } else { ':' } {
            let key = std::mem::take(&mut self.word);
            let key = key.trim_end();
            self.separate();
            self.json.push_str(&json::quoted(key));
            self.keyed();
            self.state = State::Value;
            return if key.is_empty() { Err(Broken) } else { Ok(()) };
        }
        let fits = if call { c.is_alphanumeric() || "_-. ".contains(c) } else { !"{}[](),\"'\n".contains(c) };
        self.word.push(c);
        if fits && self.word.len() <= KEY_BYTES_MAX { Ok(()) } else { Err(Broken) }
    }

    fn keyed(&mut self) {
        self.json.push_str(": ");
        self.keys += 1;
    }

    /// A number or a name ends where structure or white space begins; that symbol is read as what follows.
    fn word(&mut self, symbol: Symbol, notation: &Notation) -> Result<(), Broken> {
        let c = symbol.as_char().ok_or(Broken)?;
        if !c.is_whitespace() && !",)]}:".contains(c) {
            self.word.push(c);
            let fits = c.is_ascii_alphanumeric() || "+-._".contains(c);
            return if fits && self.word.len() <= WORD_BYTES_MAX { Ok(()) } else { Err(Broken) };
        }
        let word = std::mem::take(&mut self.word);
        let json = word_json(&word, *notation == Notation::Python).ok_or(Broken)?;
        self.json.push_str(&json);
        self.state = State::Next;
        if c.is_whitespace() { Ok(()) } else { self.next(symbol) }
    }

    fn text(&mut self, symbol: Symbol, notation: &Notation) -> Result<(), Broken> {
        let State::Text(quoted) = &mut self.state else { return Err(Broken) };
        match quoted.end {
            Quote::Own => self.own_text(symbol, notation),
            Quote::Python(_) => {
                let c = symbol.as_char().ok_or(Broken)?;
                self.python_text(c)
            }
        }
    }

    /// Up to the closing quote everything is text.
    fn own_text(&mut self, symbol: Symbol, notation: &Notation) -> Result<(), Broken> {
        let Notation::Bare { quote } = notation else { return Err(Broken) };
        self.tail.push(symbol);
        while !self.tail.is_empty() {
            if quote == &self.tail {
                self.tail.clear();
                self.end_text();
            } else if quote.starts_with(&self.tail) {
                break;
            } else {
                // A tag that is no quote cannot stand in a text: the caller spells it out.
                let c = self.tail.remove(0).as_char().ok_or(Broken)?;
                json::escape(c, &mut self.json);
            }
        }
        Ok(())
    }

    fn end_text(&mut self) {
        let State::Text(quoted) = &self.state else { return };
        let (key, high) = (quoted.key, quoted.high.is_some());
        if high {
            self.json.push(char::REPLACEMENT_CHARACTER);
        }
        self.json.push('"');
        if key {
            self.keyed();
            // `separate` has put the comma; the value behind the key needs none.
            self.state = State::AfterKey;
        } else {
            self.state = State::Next;
        }
    }

    fn python_text(&mut self, c: char) -> Result<(), Broken> {
        let State::Text(quoted) = &mut self.state else { return Err(Broken) };
        match quoted.escape {
            Escape::Begun => return self.escaped(c),
            Escape::Code { value, left, radix } => {
                if let Some(digit) = c.to_digit(radix) {
                    let value = value * radix + digit;
                    if left == 1 {
                        quoted.escape = Escape::None;
                        self.code(value);
                    } else {
                        quoted.escape = Escape::Code { value, left: left - 1, radix };
                    }
                    return Ok(());
                }
                // An octal escape has one to three digits.
                if radix != 8 {
                    return Err(Broken);
                }
                quoted.escape = Escape::None;
                self.code(value);
            }
            Escape::None => {}
        }
        self.python_char(c)
    }

    /// A character that is not part of an escape.
    fn python_char(&mut self, c: char) -> Result<(), Broken> {
        let State::Text(quoted) = &mut self.state else { return Err(Broken) };
        let Quote::Python(quote) = quoted.end else { return Err(Broken) };
        match c {
            '\\' => quoted.escape = Escape::Begun,
            c if c == quote => self.end_text(),
            c => self.char(c),
        }
        Ok(())
    }

    fn escaped(&mut self, c: char) -> Result<(), Broken> {
        let State::Text(quoted) = &mut self.state else { return Err(Broken) };
        quoted.escape = Escape::None;
        let code = |left, radix| Escape::Code { value: 0, left, radix };
        match c {
            'x' => quoted.escape = code(2, 16),
            'u' => quoted.escape = code(4, 16),
            'U' => quoted.escape = code(8, 16),
            '0'..='7' => quoted.escape = Escape::Code { value: c as u32 - '0' as u32, left: 2, radix: 8 },
            '\n' => {}
            'n' => self.char('\n'),
            't' => self.char('\t'),
            'r' => self.char('\r'),
            'b' => self.char('\u{8}'),
            'f' => self.char('\u{c}'),
            'a' => self.char('\u{7}'),
            'v' => self.char('\u{b}'),
            '\\' | '\'' | '"' => self.char(c),
            // As Python has it: an unknown escape is itself.
            other => {
                self.char('\\');
                self.char(other);
            }
        }
        Ok(())
    }

    /// A character by its number. Halves of a pair belong together; a half alone is no character.
    fn code(&mut self, code: u32) {
        let State::Text(quoted) = &mut self.state else { return };
        match (quoted.high.take(), code) {
            (Some(high), 0xDC00..0xE000) => {
                let whole = 0x1_0000 + ((high - 0xD800) << 10) + (code - 0xDC00);
                self.char(char::from_u32(whole).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (high, code) => {
                if high.is_some() {
                    json::escape(char::REPLACEMENT_CHARACTER, &mut self.json);
                }
                match code {
                    0xD800..0xDC00 => quoted.high = Some(code),
                    _ => self.char(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
                }
            }
        }
    }

    fn char(&mut self, c: char) {
        if let State::Text(quoted) = &mut self.state
            && quoted.high.take().is_some()
        {
            json::escape(char::REPLACEMENT_CHARACTER, &mut self.json);
        }
        json::escape(c, &mut self.json);
    }
}

fn closer(frame: Frame) -> char {
    match frame {
        Frame::Call | Frame::Tuple => ')',
        Frame::Mapping => '}',
        Frame::List => ']',
    }
}

/// A number or a constant as JSON. `None`: neither, such as a variable's name.
fn word_json(word: &str, python: bool) -> Option<String> {
    match word {
        "True" | "true" => return Some("true".into()),
        "False" | "false" => return Some("false".into()),
        "None" | "null" => return Some("null".into()),
        _ => {}
    }
    let word = word.strip_prefix('+').unwrap_or(word);
    let plain = if python { word.replace('_', "") } else { word.into() };
    let is_number = |text: &str| text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && json::is_valid(text);
    if is_number(&plain) {
        return Some(plain);
    }
    // Python's `1.`, `.5` and `-.5e3`.
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", plain.as_str()),
    };
    let (digits, exponent) = match digits.find(['e', 'E']) {
        Some(at) => digits.split_at(at),
        None => (digits, ""),
    };
    let digits = if digits.starts_with('.') { format!("0{digits}") } else { digits.to_string() };
    let digits = if digits.ends_with('.') { digits + "0" } else { digits };
    let whole = format!("{sign}{digits}{exponent}");
    is_number(&whole).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON, and what was not taken.
    fn read(text: &str, notation: &Notation) -> Result<(String, String), String> {
        let mut values = Values::new(notation);
        let mut json = String::new();
        for (at, c) in text.char_indices() {
            if values.done() {
                return Ok((json, text[at..].into()));
            }
            values.push(c.into(), notation).map_err(|Broken| text[at..].to_string())?;
            json += &values.take();
        }
        if values.done() { Ok((json, String::new())) } else { Err("open".into()) }
    }

    fn python(text: &str) -> String {
        match read(text, &Notation::Python) {
            Ok((json, rest)) => json + &rest,
            Err(rest) => format!("broken at {rest}"),
        }
    }

    #[test]
    fn python_literals_are_json() {
        let cases = [
            (")", "{}"),
            ("a=1, b = -2.5,c=.5)", r#"{"a": 1, "b": -2.5, "c": 0.5}"#),
            ("a=[1, [True, None], ()],)", r#"{"a": [1, [true, null], []]}"#),
            ("a={'k': 'v', \"l\": {1: 2.}})", r#"{"a": {"k": "v", "l": {"1": 2.0}}}"#),
            ("q=\"rows[0]] or 'x'\")]", r#"{"q": "rows[0]] or 'x'"}]"#),
            (r"q='it\'s [ok')", r#"{"q": "it's [ok"}"#),
            (r"q='\x41\u00e9\U0001F600\n\101\q')", r#"{"q": "Aé😀\nA\\q"}"#),
            (r"q='\ud83d\ude00\ud83d')", "{\"q\": \"😀\u{fffd}\"}"),
            ("n=1_000, e=1e5, t=(1, 'a'))", r#"{"n": 1000, "e": 1e5, "t": [1, "a"]}"#),
            ("e='', f=\"\")", r#"{"e": "", "f": ""}"#),
            ("5)", "broken at )"),
            ("a=b)", "broken at )"),
            ("a=1 b=2)", "broken at b=2)"),
            ("a==1)", "broken at =1)"),
        ];
        for (text, expected) in cases {
            assert_eq!(python(text), expected, "{text}");
        }
    }

    #[test]
    fn bare_keys_and_own_quotes() {
        let quote = "<q>".chars().map(Symbol::from).collect();
        let notation = Notation::Bare { quote };
        let json = |text: &str| match read(text, &notation) {
            Ok((json, rest)) => json + &rest,
            Err(rest) => format!("broken at {rest}"),
        };
        assert_eq!(json("}"), "{}");
        assert_eq!(
            json("a:<q>x \"y\"\n<<q>,b:[1,true,{c:<q><q>}]} "),
            r#"{"a": "x \"y\"\n<", "b": [1, true, {"c": ""}]} "#
        );
        assert_eq!(json("a:x}"), "broken at }");
        assert_eq!(json("<q>a b<q>:1}"), r#"{"a b": 1}"#);
    }
}
