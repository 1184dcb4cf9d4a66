//! The type of a parameter, read from the tool's JSON schema.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::json;
use serde_json::Value;
use tokenloom_sdk::output::Tool;

/// References and alternatives inside one another.
const DEPTH_MAX: usize = 16;

/// Which JSON types a value may have. A value whose text fits none of them is text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    text: bool,
    null: bool,
    boolean: bool,
    integer: bool,
    number: bool,
    array: bool,
    object: bool,
}

impl Kind {
    const TEXT: Self =
        Self { text: true, null: false, boolean: false, integer: false, number: false, array: false, object: false };

    /// Text and nothing else, so that it can be sent while it comes.
    pub fn is_text(self) -> bool {
        self == Self::TEXT || self == Self::default()
    }

    /// Text is among the types, or nothing is known.
    pub fn takes_text(self) -> bool {
        self.text || self == Self::default()
    }

    pub fn takes_object(self) -> bool {
        self.object
    }

    pub fn takes_array(self) -> bool {
        self.array
    }

    /// The value as JSON. With text among the types only `null` is taken for something else, because `07030` and
    /// `true` may be meant as text.
    pub fn json(self, text: &str) -> String {
        let trimmed = text.trim();
        if self.text && !(self.null && trimmed == "null") {
            return json::quoted(text);
        }
        // Models write Python's names of these now and then; they are no text in any schema that gets here.
        let trimmed = match trimmed {
            "True" if self.boolean => "true",
            "False" if self.boolean => "false",
            "None" if self.null => "null",
            other => other,
        };
        let fits = json::is_valid(trimmed)
            && match trimmed.as_bytes()[0] {
                b'n' => self.null,
                b't' | b'f' => self.boolean,
                b'[' => self.array,
                b'{' => self.object,
                b'"' => false,
                _ => self.number || (self.integer && !trimmed.contains(['.', 'e', 'E'])),
            };
        if fits { trimmed.to_string() } else { json::quoted(text) }
    }

    fn add(&mut self, name: &str) {
        match name {
            "string" => self.text = true,
            "null" => self.null = true,
            "boolean" => self.boolean = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "array" => self.array = true,
            "object" => self.object = true,
            _ => {}
        }
    }
}

/// The declared tools, by name, with their schemas.
#[derive(Clone, Debug, Default)]
pub struct Tools(BTreeMap<String, Schema>);

/// A schema that is parsed when its tool is first called: a stream declares dozens of tools and calls one or two, and a
/// parsed schema takes several times its text.
#[derive(Clone, Debug, Default)]
struct Schema {
    text: Option<String>,
    parsed: OnceCell<Value>,
}

impl Schema {
    fn value(&self) -> &Value {
        let parse = |text: &str| serde_json::from_str(text).ok();
        self.parsed.get_or_init(|| self.text.as_deref().and_then(parse).unwrap_or_default())
    }
}

impl Tools {
    pub fn new(tools: Vec<Tool>) -> Self {
        let schema = |tool: Tool| (tool.name, Schema { text: tool.schema_json, parsed: OnceCell::new() });
        Self(tools.into_iter().map(schema).collect())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// An unknown tool or parameter, or one without a type, is text: only a schema makes it anything else.
    pub fn kind(&self, tool: &str, parameter: &str) -> Kind {
        let root = self.0.get(tool).map(Schema::value);
        let schema = root.and_then(|root| root.get("properties")?.get(parameter));
        root.zip(schema).map(|(root, schema)| of(root, schema)).unwrap_or_default()
    }
}

/// The types that a schema inside `root` allows.
pub fn of(root: &Value, schema: &Value) -> Kind {
    let mut kind = Kind::default();
    collect(root, schema, 0, &mut kind);
    kind
}

fn collect(root: &Value, schema: &Value, depth: usize, kind: &mut Kind) {
    if depth == DEPTH_MAX {
        return;
    }
    match &schema["type"] {
        Value::String(name) => kind.add(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).for_each(|name| kind.add(name)),
        _ => {
            let listed = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
            listed.for_each(|value| kind.add(type_of(value)));
        }
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for inner in schema[key].as_array().into_iter().flatten() {
            collect(root, inner, depth + 1, kind);
        }
    }
    let reference = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#'));
    if let Some(target) = reference.and_then(|path| root.pointer(path)) {
        collect(root, target, depth + 1, kind);
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenloom_sdk::output::CallKind;

    fn json(schema: &str, text: &str) -> String {
        let schema_json =
            format!("{{\"properties\": {{\"p\": {schema}}}, \"$defs\": {{\"n\": {{\"type\": \"number\"}}}}}}");
        let tool = Tool { name: "f".into(), kind: CallKind::Json, schema_json: Some(schema_json), strict: false };
        Tools::new(vec![tool]).kind("f", "p").json(text)
    }

    #[test]
    fn the_schema_decides() {
        let cases = [
            (r#"{"type": "integer"}"#, " 41 ", "41"),
            (r#"{"type": "integer"}"#, "07030", "\"07030\""),
            (r#"{"type": "integer"}"#, "1.5", "\"1.5\""),
            // However large, it is a number.
            (r#"{"type": "integer"}"#, "123456789012345678901234567890", "123456789012345678901234567890"),
            (r#"{"type": "number"}"#, "1e999", "1e999"),
            (r#"{"type": "number"}"#, "4", "4"),
            (r#"{"type": "boolean"}"#, "True", "true"),
            (r#"{"type": "array"}"#, "[\"a\", \"b\"]", "[\"a\", \"b\"]"),
            (r#"{"type": "object"}"#, "{\"a\": ", "\"{\\\"a\\\": \""),
            (r#"{"type": ["string", "null"]}"#, "null", "null"),
            (r#"{"type": ["string", "integer"]}"#, "5", "\"5\""),
            (r#"{"enum": [1, 2]}"#, "2", "2"),
            (r##"{"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}"##, "2.5", "2.5"),
            (r#"{"anyOf": [{"type": "null"}, {"type": "integer"}]}"#, "None", "null"),
        ];
        for (schema, text, expected) in cases {
            assert_eq!(json(schema, text), expected, "{schema} {text}");
        }
    }

    #[test]
    fn what_is_not_declared_is_text() {
        assert!(Tools::default().kind("f", "p").is_text());
        let tool = Tool { name: "f".into(), kind: CallKind::Json, schema_json: Some("not JSON".into()), strict: false };
        assert!(Tools::new(vec![tool]).kind("f", "p").is_text());
    }
}
