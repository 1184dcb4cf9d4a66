//! JSON schemas, checked and put into the form that is enforced.
//!
//! | of JSON Schema | here |
//! |---|---|
//! | types, `enum`, `const`, numbers' bounds and `multipleOf`, lengths, `pattern` | enforced |
//! | `properties`, `patternProperties`, `additionalProperties`, `required`, `items`, `prefixItems` and their counts | enforced |
//! | `allOf`, `anyOf`, `$ref` inside the schema, recursion | enforced |
//! | `oneOf` | enforced where no value can match two of its options |
//! | `dependentRequired`, `dependentSchemas`, `propertyNames`, `not`, `if`, `unevaluated…` | enforced where they can be written with the keywords above |
//! | `format` | enforced for the formats of [`keywords::FORMATS`]; others are a note, as the standard says, with a warning |
//! | `uniqueItems`, `contains`, `minContains`, `maxContains`, `$dynamicRef` | refused |
//! | titles, descriptions and other notes | dropped |
//! | keywords that no draft knows | dropped, with a warning |
//!
//! What is refused is an error with its place. Under [`Strictness::Lenient`] it is dropped with a warning instead: the
//! answer is then held to the rest of the schema.

mod counts;
pub mod keywords;
mod negate;
mod refs;
mod rewrite;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::GrammarError;
use keywords::Kind;
use refs::References;

/// Longest schema, as JSON text. The largest public schemas are around 200 KiB, and tools share one request of 4 MiB.
pub const SCHEMA_BYTES_MAX: usize = 512 * 1024;

/// Schemas inside one schema, after references were followed once each. It bounds the recursion of the compiler, which
/// has a stack of [`crate::compiler::STACK_BYTES`].
pub const SCHEMAS_MAX: usize = 8192;

/// Whether what cannot be enforced is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    Strict,
    Lenient,
}

/// A schema of enforced keywords only. Its references all read `#/$defs/NAME`.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    pub schema: Value,
    /// What has no effect, for the client to know.
    pub warnings: Vec<String>,
}

impl Checked {
    /// The text that a stage may put behind `%json` in a grammar of its own.
    pub fn for_stages(self) -> String {
        crate::source::with_white_space(self.schema).to_string()
    }
}

/// Checks a schema and reduces it to what is enforced.
pub fn check(schema: &Value, strictness: Strictness) -> Result<Checked, GrammarError> {
    let bytes = schema.to_string().len();
    if bytes > SCHEMA_BYTES_MAX {
        return Err(GrammarError::TooLarge {
            what: "the schema's size in bytes",
            value: bytes as u64,
            limit: SCHEMA_BYTES_MAX as u64,
        });
    }
    let mut walker = Walker {
        references: References::new(schema),
        old_draft: is_old_draft(schema),
        strictness,
        path: Vec::new(),
        base: String::new(),
        definitions: Vec::new(),
        inlining: Vec::new(),
        schemas: 0,
        warnings: BTreeSet::new(),
    };
    let mut root = walker.schema(schema)?;
    let mut next = 0;
    while let Some(definition) = walker.definitions.get(next) {
        let pointer = definition.pointer.clone();
        let reduced = walker.target(&pointer)?;
        walker.definitions[next].schema = reduced;
        next += 1;
    }
    if !walker.definitions.is_empty() {
        let definitions: Map<String, Value> =
            walker.definitions.into_iter().map(|definition| (definition.name, definition.schema)).collect();
        // A bare reference at the root still needs a place for the definitions.
        if !root.is_object() {
            root = json!({"allOf": [root]});
        }
        root["$defs"] = Value::Object(definitions);
    }
    Ok(Checked { schema: root, warnings: walker.warnings.into_iter().collect() })
}

/// Up to draft 7 a reference's neighbours have no meaning.
fn is_old_draft(schema: &Value) -> bool {
    let draft = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    ["draft-03", "draft-04", "draft-06", "draft-07"].iter().any(|old| draft.contains(old))
}

/// A schema that some reference names.
struct Definition {
    /// Where it stands in the client's schema.
    pointer: String,
    name: String,
    schema: Value,
}

struct Walker<'a> {
    references: References<'a>,
    old_draft: bool,
    strictness: Strictness,
    /// The steps from the root to the schema at hand.
    path: Vec<String>,
    /// Pointer of the nearest schema above with an `$id` of its own: its fragments start there.
    base: String,
    definitions: Vec<Definition>,
    /// Targets that are being written in place of a reference.
    inlining: Vec<String>,
    schemas: usize,
    warnings: BTreeSet<String>,
}

type Reduced = Map<String, Value>;

