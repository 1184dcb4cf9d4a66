//! MiniMax M2: `<think>` around reasoning; calls as tags for the function and its parameters.
//!
//! ```text
//! <minimax:tool_call>
//! <invoke name="NAME">
//! <parameter name="KEY">VALUE</parameter>
//! </invoke>
//! </minimax:tool_call>
//! ```
//!
//! A value carries no type, so the tool's JSON schema gives it one. The template opens the reasoning in the prompt.

use blocks::layout::{Arguments, Layout, Named, Tags};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let tags = Tags {
        key_open: "<parameter name=\"".into(),
        value_open: vec!["\">".into()],
        value_close: "</parameter>".into(),
        ..Tags::default()
    };
    let tools = Layout {
        section_open: vec!["<minimax:tool_call>".into()],
        section_close: vec!["</minimax:tool_call>".into()],
        named: Some(Named {
            name_open: "<invoke name=\"".into(),
            name_close: vec!["\">".into()],
            arguments: Arguments::Tags,
            tags,
            arguments_close: vec!["</invoke>".into()],
            ..Named::default()
        }),
        ..Layout::default()
    };
    Description { reasoning: Some(Reasoning::tags("<think>", "</think>")), tools: Some(tools) }
}

blocks::described_stage!(MinimaxM2, describe);
