//! What becomes of schemas, without a model: reads lines of `{"schema": S, "instances": [TEXT…], "walks": N}` from
//! standard input and writes, for each, `{"refused": MESSAGE}` or `{"accepted": [true, false…], "walks": [TEXT…]}`: which
//! texts a constrained answer could be, and what a model without any sense says under the grammar.
//!
//! `tests/bench/structured.py --suite` feeds it the public test suite of JSON Schema: a text that the suite calls
//! invalid must never be accepted.

use std::borrow::Cow;
use std::io::{BufRead, Write};

use grammar::{Compiled, Compiler, Limits, Metrics, Source, Strictness, Vocabulary};
use serde_json::{Value, json};

use walk::Random;

mod walk;

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
                let walks: Vec<String> = walks.filter_map(|seed| walked(&compiler, &compiled, seed)).collect();
                json!({"accepted": accepted, "walks": walks})
            }
        };
        writeln!(out, "{answer}").expect("standard output");
    }
}

/// Random allowed tokens, with a liking for those that close something; `None` when no end came within 400.
fn walked(compiler: &Compiler, compiled: &Compiled, seed: u64) -> Option<String> {
    let mut random = Random::new(seed);
    let tokens = walk::walk(compiler, compiled, (END, 400), |allowed| {
        let closes = |t: &&u32| **t == END || matches!(u8::try_from(**t), Ok(b'"' | b'}' | b']'));
        let closing: Vec<u32> = allowed.iter().filter(closes).copied().collect();
        let pick = if closing.is_empty() || random.below(3) == 0 { allowed } else { &closing };
        pick[random.below(pick.len())]
    })?;
    String::from_utf8(tokens.into_iter().filter_map(|token| u8::try_from(token).ok()).collect()).ok()
}

fn accepts(compiler: &Compiler, compiled: &Compiled, text: &str) -> bool {
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    walk::accepted(compiler, compiled, END, &tokens) > tokens.len()
}
