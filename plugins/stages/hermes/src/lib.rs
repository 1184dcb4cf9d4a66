//! Hermes tool calls: a JSON object with `name` and `arguments` between `<tool_call>` and `</tool_call>`.
//!
//! The call starts as soon as its name is known and its arguments begin, in whatever order the keys come; the
//! arguments' own text is passed on as it was written. Without the marker, JSON is text.

use blocks::layout::{Layout, Object};
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let tools = Layout {
        call_open: vec!["<tool_call>".into()],
        call_close: vec!["</tool_call>".into()],
        object: Some(Object::default()),
        ..Layout::default()
    };
    Description { reasoning: None, tools: Some(tools) }
}

blocks::described_stage!(Hermes, describe);
