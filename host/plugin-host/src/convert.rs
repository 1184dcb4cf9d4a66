//! Between the contract's types and the generated ones of `wit/output`. Strings are moved, not copied, where they can be.

use contract::output::{
    CallKind, Channel, Constraint, EndReason, OutputEvent, ReasoningSpan, Requirements, StageRequest, StartAt,
    TURN_PREFIX_BYTES_MAX, ToolChoice,
};

use crate::bindings::output::{types, wit};

pub(crate) fn channel(channel: types::Channel) -> Channel {
    match channel {
        types::Channel::Content => Channel::Content,
        types::Channel::Reasoning => Channel::Reasoning,
        types::Channel::Other(name) => Channel::Other(name.into()),
    }
}

fn wit_channel(channel: &Channel) -> types::Channel {
    match channel {
        Channel::Content => types::Channel::Content,
        Channel::Reasoning => types::Channel::Reasoning,
        Channel::Other(name) => types::Channel::Other(name.to_string()),
    }
}

fn wit_kind(kind: CallKind) -> wit::CallKind {
    match kind {
        CallKind::Json => wit::CallKind::Json,
        CallKind::Text => wit::CallKind::Text,
    }
}

pub(crate) fn wit_event(event: OutputEvent) -> wit::Event {
    match event {
        OutputEvent::Text { channel, text, token } => {
            wit::Event::Text(wit::Text { channel: wit_channel(&channel), text, token })
        }
        OutputEvent::CallStart { index, id, name, kind } => {
            wit::Event::CallStart(wit::CallStart { index, id, name, kind: wit_kind(kind) })
        }
        OutputEvent::CallArguments { index, fragment } => {
            wit::Event::CallArguments(wit::CallArguments { index, fragment })
        }
        OutputEvent::CallEnd { index, complete } => wit::Event::CallEnd(wit::CallEnd { index, complete }),
        OutputEvent::Ext { key, value } => wit::Event::Ext(wit::Setting { key, value }),
    }
}

pub(crate) fn event(event: wit::Event) -> OutputEvent {
    match event {
        wit::Event::Text(t) => OutputEvent::Text { channel: channel(t.channel), text: t.text, token: t.token },
        wit::Event::CallStart(c) => OutputEvent::CallStart {
            index: c.index,
            id: c.id,
            name: c.name,
            kind: match c.kind {
                wit::CallKind::Json => CallKind::Json,
                wit::CallKind::Text => CallKind::Text,
            },
        },
        wit::Event::CallArguments(c) => OutputEvent::CallArguments { index: c.index, fragment: c.fragment },
        wit::Event::CallEnd(c) => OutputEvent::CallEnd { index: c.index, complete: c.complete },
        wit::Event::Ext(setting) => OutputEvent::Ext { key: setting.key, value: setting.value },
    }
}

/// Bytes of text an event carries; what limits count.
pub(crate) fn event_bytes(event: &wit::Event) -> usize {
    match event {
        wit::Event::Text(text) => text.text.len(),
        wit::Event::CallStart(call) => call.name.len() + call.id.as_ref().map_or(0, String::len),
        wit::Event::CallArguments(call) => call.fragment.len(),
        wit::Event::CallEnd(_) => 0,
        wit::Event::Ext(setting) => setting.key.len() + setting.value.len(),
    }
}

/// Schemas are long, so they are handed over only to a stage that asked for them.
pub(crate) fn wit_request(request: &StageRequest, with_schemas: bool) -> wit::Request {
    let tool = |tool: &contract::output::Tool| wit::Tool {
        name: tool.name.clone(),
        kind: wit_kind(tool.kind),
        schema_json: tool.schema_json.as_ref().filter(|_| with_schemas).map(|schema| schema.to_string()),
        strict: tool.strict,
    };
    let tool_choice = match &request.tool_choice {
        ToolChoice::None => wit::ToolChoice::None,
        ToolChoice::Auto => wit::ToolChoice::Auto,
        ToolChoice::Required => wit::ToolChoice::Required,
        ToolChoice::Named(name) => wit::ToolChoice::Named(name.clone()),
        ToolChoice::Allowed(names) => wit::ToolChoice::Allowed(names.clone()),
    };
    let marker = |marker: &contract::output::Marker| wit::Marker { text: marker.text.clone(), token: marker.token };
    wit::Request {
        tools: request.tools.iter().map(tool).collect(),
        tool_choice,
        parallel_calls: request.parallel_calls,
        starts_in: request.starts_in.as_ref().map(wit_channel),
        turn_prefix: cut_left(request.turn_prefix.clone(), TURN_PREFIX_BYTES_MAX),
        markers: request.markers.iter().map(marker).collect(),
        ext: Vec::new(),
    }
}

/// Size of a request, for the limit on the answer.
pub(crate) fn request_bytes(request: &wit::Request) -> usize {
    let tools = request.tools.iter().map(|tool| tool.name.len() + tool.schema_json.as_ref().map_or(0, String::len));
    request.turn_prefix.len() + tools.sum::<usize>()
}

/// Keeps the last `bytes_max` bytes, from a character on.
pub(crate) fn cut_left(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let mut from = text.len() - bytes_max;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text.drain(..from);
    }
    text
}

pub(crate) fn wit_end(reason: EndReason) -> wit::EndReason {
    match reason {
        EndReason::StopToken(token) => wit::EndReason::StopToken(token),
        EndReason::StopString(text) => wit::EndReason::StopString(text),
        EndReason::Length => wit::EndReason::Length,
        EndReason::Cancelled => wit::EndReason::Cancelled,
        EndReason::Error => wit::EndReason::Error,
    }
}

/// Markers, spans and stop strings of one stage. Formats have fewer than ten; each is looked for in every token.
const LISTS_MAX: usize = 256;
const MARKER_BYTES_MAX: usize = 1024;

/// Checks and converts. The error names the list and its limit.
pub(crate) fn requirements(needs: wit::Requirements) -> Result<Requirements, String> {
    for (name, count) in
        [("markers", needs.markers.len()), ("reasoning", needs.reasoning.len()), ("stop", needs.stop.len())]
    {
        if count > LISTS_MAX {
            return Err(format!("{count} {name}; at most {LISTS_MAX} are allowed"));
        }
    }
    let spans = needs.reasoning.iter().flat_map(|span| [&span.open, &span.close]);
    for text in needs.markers.iter().chain(&needs.stop).chain(spans) {
        if text.is_empty() || text.len() > MARKER_BYTES_MAX {
            return Err(format!("a marker of {} bytes; 1 to {MARKER_BYTES_MAX} are allowed", text.len()));
        }
    }
    let span = |s: wit::ReasoningSpan| ReasoningSpan { open: s.open, close: s.close, forced_close: s.forced_close };
    Ok(Requirements {
        markers: needs.markers,
        reasoning: needs.reasoning.into_iter().map(span).collect(),
        tool_schemas: needs.tool_schemas,
        stop: needs.stop,
    })
}

pub(crate) fn constraint(constraint: wit::Constraint) -> Constraint {
    Constraint {
        start: match constraint.start {
            wit::StartAt::FirstToken => StartAt::FirstToken,
            wit::StartAt::AfterReasoning => StartAt::AfterReasoning,
        },
        language: constraint.language,
        grammar: constraint.grammar,
    }
}
