//! The driver of a tool-call format: one text in, text and calls out.
//!
//! A [`Format`] says which markers begin a call and reads one call character by character. [`ToolSession`] does what is
//! the same for all of them: it finds the openers, holds back what may still become one, gives everything back when it
//! was no call after all, holds calls inside reasoning until they are whole, and numbers the calls.

use tokenloom_sdk::PluginError;
use tokenloom_sdk::output::{Channel, EndReason, Event, Session, Text, rests};

use crate::markers::{Found, Tag, find};
use crate::out::Out;

/// Text held without being a call yet, or inside reasoning. The host passes text through beyond this as well.
pub const HELD_BYTES_MAX: usize = 256 * 1024;

/// A function's name as long as this is no name.
pub const NAME_BYTES_MAX: usize = 256;

/// What a call reads: a character, or one of the format's tags that is a token of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Char(char),
    Tag(usize),
}

/// What a call says after a unit. The text in it, which ends with the unit's own, is read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    More,
    /// It was text all along; only before the call has started.
    NotACall(String),
    /// The call is over, and complete.
    Ended(String),
    /// The call has started and cannot go on.
    Broken(String),
}

/// One call's events, numbered by the session.
pub struct CallOut<'a> {
    out: &'a mut Out,
    index: u32,
    started: &'a mut bool,
}

impl CallOut<'_> {
    pub fn start(&mut self, name: &str) {
        *self.started = true;
        self.out.start(self.index, name);
    }

    pub fn arguments(&mut self, fragment: &str) {
        self.out.arguments(self.index, fragment);
    }
}

pub trait Format: 'static {
    type Call;

    /// All markers of the format; an opener is a position in this list.
    fn tags(&self) -> &[Tag];

    /// How many of the tags, from the first on, begin a call.
    fn openers(&self) -> usize;

    /// A call after an opener, or `None` when the opener is text where it stands.
    fn begin(&self, opener: usize, at_line_start: bool) -> Option<Self::Call>;

    fn push(&self, call: &mut Self::Call, unit: Unit, out: &mut CallOut) -> Step;

    /// Whether the call is whole although its end marker has not come.
    fn whole(&self, call: &Self::Call) -> bool;
}

struct Open<C> {
    call: C,
    /// Everything read since the opener, to give back.
    raw: String,
    /// Events of a call inside reasoning, which are sent when it ends.
    aside: Out,
    started: bool,
}

pub struct ToolSession<F: Format> {
    format: F,
    out: Out,
    channel: Channel,
    /// Text that may still become an opener.
    part: String,
    /// White space of the content channel next to a call: shown only if text follows.
    gap: String,
    /// A call was sent, so that white space at the end is no text.
    after_call: bool,
    /// Content was shown; before that, white space may still turn out to stand next to a call.
    shown: bool,
    at_line_start: bool,
    open: Option<Open<F::Call>>,
    next_index: u32,
    /// First characters of the openers. Never empty: white space at the end of a text matters here.
    openings: String,
}

impl<F: Format> ToolSession<F> {
    pub fn new(format: F) -> Self {
        let openers = format.tags()[..format.openers()].iter();
        let openings = openers.filter_map(|tag| tag.text.chars().next()).collect();
        Self {
            openings,
            format,
            out: Out::default(),
            channel: Channel::Content,
            part: String::new(),
            gap: String::new(),
            after_call: false,
            shown: false,
            at_line_start: true,
            open: None,
            next_index: 0,
        }
    }

    fn text(&mut self, text: Text) {
        if text.text.is_empty() {
            return;
        }
        if text.channel != self.channel {
            self.interrupt();
            self.channel = text.channel.clone();
            self.at_line_start = true;
        }
        if !matches!(self.channel, Channel::Content | Channel::Reasoning) {
            self.out.text(&self.channel, &text.text, text.token);
            return;
        }
        let tag = self.format.tags().iter().position(|tag| tag.is(text.token));
        match tag {
            Some(tag) if self.open.is_some() => self.tag_inside(tag, &text),
            Some(tag) if tag < self.format.openers() => {
                self.give_back_part();
                self.begin(tag, &text.text);
            }
            // A marker out of place, or any other added token: text, and the token stays with it.
            _ if text.token.is_some() && self.open.is_none() && self.part.is_empty() && !self.may_open(&text.text) => {
                self.show(&text.text, text.token);
            }
            _ => self.plain(&text.text),
        }
    }

    fn may_open(&self, text: &str) -> bool {
        self.search(text) != Found::Part { at: text.len() }
    }

    fn search(&self, text: &str) -> Found {
        find(text, self.format.tags()[..self.format.openers()].iter().map(Tag::by_text))
    }

    /// Text without a token. A call may end inside it, and another begin.
    fn plain(&mut self, text: &str) {
        let mut rest = text.to_string();
        // Each round takes at least one character.
        while !rest.is_empty() {
            rest = if self.open.is_some() { self.inside(&rest) } else { self.outside(rest) };
        }
    }

    /// Reads until an opener; answers what follows it.
    fn outside(&mut self, text: String) -> String {
        let text = std::mem::take(&mut self.part) + &text;
        match self.search(&text) {
            Found::Part { at } => {
                self.show(&text[..at], None);
                self.part = text[at..].to_string();
                String::new()
            }
            Found::Whole { at, which } => {
                let end = at + self.format.tags()[which].text.len();
                self.show(&text[..at], None);
                self.begin(which, &text[at..end]);
                text[end..].to_string()
            }
        }
    }