impl Walker<'_> {
    fn schema(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        self.schemas += 1;
        if self.schemas > SCHEMAS_MAX {
            let (value, limit) = (self.schemas as u64, SCHEMAS_MAX as u64);
            return Err(GrammarError::TooLarge { what: "the number of schemas in the schema", value, limit });
        }
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(keywords) => self.keywords(keywords),
            _ => Err(self.wrong(None, "a schema must be an object or a boolean")),
        }
    }

    /// The schema at a pointer of the client's schema, reduced.
    fn target(&mut self, pointer: &str) -> Result<Value, GrammarError> {
        let found = self.references.at(pointer).cloned();
        let Some(found) = found else { return Err(self.wrong(Some("$ref"), format!("`{pointer}` is not there"))) };
        let steps = pointer.split('/').skip(1).map(str::to_owned).collect();
        let path = std::mem::replace(&mut self.path, steps);
        let base = std::mem::replace(&mut self.base, self.references.base_of(pointer));
        let reduced = self.schema(&found);
        (self.path, self.base) = (path, base);
        reduced
    }

    fn keywords(&mut self, keywords: &Map<String, Value>) -> Result<Value, GrammarError> {
        let outer = self.enter_id(keywords);
        let reduced = self.each_keyword(keywords);
        self.base = outer;
        let mut reduced = reduced?;
        self.rewrite(keywords, &mut reduced)?;
        self.check_counts(&mut reduced)?;
        Ok(Value::Object(reduced))
    }

    /// A schema with an `$id` starts a document of its own. Answers the base to go back to.
    fn enter_id(&mut self, keywords: &Map<String, Value>) -> String {
        let here = self.pointer();
        match keywords.get("$id").or_else(|| keywords.get("id")).and_then(Value::as_str) {
            Some(id) if !id.starts_with('#') => std::mem::replace(&mut self.base, here),
            _ => self.base.clone(),
        }
    }

    fn each_keyword(&mut self, keywords: &Map<String, Value>) -> Result<Reduced, GrammarError> {
        let mut reduced = Reduced::new();
        if let Some(reference) = keywords.get("$ref") {
            let target = self.reference(reference)?;
            reduced.insert("$ref".into(), target.into());
            if self.old_draft {
                return Ok(reduced);
            }
        }
        for (keyword, value) in keywords {
            match keywords::kind(keyword) {
                Kind::Plain => {
                    let value = self.plain(keyword, value)?;
                    reduced.extend(value.map(|value| (keyword.clone(), value)));
                }
                Kind::Schema => {
                    let value = self.below(&[keyword], value)?;
                    reduced.insert(keyword.clone(), value);
                }
                Kind::Schemas | Kind::SchemaOrSchemas if value.is_array() => {
                    let value = self.list(keyword, value)?;
                    reduced.insert(keyword.clone(), value);
                }
                Kind::Schemas => return Err(self.wrong(Some(keyword), "must be an array of schemas")),
                Kind::SchemaOrSchemas => {
                    let value = self.below(&[keyword], value)?;
                    reduced.insert(keyword.clone(), value);
                }
                Kind::Named => {
                    let value = self.named(keyword, value)?;
                    reduced.insert(keyword.clone(), value);
                }
                // References are above, rewritten keywords come after all others, definitions when they are named.
                Kind::Reference | Kind::Rewritten | Kind::Note => {}
                Kind::Refused => self.refuse(keyword, value)?,
                Kind::Unknown => {
                    self.warnings.insert(format!("schema keyword `{keyword}` is not known and has no effect"));
                }
            }
        }
        Ok(reduced)
    }

    /// A schema below this one.
    fn below(&mut self, steps: &[&str], value: &Value) -> Result<Value, GrammarError> {
        let depth = self.path.len();
        self.path.extend(steps.iter().map(|step| refs::escape(step)));
        let reduced = self.schema(value);
        self.path.truncate(depth);
        reduced
    }

    fn list(&mut self, keyword: &str, value: &Value) -> Result<Value, GrammarError> {
        let list = value.as_array().map_or(&[][..], Vec::as_slice);
        if list.is_empty() && keyword != "items" && keyword != "prefixItems" {
            return Err(self.wrong(Some(keyword), "must have at least one schema"));
        }
        let mut reduced = Vec::with_capacity(list.len());
        for (index, schema) in list.iter().enumerate() {
            let option = self.below(&[keyword, &index.to_string()], schema)?;
            // Whether options exclude each other can only be seen when they are there and not referred to.
            reduced.push(if keyword == "oneOf" { self.inlined(option)? } else { option });
        }
        Ok(Value::Array(reduced))
    }

    fn named(&mut self, keyword: &str, value: &Value) -> Result<Value, GrammarError> {
        let Some(map) = value.as_object() else {
            return Err(self.wrong(Some(keyword), "must be an object of schemas"));
        };
        let mut reduced = Reduced::new();
        for (name, schema) in map {
            reduced.insert(name.clone(), self.below(&[keyword, name], schema)?);
        }
        Ok(Value::Object(reduced))
    }

    fn refuse(&mut self, keyword: &str, value: &Value) -> Result<(), GrammarError> {
        if keywords::asks_nothing(keyword, value) {
            return Ok(());
        }
        match self.strictness {
            Strictness::Strict => Err(self.wrong(Some(keyword), "cannot be enforced; leave it out")),
            Strictness::Lenient => {
                self.warnings.insert(format!("schema keyword `{keyword}` cannot be enforced and has no effect"));
                Ok(())
            }
        }
    }

    fn wrong(&self, keyword: Option<&str>, message: impl Into<String>) -> GrammarError {
        GrammarError::schema(self.pointer(), keyword, message)
    }

    fn pointer(&self) -> String {
        self.path.iter().fold(String::new(), |pointer, step| pointer + "/" + step)
    }
}

#[cfg(test)]
mod tests;
