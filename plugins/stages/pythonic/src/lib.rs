//! Calls as Python writes them: `[get_weather(city="Oslo"), now()]`.
//!
//! The list stands alone as the first thing of an answer, or between a format's own markers: Llama 4's, LFM2's and
//! OLMo 3's, which writes a call a line and no list. Values are Python literals; JSON's `true`, `false` and `null` are
//! taken as well.

use blocks::layout::{Arguments, Bare, Layout, List, Named, Object};
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let texts = |texts: [&str; 3]| texts.map(String::from).to_vec();
    let tools = Layout {
        section_open: texts(["<|python_start|>", "<|tool_call_start|>", "<function_calls>"]),
        section_close: texts(["<|python_end|>", "<|tool_call_end|>", "</function_calls>"]),
        separators: vec![",".into(), ";".into(), String::new()],
        list: List::May,
        bare: Bare::AnswerStart,
        object: Some(Object::default()),
        named: Some(Named { name_close: vec!["(".into()], arguments: Arguments::Python, ..Named::default() }),
        ..Layout::default()
    };
    Description { reasoning: None, tools: Some(tools) }
}

blocks::described_stage!(Pythonic, describe);
