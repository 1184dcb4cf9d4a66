//! What each keyword of JSON Schema is to us.

use serde_json::Value;

/// How a keyword is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value without schemas in it.
    Plain,
    Schema,
    Schemas,
    /// A schema, or up to 2019-09 a list of them.
    SchemaOrSchemas,
    /// Schemas by name.
    Named,
    Reference,
    /// Written with other keywords, or refused where that is not possible.
    Rewritten,
    /// Says nothing about which values are valid.
    Note,
    Refused,
    Unknown,
}

/// The formats that are enforced.
pub const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

pub fn kind(keyword: &str) -> Kind {
    match keyword {
        "type" | "enum" | "const" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
        | "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "pattern"
        | "format" | "required" => Kind::Plain,
        "additionalProperties" | "additionalItems" => Kind::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Kind::Schemas,
        "items" => Kind::SchemaOrSchemas,
        "properties" | "patternProperties" => Kind::Named,
        "$ref" => Kind::Reference,
        "not"
        | "if"
        | "then"
        | "else"
        | "dependentRequired"
        | "dependentSchemas"
        | "dependencies"
        | "propertyNames"
        | "unevaluatedProperties"
        | "unevaluatedItems"
        | "nullable" => Kind::Rewritten,
        "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$vocabulary" | "$comment"
        | "$defs" | "definitions" | "title" | "description" | "default" | "examples" | "example" | "deprecated"
        | "readOnly" | "writeOnly" | "contentEncoding" | "contentMediaType" | "contentSchema" | "discriminator"
        | "xml" | "externalDocs" => Kind::Note,
        "uniqueItems" | "contains" | "minContains" | "maxContains" | "$dynamicRef" | "$recursiveRef" => Kind::Refused,
        _ if keyword.starts_with("x-") => Kind::Note,
        _ => Kind::Unknown,
    }
}

/// Whether a refused keyword has a value that every value satisfies.
pub(super) fn asks_nothing(keyword: &str, value: &Value) -> bool {
    match keyword {
        "uniqueItems" => value == &Value::Bool(false),
        // They only mean something beside `contains`, which is refused itself.
        "minContains" | "maxContains" => true,
        _ => false,
    }
}
