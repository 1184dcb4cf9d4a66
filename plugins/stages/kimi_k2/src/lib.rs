//! Kimi K2: `<think>` around reasoning; a section of calls, each with an id that names its function.
//!
//! ```text
//! <|tool_calls_section_begin|>
//! <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{}<|tool_call_end|>
//! <|tool_calls_section_end|>
//! ```
//!
//! The model was trained on histories with exactly these ids, so they are passed on.

use blocks::layout::{Layout, Named};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let arguments = "<|tool_call_argument_begin|>".to_string();
    let tools = Layout {
        section_open: vec!["<|tool_calls_section_begin|>".into(), "<|tool_call_section_begin|>".into()],
        section_close: vec!["<|tool_calls_section_end|>".into(), "<|tool_call_section_end|>".into()],
        call_open: vec!["<|tool_call_begin|>".into()],
        call_close: vec!["<|tool_call_end|>".into()],
        named: Some(Named { name_close: vec![arguments.clone()], id_in_name: true, ..Named::default() }),
        markers: vec![arguments],
        ..Layout::default()
    };
    Description { reasoning: Some(Reasoning::tags("<think>", "</think>")), tools: Some(tools) }
}

blocks::described_stage!(KimiK2, describe);
