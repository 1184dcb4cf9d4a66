//! Structural tags (vLLM, SGLang) as Lark.
//!
//! Two shapes are read: the old one (`structures` and `triggers`) and the one with a tree under `format`.

use std::fmt::Write;

use serde_json::Value;

use crate::schema::{self, Strictness};
use crate::source::{checked_lark, regex_of, with_white_space};
use crate::{GrammarError, Vocabulary};

/// Nodes of one structural tag.
const NODES_MAX: usize = 1024;

/// Any text, line ends included.
const ANY: &str = "(?s:.*)";

/// The Lark grammar of a structural tag, with warnings.
pub(crate) fn to_lark(tag: &Value, vocabulary: &Vocabulary) -> Result<(String, Vec<String>), GrammarError> {
    let mut writer = Writer { vocabulary, rules: String::new(), count: 0, warnings: Vec::new() };
    let start = match (tag.get("format"), tag.get("structures")) {
        (Some(format), _) => writer.node(format, "/format")?,
        (None, Some(structures)) => writer.legacy(structures, tag.get("triggers"))?,
        (None, None) => return Err(wrong("", "needs `format`, or `structures` and `triggers`")),
    };
    Ok((format!("start: {start}\n{}", writer.rules), writer.warnings))
}

fn wrong(pointer: &str, message: &str) -> GrammarError {
    GrammarError::schema(pointer, None, message)
}

struct Writer<'a> {
    vocabulary: &'a Vocabulary,
    rules: String,
    count: usize,
    warnings: Vec<String>,
}

/// One tagged stretch: its texts, and the rule of its content.
struct Tag {
    begin: String,
    content: String,
    end: String,
}

