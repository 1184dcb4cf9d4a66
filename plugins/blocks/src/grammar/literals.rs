//! Values that are not written as JSON: Python literals, and bare keys with a quote of the format's own.
//!
//! What the notation cannot express (a pattern between quotes of the format's own) is not held; Python's text with such
//! a schema is written as JSON writes it, which Python reads as well.

use serde_json::{Value, json};

use super::{Writer, properties, within};
use crate::json;

/// Schemas inside one another.
const DEPTH_MAX: usize = 16;

/// Says nothing about the value.
const ANNOTATIONS: [&str; 7] = ["title", "description", "default", "examples", "$defs", "definitions", "$comment"];

/// Keywords of text that only JSON's text is held to.
const OF_TEXT: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];

/// Text with either quote, and the escapes that both Python and JSON know.
const PYTHON_TEXT: &str = r#"/'([^'\\\x00-\x1f]|\\(['"\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}))*'|"([^"\\\x00-\x1f]|\\(['"\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}))*"/"#;

/// How text, keys and words are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notation<'a> {
    Python,
    Bare { quote: &'a str },
}

impl Writer {
    pub(super) fn literal(&mut self, notation: Notation, root: &Value, schema: &Value) -> String {
        self.value(notation, root, schema, 0)
    }

    fn value(&mut self, notation: Notation, root: &Value, schema: &Value, depth: usize) -> String {
        if depth == DEPTH_MAX || !schema.is_object() {
            return self.any(notation);
        }
        let listed = schema["enum"].as_array().map(Vec::as_slice).or(schema.get("const").map(std::slice::from_ref));
        if let Some(listed) = listed {
            let values: Vec<String> = listed.iter().flat_map(|value| self.spelled(notation, value)).collect();
            return format!("({})", values.join(" | "));
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            return self.definition(notation, root, name, depth);
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            let inner = schema[key].as_array().filter(|list| key != "allOf" || list.len() == 1);
            if let Some(inner) = inner.filter(|_| only(schema, &[key])) {
                let inner: Vec<String> =
                    inner.iter().map(|schema| self.value(notation, root, schema, depth + 1)).collect();
                return format!("({})", inner.join(" | "));
            }
        }
        match &schema["type"] {
            Value::String(kind) => self.of_type(kind, notation, root, schema, depth),
            Value::Array(kinds) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                let kinds: Vec<String> = kinds.map(|kind| self.of_type(kind, notation, root, schema, depth)).collect();
                format!("({})", kinds.join(" | "))
            }
            _ if schema["properties"].is_object() => self.mapping(notation, root, schema, depth),
            _ => self.any(notation),
        }
    }

    fn of_type(&mut self, kind: &str, notation: Notation, root: &Value, schema: &Value, depth: usize) -> String {
        match kind {
            "string" => match notation {
                Notation::Python if OF_TEXT.iter().any(|key| schema.get(key).is_some()) => {
                    self.as_json(root, schema, kind)
                }
                _ => self.any_quoted(notation),
            },
            "integer" | "number" => self.as_json(root, schema, kind),
            "boolean" => words(notation, ["true", "false"]),
            "null" => words(notation, ["null"]),
            "array" => self.array(notation, root, schema, depth),
            "object" => self.mapping(notation, root, schema, depth),
            _ => self.any(notation),
        }
    }

    /// One of a schema's types, where JSON says it as the notation does.
    fn as_json(&self, root: &Value, schema: &Value, kind: &str) -> String {
        let mut schema = within(root, schema);
        schema["type"] = kind.into();
        Self::json(&schema)
    }

    fn any_quoted(&mut self, notation: Notation) -> String {
        match notation {
            Notation::Python => {
                self.once("PYTHON_TEXT", |_| PYTHON_TEXT.into());
                "PYTHON_TEXT".into()
            }
            Notation::Bare { quote } => {
                let open = self.text(quote);
                format!("{open} {}", self.any_text(quote))
            }
        }
    }

    fn array(&mut self, notation: Notation, root: &Value, schema: &Value, depth: usize) -> String {
        let item = self.fresh("element");
        let body = self.value(notation, root, &schema["items"], depth + 1);
        self.rule(&item, &body);
        let least = schema["minItems"].as_u64().unwrap_or(0);
        let most = schema["maxItems"].as_u64();
        if most == Some(0) {
            return "\"[\" \"]\"".into();
        }
        let more = match (least.saturating_sub(1), most.map(|most| most - 1)) {
            (0, None) => "*".to_string(),
            (from, None) => format!("{{{from},}}"),
            (from, Some(to)) => format!("{{{from},{to}}}"),
        };
        let items = format!("{item} (\",\" {} {item}){more}", gap(notation));
        if least == 0 { format!("\"[\" ({items})? \"]\"") } else { format!("\"[\" {items} \"]\"") }
    }

    fn mapping(&mut self, notation: Notation, root: &Value, schema: &Value, depth: usize) -> String {
        let separator = format!("\",\" {}", gap(notation));
        if !schema["properties"].is_object() {
            let inner = schema.get("additionalProperties").filter(|inner| inner.is_object());
            let value = match inner {
                Some(inner) => self.value(notation, root, inner, depth + 1),
                None if schema["additionalProperties"] == false => return "\"{\" \"}\"".into(),
                None => self.any(notation),
            };
            let member = self.fresh("member");
            let key = self.any_key(notation);
            self.rule(&member, &format!("{key} \":\" {} {value}", gap(notation)));
            return format!("\"{{\" ({member} ({separator} {member})*)? \"}}\"");
        }
        let items: Vec<(String, bool)> = properties(schema)
            .map(|(key, inner, required)| {
                let key = match notation {
                    Notation::Python => format!("({})", quoted_both(key).join(" | ")),
                    Notation::Bare { .. } => Value::from(key).to_string(),
                };
                let value = self.value(notation, root, inner, depth + 1);
                (format!("{key} \":\" {} {value}", gap(notation)), required)
            })
            .collect();
        format!("\"{{\" {} \"}}\"", self.members(&items, &separator))
    }

    fn any_key(&mut self, notation: Notation) -> String {
        match notation {
            Notation::Python => self.any_quoted(notation),
            Notation::Bare { .. } => "/[A-Za-z0-9_.-]{1,64}/".into(),
        }
    }

    /// A value of which nothing is known.
    fn any(&mut self, notation: Notation) -> String {
        self.once("any_value", |writer| {
            let text = writer.any_quoted(notation);
            let number = Self::json(&json!({"type": "number"}));
            let constants = words(notation, ["true", "false", "null"]);
            let (key, gap) = (writer.any_key(notation), gap(notation));
            let list = format!("\"[\" (any_value (\",\" {gap} any_value)*)? \"]\"");
            let member = format!("{key} \":\" {gap} any_value");
            let object = format!("\"{{\" ({member} (\",\" {gap} {member})*)? \"}}\"");
            format!("{text} | {number} | {constants} | {list} | {object}")
        });
        "any_value".into()
    }

    /// A schema that others refer to, perhaps itself.
    fn definition(&mut self, notation: Notation, root: &Value, name: &str, depth: usize) -> String {
        // Two tools may have different schemas of one name.
        let place =
            root["$defs"].as_object().and_then(|all| all.keys().position(|key| key == name)).unwrap_or_default();
        let rule = format!("definition_{place}_{:x}", hash(&root.to_string()));
        let schema = root["$defs"][name].clone();
        self.once(&rule, |writer| writer.value(notation, root, &schema, depth + 1));
        rule
    }

    /// A rule that is written when it is first needed. Its body may name it.
    fn once(&mut self, name: &str, body: impl FnOnce(&mut Self) -> String) {
        if self.shared.insert(name.to_string()) {
            let body = body(self);
            self.rule(name, &body);
        }
    }

    /// One value, in each of the ways that the notation writes it.
    fn spelled(&self, notation: Notation, value: &Value) -> Vec<String> {
        match (notation, value) {
            (Notation::Python, Value::String(text)) => quoted_both(text),
            (Notation::Bare { quote }, Value::String(text)) => {
                let quote = self.text(quote);
                let text = if text.is_empty() { String::new() } else { Value::from(text.as_str()).to_string() };
                vec![format!("{quote} {text} {quote}")]
            }
            (_, Value::Bool(true)) => vec![words(notation, ["true"])],
            (_, Value::Bool(false)) => vec![words(notation, ["false"])],
            (_, Value::Null) => vec![words(notation, ["null"])],
            (_, Value::Number(number)) => vec![Value::from(number.to_string()).to_string()],
            (_, Value::Array(items)) => {
                let items = items.iter().map(|item| format!("({})", self.spelled(notation, item).join(" | ")));
                let between = format!(" \",\" {} ", gap(notation));
                vec![format!("\"[\" {} \"]\"", items.collect::<Vec<_>>().join(&between))]
            }
            (_, Value::Object(members)) => {
                let key = |key: &String| match notation {
                    Notation::Python => format!("({})", quoted_both(key).join(" | ")),
                    Notation::Bare { .. } => Value::from(key.as_str()).to_string(),
                };
                let member = |(name, value): (&String, &Value)| {
                    let value = self.spelled(notation, value).join(" | ");
                    format!("{} \":\" {} ({value})", key(name), gap(notation))
                };
                let between = format!(" \",\" {} ", gap(notation));
                let members: Vec<String> = members.iter().map(member).collect();
                vec![format!("\"{{\" {} \"}}\"", members.join(&between))]
            }
        }
    }
}

