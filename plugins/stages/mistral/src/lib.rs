//! Mistral: `[THINK]` around reasoning, `[TOOL_CALLS]` before calls.
//!
//! ```text
//! [TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]
//! [TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}
//! ```
//!
//! The first form is the older tokenizers', the second that of version 11 and later; what follows the marker decides.

use blocks::layout::{Layout, List, Named, Object};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let reasoning = Reasoning {
        open: vec!["[THINK]".into(), "<think>".into()],
        close: vec!["[/THINK]".into(), "</think>".into()],
        ..Reasoning::default()
    };
    let tools = Layout {
        call_open: vec!["[TOOL_CALLS]".into()],
        list: List::May,
        object: Some(Object::default()),
        named: Some(Named {
            name_close: vec!["[ARGS]".into()],
            name_until: vec!["{".into()],
            id_open: "[CALL_ID]".into(),
            ..Named::default()
        }),
        markers: vec!["[ARGS]".into(), "[CALL_ID]".into()],
        ..Layout::default()
    };
    Description { reasoning: Some(reasoning), tools: Some(tools) }
}

blocks::described_stage!(Mistral, describe);
