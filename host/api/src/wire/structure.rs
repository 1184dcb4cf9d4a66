//! The fields that ask for a form of the answer, under all the names that clients know.
//!
//! | field | of |
//! |---|---|
//! | `response_format` | OpenAI; `structural_tag`, `regex` and `grammar` as types too |
//! | `structured_outputs` | vLLM |
//! | `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`, `guided_json_object` | vLLM before |
//! | `json_schema`, `regex`, `ebnf`, `structural_tag` | SGLang |
//! | `json_schema`, `grammar` | llama.cpp |

use serde_json::{Map, Value};
use text::Structure;
use text::grammar::{Source, Strictness};

use super::fields::{Fields, describe, missing, wrong};
use crate::error::{ApiError, Code};

/// Takes all of them; an answer has one form.
pub fn take(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    let mut found: Vec<Structure> = Vec::new();
    found.extend(response_format(fields)?);
    found.extend(structured_outputs(fields)?);
    for (name, kind) in ALIASES {
        if let Some(value) = fields.take(name) {
            found.extend(of_kind(kind, name, value)?);
        }
    }
    match found.as_slice() {
        [first, second, ..] => {
            let message = format!("cannot be combined with {}: an answer has one form", first.param);
            Err(ApiError::invalid(&second.param, message))
        }
        _ => Ok(found.pop()),
    }
}

/// Names at the top level, and what of `structured_outputs` they mean.
const ALIASES: [(&str, &str); 10] = [
    ("guided_json", "json"),
    ("guided_json_object", "json_object"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("json_schema", "json"),
    ("regex", "regex"),
    ("ebnf", "grammar"),
    ("grammar", "grammar"),
    ("structural_tag", "structural_tag"),
];

fn response_format(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    const NAME: &str = "response_format";
    let Some(mut format) = fields.object(NAME)? else { return Ok(None) };
    let at = |field: &str| format!("{NAME}.{field}");
    let kind = match format.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        None | Some(Value::Null) => return Err(missing(&at("type"))),
        Some(other) => return Err(wrong(&at("type"), "a string", other)),
    };
    let mut part = |field: &str| format.remove(field).filter(|value| !value.is_null());
    match kind.as_str() {
        "text" => Ok(None),
        "json_object" => match part("schema") {
            Some(schema) => of_kind("json", &at("schema"), schema),
            None => structure(Source::JsonObject, NAME),
        },
        "json_schema" => json_schema(part("json_schema").ok_or_else(|| missing(&at("json_schema")))?),
        "structural_tag" => structure(Source::StructuralTag(Value::Object(format)), NAME),
        "regex" => of_kind("regex", &at("pattern"), part("pattern").ok_or_else(|| missing(&at("pattern")))?),
        "grammar" => of_kind("grammar", &at("grammar"), part("grammar").ok_or_else(|| missing(&at("grammar")))?),
        _ => {
            let wanted = "one of text, json_object, json_schema, structural_tag, regex, grammar";
            Err(wrong(&at("type"), wanted, &Value::String(kind)))
        }
    }
}

/// `{name, schema, strict}`. An answer is held to its schema whatever `strict` says; `false` lets keywords that cannot
/// be enforced pass with a warning.
fn json_schema(value: Value) -> Result<Option<Structure>, ApiError> {
    const NAME: &str = "response_format.json_schema";
    let Value::Object(mut object) = value else { return Err(wrong(NAME, "an object", &value)) };
    let strictness = match object.get("strict") {
        Some(Value::Bool(false)) => Strictness::Lenient,
        None | Some(Value::Null | Value::Bool(true)) => Strictness::Strict,
        Some(other) => return Err(wrong(&format!("{NAME}.strict"), "true or false", other)),
    };
    let param = format!("{NAME}.schema");
    let schema = object.remove("schema").filter(|schema| !schema.is_null()).ok_or_else(|| missing(&param))?;
    structure(Source::JsonSchema { schema, strictness }, &param)
}

fn structured_outputs(fields: &mut Fields) -> Result<Option<Structure>, ApiError> {
    const NAME: &str = "structured_outputs";
    let Some(object) = fields.object(NAME)? else { return Ok(None) };
    let mut found: Option<Structure> = None;
    for (name, value) in object {
        let at = format!("{NAME}.{name}");
        match name.as_str() {
            _ if value.is_null() || value == Value::Bool(false) => {}
            "json" | "json_object" | "regex" | "choice" | "grammar" | "structural_tag" => {
                let next = of_kind(&name, &at, value)?;
                if let (Some(first), Some(second)) = (&found, &next) {
                    let message = format!("cannot be combined with {}: an answer has one form", first.param);
                    return Err(ApiError::invalid(&second.param, message));
                }
                found = found.or(next);
            }
            "disable_fallback" | "_backend" | "_backend_was_auto" => {}
            "disable_any_whitespace" | "disable_additional_properties" | "whitespace_pattern" => {
                let message = format!("is not supported with {}: leave it out", describe(&value));
                return Err(ApiError::field(Code::UnsupportedField, &at, message));
            }
            _ => {
                let message = "is not one of json, json_object, regex, choice, grammar, structural_tag";
                return Err(ApiError::invalid(&at, message));
            }
        }
    }
    Ok(found)
}

