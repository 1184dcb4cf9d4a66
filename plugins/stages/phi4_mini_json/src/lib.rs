//! Phi-4-mini's calls: `functools[{"name": "f", "arguments": {}}]`.

use blocks::layout::{Layout, List, Object};
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let argument_keys = vec!["arguments".into(), "parameters".into()];
    let tools = Layout {
        call_open: vec!["functools".into(), "<|tool_call|>".into()],
        call_close: vec!["<|/tool_call|>".into()],
        list: List::Must,
        object: Some(Object { argument_keys, ..Object::default() }),
        ..Layout::default()
    };
    Description { reasoning: None, tools: Some(tools) }
}

blocks::described_stage!(Phi4MiniJson, describe);
