//! Hermes tool calls: a JSON object between `<tool_call>` and `</tool_call>`.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{EndReason, Event, Request, Requirements, Session, Stage};

pub struct Hermes;

pub struct HermesSession;

impl Stage for Hermes {
    type Session = HermesSession;

    fn configure(_settings_json: &str) -> Result<Self, PluginError> {
        Ok(Self)
    }

    fn requires(&self) -> Requirements {
        Requirements {
            markers: vec!["<tool_call>".into(), "</tool_call>".into()],
            reasoning: Vec::new(),
            tool_schemas: false,
            stop: Vec::new(),
            ext: Vec::new(),
        }
    }

    fn open(&self, _request: Request) -> HermesSession {
        HermesSession
    }
}

impl Session for HermesSession {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        Ok(events)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<Event>, PluginError> {
        Ok(Vec::new())
    }
}

tokenloom_sdk::export_stage!(Hermes);
