//! The grammars of demanded calls, of every stage that has one: each text that one accepts is read as calls that keep to
//! their schemas, and each call as its model writes it is accepted.
//!
//! Of text between tags, or between quotes of a format's own, grammars hold `enum` and `const` only, so the schemas here
//! ask nothing else of text. A seed is printed with whatever fails.

use std::borrow::Cow;

use anyhow::{Context, Result, ensure};
use contract::output::{
    CallKind, Channel, EndReason, Marker, OutputEvent, OutputStage, StageRequest, Tool, ToolChoice,
};
use grammar::{Compiled, Compiler, Limits, Metrics, Source, Vocabulary};
use plugin_host::{Grants, HostConfig, PluginHost, PluginSource};
use prometheus_client::registry::Registry;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

#[path = "../../plugins/cases/src/render.rs"]
mod render;
#[path = "../../host/grammar/examples/walk/mod.rs"]
mod walk;

use render::{Call, FORMATS, render};
use walk::Random;

/// Behind 256 bytes; added tokens follow.
const END: u32 = 256;
/// Schemas of a format, texts of a grammar. Each text costs a mask per token.
const SCHEMAS: u64 = 3;
const TEXTS: u64 = 4;
/// A text that has not ended by then says nothing.
const TOKENS_MAX: usize = 500;

/// Forms that only a tokenizer with their markers makes a grammar write.
const TOKEN_FORMS: [(&str, &str); 6] = [
    ("llama3_json", "tag"),
    ("llama4_pythonic", "tags"),
    ("olmo3", "lines"),
    ("lfm2", "lfm"),
    ("mistral", "v11"),
    ("granite", "tags"),
];

struct Case<'a> {
    stage: &'a dyn OutputStage,
    compiler: Compiler,
    /// Texts of the added tokens, from `END + 1` on.
    added: Vec<String>,
    request: StageRequest,
    schema: Value,
}

impl Case<'_> {
    fn compiled(&self) -> Result<Compiled> {
        let constraint = self.stage.constrain(&self.request)?.context("a demanded call has a grammar")?;
        let compiled = self.compiler.compile(&Source::Lark(constraint.grammar.clone()));
        compiled.with_context(|| format!("the grammar\n{}", constraint.grammar))
    }

    fn tokens(&self, text: &str) -> Vec<u32> {
        let (mut tokens, mut rest) = (Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            let added = self.added.iter().zip(END + 1..).filter(|(added, _)| rest.starts_with(added.as_str()));
            let len = match added.max_by_key(|(added, _)| added.len()) {
                Some((added, token)) => {
                    tokens.push(token);
                    added.len()
                }
                None => {
                    tokens.extend(rest.bytes().take(c.len_utf8()).map(u32::from));
                    c.len_utf8()
                }
            };
            rest = &rest[len..];
        }
        tokens
    }

    /// Text, and added tokens for themselves.
    fn events(&self, tokens: &[u32]) -> Result<Vec<OutputEvent>> {
        let (mut events, mut bytes) = (Vec::new(), Vec::new());
        let text = |bytes: &mut Vec<u8>| -> Result<Option<OutputEvent>> {
            let text = String::from_utf8(std::mem::take(bytes))?;
            Ok((!text.is_empty()).then(|| OutputEvent::content(text)))
        };
        for token in tokens {
            match token.checked_sub(END + 1) {
                None => bytes.push(u8::try_from(*token)?),
                Some(added) => {
                    events.extend(text(&mut bytes)?);
                    let text = self.added[added as usize].clone();
                    events.push(OutputEvent::Text { channel: Channel::Content, text, token: Some(*token) });
                }
            }
        }
        events.extend(text(&mut bytes)?);
        Ok(events)
    }

    /// Reads a text, one event a step, and checks every call.
    fn check(&self, tokens: &[u32]) -> Result<()> {
        let mut session = self.stage.open(&self.request)?;
        let (mut name, mut arguments, mut calls) = (String::new(), String::new(), 0);
        let mut out = Vec::new();
        for event in self.events(tokens)? {
            out.extend(session.feed(vec![event])?);
        }
        out.extend(session.finish(EndReason::StopToken(END))?);
        for event in out {
            match event {
                OutputEvent::Text { text, .. } => ensure!(text.trim().is_empty(), "text beside the calls: {text:?}"),
                OutputEvent::CallStart { name: own, .. } => (name, arguments) = (own, String::new()),
                OutputEvent::CallArguments { fragment, .. } => arguments.push_str(&fragment),
                OutputEvent::CallEnd { complete, .. } => {
                    calls += 1;
                    ensure!(complete, "call {calls} broke off: {arguments}");
                    ensure!(name == "book" || name == "ask.time", "a call of `{name}`");
                    serde_json::from_str::<IgnoredAny>(&arguments).with_context(|| arguments.clone())?;
                    // Chance writes numbers that no machine has; they are valid all the same.
                    if let Ok(value) = serde_json::from_str(&arguments) {
                        let fault = fault(&self.schema, &self.schema, &value);
                        ensure!(fault.is_none(), "{arguments}: {}", fault.unwrap_or_default());
                    }
                }
                OutputEvent::Ext { .. } => {}
            }
        }
        ensure!(calls > 0, "no call");
        Ok(())
    }
}

