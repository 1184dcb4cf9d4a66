//! Qwen3-Coder's tool calls: tags for the function and its parameters, values as raw text; see [`Layout::function_tags`].

use blocks::layout::Layout;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    Description { reasoning: None, tools: Some(Layout::function_tags("<tool_call>", "</tool_call>")) }
}

blocks::described_stage!(Qwen3Coder, describe);
