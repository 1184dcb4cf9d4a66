//! Hermes tool calls: a JSON object with `name` and `arguments` between `<tool_call>` and `</tool_call>`.
//!
//! The call starts as soon as its name is known and its arguments begin, in whatever order the keys come; the
//! arguments' own text is passed on as it was written. Without the marker, JSON is text.

mod call;

use blocks::markers::Tag;
use blocks::tool::{CallOut, Format, Step, ToolSession, Unit};
use tokenloom_sdk::output::{Request, Requirements, Stage};
use tokenloom_sdk::{NoSettings, PluginError};

use crate::call::Call;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub struct Hermes;

pub struct HermesFormat {
    tags: [Tag; 2],
}

impl Stage for Hermes {
    type Session = ToolSession<HermesFormat>;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json)?;
        Ok(Self)
    }

    fn requires(&self) -> Requirements {
        Requirements {
            markers: vec![OPEN.into(), CLOSE.into()],
            reasoning: Vec::new(),
            tool_schemas: false,
            stop: Vec::new(),
            ext: Vec::new(),
        }
    }

    fn open(&self, request: Request) -> Self::Session {
        ToolSession::new(HermesFormat { tags: [Tag::of(&request, OPEN), Tag::of(&request, CLOSE)] })
    }
}

impl Format for HermesFormat {
    type Call = Call;

    fn tags(&self) -> &[Tag] {
        &self.tags
    }

    fn openers(&self) -> usize {
        1
    }

    fn begin(&self, _opener: usize, _at_line_start: bool) -> Option<Call> {
        Some(Call::default())
    }

    fn push(&self, call: &mut Call, unit: Unit, out: &mut CallOut) -> Step {
        let [_, close] = &self.tags;
        match unit {
            Unit::Char(c) => call.push(c, close.by_text(), out),
            Unit::Tag(1) if call.whole() => Step::Ended(String::new()),
            // Inside a string of the arguments a marker is text like any other.
            Unit::Tag(tag) => call.push_text(&self.tags[tag].text, out),
        }
    }

    fn whole(&self, call: &Call) -> bool {
        call.whole()
    }
}

tokenloom_sdk::export_stage!(Hermes);
