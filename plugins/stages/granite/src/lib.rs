//! Granite: reasoning announced by a sentence (3.2) or between `<think>` tags; calls as JSON behind a marker.
//!
//! ```text
//! <|tool_call|>[{"name": "f", "arguments": {}}]
//! <tool_call>{"name": "f", "arguments": {}}</tool_call>
//! ```

use blocks::layout::{Layout, List, Object};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let texts = |texts: [&str; 3]| texts.map(String::from).to_vec();
    let reasoning = Reasoning {
        open: texts(["Here is my thought process:", "Here's my thought process:", "<think>"]),
        close: texts(["Here is my response:", "Here's my response:", "</think>"]),
        ..Reasoning::default()
    };
    let tools = Layout {
        call_open: texts(["<|tool_call|>", "<tool_call>", "<function_call>"]),
        call_close: vec!["</tool_call>".into(), "</function_call>".into()],
        list: List::May,
        object: Some(Object::default()),
        ..Layout::default()
    };
    Description { reasoning: Some(reasoning), tools: Some(tools) }
}

blocks::described_stage!(Granite, describe);
