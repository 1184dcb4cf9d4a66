//! How long a stage takes for a token, natively: calls and reasoning in each format, four characters a token, one token
//! a feed. `cargo run --release -p cases --example speed`.
//!
//! What a component costs on top is measured through a server: `tests/bench`, `stage-speed`.

use std::time::Instant;

use cases::render::{Call, FORMATS, render};
use cases::{Setup, cut, open};
use serde_json::json;
use tokenloom_sdk::output::{Channel, Event, Text};

const ROUNDS: usize = 200;

fn main() {
    let arguments = json!({"path": "src/main.rs", "text": "fn main() {\n    println!(\"Hello, world!\");\n}\n".repeat(8), "line": 12});
    let call = Call { name: "write_file".into(), arguments: arguments.as_object().cloned().unwrap_or_default() };
    let schema =
        json!({"properties": {"path": {"type": "string"}, "text": {"type": "string"}, "line": {"type": "integer"}}});
    let setup = Setup { tools: vec![("write_file".into(), schema.to_string())], ..Setup::default() };
    println!("{:<28} {:>8} {:>10} {:>10} {:>10}", "stage", "tokens", "p50 ns", "p99 ns", "mean ns");
    for format in FORMATS {
        let calls = render(*format, &[call.clone(), call.clone()]).expect("every listed format can be written");
        let alone = matches!(format, ("pythonic" | "llama3_json", ""));
        let text = if alone { calls } else { "I will write the file, and say so first. ".repeat(8) + &calls };
        let pieces = cut(&text, 4);
        let mut times = Vec::with_capacity(ROUNDS * pieces.len());
        for _ in 0..ROUNDS {
            let mut session = open(&[format.0], &setup).and_then(|mut chain| chain.pop()).expect("bundled");
            for (text, token) in &pieces {
                let event = Event::Text(Text { channel: Channel::Content, text: text.clone(), token: *token });
                let start = Instant::now();
                let events = session.feed(vec![event]);
                times.push(start.elapsed().as_nanos());
                assert!(events.is_ok(), "{format:?}");
            }
        }
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let mean = times.iter().sum::<u128>() / times.len() as u128;
        let name = format!("{} {}", format.0, format.1);
        println!("{name:<28} {:>8} {:>10} {:>10} {mean:>10}", pieces.len(), at(0.5), at(0.99));
    }
}
