//! What becomes of schemas, without a model: reads lines of `{"schema": S, "instances": [TEXT…]}` from standard input and
//! writes, for each, `{"refused": MESSAGE}` or `{"accepted": [true, false…]}`: which texts a constrained answer could be.
//!
//! `tests/bench/structured.py --suite` feeds it the public test suite of JSON Schema: a text that the suite calls
//! invalid must never be accepted.

use std::borrow::Cow;
use std::io::{BufRead, Write};
use std::sync::Arc;

use contract::constraint::TokenConstraint;
use contract::reasoning::ReasoningTracker;
use grammar::{Compiled, Compiler, Limits, Metrics, Source, Start, StreamParts, Strictness, Vocabulary};
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
                json!({"accepted": texts.map(|text| accepts(&compiler, &compiled, text)).collect::<Vec<bool>>()})
            }
        };
        writeln!(out, "{answer}").expect("standard output");
    }
}

fn accepts(compiler: &Compiler, compiled: &Compiled, text: &str) -> bool {
    let parts = StreamParts {
        vocabulary: Arc::clone(compiler.vocabulary()),
        grammar: Some(compiled.clone()),
        start: Start::FirstToken,
        tracker: ReasoningTracker::new(Vec::new(), false),
        openings: Vec::new(),
        ends: [END].into(),
        min_tokens: 0,
    };
    let mut stream = parts.open();
    let mut mask = vec![0u32; compiler.vocabulary().size().div_ceil(32)];
    text.bytes().map(u32::from).chain([END]).all(|token| {
        stream.fill_mask(&mut mask).is_ok()
            && mask[token as usize / 32] >> (token % 32) & 1 == 1
            && stream.accept(token).is_ok()
    })
}