/// A schema of an object with a few properties, some of them required.
fn schema(random: &mut Random) -> Value {
    let kinds = [
        json!({"type": "string"}),
        json!({"type": "string", "enum": ["it's", "a \"b\"", "c\\d"]}),
        json!({"type": "integer"}),
        json!({"type": "integer", "minimum": -5, "maximum": 120}),
        json!({"type": "number"}),
        json!({"type": "boolean"}),
        json!({"type": ["integer", "null"]}),
        json!({"anyOf": [{"type": "boolean"}, {"type": "number"}]}),
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}),
        json!({"type": "object", "properties": {
            "street": {"type": "string"}, "number": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
        }, "required": ["number"], "additionalProperties": false}),
        json!({"type": "object", "additionalProperties": {"type": "boolean"}}),
        json!({"$ref": "#/$defs/tree"}),
        json!({"type": "object"}),
    ];
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in ["first", "second_one", "third", "n4"].iter().take(2 + random.below(3)) {
        properties.insert((*key).to_string(), kinds[random.below(kinds.len())].clone());
        if random.below(2) == 0 {
            required.push(*key);
        }
    }
    let tree = json!({"type": "object", "properties": {
        "leaf": {"type": "integer"}, "inner": {"$ref": "#/$defs/tree"},
    }, "required": ["leaf"], "additionalProperties": false});
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false, "$defs": {"tree": tree}})
}

/// A value that keeps to a schema.
fn value(root: &Value, schema: &Value, random: &mut Random, depth: usize) -> Value {
    if let Some(listed) = schema["enum"].as_array() {
        return listed[random.below(listed.len())].clone();
    }
    if schema["$ref"].is_string() {
        return value(root, &root["$defs"]["tree"], random, depth);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return value(root, &any[random.below(any.len())], random, depth);
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[random.below(kinds.len())].as_str(),
        kind => kind.as_str(),
    };
    match kind {
        Some("string") => text(random).into(),
        Some("integer") => {
            let least = schema["minimum"].as_i64().unwrap_or(-1000);
            let most = schema["maximum"].as_i64().unwrap_or(1 << 40);
            (least + random.below((most - least + 1) as usize) as i64).into()
        }
        Some("number") => ((random.below(20_000) as f64 - 10_000.0) / 8.0).into(),
        Some("boolean") => (random.below(2) == 0).into(),
        Some("null") => Value::Null,
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(0) as usize;
            let count = least + random.below(3);
            (0..count).map(|_| value(root, &schema["items"], random, depth + 1)).collect()
        }
        _ => {
            let mut members = Map::new();
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
                let must = required.iter().any(|name| name == key);
                if must || (depth < 4 && random.below(2) == 0) {
                    members.insert(key.clone(), value(root, inner, random, depth + 1));
                }
            }
            if schema["additionalProperties"].is_object() && random.below(2) == 0 {
                members.insert("key".into(), value(root, &schema["additionalProperties"], random, depth + 1));
            }
            members.into()
        }
    }
}

