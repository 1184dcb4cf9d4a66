//! Keywords that are enforced by writing them with others.

use serde_json::{Map, Value, json};

use super::negate::negated;
use super::{Reduced, Walker};
use crate::GrammarError;
use crate::source::regex_of;

/// Keywords beside which "unevaluated" means more than "additional".
const IN_PLACE: [&str; 8] = ["$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "not", "dependencies"];

impl Walker<'_> {
    /// Adds to `reduced` what the rewritten keywords of a schema ask for.
    pub(super) fn rewrite(&mut self, keywords: &Map<String, Value>, reduced: &mut Reduced) -> Result<(), GrammarError> {
        if self.old_draft && keywords.contains_key("$ref") {
            return Ok(());
        }
        // What a schema lists counts here, and not what other keywords are rewritten to.
        for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
            if keywords.contains_key(keyword) {
                self.unevaluated(keyword, keywords, reduced)?;
            }
        }
        for (keyword, value) in keywords {
            match keyword.as_str() {
                "not" => self.not(value, reduced)?,
                "if" => self.condition(keywords, reduced)?,
                "dependentRequired" | "dependentSchemas" | "dependencies" => {
                    self.dependencies(keyword, value, reduced)?;
                }
                "propertyNames" => self.property_names(value, reduced)?,
                "nullable" => nullable(value, reduced),
                _ => {}
            }
        }
        Ok(())
    }

    fn not(&mut self, value: &Value, reduced: &mut Reduced) -> Result<(), GrammarError> {
        let schema = self.below(&["not"], value)?;
        match negated(&schema, &Value::Object(reduced.clone())) {
            Some(opposite) => push_all_of(reduced, opposite),
            None => self.refuse("not", value)?,
        }
        Ok(())
    }

    /// `if` A `then` B `else` C is (A and B) or (not A and C).
    fn condition(&mut self, keywords: &Map<String, Value>, reduced: &mut Reduced) -> Result<(), GrammarError> {
        let part = |walker: &mut Self, name: &str| match keywords.get(name) {
            Some(schema) => walker.below(&[name], schema).map(Some),
            None => Ok(None),
        };
        let Some(condition) = part(self, "if")? else { return Ok(()) };
        let (then, otherwise) = (part(self, "then")?, part(self, "else")?);
        if then.is_none() && otherwise.is_none() {
            return Ok(());
        }
        let Some(opposite) = negated(&condition, &Value::Object(reduced.clone())) else {
            return self.refuse("if", &keywords["if"]);
        };
        let yes = json!({"allOf": [condition, then.unwrap_or(Value::Bool(true))]});
        let no = json!({"allOf": [opposite, otherwise.unwrap_or(Value::Bool(true))]});
        push_all_of(reduced, json!({"anyOf": [yes, no]}));
        Ok(())
    }

    /// Either the property is absent, or what depends on it holds.
    fn dependencies(&mut self, keyword: &str, value: &Value, reduced: &mut Reduced) -> Result<(), GrammarError> {
        let Some(map) = value.as_object() else {
            return Err(self.wrong(Some(keyword), "must be an object"));
        };
        for (name, dependent) in map {
            let mut holds = match dependent {
                Value::Array(names) if names.iter().all(Value::is_string) => json!({"required": names}),
                Value::Array(_) => return Err(self.wrong(Some(keyword), "must hold arrays of property names")),
                _ => json!({"allOf": [self.below(&[keyword, name], dependent)?]}),
            };
            let mut required = holds.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            if required.iter().all(|other| other != name) {
                required.insert(0, name.clone().into());
            }
            holds["required"] = required.into();
            let absent = json!({"properties": {name.as_str(): false}});
            push_all_of(reduced, json!({"anyOf": [absent, holds]}));
        }
        Ok(())
    }

    /// Names that a pattern allows are properties that only this pattern lists.
    fn property_names(&mut self, value: &Value, reduced: &mut Reduced) -> Result<(), GrammarError> {
        let names = self.below(&["propertyNames"], value)?;
        let additional = reduced.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let is_free = matches!(&additional, Value::Bool(true)) || additional == json!({});
        let listed = reduced.contains_key("properties") || reduced.contains_key("required");
        let pattern = name_pattern(&names);
        match (names, pattern) {
            (Value::Bool(true), _) => {}
            (names, _) if names == json!({}) => {}
            // No name is allowed: the object is empty.
            (Value::Bool(false), _) => push_all_of(reduced, json!({"maxProperties": 0})),
            (_, Some(pattern)) if !listed && is_free && !reduced.contains_key("patternProperties") => {
                reduced.insert("patternProperties".into(), json!({pattern: additional}));
                reduced.insert("additionalProperties".into(), Value::Bool(false));
            }
            _ => self.refuse("propertyNames", value)?,
        }
        Ok(())
    }

    fn unevaluated(
        &mut self,
        keyword: &str,
        keywords: &Map<String, Value>,
        reduced: &mut Reduced,
    ) -> Result<(), GrammarError> {
        let value = &keywords[keyword];
        let schema = self.below(&[keyword], value)?;
        if schema == Value::Bool(true) || schema == json!({}) {
            return Ok(());
        }
        let counterpart = match keyword {
            "unevaluatedProperties" => "additionalProperties",
            _ if reduced.get("items").is_some_and(Value::is_array) => "additionalItems",
            _ => "items",
        };
        if reduced.contains_key(counterpart) {
            // Everything is evaluated already.
            return Ok(());
        }
        if IN_PLACE.iter().any(|in_place| keywords.contains_key(*in_place)) {
            return self.refuse(keyword, value);
        }
        reduced.insert(counterpart.into(), schema);
        Ok(())
    }
}