fn of_kind(kind: &str, param: &str, value: Value) -> Result<Option<Structure>, ApiError> {
    let source = match (kind, value) {
        // An empty list or text asks for nothing; routers send them.
        ("choice", Value::Array(list)) if list.is_empty() => return Ok(None),
        (_, Value::String(text)) if text.is_empty() => return Ok(None),
        ("json", value) if value == Value::Object(Map::new()) && param == "json_schema" => return Ok(None),
        ("json", value) => Source::JsonSchema { schema: json_text(param, value)?, strictness: Strictness::Strict },
        ("json_object", Value::Bool(wanted)) if wanted => Source::JsonObject,
        ("json_object", Value::Bool(_)) => return Ok(None),
        ("json_object", other) => return Err(wrong(param, "true or false", &other)),
        ("regex", Value::String(regex)) => Source::Regex(regex),
        ("regex", other) => return Err(wrong(param, "a regular expression as a string", &other)),
        ("choice", Value::Array(list)) => Source::Choice(choices(param, list)?),
        ("choice", other) => return Err(wrong(param, "an array of strings", &other)),
        ("structural_tag", value) => Source::StructuralTag(json_text(param, value)?),
        (_, Value::String(grammar)) => Source::Lark(grammar),
        (_, other) => return Err(wrong(param, "a grammar in Lark as a string", &other)),
    };
    structure(source, param)
}

fn choices(param: &str, list: Vec<Value>) -> Result<Vec<String>, ApiError> {
    list.into_iter()
        .enumerate()
        .map(|(i, value)| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong(&format!("{param}[{i}]"), "a string", &other)),
        })
        .collect()
}

/// An object, or its text: clients that have one put it in a string.
fn json_text(param: &str, value: Value) -> Result<Value, ApiError> {
    match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::invalid(param, format!("is a string that is not JSON: {error}"))),
        Value::Object(_) | Value::Bool(_) => Ok(value),
        other => Err(wrong(param, "an object, or its JSON text", &other)),
    }
}

fn structure(source: Source, param: &str) -> Result<Option<Structure>, ApiError> {
    Ok(Some(Structure { source, param: param.to_owned() }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(body: Value) -> Result<Option<Structure>, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("an object");
        take(&mut fields).map_err(|error| error.message)
    }

    fn expect(body: Value, source: Source, param: &str) {
        let structure = Structure { source, param: param.to_owned() };
        assert_eq!(taken(body.clone()), Ok(Some(structure)), "{body}");
    }

    fn schema(schema: Value, strictness: Strictness) -> Source {
        Source::JsonSchema { schema, strictness }
    }

    #[test]
    fn every_name_of_every_form() {
        let int = || json!({"type": "integer"});
        let strict = || schema(int(), Strictness::Strict);
        let format = |format: Value| json!({"response_format": format});
        expect(format(json!({"type": "json_object"})), Source::JsonObject, "response_format");
        let at = "response_format.json_schema.schema";
        expect(format(json!({"type": "json_schema", "json_schema": {"name": "n", "schema": int()}})), strict(), at);
        let lenient = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": int(), "strict": false}});
        expect(format(lenient), schema(int(), Strictness::Lenient), at);
        expect(format(json!({"type": "json_object", "schema": int()})), strict(), "response_format.schema");
        let tag = json!({"type": "structural_tag", "format": {}});
        expect(format(tag.clone()), Source::StructuralTag(tag), "response_format");
        expect(json!({"guided_json": int()}), strict(), "guided_json");
        expect(json!({"guided_json": "{\"type\":\"integer\"}"}), strict(), "guided_json");
        expect(json!({"json_schema": int()}), strict(), "json_schema");
        expect(json!({"structured_outputs": {"json": int(), "regex": null}}), strict(), "structured_outputs.json");
        expect(json!({"guided_json_object": true}), Source::JsonObject, "guided_json_object");
        expect(json!({"guided_regex": "a+"}), Source::Regex("a+".into()), "guided_regex");
        expect(
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
            Source::Choice(vec!["a".into(), "b".into()]),
            "structured_outputs.choice",
        );
        expect(json!({"guided_grammar": "start: \"a\""}), Source::Lark("start: \"a\"".into()), "guided_grammar");
        expect(json!({"grammar": "root ::= \"a\""}), Source::Lark("root ::= \"a\"".into()), "grammar");
    }

    /// What routers add by habit asks for nothing.
    #[test]
    fn neutral_values() {
        for body in [
            json!({}),
            json!({"response_format": {"type": "text"}}),
            json!({"response_format": null, "structured_outputs": {}, "guided_json": null, "guided_choice": [], "grammar": "", "json_schema": {}}),
            json!({"structured_outputs": {"json": null, "disable_any_whitespace": false}, "guided_json_object": false}),
        ] {
            assert_eq!(taken(body.clone()), Ok(None), "{body}");
        }
    }

    #[test]
    fn errors_name_the_field() {
        let cases = [
            (json!({"response_format": {}}), "response_format.type: is required"),
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type: must be one of text, json_object, json_schema, structural_tag, regex, grammar, not the string \"xml\"",
            ),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema: is required"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
                "response_format.json_schema.schema: is required",
            ),
            (json!({"guided_json": 3}), "guided_json: must be an object, or its JSON text, not 3"),
            (json!({"guided_choice": ["a", 1]}), "guided_choice[1]: must be a string, not 1"),
            (
                json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
                "guided_regex: cannot be combined with response_format: an answer has one form",
            ),
            (
                json!({"structured_outputs": {"json": {}, "regex": "a"}}),
                "structured_outputs.regex: cannot be combined with structured_outputs.json: an answer has one form",
            ),
            (
                json!({"structured_outputs": {"yaml": {}}}),
                "structured_outputs.yaml: is not one of json, json_object, regex, choice, grammar, structural_tag",
            ),
        ];
        for (body, message) in cases {
            assert_eq!(taken(body.clone()), Err(message.to_owned()), "{body}");
        }
    }
}
