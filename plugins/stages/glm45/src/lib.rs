//! GLM: `<think>` around reasoning; calls as a name with a pair of tags for each argument.
//!
//! ```text
//! <tool_call>NAME
//! <arg_key>KEY</arg_key>
//! <arg_value>VALUE</arg_value>
//! </tool_call>
//! ```
//!
//! A value carries no type, so the tool's JSON schema gives it one.

use blocks::layout::{Arguments, Layout, Named, Tags};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let tags = Tags {
        key_open: "<arg_key>".into(),
        key_close: "</arg_key>".into(),
        value_open: vec!["<arg_value>".into()],
        value_close: "</arg_value>".into(),
        ..Tags::default()
    };
    let tools = Layout {
        call_open: vec!["<tool_call>".into()],
        call_close: vec!["</tool_call>".into()],
        named: Some(Named { arguments: Arguments::Tags, tags, ..Named::default() }),
        markers: ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"].map(String::from).to_vec(),
        ..Layout::default()
    };
    Description { reasoning: Some(Reasoning::tags("<think>", "</think>")), tools: Some(tools) }
}

blocks::described_stage!(Glm45, describe);
