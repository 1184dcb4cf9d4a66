//! The opposite of a schema, where it can be written without `not`.

use serde_json::{Map, Value, json};

const TYPES: [&str; 6] = ["null", "boolean", "object", "array", "number", "string"];

/// A schema that is satisfied by exactly the values that `schema` rejects, among those that `beside` allows.
pub(super) fn negated(schema: &Value, beside: &Value) -> Option<Value> {
    match schema {
        Value::Bool(any) => Some(Value::Bool(!any)),
        Value::Object(map) if map.is_empty() => Some(Value::Bool(false)),
        // A value is rejected when one of the keywords rejects it.
        Value::Object(map) => {
            let mut options = Vec::new();
            for (keyword, value) in map {
                match keyword.as_str() {
                    // Together they are one question: see `property`.
                    "required" if map.contains_key("properties") => continue,
                    "properties" => options.extend(properties(map, beside)?),
                    _ => options.push(opposite(keyword, value, beside)?),
                }
            }
            Some(if options.len() == 1 { options.remove(0) } else { json!({"anyOf": options}) })
        }
        _ => None,
    }
}

fn opposite(keyword: &str, value: &Value, beside: &Value) -> Option<Value> {
    match keyword {
        "type" => other_types(value),
        "required" => absent(value),
        "const" => outside(std::slice::from_ref(value), beside),
        "enum" => outside(value.as_array()?, beside),
        "anyOf" => {
            let all: Option<Vec<Value>> = value.as_array()?.iter().map(|s| negated(s, beside)).collect();
            Some(json!({"allOf": all?}))
        }
        "allOf" => {
            let any: Option<Vec<Value>> = value.as_array()?.iter().map(|s| negated(s, beside)).collect();
            Some(json!({"anyOf": any?}))
        }
        "minimum" => Some(json!({"type": "number", "exclusiveMaximum": value})),
        "maximum" => Some(json!({"type": "number", "exclusiveMinimum": value})),
        "exclusiveMinimum" if value.is_number() => Some(json!({"type": "number", "maximum": value})),
        "exclusiveMaximum" if value.is_number() => Some(json!({"type": "number", "minimum": value})),
        "minLength" => bound("string", "maxLength", value.as_u64()?.checked_sub(1)),
        "maxLength" => bound("string", "minLength", value.as_u64()?.checked_add(1)),
        "minItems" => bound("array", "maxItems", value.as_u64()?.checked_sub(1)),
        "maxItems" => bound("array", "minItems", value.as_u64()?.checked_add(1)),
        _ => None,
    }
}

/// `None` as a bound: no value is rejected.
fn bound(ty: &str, keyword: &str, count: Option<u64>) -> Option<Value> {
    Some(count.map_or(Value::Bool(false), |count| json!({"type": ty, keyword: count})))
}

fn other_types(value: &Value) -> Option<Value> {
    let named: Vec<&str> = match value {
        Value::String(one) => vec![one.as_str()],
        Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    // Numbers that are not whole have no type of their own.
    if named.contains(&"integer") && !named.contains(&"number") {
        return None;
    }
    let rest: Vec<&str> = TYPES.into_iter().filter(|ty| !named.contains(ty)).collect();
    Some(if rest.is_empty() { Value::Bool(false) } else { json!({"type": rest}) })
}

/// Objects without at least one of the names.
fn absent(names: &Value) -> Option<Value> {
    let names: Option<Vec<&str>> = names.as_array()?.iter().map(Value::as_str).collect();
    let options: Vec<Value> =
        names?.into_iter().map(|name| json!({"type": "object", "properties": {name: false}})).collect();
    match options.len() {
        0 => Some(Value::Bool(false)),
        1 => options.into_iter().next(),
        _ => Some(json!({"anyOf": options})),
    }
}

/// Objects in which one of the properties is there and rejected, or is required and missing.
fn properties(map: &Map<String, Value>, beside: &Value) -> Option<Vec<Value>> {
    let mut options = Vec::new();
    for (name, schema) in map.get("properties")?.as_object()? {
        let known = beside.get("properties").and_then(|p| p.get(name)).cloned().unwrap_or(Value::Bool(true));
        let rejected = negated(schema, &known)?;
        options.push(json!({"type": "object", "required": [name], "properties": {name.as_str(): rejected}}));
    }
    if let Some(required) = map.get("required") {
        options.push(absent(required)?);
    }
    Some(options)
}

/// The values that `beside` lists and `values` does not: without such a list there are too many to write down.
fn outside(values: &[Value], beside: &Value) -> Option<Value> {
    let listed = match (beside.get("enum"), beside.get("const"), beside.get("type").and_then(Value::as_str)) {
        (Some(Value::Array(list)), ..) => list.clone(),
        (None, Some(one), _) => vec![one.clone()],
        (None, None, Some("boolean")) => vec![true.into(), false.into()],
        (None, None, Some("null")) => vec![Value::Null],
        _ => return None,
    };
    let rest: Vec<Value> = listed.into_iter().filter(|value| !values.contains(value)).collect();
    Some(if rest.is_empty() { Value::Bool(false) } else { json!({"enum": rest}) })
}
