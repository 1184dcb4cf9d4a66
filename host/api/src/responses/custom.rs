//! Custom tools: calls whose input is free text.
//!
//! To the model one is a function with a single text parameter, so every format can write its call; `Input` takes the
//! text out of the arguments again while they come. A format of the text is said in the tool's description: models write
//! the text as JSON, where no grammar of its own could be held.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::wire::fields::{missing, wrong};

/// The function's one parameter.
const PARAMETER: &str = "input";
/// Behind the opening quote of the text; white space apart, arguments begin with these.
const HEAD: [&str; 4] = ["{", "\"input\"", ":", "\""];

/// The function that stands for a custom tool; whether its text has a format that is only described.
pub fn function(path: &str, tool: &Map<String, Value>) -> Result<(Value, bool), ApiError> {
    let name = match tool.get("name") {
        Some(Value::String(name)) => name,
        None | Some(Value::Null) => return Err(missing(&format!("{path}.name"))),
        Some(other) => return Err(wrong(&format!("{path}.name"), "a string", other)),
    };
    let mut description = match tool.get("description") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => return Err(wrong(&format!("{path}.description"), "a string", other)),
    };
    let format = tool.get("format").filter(|format| !format.is_null());
    let described = match format.map(|format| (format, &format["type"])) {
        None => false,
        Some((_, kind)) if kind == "text" => false,
        Some((format, kind)) if kind == "grammar" => {
            let text = |field: &str| {
                let at = || format!("{path}.format.{field}");
                format[field].as_str().ok_or_else(|| match &format[field] {
                    Value::Null => missing(&at()),
                    other => wrong(&at(), "a string", other),
                })
            };
            let (syntax, definition) = (text("syntax")?, text("definition")?);
            if !["lark", "regex"].contains(&syntax) {
                return Err(wrong(&format!("{path}.format.syntax"), "\"lark\" or \"regex\"", &format["syntax"]));
            }
            description += &format!("\n\nThe input must match this {syntax} definition:\n{definition}");
            true
        }
        Some((_, kind)) => return Err(wrong(&format!("{path}.format.type"), "\"text\" or \"grammar\"", kind)),
    };
    let parameters = json!({
        "type": "object", "properties": {PARAMETER: {"type": "string"}}, "required": [PARAMETER],
        "additionalProperties": false,
    });
    let function = json!({"name": name, "description": description.trim(), "parameters": parameters});
    Ok((function, described))
}

/// The arguments of a call whose input a client sent.
pub fn arguments(input: &str) -> String {
    json!({PARAMETER: input}).to_string()
}

/// A call's text while its arguments come.
#[derive(Debug, Default)]
pub struct Input {
    /// Arguments that are not settled: before the text, or from an escape on that is not whole.
    rest: String,
    state: State,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Before,
    Text,
    Behind,
}

impl Input {
    /// What this fragment adds to the text.
    pub fn push(&mut self, fragment: &str) -> String {
        self.rest.push_str(fragment);
        if self.state == State::Before {
            let Some(behind) = behind_head(&self.rest) else { return String::new() };
            self.rest.drain(..behind);
            self.state = State::Text;
        }
        if self.state == State::Behind {
            return String::new();
        }
        let (end, closed) = settled(&self.rest);
        let raw: String = self.rest.drain(..end).collect();
        if closed {
            self.state = State::Behind;
        }
        // Half of a pair has no character of its own; then the text stays as the model wrote it.
        serde_json::from_str(&format!("\"{raw}\"")).unwrap_or(raw)
    }

    /// The call is over. Arguments of another shape are its text as they are, so that none is lost.
    pub fn end(&mut self) -> String {
        match self.state {
            State::Before | State::Text => std::mem::take(&mut self.rest),
            State::Behind => String::new(),
        }
    }
}

/// Where the text begins; `None` while that is not known, or where the arguments begin otherwise.
fn behind_head(arguments: &str) -> Option<usize> {
    let mut rest = arguments;
    for part in HEAD {
        rest = rest.trim_start().strip_prefix(part)?;
    }
    Some(arguments.len() - rest.len())
}

/// How many bytes of a JSON string's inside are whole, and whether it ends there.
fn settled(inside: &str) -> (usize, bool) {
    let bytes = inside.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let len = match (byte, bytes.get(at + 1)) {
            (b'"', _) => return (at, true),
            (b'\\', None) => return (at, false),
            // A high surrogate belongs to the escape behind it.
            (b'\\', Some(b'u')) => match bytes.get(at + 2..at + 4) {
                Some([b'd' | b'D', b'8' | b'9' | b'a' | b'A' | b'b' | b'B']) => 12,
                _ => 6,
            },
            (b'\\', Some(_)) => 2,
            _ => 1,
        };
        if at + len > bytes.len() {
            return (at, false);
        }
        at += len;
    }
    (at, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same in every cutting.
    fn check(arguments: &str, expected: &str) {
        for size in [1, 2, 3, 7, 100] {
            let chars: Vec<char> = arguments.chars().collect();
            let mut input = Input::default();
            let mut text: String =
                chars.chunks(size).map(|part| input.push(&part.iter().collect::<String>())).collect();
            text += &input.end();
            assert_eq!(text, expected, "{arguments} cut by {size}");
        }
    }

    #[test]
    fn the_text_is_taken_out_of_the_arguments() {
        check(r#"{"input": "a\n\"b\" \u00e9 \ud83d\ude00"}"#, "a\n\"b\" é 😀");
        check(" {\n\"input\" :\"你\"\n} ", "你");
        check("{\"input\": \"cut of", "cut of");
        // Another shape is the text as it is.
        check("{\"patch\": \"x\"}", "{\"patch\": \"x\"}");
    }

    #[test]
    fn what_goes_in_comes_out() {
        check(&arguments("*** Begin Patch\n\t\"q\" \\ \u{1}"), "*** Begin Patch\n\t\"q\" \\ \u{1}");
    }
}
