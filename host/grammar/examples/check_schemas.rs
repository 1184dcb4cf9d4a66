//! What becomes of schemas, without a model: reads lines of `{"schema": S, "instances": [TEXT…], "walks": N}` from
//! standard input and writes, for each, `{"refused": MESSAGE}` or `{"accepted": [true, false…], "walks": [TEXT…]}`: which
//! texts a constrained answer could be, and what a model without any sense says under the grammar.
//!
//! `tests/bench/structured.py --suite` feeds it the public test suite of JSON Schema: a text that the suite calls
//! invalid must never be accepted.

use std::borrow::Cow;
use std::io::{BufRead, Write};
use std::sync::Arc;

use contract::constraint::TokenConstraint;
use contract::reasoning::ReasoningTracker;
use grammar::{
    Compiled, Compiler, Limits, Metrics, Source, Start, StreamConstraint, StreamParts, Strictness, Vocabulary,
};
use serde_json::{Value, json};

const END: u32 = 256;

fn main() {
    let bytes = (0..=255u8).map(|byte| (Cow::Owned(vec![byte]), false));
    let vocabulary = Vocabulary::new(bytes.chain([(Cow::Borrowed(&b"<|end|>"[..]), true)]));
    let compiler = Compiler::new(vocabulary, Limits::default(), Metrics::default()).expect("threads start");
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line: Value = serde_json::from_str(&line.expect("standard input")).expect("JSON lines");
        let source = Source::JsonSchema { schema: line["schema"].clone(), strictness: Strictness::Strict };
        let answer = match compiler.compile(&source) {
            Err(error) => json!({"refused": error.to_string()}),
            Ok(compiled) => {
                let texts = line["instances"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let accepted: Vec<bool> = texts.map(|text| accepts(&compiler, &compiled, text)).collect();
                let walks = 0..line["walks"].as_u64().unwrap_or(0);
                let walks: Vec<String> = walks.filter_map(|seed| walk(&compiler, &compiled, seed)).collect();
                json!({"accepted": accepted, "walks": walks})
            }
        };
        writeln!(out, "{answer}").expect("standard output");
    }
}

fn open(compiler: &Compiler, compiled: &Compiled) -> StreamConstraint {
    StreamParts {
        vocabulary: Arc::clone(compiler.vocabulary()),
        grammar: Some(compiled.clone()),
        start: Start::FirstToken,
        tracker: ReasoningTracker::new(Vec::new(), false),
        openings: Vec::new(),
        ends: [END].into(),
        min_tokens: 0,
    }
    .open()
}

/// Random allowed tokens, with a liking for those that close something; `None` when no end came within 400.
fn walk(compiler: &Compiler, compiled: &Compiled, seed: u64) -> Option<String> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let mut stream = open(compiler, compiled);
    let mut mask = vec![0u32; compiler.vocabulary().size().div_ceil(32)];
    let mut text = Vec::new();
    for _ in 0..400 {
        stream.fill_mask(&mut mask).ok()?;
        let allowed: Vec<u32> = (0..=END).filter(|t| mask[*t as usize / 32] >> (t % 32) & 1 == 1).collect();
        let closing: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|t| *t == END || matches!(u8::try_from(*t), Ok(b'"' | b'}' | b']')))
            .collect();
        let pick = if closing.is_empty() || random(3) == 0 { &allowed } else { &closing };
        let token = *pick.get(random(pick.len().max(1)))?;
        stream.accept(token).ok()?;
        match u8::try_from(token) {
            Ok(byte) => text.push(byte),
            Err(_) => return String::from_utf8(text).ok(),
        }
    }
    None
}

fn accepts(compiler: &Compiler, compiled: &Compiled, text: &str) -> bool {
    let mut stream = open(compiler, compiled);
    let mut mask = vec![0u32; compiler.vocabulary().size().div_ceil(32)];
    text.bytes().map(u32::from).chain([END]).all(|token| {
        stream.fill_mask(&mut mask).is_ok()
            && mask[token as usize / 32] >> (token % 32) & 1 == 1
            && stream.accept(token).is_ok()
    })
}
