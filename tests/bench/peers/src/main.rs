//! Reads what `score` has written in each format with the parsers of two other projects, whole texts at once, and prints
//! how many calls came back equal: one JSON object with peer, format and set. `tests/bench/bfcl.py --peers` runs it.
//!
//! Stricter and laxer than for our stages: text beside the calls does not count, nor does streaming.

use std::collections::BTreeMap;

use dynamo_parsers::tool_calling::ToolDefinition;
use dynamo_parsers::tool_calling::parsers::detect_and_parse_tool_call_with_recovery;
use serde_json::{Value, json};
use tool_parser::ParserFactory;

/// Format and form, and who reads it by which name; empty: nobody there.
const NAMES: &[(&str, &str, &str, &str)] = &[
    ("hermes", "", "qwen", "hermes"),
    ("qwen3_coder", "", "qwen_coder", "qwen3_coder"),
    ("llama3_json", "", "llama", "llama3_json"),
    ("llama3_json", "tag", "llama", "llama3_json"),
    ("pythonic", "", "pythonic", "pythonic"),
    ("llama4_pythonic", "tags", "pythonic", "pythonic"),
    ("mistral", "list", "mistral", "mistral"),
    ("mistral", "v11", "mistral", "mistral"),
    ("deepseek_v3", "", "deepseek", "deepseek_v3"),
    ("deepseek_v31", "", "deepseek31", "deepseek_v3_1"),
    ("deepseek_v32", "", "deepseek32", "deepseek_v3_2"),
    ("glm45", "", "glm45_moe", ""),
    ("glm47", "dense", "glm47_moe", "glm47"),
    ("kimi_k2", "", "kimik2", "kimi_k2"),
    ("minimax_m2", "", "minimax_m2", "minimax_m2"),
    ("gpt_oss", "", "", "harmony"),
    ("phi4_mini_json", "", "", "phi4"),
    ("gemma4", "", "gemma4", "gemma4"),
];

type Calls = Option<Vec<(String, Value)>>;

async fn tool_parser(factory: &ParserFactory, name: &str, text: &str, tools: &Value) -> Calls {
    let functions = tools.as_array()?.iter();
    let functions = functions
        .map(|tool| json!({"type": "function", "function": {"name": tool["name"], "parameters": tool["schema"]}}));
    let tools: Vec<_> = functions.map(serde_json::from_value).collect::<Result<_, _>>().ok()?;
    let parser = factory.registry().create_parser(name)?;
    let (_, calls) = parser.parse_complete_with_tools(text, &tools).await.ok()?;
    calls
        .into_iter()
        .map(|call| Some((call.function.name, serde_json::from_str(&call.function.arguments).ok()?)))
        .collect()
}

async fn dynamo(name: &str, text: &str, tools: &Value) -> Calls {
    let definition = |tool: &Value| {
        let (name, parameters) = (tool["name"].as_str()?.to_owned(), Some(tool["schema"].clone()));
        Some(ToolDefinition { name, parameters, strict: None })
    };
    let tools: Vec<ToolDefinition> = tools.as_array()?.iter().map(definition).collect::<Option<_>>()?;
    let (calls, _) = detect_and_parse_tool_call_with_recovery(text, Some(name), Some(&tools)).await.ok()?;
    calls
        .into_iter()
        .map(|call| Some((call.function.name, serde_json::from_str(&call.function.arguments).ok()?)))
        .collect()
}

fn main() {
    let file = std::env::args().nth(1).expect("usage: peers RENDERED.jsonl");
    let lines = std::fs::read_to_string(file).expect("the file can be read");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let factory = ParserFactory::new();
    // Peer, format, set: how many came back equal, of how many.
    let mut scores: BTreeMap<(&str, String, String), (u32, u32)> = BTreeMap::new();
    for line in lines.lines() {
        let item: Value = serde_json::from_str(line).expect("JSON lines");
        let field = |key: &str| item[key].as_str().unwrap_or_default();
        let Some((_, _, tool_parsers, dynamos)) =
            NAMES.iter().find(|names| names.0 == field("format") && names.1 == field("form"))
        else {
            continue;
        };
        let gold = item["calls"].as_array().into_iter().flatten();
        let gold: Vec<(String, Value)> = gold
            .map(|call| (call["name"].as_str().unwrap_or_default().to_owned(), call["arguments"].clone()))
            .collect();
        let read = [
            (
                "tool-parser",
                tool_parsers,
                runtime.block_on(tool_parser(&factory, tool_parsers, field("text"), &item["tools"])),
            ),
            ("dynamo-parsers", dynamos, runtime.block_on(dynamo(dynamos, field("text"), &item["tools"]))),
        ];
        for (peer, name, calls) in read {
            if !name.is_empty() {
                let format = format!("{} {}", field("format"), field("form"));
                let score = scores.entry((peer, format, field("set").to_owned())).or_default();
                *score = (score.0 + u32::from(calls.as_ref() == Some(&gold)), score.1 + 1);
            }
        }
    }
    let mut out = json!({});
    for ((peer, format, set), (equal, all)) in scores {
        out[peer][format.trim()][set] = json!([equal, all]);
    }
    println!("{out}");
}
