//! What the native benches of all kinds share; written beside `main.rs` by `tokenloom plugin bench`.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Map, Value};

/// Nanoseconds of calls, by export.
#[derive(Default)]
pub struct Times(BTreeMap<&'static str, Vec<u64>>);

impl Times {
    pub fn time<T>(&mut self, export: &'static str, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = std::hint::black_box(call());
        self.0.entry(export).or_default().push(start.elapsed().as_nanos() as u64);
        answer
    }

    /// `{"feed": [nanoseconds of every call]}` on stdout.
    pub fn print(self) {
        let times: Map<String, Value> = self.0.into_iter().map(|(export, ns)| (export.to_owned(), ns.into())).collect();
        println!("{}", Value::Object(times));
    }
}

/// The work: a file of one JSON value, and how often to do it.
pub fn work() -> (Value, usize) {
    let mut words = std::env::args().skip(1);
    let path = words.next().expect("the work's file");
    let rounds = words.next().and_then(|word| word.parse().ok()).expect("a number of rounds");
    let text = std::fs::read_to_string(path).expect("the work can be read");
    (serde_json::from_str(&text).expect("the work is JSON"), rounds)
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub fn number(value: &Value) -> u32 {
    value.as_u64().unwrap_or_default() as u32
}
