//! Qwen3-Coder's tool calls: tags for the function and its parameters, values as raw text.
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! A value carries no type, so the tool's JSON schema gives it one (`types`). Text values are sent while they are
//! generated (`call`). A `<function=NAME>` of a declared tool at the start of a line is a call without its opening
//! marker, which the models often forget.

mod call;
mod types;

use blocks::markers::Tag;
use blocks::tool::{CallOut, Format, Step, ToolSession, Unit};
use tokenloom_sdk::output::{Request, Requirements, Stage};
use tokenloom_sdk::{NoSettings, PluginError};

use crate::call::{Call, Markers};
use crate::types::Tools;

const OPEN: &str = "<tool_call>";
const FUNCTION: &str = "<function=";
const CLOSE: &str = "</tool_call>";

pub struct Qwen3Coder;

pub struct Qwen3CoderFormat {
    /// [`OPEN`], [`FUNCTION`] and [`CLOSE`]; the first two begin a call.
    tags: [Tag; 3],
    tools: Tools,
}

impl Stage for Qwen3Coder {
    type Session = ToolSession<Qwen3CoderFormat>;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json)?;
        Ok(Self)
    }

    fn requires(&self) -> Requirements {
        Requirements {
            markers: vec![OPEN.into(), CLOSE.into()],
            reasoning: Vec::new(),
            tool_schemas: true,
            stop: Vec::new(),
            ext: Vec::new(),
        }
    }

    fn open(&self, request: Request) -> Self::Session {
        let tags = [OPEN, FUNCTION, CLOSE].map(|text| Tag::of(&request, text));
        ToolSession::new(Qwen3CoderFormat { tags, tools: Tools::new(&request.tools) })
    }
}

impl Format for Qwen3CoderFormat {
    type Call = Call;

    fn tags(&self) -> &[Tag] {
        &self.tags
    }

    fn openers(&self) -> usize {
        2
    }

    fn begin(&self, opener: usize, at_line_start: bool) -> Option<Call> {
        match opener {
            0 => Some(Call::after_marker()),
            _ => at_line_start.then(Call::bare),
        }
    }

    fn push(&self, call: &mut Call, unit: Unit, out: &mut CallOut) -> Step {
        let markers = Markers { close: self.tags[2].by_text(), tools: &self.tools };
        match unit {
            Unit::Char(c) => call.push(c, &markers, out),
            Unit::Tag(2) if call.takes_close() => call.closed(out),
            // Anywhere else a marker is text like any other.
            Unit::Tag(tag) => call.push_text(&self.tags[tag].text, &markers, out),
        }
    }

    fn whole(&self, call: &Call) -> bool {
        call.whole()
    }
}

tokenloom_sdk::export_stage!(Qwen3Coder);
