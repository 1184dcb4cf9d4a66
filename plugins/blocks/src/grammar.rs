//! The grammar that keeps to a [`Layout`], for requests that demand calls.
//!
//! Lark in llguidance's dialect. Markers that are tokens are written by their ids, because free text never matches a
//! token. Arguments in JSON keep to the tool's schema as a whole; where each has a tag or a keyword of its own, required
//! ones come first, in the schema's order, and each value keeps to its own schema. A text between tags is any text up to
//! the closing tag: of its schema only `enum` and `const` are held.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{Constraint, Request, StartAt, Tool, ToolChoice};

use crate::layout::{Arguments, Bare, Layout, List, Named, Object};
use crate::markers::Tag;
use crate::symbols::literal;
use crate::types;

/// White space between two parts, as in `reader`.
const SPACE: &str = "/[ \\n]{1,4}/";

/// Inside JSON. Without a bound a model may write white space for ever.
const JSON_SPACE: &str = "[ \\n\\r\\t]{0,8}";

/// Schemas inside one another, where the values are not JSON.
const DEPTH_MAX: usize = 16;

/// The grammar of the calls that a request demands; `None` where the model decides.
pub fn constrain(layout: &Layout, request: &Request) -> Result<Option<Constraint>, PluginError> {
    let tools = demanded(request);
    if tools.is_empty() {
        return Ok(None);
    }
    let mut writer = Writer::new(request, layout.markers());
    let calls: Vec<String> = tools.iter().enumerate().map(|(n, tool)| writer.call(layout, n, tool)).collect();
    writer.rule("call", &calls.join("\n  | "));
    let start = writer.block(layout, request.parallel_calls);
    Ok(Some(writer.finish(&start)))
}

/// The tools of which one must be called.
pub fn demanded(request: &Request) -> Vec<&Tool> {
    let among = |name: &str| match &request.tool_choice {
        ToolChoice::None | ToolChoice::Auto => false,
        ToolChoice::Required => true,
        ToolChoice::Named(wanted) => wanted == name,
        ToolChoice::Allowed(names) => names.iter().any(|wanted| wanted == name),
    };
    request.tools.iter().filter(|tool| among(&tool.name)).collect()
}

/// Writes rules.
pub struct Writer {
    tags: Vec<Tag>,
    rules: String,
    texts: usize,
}

impl Writer {
    pub fn new(request: &Request, markers: Vec<String>) -> Self {
        let tags = markers.iter().map(|text| Tag::of(request, text)).collect();
        Self { tags, rules: format!("w: SPACE?\nSPACE: {SPACE}\n"), texts: 0 }
    }

    pub fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    pub fn finish(self, start: &str) -> Constraint {
        Constraint {
            start: StartAt::AfterReasoning,
            language: "lark".into(),
            grammar: format!("start: w {start}\n{}", self.rules),
            ext: Vec::new(),
        }
    }

    /// A text: tokens by id, the rest quoted. Empty for an empty text.
    pub fn text(&self, text: &str) -> String {
        let (mut out, mut plain) = (Vec::new(), String::new());
        for symbol in literal(text, &self.tags) {
            if let Some(c) = symbol.as_char() {
                plain.push(c);
                continue;
            }
            if !plain.is_empty() {
                out.push(Value::from(std::mem::take(&mut plain)).to_string());
            }
            let token = symbol.as_tag().and_then(|tag| self.tags[tag].token);
            out.extend(token.map(|token| format!("<[{token}]>")));
        }
        if !plain.is_empty() {
            out.push(Value::from(plain).to_string());
        }
        out.join(" ")
    }

    fn is_token(&self, text: &str) -> bool {
        self.tags.iter().any(|tag| tag.text == text && tag.token.is_some())
    }

    /// JSON that keeps to a schema.
    pub fn json(schema: &Value) -> String {
        let mut schema = match schema {
            Value::Object(_) => schema.clone(),
            _ => json!({}),
        };
        if schema.get("x-guidance").is_none() {
            schema["x-guidance"] = json!({"whitespace_pattern": JSON_SPACE});
        }
        format!("%json {schema}")
    }

    /// Any text, and `end` behind it.
    fn any_text(&mut self, end: &str) -> String {
        let name = format!("text_{}", self.texts);
        self.texts += 1;
        let symbols = literal(end, &self.tags);
        // What of the end is text before its first token, if it has one.
        let before: String = symbols.iter().map_while(|symbol| symbol.as_char()).collect();
        let token = &end[before.len()..];
        if token.is_empty() {
            self.rule(&format!("{name}[suffix={}]", Value::from(end)), "/(?s:.*)/");
        } else if before.is_empty() {
            // No text can be taken for a token.
            self.rule(&name, &format!("/(?s:.+)/? {}", self.text(end)));
        } else {
            let part = format!("{name}_part");
            self.rule(&format!("{part}[suffix={}]", Value::from(before)), "/(?s:.*)/");
            self.rule(&name, &format!("{part} ({} | {name})", self.text(token)));
        }
        name
    }

