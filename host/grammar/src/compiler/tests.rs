use contract::constraint::TokenConstraint;
use contract::reasoning::ReasoningTracker;
use serde_json::json;

use super::*;
use crate::vocabulary::tests::bytes_and;
use crate::{Start, StreamParts, Strictness};

pub(crate) fn compiler(added: &[&str]) -> Compiler {
    Compiler::new(bytes_and(added), Limits::default(), Metrics::default()).expect("threads start")
}

/// A stream's parts with the grammar alone; 256 is the end token.
pub(crate) fn parts(compiler: &Compiler, compiled: &Compiled) -> StreamParts {
    StreamParts {
        vocabulary: Arc::clone(compiler.vocabulary()),
        grammar: Some(compiled.clone()),
        start: Start::FirstToken,
        tracker: ReasoningTracker::new(Vec::new(), false),
        openings: Vec::new(),
        ends: [256].into(),
        min_tokens: 0,
    }
}

/// Bytes, with the added tokens as such.
pub(crate) fn tokens(compiler: &Compiler, text: &str) -> Vec<u32> {
    let added: Vec<(u32, Vec<u8>)> = compiler.vocabulary().all_added().map(|(id, b)| (id, b.to_vec())).collect();
    let mut tokens = Vec::new();
    let mut rest = text.as_bytes();
    while let Some(&byte) = rest.first() {
        let found = added.iter().find(|(_, bytes)| rest.starts_with(bytes));
        let (token, len) = found.map_or((byte.into(), 1), |(id, bytes)| (*id, bytes.len()));
        tokens.push(token);
        rest = &rest[len..];
    }
    tokens
}

/// Whether every token of the text and then the end are in the masks; else where the first is not.
pub(crate) fn accepts(compiler: &Compiler, compiled: &Compiled, text: &str) -> Result<(), usize> {
    let mut stream = parts(compiler, compiled).open();
    let mut mask = vec![0u32; compiler.vocabulary().size().div_ceil(32)];
    let mut all = tokens(compiler, text);
    all.push(256);
    for (at, token) in all.into_iter().enumerate() {
        stream.fill_mask(&mut mask).map_err(|_| at)?;
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            return Err(at);
        }
        stream.accept(token).map_err(|_| at)?;
    }
    Ok(())
}

fn check(source: Source, yes: &[&str], no: &[&str]) {
    let compiler = compiler(&["<tool>"]);
    let compiled = compiler.compile(&source).unwrap_or_else(|e| panic!("{source:?}: {e}"));
    for text in yes {
        assert_eq!(accepts(&compiler, &compiled, text), Ok(()), "{text:?}");
    }
    for text in no {
        assert!(accepts(&compiler, &compiled, text).is_err(), "{text:?}");
    }
}

fn schema(schema: Value) -> Source {
    Source::JsonSchema { schema, strictness: Strictness::Strict }
}

#[test]
fn json_objects() {
    check(
        Source::JsonObject,
        &["{}", "{\"a\": [1, null]}", "{\n  \"a\": 1\n}"],
        &["[]", "1", "{", "{}x", "{\"a\":1,}"],
    );
    // White space without end is what a lost model writes.
    check(Source::JsonObject, &[], &["{\n\n\n}", &format!("{{{}}}", " ".repeat(100))]);
}

#[test]
fn json_schemas() {
    let person = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"], "additionalProperties": false});
    let yes = ["{\"name\":\"Bo\",\"age\":3}", "{\"name\": \"é\", \"age\": 10}"];
    check(schema(person), &yes, &["{\"name\":\"Bobo\",\"age\":3}", "{\"name\":\"B\",\"age\":-1}", "{\"name\":\"B\"}"]);
    let recursive = json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
        "required": ["next"], "additionalProperties": false}}});
    check(schema(recursive), &["{\"next\":{\"next\":null}}"], &["{\"next\":{}}"]);
}

