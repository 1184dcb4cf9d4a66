//! gpt-oss writes messages with headers (harmony): a channel, sometimes a recipient, then the text.
//!
//! ```text
//! <|channel|>analysis<|message|>reasoning<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{}<|call|>
//! <|start|>assistant<|channel|>final<|message|>answer<|return|>
//! ```
//!
//! `header` reads headers, `session` the stream.

mod header;
mod session;

use tokenloom_sdk::output::{Constraint, ReasoningSpan, Request, Requirements, Stage};
use tokenloom_sdk::{NoSettings, PluginError};

use crate::session::GptOssSession;

/// The format's markers; [`header::Mark`] names them by position.
pub(crate) const MARKERS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];

pub struct GptOss;

impl Stage for GptOss {
    type Session = GptOssSession;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json)?;
        Ok(Self)
    }

    fn requires(&self) -> Requirements {
        let analysis = ReasoningSpan {
            open: "<|channel|>analysis<|message|>".into(),
            close: "<|end|>".into(),
            forced_close: "<|end|><|start|>assistant<|channel|>final<|message|>".into(),
        };
        Requirements {
            markers: MARKERS.map(String::from).to_vec(),
            reasoning: vec![analysis],
            tool_schemas: true,
            // The model stops here to hear the tool's answer; not every file names it as an end token.
            stop: vec!["<|call|>".into()],
            ext: Vec::new(),
        }
    }

    fn constrain(&self, request: &Request) -> Result<Option<Constraint>, PluginError> {
        Ok(header::constrain(request))
    }

    fn open(&self, request: Request) -> GptOssSession {
        GptOssSession::new(&request)
    }
}

tokenloom_sdk::export_stage!(GptOss);
