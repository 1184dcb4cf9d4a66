//! A plugin's settings: manifest defaults, then those of the alias, then the operator's, checked before the plugin sees
//! them.
//!
//! `settings_schema` is a JSON Schema of an object. Understood are `type = "object"`, `properties` and `required` at the
//! top, and per property `type`, `enum`, `minimum`, `maximum`, `minLength`, `maxLength`, `items`, `minItems`,
//! `maxItems`, `default`, `title` and `description`. Anything else in a schema is an error, because a rule that is not
//! checked is worse than none. Keys that `properties` does not name are errors too.

use serde_json::{Map, Value};

use crate::error::PluginLoadError;
use crate::manifest::Manifest;

/// A chat template's text fits; more is a mistake, and each store is told all of them.
const SETTINGS_BYTES_MAX: usize = 256 << 10;

/// The settings in effect, as a JSON object.
pub(crate) fn effective(
    plugin: &str,
    manifest: &Manifest,
    alias: Option<&toml::Table>,
    operator_json: Option<&str>,
) -> Result<String, PluginLoadError> {
    let fault = |message: String| PluginLoadError::Settings { plugin: plugin.into(), message };
    let mut merged = object(&manifest.settings).map_err(fault)?;
    if let Some(alias) = alias {
        merged.extend(object(alias).map_err(fault)?);
    }
    if let Some(json) = operator_json {
        let operator: Map<String, Value> =
            serde_json::from_str(json).map_err(|e| fault(format!("a JSON object is needed: {e}")))?;
        merged.extend(operator);
    }
    if let Some(schema) = &manifest.settings_schema {
        let schema = object(schema).map_err(fault)?;
        check(&schema, &merged).map_err(fault)?;
    }
    let json = Value::Object(merged).to_string();
    if json.len() > SETTINGS_BYTES_MAX {
        return Err(fault(format!("{} bytes, at most {SETTINGS_BYTES_MAX} are allowed", json.len())));
    }
    Ok(json)
}

fn object(table: &toml::Table) -> Result<Map<String, Value>, String> {
    match serde_json::to_value(table) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("a table is needed".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn check(schema: &Map<String, Value>, settings: &Map<String, Value>) -> Result<(), String> {
    let mut properties = &Map::new();
    let mut required: &[Value] = &[];
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("type", Value::String(kind)) if kind == "object" => {}
            ("additionalProperties", Value::Bool(false)) => {}
            ("properties", Value::Object(map)) => properties = map,
            ("required", Value::Array(names)) => required = names,
            ("title" | "description" | "$schema", _) => {}
            _ => return Err(format!("settings_schema: `{keyword}` is not understood here")),
        }
    }
    // All of the schema is read, whatever is set, so that a fault in it shows when its author first loads it.
    for (key, rules) in properties {
        match rules {
            Value::Object(rules) => property(key, rules, settings.get(key))?,
            _ => return Err(format!("settings_schema: `{key}` must be a table")),
        }
    }
    if let Some(key) = settings.keys().find(|key| !properties.contains_key(*key)) {
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        return Err(format!("unknown key `{key}`; there are: {}", known.join(", ")));
    }
    match required.iter().filter_map(Value::as_str).find(|name| !settings.contains_key(*name)) {
        Some(name) => Err(format!("`{name}` is required")),
        None => Ok(()),
    }
}