    fn begin(&mut self, opener: usize, text: &str) {
        match self.format.begin(opener, self.at_line_start) {
            Some(call) => {
                let raw = text.to_string();
                self.open = Some(Open { call, raw, aside: Out::default(), started: false });
            }
            None => self.show(text, None),
        }
    }

    /// Feeds an open call; answers what it did not take.
    fn inside(&mut self, text: &str) -> String {
        for (at, c) in text.char_indices() {
            let end = at + c.len_utf8();
            if let Some(back) = self.unit(Unit::Char(c), &text[at..end]) {
                return back + &text[end..];
            }
        }
        String::new()
    }

    /// A tag that the call does not take is looked at again without it: it may begin the next one.
    fn tag_inside(&mut self, tag: usize, text: &Text) {
        let Some(back) = self.unit(Unit::Tag(tag), &text.text) else { return };
        match back.strip_suffix(text.text.as_str()) {
            Some(before) => {
                self.plain(before);
                self.text(text.clone());
            }
            None => self.plain(&back),
        }
    }

    /// One unit into the open call. `Some` when the call is over: text that is to be read again.
    fn unit(&mut self, unit: Unit, text: &str) -> Option<String> {
        let open = self.open.as_mut()?;
        let held = self.channel == Channel::Reasoning;
        if held || !open.started {
            open.raw.push_str(text);
        }
        let out = if held { &mut open.aside } else { &mut self.out };
        let mut call_out = CallOut { out, index: self.next_index, started: &mut open.started };
        let step = self.format.push(&mut open.call, unit, &mut call_out);
        match step {
            Step::More if open.raw.len() > HELD_BYTES_MAX && (held || !open.started) => {
                self.give_back();
                Some(String::new())
            }
            Step::More => {
                self.part_sent();
                None
            }
            Step::NotACall(rest) => self.give_back_but(rest),
            Step::Broken(rest) if held => self.give_back_but(rest),
            Step::Ended(rest) => {
                self.close(true);
                Some(rest)
            }
            Step::Broken(rest) => {
                self.close(false);
                Some(rest)
            }
        }
    }

    /// Gives back what was held before `rest`, which is read again.
    fn give_back_but(&mut self, rest: String) -> Option<String> {
        if let Some(open) = &mut self.open
            && open.raw.ends_with(&rest)
        {
            open.raw.truncate(open.raw.len() - rest.len());
        }
        self.give_back();
        Some(rest)
    }

    /// Once a call has started in the content channel there is nothing to give back.
    fn part_sent(&mut self) {
        if self.channel == Channel::Content
            && let Some(open) = &mut self.open
            && open.started
            && !open.raw.is_empty()
        {
            open.raw = String::new();
            self.gap.clear();
        }
    }

    fn close(&mut self, complete: bool) {
        let Some(mut open) = self.open.take() else { return };
        if self.channel == Channel::Reasoning {
            self.out.events.append(&mut open.aside.events);
        } else {
            self.gap.clear();
            self.after_call = true;
        }
        self.out.end(self.next_index, complete);
        self.next_index += 1;
        self.at_line_start = true;
    }

    /// The held text was no call: it goes on as text of its channel, without being searched again.
    fn give_back(&mut self) {
        if let Some(open) = self.open.take() {
            self.show(&open.raw, None);
        }
    }

    fn give_back_part(&mut self) {
        let part = std::mem::take(&mut self.part);
        self.show(&part, None);
    }

    fn show(&mut self, text: &str, token: Option<u32>) {
        if text.is_empty() {
            return;
        }
        self.at_line_start = match text.rfind('\n') {
            Some(at) => text[at..].trim().is_empty(),
            None => self.at_line_start && text.trim().is_empty(),
        };
        if self.channel == Channel::Content {
            if token.is_none() && text.trim().is_empty() && (self.after_call || !self.shown) {
                self.gap.push_str(text);
                return;
            }
            let gap = std::mem::take(&mut self.gap);
            self.out.text(&Channel::Content, &gap, None);
            self.after_call = false;
            self.shown = true;
        }
        self.out.text(&self.channel, text, token);
    }

    /// In the middle of a line of content, with nothing held and nothing begun.
    fn at_rest(&self) -> bool {
        let nothing_held = self.open.is_none() && self.part.is_empty() && self.gap.is_empty();
        nothing_held && self.channel == Channel::Content && self.shown && !self.after_call && !self.at_line_start
    }

    /// The stream or the channel is over, or an event that is no text comes between.
    fn interrupt(&mut self) {
        if let Some(open) = &self.open {
            if self.format.whole(&open.call) {
                self.close(true);
            } else if open.started && self.channel == Channel::Content {
                self.close(false);
            } else {
                self.give_back();
            }
        }
        self.give_back_part();
    }
}

impl<F: Format> Session for ToolSession<F> {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        for event in events {
            match event {
                Event::Text(text) => self.text(text),
                other => {
                    self.interrupt();
                    if let Event::CallStart(start) = &other {
                        self.next_index = self.next_index.max(start.index.saturating_add(1));
                    }
                    self.out.events.push(other);
                }
            }
        }
        let mut out = self.out.take();
        if self.at_rest() {
            out.push(rests(&self.openings));
        }
        Ok(out)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<Event>, PluginError> {
        self.interrupt();
        if !self.after_call {
            let gap = std::mem::take(&mut self.gap);
            self.out.text(&Channel::Content, &gap, None);
        }
        Ok(self.out.take())
    }
}
