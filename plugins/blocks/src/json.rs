//! JSON that arrives byte by byte.

/// Objects and arrays inside one another. Deeper arguments are as good as broken: clients refuse them.
const DEPTH_MAX: usize = 128;

/// A byte that cannot continue the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A value must begin; after `[` it may also be the end.
    Value {
        or_end: bool,
    },
    /// A key must begin; after `{` it may also be the end.
    Key {
        or_end: bool,
    },
    Colon,
    /// After a value inside a container.
    Next,
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Dot,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// Checks one object as RFC 8259 writes it.
#[derive(Clone, Debug)]
pub struct Checker {
    state: State,
    /// `true` for an object.
    stack: Vec<bool>,
}

impl Default for Checker {
    fn default() -> Self {
        Self { state: State::Value { or_end: false }, stack: Vec::new() }
    }
}

impl Checker {
    pub fn depth(&self) -> usize {
        self.stack.len()
    }

    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// A key must follow (or the object's end).
    pub fn wants_key(&self) -> bool {
        matches!(self.state, State::Key { .. })
    }

    /// Inside a string or a key, not within an escape.
    pub fn in_text(&self) -> bool {
        matches!(self.state, State::Text { .. })
    }

    pub fn wants_value(&self) -> bool {
        self.state == State::Value { or_end: false }
    }

    /// Behind a value: a comma or the container's end must follow.
    pub fn wants_next(&self) -> bool {
        self.state == State::Next
    }

    pub fn push(&mut self, byte: u8) -> Result<(), Broken> {
        if let State::Number(number) = self.state {
            match number_next(number, byte) {
                Some(next) => {
                    self.state = State::Number(next);
                    return Ok(());
                }
                None if matches!(number, Number::Zero | Number::Digits | Number::Fraction | Number::Exponent) => {
                    // A number ends where it cannot go on; the byte belongs to what follows.
                    self.end_value();
                }
                None => return Err(Broken),
            }
        }
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match self.state {
            State::Text { key } => match byte {
                b'"' if key => self.state = State::Colon,
                b'"' => self.end_value(),
                b'\\' => self.state = State::Escape { key },
                0..0x20 => return Err(Broken),
                _ => {}
            },
            State::Escape { key } => {
                self.state = match byte {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => State::Text { key },
                    b'u' => State::Hex { key, left: 4 },
                    _ => return Err(Broken),
                }
            }
            State::Hex { key, left } => {
                if !byte.is_ascii_hexdigit() {
                    return Err(Broken);
                }
                self.state = if left == 1 { State::Text { key } } else { State::Hex { key, left: left - 1 } };
            }
            State::Word(rest) => {
                if rest.first() != Some(&byte) {
                    return Err(Broken);
                }
                self.state = State::Word(&rest[1..]);
                if rest.len() == 1 {
                    self.end_value();
                }
            }
            _ if space => {}
            State::Value { or_end } => self.begin_value(byte, or_end)?,
            State::Key { or_end } => match byte {
                b'"' => self.state = State::Text { key: true },
                b'}' if or_end => self.close(true)?,
                _ => return Err(Broken),
            },
            State::Colon if byte == b':' => self.state = State::Value { or_end: false },
            State::Next => match (byte, self.stack.last()) {
                (b',', Some(true)) => self.state = State::Key { or_end: false },
                (b',', Some(false)) => self.state = State::Value { or_end: false },
                (b'}', _) => self.close(true)?,
                (b']', _) => self.close(false)?,
                _ => return Err(Broken),
            },
            _ => return Err(Broken),
        }
        Ok(())
    }

    fn begin_value(&mut self, byte: u8, or_end: bool) -> Result<(), Broken> {
        self.state = match byte {
            b'{' | b'[' => {
                if self.stack.len() == DEPTH_MAX {
                    return Err(Broken);
                }
                self.stack.push(byte == b'{');
                if byte == b'{' { State::Key { or_end: true } } else { State::Value { or_end: true } }
            }
            b']' if or_end => return self.close(false),
            b'"' => State::Text { key: false },
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Digits),
            b't' => State::Word(b"rue"),
            b'f' => State::Word(b"alse"),
            b'n' => State::Word(b"ull"),
            _ => return Err(Broken),
        };
        Ok(())
    }

    fn close(&mut self, object: bool) -> Result<(), Broken> {
        if self.stack.pop() != Some(object) {
            return Err(Broken);
        }
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.state = if self.stack.is_empty() { State::Done } else { State::Next };
    }
}

fn number_next(number: Number, byte: u8) -> Option<Number> {
    let digit = byte.is_ascii_digit();
    match number {
        Number::Minus if byte == b'0' => Some(Number::Zero),
        Number::Minus | Number::Digits if digit => Some(Number::Digits),
        Number::Zero | Number::Digits if byte == b'.' => Some(Number::Dot),
        Number::Dot | Number::Fraction if digit => Some(Number::Fraction),
        Number::Zero | Number::Digits | Number::Fraction if matches!(byte, b'e' | b'E') => Some(Number::E),
        Number::E if matches!(byte, b'+' | b'-') => Some(Number::Sign),
        Number::E | Number::Sign | Number::Exponent if digit => Some(Number::Exponent),
        _ => None,
    }
}

/// Whether a text is one JSON value. A number may be larger than any machine's.
pub fn is_valid(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Appends one character of a JSON string to `out`, as serde does and the host where a stage rests.
pub fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

/// A whole JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    text.chars().for_each(|c| escape(c, &mut out));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that were taken, and whether the value is whole.
    fn check(text: &str) -> (usize, bool) {
        let mut checker = Checker::default();
        for (at, byte) in text.bytes().enumerate() {
            if checker.done() || checker.push(byte).is_err() {
                return (at, checker.done());
            }
        }
        (text.len(), checker.done())
    }

    #[test]
    fn takes_what_serde_takes() {
        let texts = [
            "{}",
            "[]",
            "{\"a\": [1, -0.5e+3, true, null, \"\\u00e9\\n\"], \"b\": {\"c\": []}}",
            "[[[]], {}]",
            "\"x\"",
        ];
        for text in texts {
            assert_eq!(check(text), (text.len(), true), "{text}");
        }
        let broken = [
            ("{,}", 1),
            ("[1,]", 3),
            ("{\"a\" 1}", 5),
            ("[01]", 2),
            ("[1.]", 3),
            ("{\"a\":}", 5),
            ("[\"\\x\"]", 3),
            ("[tru]", 4),
            ("[-]", 2),
            ("{]", 1),
            ("[\"a\nb\"]", 3),
            ("[1 2]", 3),
            ("[1e]", 3),
        ];
        for (text, at) in broken {
            assert_eq!(check(text), (at, false), "{text}");
        }
        assert_eq!(check(&"[".repeat(1000)), (DEPTH_MAX, false));
    }

    #[test]
    fn strings_are_quoted_like_serde_does() {
        let text = "a\"b\\c\n\t\u{1}\u{8}\u{c}\u{7f}é你/";
        assert_eq!(quoted(text), serde_json::to_string(text).expect("a string"));
    }
}