    /// What opens the block: the alternative that the tokenizer knows, or the first.
    fn chosen<'a>(&self, texts: &'a [String]) -> Option<(usize, &'a str)> {
        let known = texts.iter().position(|text| self.is_token(text)).unwrap_or(0);
        texts.get(known).map(|text| (known, text.as_str()))
    }

    /// A block of calls.
    fn block(&mut self, layout: &Layout, parallel: bool) -> String {
        let section = self.chosen(&layout.section_open).filter(|(_, text)| self.opens(layout, text));
        let open = self.chosen(&layout.call_open).filter(|(_, text)| self.opens(layout, text));
        let list = self.list(layout);
        let (call_open, call_close) = match open {
            Some((which, text)) => {
                // Alternatives that are not in pairs: some are written without an end.
                let paired = layout.call_close.len() == layout.call_open.len();
                let close = layout.call_close.get(which).or(layout.call_close.first()).map(|text| self.text(text));
                let close = close.map(|close| if paired { close } else { format!("({close})?") });
                (self.text(text), close.unwrap_or_default())
            }
            None => Default::default(),
        };
        let one = if list { "call".to_string() } else { format!("{call_open} w call w {call_close}") };
        let separator =
            layout.separators.iter().find(|text| !text.is_empty()).filter(|_| open.is_none() && section.is_none());
        let between = match (list, separator) {
            (true, _) => "\",\"".to_string(),
            (false, Some(text)) => self.text(text),
            (false, None) => String::new(),
        };
        let mut calls = if parallel { format!("{one} (w {between} w {one})*") } else { one };
        if list {
            calls = format!("{call_open} w \"[\" w {calls} w \"]\" w {call_close}");
        }
        match section {
            Some((which, text)) => {
                let close = layout.section_close.get(which).map(|text| self.text(text)).unwrap_or_default();
                format!("{} w {calls} w {close}", self.text(text))
            }
            None => calls,
        }
    }

    /// Where a call may be the whole answer, a marker is written only if the tokenizer has it.
    fn opens(&self, layout: &Layout, text: &str) -> bool {
        layout.bare != Bare::AnswerStart || self.is_token(text)
    }

    /// The layout's call as an object, if that is how this tokenizer's model writes it.
    fn object<'a>(&self, layout: &'a Layout) -> Option<&'a Object> {
        let named = layout.named.as_ref().is_some_and(|named| match named.arguments {
            Arguments::Json => named.name_close.iter().any(|text| self.is_token(text)),
            _ => true,
        });
        layout.object.as_ref().filter(|_| !named)
    }

    fn list(&self, layout: &Layout) -> bool {
        match layout.list {
            List::Never => false,
            List::Must => true,
            List::May => {
                let python = layout.named.as_ref().is_some_and(|named| named.arguments == Arguments::Python);
                python || self.object(layout).is_some()
            }
        }
    }

    fn call(&mut self, layout: &Layout, number: usize, tool: &Tool) -> String {
        let schema = tool.schema_json.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let schema = schema.filter(Value::is_object).unwrap_or_else(|| json!({"type": "object"}));
        if let Some(object) = self.object(layout) {
            let keys = [&object.name_keys, &object.argument_keys].map(|keys| keys.first().cloned().unwrap_or_default());
            let [name_key, arguments_key] = keys.map(|key| Value::from(key).to_string());
            let name = Value::from(tool.name.as_str()).to_string();
            let head = Value::from(format!("{{{name_key}: {name}, {arguments_key}: ")).to_string();
            return format!("{head} {} \"}}\"", Self::json(&schema));
        }
        let Some(named) = &layout.named else { return String::new() };
        let name = if named.id_in_name { format!("functions.{}:", tool.name) } else { tool.name.clone() };
        let index = if named.id_in_name { "/[0-9]{1,3}/" } else { "" };
        let open = self.text(&(named.name_open.clone() + &name));
        let close = named.name_close.first().map(|text| self.text(text)).unwrap_or_default();
        let arguments = self.arguments(named, number, &schema);
        let end = named.arguments_close.first().map(|text| self.text(text)).unwrap_or_default();
        format!("{open} {index} w {close} w {arguments} w {end}")
    }

    fn arguments(&mut self, named: &Named, number: usize, schema: &Value) -> String {
        if named.arguments == Arguments::Json {
            return Self::json(schema);
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let (mut first, mut optional) = (Vec::new(), Vec::new());
        for (key, inner) in properties {
            let item = self.argument(named, key, schema, inner);
            if required.contains(&key.as_str()) { first.push(item) } else { optional.push(item) }
        }
        let (separator, end) = match named.arguments {
            Arguments::Python => ("\",\" w", "\")\""),
            Arguments::Bare => ("\",\"", "\"}\""),
            Arguments::Json | Arguments::Tags => ("w", ""),
        };
        // The rule `more_N_K` adds optional ones from the K-th on.
        let rule = |k: usize| format!("more_{number}_{k}");
        self.rule(&rule(optional.len()), "\"\"");
        for (k, item) in optional.iter().enumerate().rev() {
            self.rule(&rule(k), &format!("({separator} {item})? {}", rule(k + 1)));
        }
        let some = if first.is_empty() {
            let starts = optional.iter().enumerate().map(|(k, item)| format!("{item} {}", rule(k + 1)));
            format!("({})", starts.chain(["\"\"".to_string()]).collect::<Vec<_>>().join(" | "))
        } else {
            format!("{} {}", first.join(&format!(" {separator} ")), rule(0))
        };
        format!("{some} {end}")
    }

    fn argument(&mut self, named: &Named, key: &str, root: &Value, schema: &Value) -> String {
        match named.arguments {
            Arguments::Python => format!("{} {}", Value::from(format!("{key}=")), Self::json(&within(root, schema))),
            Arguments::Bare => format!("{} {}", Value::from(format!("{key}:")), self.bare(named, root, schema, 0)),
            Arguments::Json | Arguments::Tags => self.tagged(named, key, root, schema),
        }
    }

    fn tagged(&mut self, named: &Named, key: &str, root: &Value, schema: &Value) -> String {
        let tags = &named.tags;
        let text = types::of(root, schema).takes_text();
        let typed = if text { &tags.text_open } else { &tags.json_open };
        let open = typed.first().or(tags.value_open.first()).cloned().unwrap_or_default();
        let gap = if tags.key_close.is_empty() { "" } else { "w" };
        let head = self.text(&format!("{}{key}{}", tags.key_open, tags.key_close));
        let line = if tags.trim_newline { "\n" } else { "" };
        let open = self.text(&(open + line));
        let close = format!("{line}{}", tags.value_close);
        let value = match (choices(schema), text) {
            (Some(choices), true) => format!("({}) {}", choices.join(" | "), self.text(&close)),
            (_, true) => self.any_text(&close),
            (_, false) => format!("{} {}", Self::json(&within(root, schema)), self.text(&close)),
        };
        format!("{head} {gap} {open} {value}")
    }

    /// A value in the notation with bare keys.
    fn bare(&mut self, named: &Named, root: &Value, schema: &Value, depth: usize) -> String {
        let quote = self.text(&named.quote);
        let kind = types::of(root, schema);
        if let (Some(choices), true) = (choices(schema), kind.takes_text()) {
            return format!("{quote} ({}) {quote}", choices.join(" | "));
        }
        if kind.takes_text() || depth == DEPTH_MAX {
            return format!("{quote} {}", self.any_text(&named.quote));
        }
        if let (true, Some(properties)) = (kind.takes_object(), schema["properties"].as_object()) {
            let member = |(key, inner): (&String, &Value)| {
                format!("{} {}", Value::from(format!("{key}:")), self.bare(named, root, inner, depth + 1))
            };
            let members: Vec<String> = properties.iter().map(member).collect();
            return format!("\"{{\" {} \"}}\"", members.join(" \",\" "));
        }
        if kind.takes_object() {
            return "\"{\" \"}\"".into();
        }
        if kind.takes_array() {
            let item = self.bare(named, root, &schema["items"], depth + 1);
            return format!("\"[\" ({item} (\",\" {item})*)? \"]\"");
        }
        Self::json(&within(root, schema))
    }
}

/// A property's schema with the definitions that it may refer to.
fn within(root: &Value, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(object) = schema.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                object.insert(key.into(), definitions.clone());
            }
        }
    }
    schema
}

/// The texts of an `enum` or a `const`, quoted; `None` where any text will do.
fn choices(schema: &Value) -> Option<Vec<String>> {
    let listed = schema["enum"].as_array().map(Vec::as_slice).or(schema.get("const").map(std::slice::from_ref))?;
    let texts = listed.iter().map(|value| match value {
        Value::String(text) => Value::from(text.as_str()).to_string(),
        other => Value::from(other.to_string()).to_string(),
    });
    Some(texts.collect())
}