/// White space that a model writes between the parts of a list or a mapping.
fn gap(notation: Notation) -> &'static str {
    match notation {
        Notation::Python => "w",
        Notation::Bare { .. } => "",
    }
}

/// JSON's words, and Python's own for them.
fn words<const N: usize>(notation: Notation, words: [&str; N]) -> String {
    let python = |word: &str| match word {
        "true" => "True",
        "false" => "False",
        _ => "None",
    };
    let spelled = words.iter().flat_map(|word| match notation {
        Notation::Python => vec![python(word), *word],
        Notation::Bare { .. } => vec![*word],
    });
    format!("({})", spelled.map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" | "))
}

/// A text in both of Python's quotes, as literals of a grammar.
fn quoted_both(text: &str) -> Vec<String> {
    let double = json::quoted(text);
    let single: String = double[1..double.len() - 1].replace("\\\"", "\"").replace('\'', "\\'");
    [format!("'{single}'"), double].map(|literal| Value::from(literal).to_string()).to_vec()
}

/// Whether a schema has no keyword beside these that says anything about a value.
fn only(schema: &Value, keys: &[&str]) -> bool {
    let mut own = schema.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    own.all(|key| keys.contains(&key) || ANNOTATIONS.contains(&key))
}

/// FNV-1a: tells the definitions of two tools apart.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_quotes_are_escaped() {
        let both = |text: &str| {
            let literals = quoted_both(text);
            literals.iter().map(|literal| serde_json::from_str::<String>(literal).expect("JSON")).collect::<Vec<_>>()
        };
        assert_eq!(both("it's"), [r"'it\'s'", "\"it's\""]);
        assert_eq!(both("a\"b\\c\n"), [r#"'a"b\\c\n'"#, r#""a\"b\\c\n""#]);
    }
}
