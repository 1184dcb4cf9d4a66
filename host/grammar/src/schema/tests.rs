use serde_json::json;

use super::*;

/// The reduced schema, or the error's text.
fn reduced(schema: &Value) -> Value {
    match check(schema, Strictness::Strict) {
        Ok(checked) => checked.schema,
        Err(error) => Value::String(error.to_string()),
    }
}

fn expect(schema: Value, expected: Value) {
    assert_eq!(reduced(&schema), expected, "{schema}");
}

#[test]
fn notes_are_dropped_and_the_rest_is_kept() {
    expect(
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "type": "object",
               "properties": {"a": {"type": "string", "description": "d", "minLength": 2.0}}, "x-mine": 1}),
        json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}),
    );
}

#[test]
fn references_lead_to_definitions() {
    expect(
        json!({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "array", "items": {"$ref": "#/definitions/a~1b"}}}}),
        json!({"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "array", "items": {"$ref": "#/$defs/d0"}}}}),
    );
    // By anchor, by id, and relative to an id.
    let anchored = json!({"$defs": {"x": {"$anchor": "here", "type": "null"}}, "$ref": "#here"});
    expect(anchored, json!({"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "null"}}}));
    let relative = json!({"$id": "https://a.example/root.json", "$ref": "item.json",
        "$defs": {"i": {"$id": "https://a.example/item.json", "type": "null"}}});
    expect(relative, json!({"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "null"}}}));
}

/// Draft 7 and older: what stands beside a reference has no meaning.
#[test]
fn old_drafts_ignore_what_is_beside_a_reference() {
    let schema = |draft: &str| json!({"$schema": draft, "$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": {"type": "string"}}});
    let definitions = json!({"d0": {"type": "string"}});
    expect(schema("http://json-schema.org/draft-07/schema#"), json!({"$ref": "#/$defs/d0", "$defs": definitions}));
    expect(
        schema("https://json-schema.org/draft/2020-12/schema"),
        json!({"$ref": "#/$defs/d0", "maxLength": 1, "$defs": definitions}),
    );
}

#[test]
fn rewritten_keywords() {
    expect(
        json!({"dependentRequired": {"a": ["b"]}}),
        json!({"allOf": [{"anyOf": [{"properties": {"a": false}}, {"required": ["a", "b"]}]}]}),
    );
    expect(
        json!({"propertyNames": {"maxLength": 3}}),
        json!({"patternProperties": {"^[\\s\\S]{0,3}$": true}, "additionalProperties": false}),
    );
    expect(json!({"type": "string", "nullable": true}), json!({"type": ["string", "null"]}));
    expect(
        json!({"not": {"type": ["string", "number"]}}),
        json!({"allOf": [{"type": ["null", "boolean", "object", "array"]}]}),
    );
    expect(
        json!({"properties": {"k": {"enum": ["x", "y"]}}, "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["a"]}}),
        json!({"properties": {"k": {"enum": ["x", "y"]}}, "allOf": [{"anyOf": [
            {"allOf": [{"properties": {"k": {"const": "x"}}}, {"required": ["a"]}]},
            {"allOf": [{"type": "object", "required": ["k"], "properties": {"k": {"enum": ["y"]}}}, true]}
        ]}]}),
    );
    expect(
        json!({"type": "object", "unevaluatedProperties": false}),
        json!({"type": "object", "additionalProperties": false}),
    );
}

/// Bounds on properties that cannot be missed are left out: the library takes few of them.
#[test]
fn bounds_that_hold_by_themselves() {
    let closed =
        |most: u32| json!({"properties": {"a": {}, "b": {}}, "additionalProperties": false, "maxProperties": most});
    expect(closed(2), json!({"properties": {"a": {}, "b": {}}, "additionalProperties": false}));
    expect(closed(1), closed(1));
    expect(json!({"required": ["a"], "minProperties": 1}), json!({"required": ["a"]}));
}

/// The options of a choice of one are seen where they are referred to.
#[test]
fn options_of_one_of_are_written_out() {
    expect(
        json!({"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "string"}}}),
        json!({"oneOf": [{"type": "string"}, {"type": "null"}], "$defs": {"d0": {"type": "string"}}}),
    );
}

#[test]
fn errors_name_the_place_and_the_keyword() {
    let cases = [
        (
            json!({"properties": {"a/b": {"items": {"uniqueItems": true}}}}),
            "at `/properties/a~1b/items`, keyword `uniqueItems`: cannot be enforced; leave it out",
        ),
        (
            json!({"type": "strin"}),
            "at the schema's root, keyword `type`: \"strin\" is not one of null, boolean, object, array, number, string, integer",
        ),
        (json!({"anyOf": [{"minLength": -1}]}), "at `/anyOf/0`, keyword `minLength`: must be a whole number from 0"),
        (
            json!({"$ref": "https://example.com/s"}),
            "at the schema's root, keyword `$ref`: `https://example.com/s` is not in this schema, and nothing outside it is fetched",
        ),
        (json!({"properties": []}), "at the schema's root, keyword `properties`: must be an object of schemas"),
        (json!({"items": 3}), "at `/items`: a schema must be an object or a boolean"),
        (json!({"not": {"pattern": "x"}}), "at the schema's root, keyword `not`: cannot be enforced; leave it out"),
        (json!({"enum": []}), "at the schema's root, keyword `enum`: must be an array with at least one value"),
        (json!({"minItems": 100_000}), "at the schema's root, keyword `minItems`: is 100000, the limit is 65536"),
    ];
    for (schema, expected) in cases {
        assert_eq!(check(&schema, Strictness::Strict).unwrap_err().to_string(), expected);
    }
    let free_names = check(&json!({"minProperties": 3, "required": ["a"]}), Strictness::Strict).unwrap_err();
    assert!(free_names.to_string().starts_with("at the schema's root, keyword `minProperties`: is 3, but only 1"));
}

/// What cannot be enforced is dropped when the client said that it need not be; what is wrong stays an error.
#[test]
fn lenient_schemas_lose_what_cannot_be_enforced() {
    let checked = check(&json!({"type": "array", "uniqueItems": true, "frobnicate": 1}), Strictness::Lenient).unwrap();
    assert_eq!(checked.schema, json!({"type": "array"}));
    assert_eq!(
        checked.warnings,
        [
            "schema keyword `frobnicate` is not known and has no effect",
            "schema keyword `uniqueItems` cannot be enforced and has no effect"
        ]
    );
    assert!(check(&json!({"type": 3}), Strictness::Lenient).is_err());
}

#[test]
fn schemas_that_grow_are_refused() {
    let large = json!({"enum": ["x".repeat(SCHEMA_BYTES_MAX)]});
    assert!(matches!(check(&large, Strictness::Strict), Err(GrammarError::TooLarge { .. })));
    let many = json!({"anyOf": vec![json!({}); SCHEMAS_MAX + 1]});
    assert!(matches!(check(&many, Strictness::Strict), Err(GrammarError::TooLarge { .. })));
}

/// References that double at every level do not double the schema.
#[test]
fn doubling_references_stay_small() {
    let mut definitions = serde_json::Map::new();
    for level in 0..64 {
        let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
        definitions.insert(format!("l{level}"), json!({"oneOf": [next, {"type": "array", "items": next}]}));
    }
    definitions.insert("l64".into(), json!({"type": "null"}));
    let schema = json!({"$ref": "#/$defs/l0", "$defs": definitions});
    assert!(check(&schema, Strictness::Strict).is_ok());
}
