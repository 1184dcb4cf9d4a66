//! Where references lead. Only inside the schema: nothing is ever fetched.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Definition, Walker};
use crate::GrammarError;

/// References followed by writing their target in their place, one inside the other.
const INLINE_DEPTH_MAX: usize = 3;

/// Names of schemas inside a schema, and the pointers that they stand for.
pub(super) struct References<'a> {
    root: &'a Value,
    /// `$id` as written, without an empty fragment, to pointer.
    ids: HashMap<String, String>,
    /// Pointer of the document and anchor, to pointer.
    anchors: HashMap<(String, String), String>,
    /// Pointers of schemas that start a document, longest first.
    documents: Vec<String>,
}

impl<'a> References<'a> {
    pub fn new(root: &'a Value) -> Self {
        let mut found = Self { root, ids: HashMap::new(), anchors: HashMap::new(), documents: vec![String::new()] };
        found.collect(root, &mut String::new(), "");
        found.documents.sort_by_key(|pointer| std::cmp::Reverse(pointer.len()));
        found
    }

    fn collect(&mut self, value: &Value, pointer: &mut String, document: &str) {
        let mut own = document.to_owned();
        if let Value::Object(map) = value {
            own = self.names(map, pointer, document);
        }
        let mut child = |step: &str, value: &Value| {
            let length = pointer.len();
            pointer.push('/');
            pointer.push_str(&escape(step));
            self.collect(value, pointer, &own);
            pointer.truncate(length);
        };
        match value {
            // Values are no schemas: a property may be called `$id` in them.
            Value::Object(map) => map
                .iter()
                .filter(|(key, _)| !matches!(key.as_str(), "enum" | "const" | "default" | "examples"))
                .for_each(|(key, value)| child(key, value)),
            Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| child(&i.to_string(), value)),
            _ => {}
        }
    }

    /// Notes the names of one schema; answers the document its children are in.
    fn names(&mut self, map: &Map<String, Value>, pointer: &str, document: &str) -> String {
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let mut document = document.to_owned();
        for id in ["$id", "id"].into_iter().filter_map(text) {
            match id.strip_prefix('#') {
                Some(anchor) => drop(self.anchors.insert((document.clone(), anchor.into()), pointer.into())),
                None => {
                    self.ids.entry(id.trim_end_matches('#').to_owned()).or_insert_with(|| pointer.to_owned());
                    document = pointer.to_owned();
                    if !pointer.is_empty() {
                        self.documents.push(document.clone());
                    }
                }
            }
        }
        for anchor in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text) {
            self.anchors.insert((document.clone(), anchor.to_owned()), pointer.to_owned());
        }
        document
    }

    pub fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.root.pointer(pointer)
    }

    /// The document that a place belongs to.
    pub fn base_of(&self, pointer: &str) -> String {
        let holds = |document: &&String| {
            pointer.strip_prefix(document.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.documents.iter().find(holds).cloned().unwrap_or_default()
    }

    /// The pointer of a reference's target, if it is in the schema.
    fn resolve(&self, reference: &str, base: &str) -> Option<String> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let document = if address.is_empty() { base.to_owned() } else { self.document(address, base)? };
        let fragment = percent_decoded(fragment)?;
        let pointer = match fragment.as_str() {
            "" => document,
            path if path.starts_with('/') => document + path,
            anchor => self.anchors.get(&(document, anchor.to_owned()))?.clone(),
        };
        self.at(&pointer).map(|_| pointer)
    }

    /// The document of an address: as written, or relative to the base's own `$id`.
    fn document(&self, address: &str, base: &str) -> Option<String> {
        if let Some(pointer) = self.ids.get(address) {
            return Some(pointer.clone());
        }
        let own = self.ids.iter().find(|(_, pointer)| pointer.as_str() == base).map(|(id, _)| id.as_str())?;
        let joined = match (address.strip_prefix('/'), own.split_once("://")) {
            (Some(path), Some((scheme, rest))) => {
                format!("{scheme}://{}/{path}", rest.split('/').next().unwrap_or_default())
            }
            _ => format!("{}{address}", own.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"))),
        };
        self.ids
            .get(&joined)
            .or_else(|| self.ids.iter().find(|(id, _)| joined.ends_with(&format!("/{id}"))).map(|(_, p)| p))
            .cloned()
    }
}

impl Walker<'_> {
    /// The definition that a reference means, as `#/$defs/NAME`.
    pub(super) fn reference(&mut self, reference: &Value) -> Result<String, GrammarError> {
        let Some(text) = reference.as_str() else { return Err(self.wrong(Some("$ref"), "must be a string")) };
        let Some(pointer) = self.references.resolve(text, &self.base) else {
            let message = format!("`{text}` is not in this schema, and nothing outside it is fetched");
            return Err(self.wrong(Some("$ref"), message));
        };
        let known = self.definitions.iter().position(|definition| definition.pointer == pointer);
        let index = known.unwrap_or_else(|| {
            let name = format!("d{}", self.definitions.len());
            self.definitions.push(Definition { pointer, name, schema: Value::Bool(true) });
            self.definitions.len() - 1
        });
        Ok(format!("#/$defs/{}", self.definitions[index].name))
    }

    /// A bare reference's target in its place, unless that leads back to itself.
    pub(super) fn inlined(&mut self, schema: Value) -> Result<Value, GrammarError> {
        let bare = schema.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("$ref"));
        let Some(name) = bare.and_then(Value::as_str).and_then(|text| text.strip_prefix("#/$defs/")) else {
            return Ok(schema);
        };
        let Some(pointer) = self.definitions.iter().find(|d| d.name == name).map(|d| d.pointer.clone()) else {
            return Ok(schema);
        };
        let inside = self.pointer().starts_with(&pointer);
        if inside || self.inlining.len() >= INLINE_DEPTH_MAX || self.inlining.contains(&pointer) {
            return Ok(schema);
        }
        self.inlining.push(pointer.clone());
        let target = self.target(&pointer);
        self.inlining.pop();
        target
    }
}

/// One step of a JSON pointer.
pub(super) fn escape(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
