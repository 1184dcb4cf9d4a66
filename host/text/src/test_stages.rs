//! Naive stages for tests: they show what the host does, not how a format is read.

use std::sync::Arc;

use contract::PluginError;
use contract::output::{
    CallKind, Channel, Constraint, EndReason, OutputEvent, OutputStage, ReasoningSpan, Requirements, StageRequest,
    StageSession,
};

type Open = dyn Fn(&StageRequest) -> Box<dyn StageSession> + Send + Sync;

/// One stage from a function that opens its sessions.
pub struct TestStage {
    pub name: &'static str,
    pub requirements: Requirements,
    pub open: Box<Open>,
}

impl OutputStage for TestStage {
    fn name(&self) -> &str {
        self.name
    }

    fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    fn constrain(&self, _request: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        Ok(None)
    }

    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        Ok((self.open)(request))
    }
}

/// Keeps all text and splits it at the end; by token where the marker is one.
pub fn think() -> Arc<dyn OutputStage> {
    let span = ReasoningSpan { open: "<think>".into(), close: "</think>".into(), forced_close: "</think>".into() };
    let markers = vec!["<think>".into(), "</think>".into()];
    let requirements = Requirements { markers, reasoning: vec![span], ..Requirements::default() };
    let open = |request: &StageRequest| -> Box<dyn StageSession> {
        let prefix = &request.turn_prefix;
        let open = prefix.rfind("<think>") > prefix.rfind("</think>");
        let close_token = request.markers.iter().find(|m| m.text == "</think>").and_then(|m| m.token);
        Box::new(Think { open, close_token, events: Vec::new() })
    };
    Arc::new(TestStage { name: "think", requirements, open: Box::new(open) })
}

struct Think {
    open: bool,
    close_token: Option<u32>,
    events: Vec<OutputEvent>,
}

impl StageSession for Think {
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        self.events.extend(events);
        Ok(Vec::new())
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        let mut text = String::new();
        let mut close = None;
        for event in self.events.drain(..) {
            if let OutputEvent::Text { text: more, token, .. } = event {
                if token.is_some() && token == self.close_token && close.is_none() {
                    close = Some(text.len());
                }
                text.push_str(&more);
            }
        }
        let open = self.open || text.trim_start().starts_with("<think>");
        if !open {
            return Ok(vec![OutputEvent::content(text)]);
        }
        let close = if self.close_token.is_some() { close } else { text.find("</think>") };
        let (reasoning, content) = match close {
            Some(at) => (&text[..at], &text[at + "</think>".len()..]),
            None => (text.as_str(), ""),
        };
        let reasoning = reasoning.trim_start().strip_prefix("<think>").unwrap_or(reasoning);
        let text = |channel, text: &str| OutputEvent::Text { channel, text: text.into(), token: None };
        Ok(vec![text(Channel::Reasoning, reasoning), text(Channel::Content, content)])
    }
}

/// Holds from a `[` on and reads `[name arguments]` as a call, streaming the arguments.
pub fn brackets() -> Arc<dyn OutputStage> {
    let requirements = Requirements { markers: vec!["[".into()], ..Requirements::default() };
    let open = |_: &StageRequest| -> Box<dyn StageSession> { Box::new(Brackets::default()) };
    Arc::new(TestStage { name: "brackets", requirements, open: Box::new(open) })
}

#[derive(Default)]
struct Brackets {
    calls: u32,
    name: Option<String>,
    in_arguments: bool,
}

impl StageSession for Brackets {
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        let mut out = Vec::new();
        for event in events {
            let OutputEvent::Text { text, .. } = event else { continue };
            for c in text.chars() {
                self.char(c, &mut out);
            }
        }
        Ok(out)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        let held = self.name.take().filter(|_| !self.in_arguments);
        Ok(held.map(|name| OutputEvent::content(format!("[{name}"))).into_iter().collect())
    }
}

impl Brackets {
    fn char(&mut self, c: char, out: &mut Vec<OutputEvent>) {
        let index = self.calls;
        match (&mut self.name, c) {
            (None, '[') => self.name = Some(String::new()),
            (None, c) => out.push(OutputEvent::content(c)),
            // A call needs a name.
            (Some(name), ']' | ' ') if name.is_empty() => {
                self.name = None;
                out.push(OutputEvent::content(format!("[{c}")));
            }
            (Some(_), ']') => {
                if !self.in_arguments {
                    let name = self.name.take().unwrap_or_default();
                    out.push(OutputEvent::CallStart { index, id: None, name, kind: CallKind::Json });
                }
                out.push(OutputEvent::CallEnd { index, complete: true });
                self.calls += 1;
                (self.name, self.in_arguments) = (None, false);
            }
            (Some(name), ' ') if !self.in_arguments => {
                let name = name.clone();
                self.in_arguments = true;
                out.push(OutputEvent::CallStart { index, id: None, name, kind: CallKind::Json });
            }
            (Some(_), c) if self.in_arguments => {
                out.push(OutputEvent::CallArguments { index, fragment: c.into() });
            }
            (Some(name), c) => name.push(c),
        }
    }
}

/// Answers its first feed with these events and swallows everything else.
pub fn scripted(events: fn() -> Vec<OutputEvent>) -> Arc<dyn OutputStage> {
    struct Scripted(Option<Vec<OutputEvent>>);
    impl StageSession for Scripted {
        fn feed(&mut self, _events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
            Ok(self.0.take().unwrap_or_default())
        }
        fn finish(&mut self, _reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
            Ok(Vec::new())
        }
    }
    let open = move |_: &StageRequest| -> Box<dyn StageSession> { Box::new(Scripted(Some(events()))) };
    Arc::new(TestStage { name: "scripted", requirements: Requirements::default(), open: Box::new(open) })
}
