//! DeepSeek's calls before V3.2: a section of calls between markers, each with its name and a JSON object.
//!
//! ```text
//! <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
//! ```json
//! {}
//! ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//! ```
//!
//! V3.1 writes `NAME<｜tool▁sep｜>{}` between a call's markers.

use blocks::layout::{Layout, Named};
use blocks::stage::Description;

#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    version: Version,
}

impl Default for Settings {
    fn default() -> Self {
        Self { version: Version::V3 }
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Version {
    V3,
    V31,
}

const SEPARATOR: &str = "<｜tool▁sep｜>";

fn describe(settings: Settings) -> Description {
    let named = match settings.version {
        Version::V3 => Named {
            name_open: format!("function{SEPARATOR}"),
            name_close: vec!["```json".into()],
            name_until: vec!["{".into()],
            arguments_close: vec!["```".into()],
            ..Named::default()
        },
        Version::V31 => Named { name_close: vec![SEPARATOR.into()], ..Named::default() },
    };
    let tools = Layout {
        section_open: vec!["<｜tool▁calls▁begin｜>".into()],
        section_close: vec!["<｜tool▁calls▁end｜>".into()],
        call_open: vec!["<｜tool▁call▁begin｜>".into()],
        call_close: vec!["<｜tool▁call▁end｜>".into()],
        named: Some(named),
        markers: vec![SEPARATOR.into()],
        ..Layout::default()
    };
    Description { reasoning: None, tools: Some(tools) }
}

blocks::described_stage!(DeepseekV3, describe);