/// Text that every format can write: no format escapes its own end in raw text.
fn text(random: &mut Random) -> String {
    const PARTS: [&str; 14] = ["a", "Zürich", " ", "\n", "'", "\"", "\\", "{", "}", "[1, 2]", ", ", "=", "(x)", "你"];
    (0..random.below(6)).map(|_| PARTS[random.below(PARTS.len())]).collect()
}

/// What is wrong with a value by the keywords that [`schema`] writes.
fn fault(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    if schema["$ref"].is_string() {
        return fault(root, &root["$defs"]["tree"], value);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let faults: Option<Vec<String>> = any.iter().map(|schema| fault(root, schema, value)).collect();
        return faults.map(|faults| faults.join(", "));
    }
    if let Some(listed) = schema["enum"].as_array() {
        return (!listed.contains(value)).then(|| format!("{value} is not listed"));
    }
    let is = |kind: &str| match kind {
        "string" => value.is_string(),
        // `-0` and integers beyond 64 bits are read as floats.
        "integer" => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let fits = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(is),
        kind => kind.as_str().is_none_or(is),
    };
    if !fits {
        return Some(format!("{value} is no {}", schema["type"]));
    }
    let number = value.as_f64().unwrap_or_default();
    let bounds = [
        schema["minimum"].as_f64().map(|least| number >= least),
        schema["maximum"].as_f64().map(|most| number <= most),
    ];
    let count = value.as_array().map_or(0, Vec::len) as u64;
    let counts = [
        schema["minItems"].as_u64().map(|least| count >= least),
        schema["maxItems"].as_u64().map(|most| count <= most),
    ];
    if bounds.into_iter().chain(counts).flatten().any(|kept| !kept) {
        return Some(format!("{value} is out of bounds"));
    }
    let missing = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|key| value.get(key).is_none());
    if let Some(missing) = missing {
        return Some(format!("`{missing}` is missing"));
    }
    let items = value.as_array().into_iter().flatten().filter_map(|item| fault(root, &schema["items"], item));
    let members =
        value.as_object().into_iter().flatten().filter_map(|(key, value)| match schema["properties"].get(key) {
            Some(inner) => fault(root, inner, value),
            None if schema["additionalProperties"] == false => Some(format!("`{key}` is not declared")),
            None => fault(root, &schema["additionalProperties"], value),
        });
    items.chain(members).next()
}

/// Without tokens nothing tells a tag in quotes from a tag, so such a text may end where it stands.
fn quotes_a_tag(case: &Case, tokens: &[u32]) -> bool {
    let bytes: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
    let text = String::from_utf8_lossy(&bytes);
    let markers = &case.stage.requirements().markers;
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        let tag =
            || text[at..].starts_with("</") || markers.iter().any(|marker| text[at..].starts_with(marker.as_str()));
        match quote {
            Some(_) if std::mem::take(&mut escaped) => {}
            Some(_) if c == '\\' => escaped = true,
            Some(open) if open == c => quote = None,
            Some(_) if tag() => return true,
            None if c == '"' || c == '\'' => quote = Some(c),
            _ => {}
        }
    }
    false
}

fn case<'a>(stage: &'a dyn OutputStage, schema: Value, added: Vec<String>) -> Result<Case<'a>> {
    let bytes = (0..=255u8).map(|byte| (Cow::Owned(vec![byte]), false));
    let tokens = added.iter().map(|text| (Cow::Borrowed(text.as_bytes()), true));
    let vocabulary = Vocabulary::new(bytes.chain([(Cow::Borrowed(&b"<|the end|>"[..]), true)]).chain(tokens));
    let tool = |name: &str| Tool {
        name: name.into(),
        kind: CallKind::Json,
        schema_json: Some(schema.to_string().into()),
        strict: true,
    };
    let token = |text: &String| added.iter().position(|added| added == text).map(|at| END + 1 + at as u32);
    let markers = &stage.requirements().markers;
    let request = StageRequest {
        tools: vec![tool("book"), tool("ask.time")],
        tool_choice: ToolChoice::Required,
        parallel_calls: true,
        markers: markers.iter().map(|text| Marker { text: text.clone(), token: token(text) }).collect(),
        ..StageRequest::default()
    };
    let compiler = Compiler::new(vocabulary, Limits::default(), Metrics::default())?;
    Ok(Case { stage, compiler, added, request, schema })
}

