//! Llama's JSON calls: an object with `name` and `parameters`, behind `<|python_tag|>` or as the whole answer.
//!
//! ```text
//! {"name": "get_weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}
//! ```
//!
//! Without the marker an object is a call only as the first thing of an answer, and only if it begins with one of a
//! call's keys: other JSON is passed on as it comes.

use blocks::layout::{Bare, Layout, Object};
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let argument_keys = vec!["parameters".into(), "arguments".into()];
    let tools = Layout {
        call_open: vec!["<|python_tag|>".into()],
        separators: vec![";".into(), ",".into(), String::new()],
        bare: Bare::AnswerStart,
        object: Some(Object { argument_keys, ..Object::default() }),
        ..Layout::default()
    };
    Description { reasoning: None, tools: Some(tools) }
}

blocks::described_stage!(Llama3Json, describe);