#[test]
fn other_languages() {
    check(Source::Regex("[0-9]{2}-(a|b)".into()), &["12-a"], &["1-a", "12-ab"]);
    check(Source::Choice(vec!["yes".into(), "no \"way\"".into()]), &["yes", "no \"way\""], &["y", "yesno"]);
    check(Source::Lark("start: \"a\" b*\nb: \"b\"".into()), &["a", "abbb"], &["b"]);
    // An added token is matched by name, never as text.
    check(Source::Lark("start: <tool> /[^x]+/".into()), &["<tool>y"], &["y", "<tool><tool>"]);
    let either =
        Source::CallsOr { calls: "start: <tool> \"f\"".into(), content: Box::new(schema(json!({"type": "integer"}))) };
    check(either, &["<tool>f", "12"], &["<tool>12", "f"]);
    let free = Source::TextOrCalls { calls: "start: (<[257]> \"f\")+".into() };
    check(free, &["", "any f\ntext", "<tool>f", "so: <tool>f<tool>f"], &["<tool>g", "a<tool>f."]);
}

#[test]
fn errors_name_their_cause() {
    let compiler = compiler(&[]);
    let error = |source: Source| match compiler.compile(&source) {
        Ok(_) => panic!("{source:?} compiles"),
        Err(error) => error.to_string(),
    };
    assert!(error(Source::Lark("root ::= \"a\"".into())).contains("write the grammar in Lark"));
    assert!(error(Source::Lark("rule: \"a\"".into())).contains("start"));
    assert!(error(Source::Regex("(".into())).contains("regex") || error(Source::Regex("(".into())).contains('('));
    assert_eq!(error(Source::Choice(Vec::new())), "the list of choices is empty");
    // The place inside the schema, although only the library knows that the pattern is wrong.
    let look = json!({"type": "object", "properties": {"a": {"type": "string", "title": "t", "pattern": "(?=x)y"}}});
    let text = error(schema(look));
    assert!(text.starts_with("at `/properties/a`, keyword `pattern`"), "{text}");
    let overlap = json!({"type": "object", "properties": {"b": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}});
    let text = error(schema(overlap));
    assert!(text.starts_with("at `/properties/b`, keyword `oneOf`"), "{text}");
    let never = json!({"type": "object", "properties": {"c": {"type": "integer", "minimum": 3, "maximum": 2}}, "required": ["c"]});
    let text = error(schema(never));
    assert!(text.starts_with("at `/properties/c`"), "{text}");
    let endless = error(schema(json!({"$ref": "#"})));
    assert!(!endless.is_empty());
}

/// Whatever is sent, compiling ends, and the next request is served.
#[test]
fn hostile_constraints_end() {
    let compiler = compiler(&[]);
    let chain: serde_json::Map<String, Value> = (0..4000)
        .map(|i| {
            (format!("n{i}"), json!({"type": "object", "properties": {"p": {"$ref": format!("#/$defs/n{}", i + 1)}}}))
        })
        .chain([("n4000".to_owned(), json!({"type": "null"}))])
        .collect();
    let wide: serde_json::Map<String, Value> =
        (0..2000).map(|i| (format!("p{i}"), json!({"type": "string", "maxLength": 50}))).collect();
    let hostile = [
        schema(json!({"$ref": "#/$defs/n0", "$defs": chain})),
        schema(json!({"type": "object", "properties": wide})),
        schema(json!({"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"})),
        schema(json!({"type": "array", "minItems": 60_000, "items": {"type": "array", "minItems": 60_000}})),
        Source::Regex("(a|aa){1000}{1000}".into()),
        Source::Regex("(.*a){30}.{500}".into()),
        Source::Lark(format!("start: {}\n", "(".repeat(20_000))),
        Source::Lark("start: a\na: a | a a | \"x\"".into()),
    ];
    for source in hostile {
        let _ = compiler.compile(&source);
        assert!(compiler.compile(&Source::Regex("ok".into())).is_ok());
    }
}

/// The second request with the same tools does not compile again.
#[test]
fn compiled_grammars_are_kept() {
    let compiler = compiler(&[]);
    let source = schema(json!({"type": "integer"}));
    let (first, second) = (compiler.compile(&source).unwrap(), compiler.compile(&source).unwrap());
    assert!(Arc::ptr_eq(&first.template, &second.template));
}