/// One format with one schema: gold calls are accepted, and what chance writes under the grammar is read. Answers how
/// many texts chance brought to an end.
fn hold(stage: &dyn OutputStage, format: (&str, &str), with_tokens: bool, seed: u64) -> Result<usize> {
    let mut random = Random::new(seed);
    let schema = schema(&mut random);
    let mut gold = || {
        let call = |name: &str, random: &mut Random| Call {
            name: name.into(),
            arguments: value(&schema, &schema, random, 0).as_object().cloned().unwrap_or_default(),
        };
        let calls: Vec<Call> = (0..1 + random.below(2)).map(|n| call(["book", "ask.time"][n], &mut random)).collect();
        render(format, &calls).context("every listed format can be written")
    };
    let texts = (0..TEXTS).map(|_| gold()).collect::<Result<Vec<_>>>()?;
    // The tokenizer of a model has the markers that its model writes.
    let markers = stage.requirements().markers.iter().filter(|marker| texts[0].contains(marker.as_str()));
    let case = case(stage, schema, if with_tokens { markers.cloned().collect() } else { Vec::new() })?;
    let compiled = case.compiled()?;
    let as_written = with_tokens || !TOKEN_FORMS.contains(&format);
    let mut ended = 0;
    for (n, text) in (0..).zip(&texts) {
        let tokens = case.tokens(text);
        if as_written {
            let accepted = walk::accepted(&case.compiler, &compiled, END, &tokens);
            let left = || case.events(&tokens[..accepted.min(tokens.len())]).map(|events| format!("{events:?}"));
            ensure!(accepted > tokens.len(), "not accepted behind {}: {text}\n{}", left()?, case.schema);
            case.check(&tokens).with_context(|| format!("{text}\n{}", case.schema))?;
        }
        // Chance alone never closes a tag: half of the time it copies from what a model wrote.
        let mut random = Random::new(seed * 100 + n);
        let mut copied: Vec<u32> = Vec::new();
        let written = walk::walk(&case.compiler, &compiled, (END, TOKENS_MAX), |allowed| {
            if copied.is_empty() && random.below(2) == 0 {
                let from = random.below(tokens.len());
                copied = tokens[from..].iter().copied().take(24).rev().collect();
            }
            match copied.pop().filter(|token| allowed.contains(token)) {
                Some(token) => token,
                None => {
                    copied.clear();
                    if allowed.contains(&END) { END } else { allowed[random.below(allowed.len())] }
                }
            }
        });
        if let Some(tokens) = written.filter(|tokens| with_tokens || !quotes_a_tag(&case, tokens)) {
            ended += 1;
            case.check(&tokens).with_context(|| format!("{:?}\n{}", case.events(&tokens), case.schema))?;
        }
    }
    Ok(ended)
}

#[test]
fn what_grammars_accept_is_read_and_gold_calls_are_accepted() -> Result<()> {
    let host = PluginHost::new(HostConfig::default(), &mut Registry::default())?;
    let mut faults = Vec::new();
    for format in FORMATS {
        let stage = host.load_stage(&PluginSource::Bundled(format.0.into()), &Grants::default(), None)?;
        let mut ended = 0;
        for (with_tokens, seed) in
            [false, true].into_iter().flat_map(|with| (1..=SCHEMAS).map(move |seed| (with, seed)))
        {
            match hold(stage.as_ref(), *format, with_tokens, seed) {
                Ok(more) => ended += more,
                Err(error) => {
                    faults.push(format!("{format:?}, markers as tokens: {with_tokens}, seed {seed}: {error:#}"))
                }
            }
        }
        if ended == 0 {
            faults.push(format!("{format:?}: no text by chance came to an end"));
        }
    }
    ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n\n"));
    Ok(())
}
