//! Messages to prompt text.

use crate::output::Channel;
use crate::{Failures, PluginError};

/// What a template made of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    pub prompt: String,
    /// What was rendered after the last user or tool turn.
    pub turn_prefix: String,
    /// The channel that the template left open; the output chain starts in it.
    pub starts_in: Option<Channel>,
    /// Stop strings that the template's format implies.
    pub stop: Vec<String>,
    /// `unread-kwargs`: comma-separated `chat_template_kwargs` that the template never reads.
    pub ext: Vec<(String, String)>,
}

/// The plugin kind *template*: a pure function of the normalised request.
pub trait ChatTemplate: Send + Sync {
    fn name(&self) -> &str;
    /// Which loaded plugin answers here, as `GET /plugins` numbers them; 0: none does.
    fn serial(&self) -> u64 {
        0
    }
    /// As [`crate::output::OutputStage::failures`].
    fn failures(&self) -> Failures {
        Failures::default()
    }

    /// `request_json` holds `messages, tools, documents, add_generation_prompt, continue_final_message, kwargs, now`.
    /// Called once per request on a request thread; may take milliseconds, never blocks on anything outside.
    fn render(&self, request_json: &str) -> Result<Rendered, PluginError>;
}
