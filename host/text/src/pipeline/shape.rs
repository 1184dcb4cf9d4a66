//! Events to deltas: the last rules before a client sees the answer.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use contract::output::{CallKind, Channel, OutputEvent};
use serde::de::IgnoredAny;

use super::Delta;
use crate::Tokenizer;

/// Arguments beyond this are passed on, but the call is never reported complete: nobody checks them.
const ARGUMENTS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// More white space than this in a row is content, wherever it stands; a model that repeats newlines must not be held.
const WHITE_SPACE_BYTES_MAX: usize = 4096;

struct OpenCall {
    index: u32,
    kind: CallKind,
    arguments: String,
}

pub(super) struct ShaperParts {
    pub tokenizer: Tokenizer,
    pub skip_special_tokens: bool,
    /// Calls are possible, so white space next to one must not become content of its own.
    pub calls_allowed: bool,
    pub declared_tools: HashSet<String>,
    pub hide_reasoning: bool,
}

/// Joins neighbouring text, gives calls their ids, and checks joined arguments.
pub(super) struct Shaper {
    parts: ShaperParts,
    call_ids: CallIds,
    open: Option<OpenCall>,
    /// White space at the end of the content so far: dropped before a call, sent before more content.
    white_space: String,
    any_content: bool,
    any_call: bool,
    pub complete_calls: u32,
    pub undeclared_calls: u32,
    /// Reasoning that is not only white space.
    pub any_reasoning: bool,
}

impl Shaper {
    pub(super) fn new(parts: ShaperParts) -> Self {
        Self {
            parts,
            call_ids: CallIds::new(),
            open: None,
            white_space: String::new(),
            any_content: false,
            any_call: false,
            complete_calls: 0,
            undeclared_calls: 0,
            any_reasoning: false,
        }
    }

    pub(super) fn take(&mut self, events: Vec<OutputEvent>, deltas: &mut Vec<Delta>) {
        for event in events {
            match event {
                OutputEvent::Text { channel, text, token } => {
                    let hidden = self.parts.skip_special_tokens
                        && token.is_some_and(|token| self.parts.tokenizer.is_special(token));
                    if !hidden {
                        self.text(&channel, text, deltas);
                    }
                }
                OutputEvent::CallStart { index, id, name, kind } => self.start(index, id, name, kind, deltas),
                OutputEvent::CallArguments { index, fragment } => self.arguments(index, fragment, deltas),
                OutputEvent::CallEnd { index, complete } => self.end(index, complete, deltas),
                OutputEvent::Ext { .. } => {}
            }
        }
    }

    /// White space at the very end belongs to the content, unless there was a call.
    pub(super) fn finish(&mut self, deltas: &mut Vec<Delta>) {
        let white_space = std::mem::take(&mut self.white_space);
        if !self.any_call {
            push_content(&white_space, deltas);
        }
    }

    fn text(&mut self, channel: &Channel, text: String, deltas: &mut Vec<Delta>) {
        match channel {
            Channel::Reasoning => {
                self.any_reasoning |= !text.trim().is_empty();
                if !self.parts.hide_reasoning {
                    push_reasoning(&text, deltas);
                }
            }
            Channel::Content | Channel::Other(_) if !self.parts.calls_allowed => push_content(&text, deltas),
            Channel::Content | Channel::Other(_) => self.content_near_calls(&text, deltas),
        }
    }

    fn content_near_calls(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        self.white_space.push_str(text);
        let joined = std::mem::take(&mut self.white_space);
        let body = if joined.len() > WHITE_SPACE_BYTES_MAX { joined.as_str() } else { joined.trim_end() };
        self.white_space = joined[body.len()..].to_owned();
        let body = if self.any_call && !self.any_content { body.trim_start() } else { body };
        self.any_content |= !body.is_empty();
        push_content(body, deltas);
    }

    fn start(&mut self, index: u32, id: Option<String>, name: String, kind: CallKind, deltas: &mut Vec<Delta>) {
        self.white_space.clear();
        self.any_call = true;
        self.undeclared_calls += u32::from(!self.parts.declared_tools.contains(&name));
        self.open = Some(OpenCall { index, kind, arguments: String::new() });
        let id = self.call_ids.accept(id);
        deltas.push(Delta::CallStart { index, id, name });
    }

    fn arguments(&mut self, index: u32, fragment: String, deltas: &mut Vec<Delta>) {
        if fragment.is_empty() {
            return;
        }
        if let Some(open) = self.open.as_mut()
            && open.arguments.len() <= ARGUMENTS_BYTES_MAX
        {
            open.arguments.push_str(&fragment);
        }
        push_fragment(index, &fragment, deltas);
    }

    fn end(&mut self, index: u32, complete: bool, deltas: &mut Vec<Delta>) {
        let Some(open) = self.open.take() else { return };
        let no_arguments = open.kind == CallKind::Json && open.arguments.trim().is_empty();
        let complete = complete && (no_arguments || valid(&open));
        if complete && no_arguments {
            push_fragment(open.index, "{}", deltas);
        }
        self.complete_calls += u32::from(complete);
        deltas.push(Delta::CallEnd { index, complete });
    }
}

fn valid(call: &OpenCall) -> bool {
    let arguments = &call.arguments;
    arguments.len() <= ARGUMENTS_BYTES_MAX
        && match call.kind {
            CallKind::Text => true,
            CallKind::Json => {
                arguments.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(arguments).is_ok()
            }
        }
}

fn push_content(text: &str, deltas: &mut Vec<Delta>) {
    match deltas.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Content(last)) => last.push_str(text),
        _ => deltas.push(Delta::Content(text.to_owned())),
    }
}

fn push_reasoning(text: &str, deltas: &mut Vec<Delta>) {
    match deltas.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Reasoning(last)) => last.push_str(text),
        _ => deltas.push(Delta::Reasoning(text.to_owned())),
    }
}

fn push_fragment(index: u32, text: &str, deltas: &mut Vec<Delta>) {
    match deltas.last_mut() {
        Some(Delta::CallArguments { index: last, fragment }) if *last == index => fragment.push_str(text),
        _ => deltas.push(Delta::CallArguments { index, fragment: text.to_owned() }),
    }
}

/// Ids that no other call has: the format's own when it has one, else 128 random bits.
struct CallIds {
    used: HashSet<String>,
}

impl CallIds {
    fn new() -> Self {
        Self { used: HashSet::new() }
    }

    fn accept(&mut self, own: Option<String>) -> String {
        let own = own.filter(|id| !id.is_empty() && !self.used.contains(id));
        let id = own.unwrap_or_else(|| {
            // The standard library seeds every hasher state from the system's randomness.
            let half = || RandomState::new().hash_one(self.used.len());
            format!("chatcmpl-tool-{:016x}{:016x}", half(), half())
        });
        self.used.insert(id.clone());
        id
    }
}
