//! A tool-call parser for an invented format: a line `!name {"key": value}` is a call, everything else is text.
//!
//! The whole parser is below: hold a line back while it may still become a call, decide at its end. Text that turns out
//! to be no call is passed on unchanged, so nothing is ever lost.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{
    CallArguments, CallEnd, CallKind, CallStart, Channel, EndReason, Event, Request, Requirements, Session, Stage, Text,
};

pub struct BangCalls;

impl Stage for BangCalls {
    type Session = Lines;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        // No settings: anything but an empty object is an error that names the key.
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json).map(|NoSettings {}| Self)
    }

    fn requires(&self) -> Requirements {
        Requirements { markers: vec![], reasoning: vec![], tool_schemas: false, stop: vec![], ext: vec![] }
    }

    fn open(&self, _request: Request) -> Lines {
        Lines::default()
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoSettings {}

/// Content since the last line break, and how many calls there were.
#[derive(Default)]
pub struct Lines {
    line: String,
    calls: u32,
}

impl Session for Lines {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        let mut out = Vec::new();
        for event in events {
            match event {
                Event::Text(text) if matches!(text.channel, Channel::Content) => {
                    for piece in text.text.split_inclusive('\n') {
                        self.push(piece, &mut out);
                    }
                }
                other => out.push(other),
            }
        }
        Ok(out)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<Event>, PluginError> {
        let mut out = Vec::new();
        self.end_line(&mut out);
        Ok(out)
    }
}

impl Lines {
    fn push(&mut self, piece: &str, out: &mut Vec<Event>) {
        self.line.push_str(piece);
        if self.line.ends_with('\n') {
            self.end_line(out);
        } else if !self.line.starts_with('!') {
            out.push(content(std::mem::take(&mut self.line)));
        }
    }

    fn end_line(&mut self, out: &mut Vec<Event>) {
        let line = std::mem::take(&mut self.line);
        let call = line.trim_end().strip_prefix('!').and_then(|call| call.split_once(' '));
        match call {
            Some((name, arguments)) if !name.is_empty() && is_object(arguments) => {
                let index = self.calls;
                self.calls += 1;
                out.push(Event::CallStart(CallStart { index, id: None, name: name.into(), kind: CallKind::Json }));
                out.push(Event::CallArguments(CallArguments { index, fragment: arguments.into() }));
                out.push(Event::CallEnd(CallEnd { index, complete: true }));
            }
            _ if line.is_empty() => {}
            _ => out.push(content(line)),
        }
    }
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).is_ok()
}

fn content(text: String) -> Event {
    Event::Text(Text { channel: Channel::Content, text, token: None })
}

tokenloom_sdk::export_stage!(BangCalls);

#[cfg(test)]
mod tests {
    use super::*;

    /// Text and calls of an output that arrives in pieces of `size` characters.
    fn parse(output: &str, size: usize) -> (String, Vec<(String, String)>) {
        let mut lines = Lines::default();
        let chars: Vec<char> = output.chars().collect();
        let mut events = Vec::new();
        for piece in chars.chunks(size) {
            events.extend(lines.feed(vec![content(piece.iter().collect())]).expect("never fails"));
        }
        events.extend(lines.finish(EndReason::Length).expect("never fails"));
        let (mut text, mut calls) = (String::new(), Vec::new());
        for event in events {
            match event {
                Event::Text(piece) => text.push_str(&piece.text),
                Event::CallStart(start) => calls.push((start.name, String::new())),
                Event::CallArguments(arguments) => calls.last_mut().expect("started").1.push_str(&arguments.fragment),
                _ => {}
            }
        }
        (text, calls)
    }

    /// Calls are found, look-alikes are given back, whatever the pieces are.
    #[test]
    fn calls_and_look_alikes() {
        let output = "Hm!\n!weather {\"city\": \"Oslo\"}\n!not a call\n!";
        for size in 1..=output.len() {
            let (text, calls) = parse(output, size);
            assert_eq!(text, "Hm!\n!not a call\n!", "pieces of {size}");
            assert_eq!(calls, [("weather".to_string(), "{\"city\": \"Oslo\"}".to_string())], "pieces of {size}");
        }
    }
}
