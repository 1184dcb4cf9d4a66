//! The grammar that keeps to a [`Layout`], for requests that demand calls.
//!
//! Lark in llguidance's dialect. Markers that are tokens are written by their ids, because free text never matches a
//! token. Arguments come in the schema's order, and each value keeps to its own schema; `literals` writes those that are
//! not JSON. A text between tags or quotes of a format's own is any text up to its end: of its schema only `enum` and
//! `const` are held.

mod literals;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{Constraint, Request, StartAt, Tool, ToolChoice};

use crate::layout::{Arguments, Bare, Layout, List, Named, Object};
use crate::markers::Tag;
use crate::symbols::literal;
use crate::types;

use literals::Notation;

/// White space between two parts, as in `reader`.
const SPACE: &str = "/[ \\n]{1,4}/";

/// Inside JSON. Without a bound a model may write white space for ever.
const JSON_SPACE: &str = "[ \\n\\r\\t]{0,8}";

/// The grammar of the calls that a request demands; `None` where the model decides.
pub fn constrain(layout: &Layout, request: &Request) -> Result<Option<Constraint>, PluginError> {
    let tools = demanded(request);
    if tools.is_empty() {
        return Ok(None);
    }
    let mut writer = Writer::new(request, layout.markers());
    let calls: Vec<String> = tools.iter().map(|tool| writer.call(layout, tool)).collect();
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
    /// Rules with a number in their names.
    numbered: usize,
    /// Names that several places refer to, written once.
    shared: BTreeSet<String>,
}

impl Writer {
    pub fn new(request: &Request, markers: Vec<String>) -> Self {
        let tags = markers.iter().map(|text| Tag::of(request, text)).collect();
        let rules = format!("w: SPACE?\nSPACE: {SPACE}\n");
        Self { tags, rules, numbered: 0, shared: BTreeSet::new() }
    }

    pub fn rule(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.rules, "{name}: {body}");
    }

    fn fresh(&mut self, what: &str) -> String {
        self.numbered += 1;
        format!("{what}_{}", self.numbered)
    }

    /// Items of which some may be left out, in their order, with a separator between those that come.
    fn members(&mut self, items: &[(String, bool)], separator: &str) -> String {
        let name = self.fresh("members");
        // Before the first item, and behind one, at the K-th.
        let (none, some) = (|k: usize| format!("{name}_none_{k}"), |k: usize| format!("{name}_some_{k}"));
        self.rule(&none(items.len()), "\"\"");
        self.rule(&some(items.len()), "\"\"");
        for (k, (body, required)) in items.iter().enumerate().rev() {
            let item = format!("{name}_item_{k}");
            self.rule(&item, body);
            let (begin, skip) = (format!("{item} {}", some(k + 1)), none(k + 1));
            self.rule(&none(k), &if *required { begin } else { format!("{begin} | {skip}") });
            let go_on = format!("{separator} {item}");
            let go_on = if *required { go_on } else { format!("({go_on})?") };
            self.rule(&some(k), &format!("{go_on} {}", some(k + 1)));
        }
        none(0)
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
        let name = self.fresh("text");
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
                let closes: Vec<String> = layout.call_close.iter().map(|text| self.text(text)).collect();
                // Alternatives that are not in pairs: some are written without an end.
                let close = match closes.get(which).filter(|_| closes.len() == layout.call_open.len()) {
                    Some(close) => close.clone(),
                    None if closes.is_empty() => String::new(),
                    None => format!("({})?", closes.join(" | ")),
                };
                (self.text(text), close)
            }
            None => Default::default(),
        };
        let separator = layout.separators.iter().find(|text| !text.is_empty()).map(|text| self.text(text));
        let more = |one: &str, between: &str| match parallel {
            true => format!("{one} (w {between} w {one})*"),
            false => one.to_string(),
        };
        let calls = match (list, separator) {
            (true, _) => {
                let listed = format!("\"[\" w {} w \"]\"", more("call", "\",\""));
                // Where something says that calls come, one may stand without a list, and in a section several.
                let inner = match (layout.list, &section, &open) {
                    (List::May, Some(_), _) => format!("({listed} | {})", more("call", "")),
                    (List::May, None, Some(_)) => format!("({listed} | call)"),
                    _ => listed,
                };
                let block = format!("{call_open} w {inner} w {call_close}");
                if open.is_some() { more(&block, "") } else { block }
            }
            (false, Some(separator)) => format!("{call_open} w {} w {call_close}", more("call", &separator)),
            (false, None) => more(&format!("{call_open} w call w {call_close}"), ""),
        };
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

    fn call(&mut self, layout: &Layout, tool: &Tool) -> String {
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
        let arguments = self.arguments(named, &schema);
        let end = named.arguments_close.first().map(|text| self.text(text)).unwrap_or_default();
        format!("{open} {index} w {close} w {arguments} w {end}")
    }

    fn arguments(&mut self, named: &Named, schema: &Value) -> String {
        if named.arguments == Arguments::Json {
            return Self::json(schema);
        }
        let (separator, end) = match named.arguments {
            Arguments::Python => ("\",\" w", "\")\""),
            Arguments::Bare => ("\",\"", "\"}\""),
            Arguments::Json | Arguments::Tags => ("w", ""),
        };
        let items: Vec<(String, bool)> = properties(schema)
            .map(|(key, inner, required)| (self.argument(named, key, schema, inner), required))
            .collect();
        format!("{} {end}", self.members(&items, separator))
    }

    fn argument(&mut self, named: &Named, key: &str, root: &Value, schema: &Value) -> String {
        match named.arguments {
            Arguments::Python => {
                format!("{} {}", Value::from(format!("{key}=")), self.literal(Notation::Python, root, schema))
            }
            Arguments::Bare => {
                let notation = Notation::Bare { quote: &named.quote };
                format!("{} {}", Value::from(format!("{key}:")), self.literal(notation, root, schema))
            }
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
}

/// Declared properties with their schemas, and whether they must come.
fn properties(schema: &Value) -> impl Iterator<Item = (&str, &Value, bool)> {
    let required = schema["required"].as_array();
    let is_required = move |key: &str| required.into_iter().flatten().any(|name| name.as_str() == Some(key));
    let declared = schema["properties"].as_object().into_iter().flatten();
    declared.map(move |(key, inner)| (key.as_str(), inner, is_required(key)))
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
