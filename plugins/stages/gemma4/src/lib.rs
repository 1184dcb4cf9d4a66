//! Gemma 4: reasoning in a channel of its own; calls in a notation with bare keys and a quote that is a token.
//!
//! ```text
//! <|channel>thought
//! …<channel|><|tool_call>call:NAME{KEY:<|"|>text<|"|>,KEY:1}<tool_call|>
//! ```

use blocks::layout::{Arguments, Layout, Named};
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let reasoning = Reasoning { label: "thought".into(), ..Reasoning::tags("<|channel>", "<channel|>") };
    let quote = "<|\"|>".to_string();
    let tools = Layout {
        call_open: vec!["<|tool_call>".into()],
        call_close: vec!["<tool_call|>".into()],
        named: Some(Named {
            name_open: "call:".into(),
            name_close: vec!["{".into()],
            arguments: Arguments::Bare,
            quote: quote.clone(),
            ..Named::default()
        }),
        markers: vec![quote],
        ..Layout::default()
    };
    Description { reasoning: Some(reasoning), tools: Some(tools) }
}

blocks::described_stage!(Gemma4, describe);
