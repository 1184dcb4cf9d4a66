//! A plugin's settings: manifest defaults, then those of the alias, then the operator's, checked before the plugin sees
//! them.
//!
//! `settings_schema` is a JSON Schema of an object. Understood are `type = "object"`, `properties` and `required` at the
//! top, and per property `type`, `enum`, `minimum`, `maximum`, `default`, `title` and `description`; anything else in a
//! schema is an error, because a rule that is not checked is worse than none. Keys that `properties` does not name are
//! errors.

use serde_json::{Map, Value};

use crate::error::PluginLoadError;
use crate::manifest::Manifest;

/// A page of settings is a lot; more is a mistake, and each store is told all of them.
const SETTINGS_BYTES_MAX: usize = 64 << 10;

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
    for (key, value) in settings {
        match properties.get(key) {
            Some(Value::Object(rules)) => property(key, rules, value)?,
            Some(_) => return Err(format!("settings_schema: `{key}` must be a table")),
            None => {
                let known: Vec<&str> = properties.keys().map(String::as_str).collect();
                return Err(format!("unknown key `{key}`; there are: {}", known.join(", ")));
            }
        }
    }
    match required.iter().filter_map(Value::as_str).find(|name| !settings.contains_key(*name)) {
        Some(name) => Err(format!("`{name}` is required")),
        None => Ok(()),
    }
}

fn property(key: &str, rules: &Map<String, Value>, value: &Value) -> Result<(), String> {
    for (keyword, rule) in rules {
        let good = match (keyword.as_str(), rule) {
            ("type", Value::String(kind)) => has_type(kind, value)
                .ok_or_else(|| format!("settings_schema: `{key}` has the unknown type `{kind}`"))?,
            ("enum", Value::Array(allowed)) => allowed.contains(value),
            ("minimum", Value::Number(least)) => value.as_f64() >= least.as_f64(),
            ("maximum", Value::Number(most)) => value.as_f64().is_none_or(|v| Some(v) <= most.as_f64()),
            ("default" | "title" | "description", _) => true,
            _ => return Err(format!("settings_schema: `{keyword}` of `{key}` is not understood here")),
        };
        if !good {
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
        assert!(settle(SCHEMA, "", "[]").starts_with("a JSON object is needed"));
    }
}
