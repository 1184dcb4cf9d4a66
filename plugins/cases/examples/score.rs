//! Writes known calls in every format, reads them back with the bundled stages, and prints how many came back equal.
//!
//! Input: one JSON object per line, `{"id", "set", "tools": [{"name", "schema"}], "calls": [{"name", "arguments"}]}`.
//! With a second file named, what the formats look like is written there for other parsers to be scored on.
//! `tests/bench/bfcl.py` makes the input.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use cases::render::{Call, FORMATS, render};
use cases::{Setup, cut, open, run};
use serde_json::{Map, Value, json};

struct Item {
    id: String,
    set: String,
    tools: Vec<(String, String)>,
    calls: Vec<Call>,
}

fn item(line: &str) -> Option<Item> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| Some(value[key].as_str()?.to_string());
    let tool = |tool: &Value| Some((tool["name"].as_str()?.to_string(), tool["schema"].to_string()));
    let call = |call: &Value| {
        let arguments: Map<String, Value> = call["arguments"].as_object()?.clone();
        Some(Call { name: call["name"].as_str()?.to_string(), arguments })
    };
    Some(Item {
        id: text("id")?,
        set: text("set")?,
        tools: value["tools"].as_array()?.iter().map(tool).collect::<Option<_>>()?,
        calls: value["calls"].as_array()?.iter().map(call).collect::<Option<_>>()?,
    })
}

/// Whole, and cut into characters: both must give the calls and nothing else.
fn reads(format: (&str, &str), item: &Item, text: &str) -> bool {
    let setup = Setup { tools: item.tools.clone(), ..Setup::default() };
    [0, 1, 5].into_iter().all(|size| {
        let Some(Ok(answer)) = open(&[format.0], &setup).map(|chain| run(chain, &cut(text, size))) else {
            return false;
        };
        let calls = answer.calls.iter().map(|call| Call {
            name: call.name.clone(),
            arguments: serde_json::from_str(&call.arguments).unwrap_or_default(),
        });
        answer.content.trim().is_empty() && calls.eq(item.calls.iter().cloned())
    })
}

fn main() -> ExitCode {
    let mut files = std::env::args().skip(1);
    let Some(input) = files.next().and_then(|file| std::fs::read_to_string(file).ok()) else {
        eprintln!("usage: score CALLS.jsonl [RENDERED.jsonl]");
        return ExitCode::from(2);
    };
    let items: Vec<Item> = input.lines().filter_map(item).collect();
    let mut rendered = files.next().map(|file| std::fs::File::create(file).expect("the second file can be written"));
    let mut sets: Vec<&str> = items.iter().map(|item| item.set.as_str()).collect();
    sets.sort_unstable();
    sets.dedup();
    println!("{:<28} {}", "format", sets.iter().map(|set| format!("{set:>20}")).collect::<String>());
    let mut unequal = 0;
    for format in FORMATS {
        let mut scores: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for item in &items {
            let text = render(*format, &item.calls).expect("every listed format can be written");
            let equal = reads(*format, item, &text);
            let score = scores.entry(&item.set).or_default();
            *score = (score.0 + usize::from(equal), score.1 + 1);
            if !equal {
                unequal += 1;
                if unequal <= 20 {
                    eprintln!("{format:?} {}: {text}", item.id);
                }
            }
            if let Some(file) = &mut rendered {
                let calls = item.calls.iter().map(|call| json!({"name": call.name, "arguments": call.arguments}));
                let tools = item.tools.iter().map(|(name, schema)| json!({"name": name, "schema": schema}));
                let line = json!({"format": format.0, "form": format.1, "set": item.set, "id": item.id, "text": text,
                    "tools": tools.collect::<Vec<_>>(), "calls": calls.collect::<Vec<_>>()});
                writeln!(file, "{line}").expect("the second file can be written");
            }
        }
        let name = format!("{} {}", format.0, format.1);
        println!(
            "{name:<28} {}",
            sets.iter()
                .map(|set| {
                    let (equal, all) = scores[set];
                    format!("{:>20}", format!("{equal}/{all}"))
                })
                .collect::<String>()
        );
    }
    if unequal == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
