//! The native bench of an output stage: the streams that the component was timed on, on the same crate without a sandbox.

mod common;

use common::{Times, list, number, text, work};
use plugin::PLUGIN as Plugin;
use serde_json::Value;
use tokenloom_sdk::output::{
    CallArguments, CallEnd, CallKind, CallStart, Channel, EndReason, Event, Marker, Request, Session, Stage, Text, Tool,
    ToolChoice,
};

fn main() {
    let (work, rounds) = work();
    let mut times = Times::default();
    let stage = Plugin::configure(&text(&work["settings"])).expect("the settings are the component's");
    for _ in 0..rounds {
        for stream in list(&work["streams"]) {
            let asked = request(&stream["request"]);
            let mut session = times.time("open", || stage.open(asked));
            for feed in list(&stream["feeds"]) {
                let events: Vec<Event> = list(feed).iter().map(event).collect();
                let _ = times.time("feed", || session.feed(events));
            }
            let _ = times.time("finish", || session.finish(EndReason::Length));
        }
    }
    times.print();
}

fn request(value: &Value) -> Request {
    let tool = |tool: &Value| Tool {
        name: text(&tool[0]),
        kind: CallKind::Json,
        schema_json: tool[1].as_str().map(str::to_owned),
        strict: false,
    };
    let marker = |marker: &Value| Marker { text: text(&marker[0]), token: marker[1].as_u64().map(|id| id as u32) };
    Request {
        tools: list(&value["tools"]).iter().map(tool).collect(),
        tool_choice: ToolChoice::Auto,
        parallel_calls: true,
        starts_in: None,
        turn_prefix: text(&value["turn_prefix"]),
        markers: list(&value["markers"]).iter().map(marker).collect(),
        ext: Vec::new(),
    }
}

fn channel(name: &Value) -> Channel {
    match name.as_str() {
        Some("content") => Channel::Content,
        Some("reasoning") => Channel::Reasoning,
        _ => Channel::Other(text(name)),
    }
}

fn event(value: &Value) -> Event {
    let index = number(&value[1]);
    match value[0].as_str() {
        Some("text") => Event::Text(Text {
            channel: channel(&value[1]),
            text: text(&value[2]),
            token: value[3].as_u64().map(|id| id as u32),
        }),
        Some("start") => Event::CallStart(CallStart { index, id: None, name: text(&value[2]), kind: CallKind::Json }),
        Some("arguments") => Event::CallArguments(CallArguments { index, fragment: text(&value[2]) }),
        _ => Event::CallEnd(CallEnd { index, complete: value[2].as_bool().unwrap_or_default() }),
    }
}