/// Reads the rules of a property and, when it is set, holds its value against them.
fn property(key: &str, rules: &Map<String, Value>, value: Option<&Value>) -> Result<(), String> {
    let holds = |test: &dyn Fn(&Value) -> bool| value.is_none_or(test);
    let number = |rule: &Value| rule.as_f64();
    let length = |value: &Value| value.as_str().map(|text| text.chars().count() as f64);
    let count = |value: &Value| value.as_array().map(|list| list.len() as f64);
    for (keyword, rule) in rules {
        let good = match (keyword.as_str(), rule) {
            ("type", Value::String(kind)) => {
                has_type(kind, &Value::Null)
                    .ok_or_else(|| format!("settings_schema: `{key}` has the unknown type `{kind}`"))?;
                holds(&|value| has_type(kind, value) == Some(true))
            }
            ("enum", Value::Array(allowed)) => holds(&|value| allowed.contains(value)),
            // A rule about numbers or lengths says nothing about values of other types.
            ("minimum", Value::Number(_)) => holds(&|value| value.as_f64().is_none_or(|v| Some(v) >= number(rule))),
            ("maximum", Value::Number(_)) => holds(&|value| value.as_f64().is_none_or(|v| Some(v) <= number(rule))),
            ("minLength", Value::Number(_)) => holds(&|value| length(value).is_none_or(|v| Some(v) >= number(rule))),
            ("maxLength", Value::Number(_)) => holds(&|value| length(value).is_none_or(|v| Some(v) <= number(rule))),
            ("minItems", Value::Number(_)) => holds(&|value| count(value).is_none_or(|v| Some(v) >= number(rule))),
            ("maxItems", Value::Number(_)) => holds(&|value| count(value).is_none_or(|v| Some(v) <= number(rule))),
            ("items", Value::Object(rules)) => {
                // Schemas come from a manifest of at most 256 KiB, and its parser bounds how deep they nest.
                property(key, rules, None)?;
                let items = value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                items.iter().try_for_each(|item| property(key, rules, Some(item)))?;
                true
            }
            ("default" | "title" | "description", _) => true,
            _ => return Err(format!("settings_schema: `{keyword}` of `{key}` is not understood here")),
        };
        if let (false, Some(value)) = (good, value) {
            return Err(format!("`{key}` is {value}, and {keyword} is {rule}"));
        }
    }
    Ok(())
}

/// `None` for a type that does not exist.
fn has_type(kind: &str, value: &Value) -> Option<bool> {
    Some(match kind {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(schema: &str, alias: &str, operator: &str) -> String {
        let text = format!(
            "name = \"p\"\nversion = \"1\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n\
             [settings]\nopen = \"<a>\"\n[settings_schema]\n{schema}"
        );
        let manifest = Manifest::parse("p", &text).expect("the manifest of the test is valid");
        let alias: toml::Table = toml::from_str(alias).expect("the alias of the test is valid");
        match effective("p", &manifest, Some(&alias), Some(operator)) {
            Ok(json) => json,
            Err(PluginLoadError::Settings { message, .. }) => message,
            Err(other) => other.to_string(),
        }
    }

    const SCHEMA: &str =
        "properties.open.type = \"string\"\nproperties.n = { type = \"integer\", minimum = 1, maximum = 9 }";

    /// The operator's word wins over the alias's, and that over the default.
    #[test]
    fn layers() {
        assert_eq!(settle(SCHEMA, "", "{}"), r#"{"open":"<a>"}"#);
        assert_eq!(settle(SCHEMA, "open = \"<b>\"", "{}"), r#"{"open":"<b>"}"#);
        assert_eq!(settle(SCHEMA, "open = \"<b>\"", r#"{"open":"<c>","n":3}"#), r#"{"open":"<c>","n":3}"#);
    }

    #[test]
    fn faults_name_key_and_rule() {
        assert_eq!(settle(SCHEMA, "", r#"{"opne":1}"#), "unknown key `opne`; there are: n, open");
        assert_eq!(settle(SCHEMA, "", r#"{"open":1}"#), "`open` is 1, and type is \"string\"");
        assert_eq!(settle(SCHEMA, "", r#"{"n":12}"#), "`n` is 12, and maximum is 9");
        assert_eq!(settle(SCHEMA, "", r#"{"n":-1}"#), "`n` is -1, and minimum is 1");
        assert_eq!(
            settle("properties.open.pattern = \".\"", "", "{}"),
            "settings_schema: `pattern` of `open` is not understood here"
        );
        assert_eq!(settle("properties.open.minLength = 1", "", r#"{"open":""}"#), "`open` is \"\", and minLength is 1");
        assert_eq!(
            settle("properties.open.type = \"string\"\nproperties.z.type = \"colour\"", "", "{}"),
            "settings_schema: `z` has the unknown type `colour`"
        );
        let pairs = "properties.open.type = \"string\"\n\
                     properties.p = { type = \"array\", items = { minItems = 2, items = { type = \"string\" } } }";
        assert_eq!(settle(pairs, "", r#"{"p":[["a","b"]]}"#), r#"{"open":"<a>","p":[["a","b"]]}"#);
        assert_eq!(settle(pairs, "", r#"{"p":[["a"]]}"#), "`p` is [\"a\"], and minItems is 2");
        assert_eq!(settle(pairs, "", r#"{"p":[["a",1]]}"#), "`p` is 1, and type is \"string\"");
        assert!(settle(SCHEMA, "", "[]").starts_with("a JSON object is needed"));
    }
}
