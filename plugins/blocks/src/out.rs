//! Events on their way out, joined where that loses nothing.

use tokenloom_sdk::output::{CallArguments, CallEnd, CallKind, CallStart, Channel, Event, Text};

#[derive(Default)]
pub struct Out {
    pub events: Vec<Event>,
}

impl Out {
    /// Text of an added token stays an event of its own: the next stage may know the token.
    pub fn text(&mut self, channel: &Channel, text: &str, token: Option<u32>) {
        if text.is_empty() {
            return;
        }
        if token.is_none()
            && let Some(Event::Text(last)) = self.events.last_mut()
            && last.token.is_none()
            && last.channel == *channel
        {
            last.text.push_str(text);
            return;
        }
        self.events.push(Event::Text(Text { channel: channel.clone(), text: text.into(), token }));
    }

    /// `id`: the one that the model wrote.
    pub fn start(&mut self, index: u32, name: &str, id: Option<&str>) {
        let id = id.map(str::to_string);
        self.events.push(Event::CallStart(CallStart { index, id, name: name.into(), kind: CallKind::Json }));
    }

    pub fn arguments(&mut self, index: u32, fragment: &str) {
        if fragment.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(Event::CallArguments(last)) if last.index == index => last.fragment.push_str(fragment),
            _ => self.events.push(Event::CallArguments(CallArguments { index, fragment: fragment.into() })),
        }
    }

    pub fn end(&mut self, index: u32, complete: bool) {
        self.events.push(Event::CallEnd(CallEnd { index, complete }));
    }

    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
