//! Seed-OSS: reasoning between tags of its own, and Qwen3-Coder's calls in another wrapper: tags for the function and its parameters, values as raw text.
//!
//! ```text
//! <seed:tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </seed:tool_call>
//! ```
//!
//! A value carries no type, so the tool's JSON schema gives it one. Text values are sent while they are generated. A
//! `<function=NAME>` of a declared tool at the start of a line is a call without its opening marker, which the models
//! often forget.

use blocks::layout::{Arguments, Bare, Layout, Named, Tags};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let tags = Tags {
        key_open: "<parameter=".into(),
        value_open: vec![">".into()],
        value_close: "</parameter>".into(),
        trim_newline: true,
        ..Tags::default()
    };
    let tools = Layout {
        call_open: vec!["<seed:tool_call>".into()],
        call_close: vec!["</seed:tool_call>".into()],
        bare: Bare::LineStart,
        named: Some(Named {
            name_open: "<function=".into(),
            name_close: vec![">".into()],
            arguments: Arguments::Tags,
            tags,
            arguments_close: vec!["</function>".into()],
            ..Named::default()
        }),
        ..Layout::default()
    };
    Description { reasoning: Some(Reasoning::tags("<seed:think>", "</seed:think>")), tools: Some(tools) }
}

blocks::described_stage!(SeedOss, describe);
