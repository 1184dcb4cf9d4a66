//! Seed-OSS: reasoning between tags of its own, and Qwen3-Coder's calls in another wrapper; see
//! [`Layout::function_tags`].

use blocks::layout::Layout;
use blocks::reasoning::Reasoning;
use blocks::stage::Description;
use tokenloom_sdk::NoSettings;

fn describe(_: NoSettings) -> Description {
    Description {
        reasoning: Some(Reasoning::tags("<seed:think>", "</seed:think>")),
        tools: Some(Layout::function_tags("<seed:tool_call>", "</seed:tool_call>")),
    }
}

blocks::described_stage!(SeedOss, describe);
