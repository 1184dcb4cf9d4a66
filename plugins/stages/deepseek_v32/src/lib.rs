//! DeepSeek V3.2's calls: tags of its own markup, which say for each value whether it is text.
//!
//! ```text
//! <｜DSML｜function_calls>
//! <｜DSML｜invoke name="NAME">
//! <｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>
//! </｜DSML｜invoke>
//! </｜DSML｜function_calls>
//! ```

use blocks::layout::{Arguments, Layout, Named, Tags};
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    let tags = Tags {
        key_open: "<｜DSML｜parameter name=\"".into(),
        value_open: vec!["\">".into()],
        text_open: vec!["\" string=\"true\">".into()],
        json_open: vec!["\" string=\"false\">".into()],
        value_close: "</｜DSML｜parameter>".into(),
        ..Tags::default()
    };
    let tools = Layout {
        section_open: vec!["<｜DSML｜function_calls>".into(), "<｜DSML｜tool_calls>".into()],
        section_close: vec!["</｜DSML｜function_calls>".into(), "</｜DSML｜tool_calls>".into()],
        named: Some(Named {
            name_open: "<｜DSML｜invoke name=\"".into(),
            name_close: vec!["\">".into()],
            arguments: Arguments::Tags,
            tags,
            arguments_close: vec!["</｜DSML｜invoke>".into()],
            ..Named::default()
        }),
        markers: vec!["｜DSML｜".into()],
        ..Layout::default()
    };
    Description { reasoning: None, tools: Some(tools) }
}

blocks::described_stage!(DeepseekV32, describe);
