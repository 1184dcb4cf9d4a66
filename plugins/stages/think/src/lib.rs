//! Separates reasoning between `<think>` and `</think>` from the answer; `blocks::reasoning` does it.

use blocks::reasoning::Reasoning;
use blocks::stage::Description;

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    open: String,
    close: String,
    /// What the host writes when the thinking budget is spent.
    forced_close: String,
    /// When the prompt does not say: the output begins inside the block.
    assume_open: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { open: "<think>".into(), forced_close: String::new(), close: "</think>".into(), assume_open: false }
    }
}

fn describe(settings: Settings) -> Description {
    let Settings { open, close, forced_close, assume_open } = settings;
    let reasoning = Reasoning { forced_close, assume_open, ..Reasoning::tags(&open, &close) };
    Description { reasoning: Some(reasoning), tools: None }
}

blocks::described_stage!(Think, describe);