impl Writer<'_> {
    /// Adds a rule; answers its name.
    fn rule(&mut self, attributes: &str, body: &str) -> Result<String, GrammarError> {
        self.count += 1;
        if self.count > NODES_MAX {
            let (value, limit) = (self.count as u64, NODES_MAX as u64);
            return Err(GrammarError::TooLarge { what: "the number of parts of the structural tag", value, limit });
        }
        let name = format!("r{}", self.count);
        let _ = writeln!(self.rules, "{name}{attributes}: {body}");
        Ok(name)
    }

    fn node(&mut self, node: &Value, at: &str) -> Result<String, GrammarError> {
        let text = |field: &str| match node.get(field).and_then(Value::as_str) {
            Some(text) => Ok(text),
            None => Err(wrong(&format!("{at}/{field}"), "must be a string")),
        };
        match text("type")? {
            "const_string" => {
                let body = self.literal(text("value")?);
                self.rule("", &body)
            }
            "json_schema" => {
                let schema = node.get("json_schema").or_else(|| node.get("schema"));
                self.json(schema.unwrap_or(&Value::Bool(true)), &format!("{at}/json_schema"))
            }
            "regex" => {
                let regex = llguidance::regex_to_lark(text("pattern")?, "");
                self.rule("", &format!("/{regex}/"))
            }
            "grammar" => {
                let lark = checked_lark(text("grammar")?)?.to_owned();
                self.rule("", &format!("%lark {{\n{lark}\n}}"))
            }
            "any_text" => self.rule("", &format!("/{ANY}/")),
            "tag" => {
                let tag = self.tag(node, at)?;
                let body = self.tagged(&tag, "");
                self.rule("", &body)
            }
            "sequence" => {
                let parts = self.nodes(node, "elements", at)?;
                self.rule("", &parts.join(" "))
            }
            "or" => {
                let parts = self.nodes(node, "elements", at)?;
                self.rule("", &parts.join(" | "))
            }
            "triggered_tags" => self.triggered_node(node, at),
            "tags_with_separator" => self.separated(node, at),
            other => Err(wrong(&format!("{at}/type"), &format!("`{other}` is not supported"))),
        }
    }

    fn nodes(&mut self, node: &Value, field: &str, at: &str) -> Result<Vec<String>, GrammarError> {
        let at = format!("{at}/{field}");
        let list = list(node.get(field), &at)?;
        list.iter().enumerate().map(|(i, part)| self.node(part, &format!("{at}/{i}"))).collect()
    }

    fn json(&mut self, schema: &Value, at: &str) -> Result<String, GrammarError> {
        let checked = schema::check(schema, Strictness::Strict).map_err(|error| match error {
            GrammarError::Schema { pointer, keyword, message } => {
                GrammarError::Schema { pointer: format!("{at}{pointer}"), keyword, message }
            }
            other => other,
        })?;
        self.warnings.extend(checked.warnings);
        self.rule("", &format!("%json {}", with_white_space(checked.schema)))
    }

    fn tag(&mut self, node: &Value, at: &str) -> Result<Tag, GrammarError> {
        let text = |field: &str| match node.get(field) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(wrong(&format!("{at}/{field}"), "must be a string")),
        };
        let content = match (node.get("content"), node.get("schema")) {
            (Some(content), _) => self.node(content, &format!("{at}/content"))?,
            (None, Some(schema)) => self.json(schema, &format!("{at}/schema"))?,
            (None, None) => return Err(wrong(at, "needs `content`")),
        };
        Ok(Tag { begin: text("begin")?, content, end: text("end")? })
    }

    /// A tag whose first bytes were written already.
    fn tagged(&self, tag: &Tag, written: &str) -> String {
        let begin = tag.begin.strip_prefix(written).unwrap_or(&tag.begin);
        let parts = [self.literal(begin), tag.content.clone(), self.literal(&tag.end)];
        parts.into_iter().filter(|part| part != "\"\"").collect::<Vec<_>>().join(" ")
    }

    fn tags(&mut self, node: &Value, at: &str) -> Result<Vec<Tag>, GrammarError> {
        let at = format!("{at}/tags");
        let list = list(node.get("tags"), &at)?;
        list.iter().enumerate().map(|(i, tag)| self.tag(tag, &format!("{at}/{i}"))).collect()
    }

    fn separated(&mut self, node: &Value, at: &str) -> Result<String, GrammarError> {
        let tags = self.tags(node, at)?;
        let separator = self.literal(node.get("separator").and_then(Value::as_str).unwrap_or_default());
        let options: Vec<String> = tags.iter().map(|tag| self.tagged(tag, "")).collect();
        let one = self.rule("", &options.join(" | "))?;
        let flag = |name: &str| node.get(name).and_then(Value::as_bool).unwrap_or(false);
        match (flag("at_least_one"), flag("stop_after_first")) {
            (true, true) => self.rule("", &one),
            (false, true) => self.rule("", &format!("{one}?")),
            (true, false) => self.rule("", &format!("{one} ({separator} {one})*")),
            (false, false) => self.rule("", &format!("({one} ({separator} {one})*)?")),
        }
    }

    fn triggered_node(&mut self, node: &Value, at: &str) -> Result<String, GrammarError> {
        let tags = self.tags(node, at)?;
        let flag = |name: &str| node.get(name).and_then(Value::as_bool).unwrap_or(false);
        let rule = Triggered { at_least_one: flag("at_least_one"), stop_after_first: flag("stop_after_first") };
        self.triggered(&tags, node.get("triggers"), &rule, at)
    }

    fn legacy(&mut self, structures: &Value, triggers: Option<&Value>) -> Result<String, GrammarError> {
        let structures = list(Some(structures), "/structures")?;
        let tags: Result<Vec<Tag>, GrammarError> =
            structures.iter().enumerate().map(|(i, s)| self.tag(s, &format!("/structures/{i}"))).collect();
        self.triggered(&tags?, triggers, &Triggered { at_least_one: false, stop_after_first: false }, "")
    }

    /// Free text in which each trigger must go on as one of the tags that begin with it.
    fn triggered(
        &mut self,
        tags: &[Tag],
        triggers: Option<&Value>,
        rule: &Triggered,
        at: &str,
    ) -> Result<String, GrammarError> {
        let at = format!("{at}/triggers");
        let triggers = list(triggers, &at)?;
        let mut segments = Vec::new();
        let mut texts = Vec::new();
        for (i, trigger) in triggers.iter().enumerate() {
            let at = format!("{at}/{i}");
            let trigger = trigger.as_str().filter(|text| !text.is_empty());
            let trigger = trigger.ok_or_else(|| wrong(&at, "must be a text"))?;
            let options: Vec<String> =
                tags.iter().filter(|tag| tag.begin.starts_with(trigger)).map(|tag| self.tagged(tag, trigger)).collect();
            if options.is_empty() {
                return Err(wrong(&at, "no tag begins with it"));
            }
            let rest = self.rule("", &options.join(" | "))?;
            segments.push(match self.split_added(trigger).as_slice() {
                [Piece::Text(text)] => {
                    texts.push((*text).to_owned());
                    let suffix = Value::from(*text);
                    let before = self.rule(&format!("[suffix={suffix}]"), &format!("/{ANY}/"))?;
                    format!("{before} {rest}")
                }
                [Piece::Token(token)] => {
                    // No text can be taken for an added token.
                    let before = self.rule("", &format!("/{ANY}/"))?;
                    format!("{before} <[{token}]> {rest}")
                }
                _ => return Err(wrong(&at, "must be one added token, or a text without one")),
            });
        }
        let segment = self.rule("", &segments.join(" | "))?;
        let tail = match texts.as_slice() {
            [] => format!("/{ANY}/"),
            texts => {
                let any: Vec<String> =
                    texts.iter().map(|text| llguidance::regex_to_lark(&regex_of(text), "")).collect();
                format!("~/{ANY}({}){ANY}/", any.join("|"))
            }
        };
        let name = format!("TAIL{}", self.count);
        let _ = writeln!(self.rules, "{name}: {tail}");
        match (rule.at_least_one, rule.stop_after_first) {
            (true, true) => self.rule("", &segment),
            (false, true) => self.rule("", &format!("{segment} | {name}")),
            (true, false) => self.rule("", &format!("{segment}+ {name}")),
            (false, false) => self.rule("", &format!("{segment}* {name}")),
        }
    }

    /// A text as Lark: added tokens by id, the rest quoted.
    fn literal(&self, text: &str) -> String {
        let pieces = self.split_added(text).into_iter().map(|piece| match piece {
            Piece::Token(token) => format!("<[{token}]>"),
            Piece::Text(text) => Value::from(text).to_string(),
        });
        let joined = pieces.collect::<Vec<_>>().join(" ");
        if joined.is_empty() { "\"\"".into() } else { joined }
    }

    /// The tokenizer would read the longest added token wherever one stands.
    fn split_added<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            let rest = &text[at..];
            let starts = |(_, bytes): &(u32, &[u8])| !bytes.is_empty() && rest.as_bytes().starts_with(bytes);
            let longest = self.vocabulary.all_added().filter(starts).max_by_key(|(_, bytes)| bytes.len());
            match longest {
                Some((token, bytes)) => {
                    if start < at {
                        pieces.push(Piece::Text(&text[start..at]));
                    }
                    pieces.push(Piece::Token(token));
                    at += bytes.len();
                    start = at;
                }
                None => at += rest.chars().next().map_or(1, char::len_utf8),
            }
        }
        if start < text.len() {
            pieces.push(Piece::Text(&text[start..]));
        }
        pieces
    }
}

struct Triggered {
    at_least_one: bool,
    stop_after_first: bool,
}

enum Piece<'t> {
    Text(&'t str),
    Token(u32),
}

fn list<'v>(value: Option<&'v Value>, at: &str) -> Result<&'v [Value], GrammarError> {
    match value.and_then(Value::as_array) {
        Some(list) if !list.is_empty() => Ok(list),
        _ => Err(wrong(at, "must be an array that is not empty")),
    }
}

#[cfg(test)]
mod tests;