/// OpenAPI 3.0: the type may also be null.
fn nullable(value: &Value, reduced: &mut Reduced) {
    if value != &Value::Bool(true) {
        return;
    }
    let Some(types) = reduced.get_mut("type") else { return };
    let mut list = match types.take() {
        Value::Array(list) => list,
        one => vec![one],
    };
    if !list.contains(&json!("null")) {
        list.push(json!("null"));
    }
    *types = Value::Array(list);
    if let Some(Value::Array(values)) = reduced.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
}

/// A pattern for exactly the names that a schema of strings allows.
fn name_pattern(names: &Value) -> Option<String> {
    let map = names.as_object()?;
    let count = |keyword: &str| map.get(keyword).and_then(Value::as_u64);
    let only = |keywords: &[&str]| map.keys().all(|key| key == "type" || keywords.contains(&key.as_str()));
    if map.get("type").is_some_and(|ty| ty != "string") {
        return None;
    }
    if let Some(pattern) = map.get("pattern").and_then(Value::as_str) {
        return only(&["pattern"]).then(|| pattern.to_owned());
    }
    let listed = match (map.get("enum"), map.get("const")) {
        (Some(Value::Array(list)), None) => Some(list.clone()),
        (None, Some(value)) => Some(vec![value.clone()]),
        _ => None,
    };
    if let Some(list) = listed {
        let names: Vec<String> = list.iter().filter_map(Value::as_str).map(regex_of).collect();
        return (only(&["enum", "const"]) && !names.is_empty()).then(|| format!("^({})$", names.join("|")));
    }
    let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
    let bounds = most.map_or(format!("{{{least},}}"), |most| format!("{{{least},{most}}}"));
    only(&["minLength", "maxLength"]).then(|| format!("^[\\s\\S]{bounds}$"))
}

pub(super) fn push_all_of(reduced: &mut Reduced, schema: Value) {
    match reduced.get_mut("allOf").and_then(Value::as_array_mut) {
        Some(list) => list.push(schema),
        None => drop(reduced.insert("allOf".into(), json!([schema]))),
    }
}
