//! The driver of a tool-call format: one text in, text and calls out.
//!
//! A [`Format`] says which tags begin a block of calls and reads a block symbol by symbol. [`ToolSession`] does what is
//! the same for all of them: it finds the openers, holds back what may still become one, gives everything back when it
//! was no call after all, holds calls inside reasoning until they are whole, and numbers the calls.

use tokenloom_sdk::output::{Channel, Event, Rest, RestKind, Text};

use crate::markers::{Found, Tag, find, first_chars};
use crate::out::Out;
use crate::symbols::Symbol;

/// Text held without being a call yet, or inside reasoning. The host passes text through beyond this as well.
pub const HELD_BYTES_MAX: usize = 256 * 1024;

/// A function's name as long as this is no name.
pub const NAME_BYTES_MAX: usize = 256;

/// What a block says after a symbol. The symbols in it, which end with the one just read, are read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    More,
    /// What came since the opener, or since the last call of the block, was text all along.
    NotACall(Vec<Symbol>),
    /// The block is over; no call is open.
    Ended(Vec<Symbol>),
    /// A call has started and cannot go on.
    Broken(Vec<Symbol>),
}

/// Where an opener stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Only white space before it in its line.
    pub line_start: bool,
    /// Only white space and calls before it in the whole answer.
    pub answer_start: bool,
}

/// What an opener is where it stands.
pub enum Begin<B> {
    Text,
    /// The block begins behind the opener.
    Behind(B),
    /// The opener is the block's first text.
    With(B),
}

/// Where a block's calls go.
pub struct CallOut<'a> {
    out: &'a mut Out,
    index: &'a mut u32,
    state: &'a mut CallState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CallState {
    /// A call has started and not ended.
    open: bool,
    /// A call of the block has ended.
    any: bool,
}

impl CallOut<'_> {
    pub fn is_open(&self) -> bool {
        self.state.open
    }

    pub fn start(&mut self, name: &str, id: Option<&str>) {
        self.state.open = true;
        self.out.start(*self.index, name, id);
    }

    pub fn arguments(&mut self, fragment: &str) {
        self.out.arguments(*self.index, fragment);
    }

    pub fn argument(&mut self, c: char) {
        self.arguments(c.encode_utf8(&mut [0; 4]));
    }

    /// The open call is complete.
    pub fn end(&mut self) {
        self.out.end(*self.index, true);
        *self.index += 1;
        *self.state = CallState { open: false, any: true };
    }
}

pub trait Format: 'static {
    type Block;

    /// All tags of the format; an opener is a position in this list.
    fn tags(&self) -> &[Tag];

    /// How many of the tags, from the first on, begin a block.
    fn openers(&self) -> usize;

    /// Whether an opener only counts at the answer's start.
    fn only_at_start(&self, opener: usize) -> bool;

    fn begin(&self, opener: usize, place: Place) -> Begin<Self::Block>;

    fn push(&self, block: &mut Self::Block, symbol: Symbol, out: &mut CallOut) -> Step;

    /// Nothing but the format's own text has been read since the last call.
    fn between_calls(&self, block: &Self::Block) -> bool;

    /// Whether an opener counts only at the start of a line.
    fn heeds_lines(&self) -> bool;

    /// How the format rests inside a text of the open call's arguments.
    fn rest(&self, block: &Self::Block) -> Option<Rest>;
}

struct Open<B> {
    block: B,
    /// What was read since the opener or the last call, to give back.
    raw: Vec<Symbol>,
    raw_bytes: usize,
    /// Events of a call inside reasoning, which are sent when it ends.
    aside: Out,
    state: CallState,
}

/// What is still to be read, the next one last.
enum Item {
    Text(String),
    Tag(usize),
}

pub struct ToolSession<F: Format> {
    format: F,
    out: Out,
    channel: Channel,
    todo: Vec<Item>,
    /// Text that may still become an opener.
    part: String,
    /// White space of the content channel next to a call: shown only if text follows.
    gap: String,
    /// A call was sent, so that white space at the end is no text.
    after_call: bool,
    /// Content was shown; before that, white space may still turn out to stand next to a call.
    shown: bool,
    at_line_start: bool,
    open: Option<Open<F::Block>>,
    next_index: u32,
    /// First characters of the openers that count in the middle of an answer and are found by their text, and the line
    /// break where lines matter.
    openings: String,
}

impl<F: Format> ToolSession<F> {
    pub fn new(format: F) -> Self {
        let anywhere = (0..format.openers()).filter(|opener| !format.only_at_start(*opener));
        let mut openings = first_chars(anywhere.map(|opener| &format.tags()[opener]));
        if format.heeds_lines() {
            openings.push('\n');
        }
        Self {
            openings,
            format,
            out: Out::default(),
            channel: Channel::Content,
            todo: Vec::new(),
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
        match self.format.tags().iter().position(|tag| tag.is(text.token)) {
            Some(tag) => self.todo.push(Item::Tag(tag)),
            // Any other added token is text, and the token stays with it.
            None if text.token.is_some()
                && self.open.is_none()
                && self.part.is_empty()
                && !self.may_open(&text.text) =>
            {
                self.show(&text.text, text.token);
            }
            None => self.todo.push(Item::Text(text.text)),
        }
        // Each round takes at least one symbol: what is read again is shorter than the block it was part of.
        while let Some(item) = self.todo.pop() {
            match item {
                Item::Tag(tag) => self.tag(tag),
                Item::Text(text) if self.open.is_some() => self.inside(text),
                Item::Text(text) => self.outside(text),
            }
        }
    }

    fn may_open(&self, text: &str) -> bool {
        self.search(text) != Found::Part { at: text.len() }
    }

    /// Openers that only count at the answer's start are not looked for behind it, so that nothing is held for them.
    fn search(&self, text: &str) -> Found {
        let start = self.answer_start();
        let openers = self.format.tags()[..self.format.openers()].iter().enumerate();
        find(text, openers.map(|(number, tag)| tag.by_text().filter(|_| start || !self.format.only_at_start(number))))
    }

    fn answer_start(&self) -> bool {
        !self.shown && self.channel == Channel::Content
    }

    /// A tag outside of a block that does not open one is text.
    fn tag(&mut self, tag: usize) {
        if self.open.is_some() {
            self.symbol(Symbol::tag(tag));
            return;
        }
        self.give_back_part();
        let text = self.format.tags()[tag].text.clone();
        if tag < self.format.openers() {
            self.begin(tag, &text);
        } else {
            self.show(&text, self.format.tags()[tag].token);
        }
    }

    /// Reads until an opener.
    fn outside(&mut self, text: String) {
        let text = std::mem::take(&mut self.part) + &text;
        match self.search(&text) {
            Found::Part { at } => {
                self.show(&text[..at], None);
                self.part = text[at..].to_string();
            }
            Found::Whole { at, which } => {
                let end = at + self.format.tags()[which].text.len();
                self.show(&text[..at], None);
                if end < text.len() {
                    self.todo.push(Item::Text(text[end..].to_string()));
                }
                self.begin(which, &text[at..end]);
            }
        }
    }

    fn begin(&mut self, opener: usize, text: &str) {
        let place = Place { line_start: self.at_line_start, answer_start: self.answer_start() };
        let (block, with) = match self.format.begin(opener, place) {
            Begin::Text => return self.show(text, self.format.tags()[opener].token),
            Begin::Behind(block) => (block, false),
            Begin::With(block) => (block, true),
        };
        let mut open =
            Open { block, raw: Vec::new(), raw_bytes: 0, aside: Out::default(), state: CallState::default() };
        if !with {
            open.raw_bytes = text.len();
            match self.format.tags()[opener].token {
                Some(_) => open.raw.push(Symbol::tag(opener)),
                None => open.raw.extend(text.chars().map(Symbol::from)),
            }
        }
        self.open = Some(open);
        if with {
            self.inside(text.to_string());
        }
    }

    /// Feeds an open block; what it does not take is left to do.
    fn inside(&mut self, text: String) {
        for (at, c) in text.char_indices() {
            let end = at + c.len_utf8();
            let before = self.todo.len();
            self.symbol(c.into());
            if self.todo.len() > before || self.open.is_none() {
                // What is read again comes before the rest of this text.
                if end < text.len() {
                    self.todo.insert(before, Item::Text(text[end..].to_string()));
                }
                return;
            }
        }
    }

    /// One symbol into the open block.
    fn symbol(&mut self, symbol: Symbol) {
        let Some(open) = self.open.as_mut() else { return };
        let held = self.channel == Channel::Reasoning;
        if held || !open.state.open {
            open.raw.push(symbol);
            open.raw_bytes += bytes(symbol, self.format.tags());
        }
        let was = open.state;
        let first_index = self.next_index;
        let out = if held { &mut open.aside } else { &mut self.out };
        let mut call_out = CallOut { out, index: &mut self.next_index, state: &mut open.state };
        let step = self.format.push(&mut open.block, symbol, &mut call_out);
        if open.state.open && !was.open && !held {
            // From here on there is nothing to give back.
            forget(open);
            self.gap.clear();
        }
        if self.next_index > first_index {
            forget(open);
            self.call_ended();
        }
        match step {
            Step::More => self.limit(held),
            Step::NotACall(rest) => self.give_back_but(rest),
            Step::Broken(rest) if held => self.give_back_but(rest),
            Step::Ended(rest) => {
                self.open = None;
                self.at_line_start = true;
                self.again(rest);
            }
            Step::Broken(rest) => {
                self.break_off();
                self.again(rest);
            }
        }
    }

    fn limit(&mut self, held: bool) {
        if let Some(open) = &self.open
            && open.raw_bytes > HELD_BYTES_MAX
            && (held || !open.state.open)
        {
            self.give_back();
        }
    }

    fn call_ended(&mut self) {
        if self.channel == Channel::Reasoning {
            if let Some(open) = &mut self.open {
                self.out.events.append(&mut open.aside.events);
            }
        } else {
            self.gap.clear();
            self.after_call = true;
        }
    }

    /// The open call ends where it is.
    fn break_off(&mut self) {
        self.open = None;
        self.out.end(self.next_index, false);
        self.next_index += 1;
        self.gap.clear();
        self.after_call = true;
        self.at_line_start = true;
    }

    /// Leaves symbols to do, before everything else.
    fn again(&mut self, symbols: Vec<Symbol>) {
        let mut text = String::new();
        for symbol in symbols.into_iter().rev() {
            match (symbol.as_char(), symbol.as_tag()) {
                (Some(c), _) => text.push(c),
                (None, Some(tag)) => {
                    self.again_text(&mut text);
                    self.todo.push(Item::Tag(tag));
                }
                (None, None) => {}
            }
        }
        self.again_text(&mut text);
    }

    /// The text was collected from its end.
    fn again_text(&mut self, reversed: &mut String) {
        if !reversed.is_empty() {
            self.todo.push(Item::Text(reversed.chars().rev().collect()));
            reversed.clear();
        }
    }

    /// Gives back what was held before `rest`, which is read again.
    fn give_back_but(&mut self, rest: Vec<Symbol>) {
        if let Some(open) = &mut self.open {
            let keep = open.raw.len().saturating_sub(rest.len());
            open.raw.truncate(keep);
        }
        self.give_back();
        self.again(rest);
    }

    /// The held text was no call: it goes on as text of its channel, without being searched again.
    fn give_back(&mut self) {
        let Some(open) = self.open.take() else { return };
        let mut text = String::new();
        for symbol in open.raw {
            match (symbol.as_char(), symbol.as_tag()) {
                (Some(c), _) => text.push(c),
                (None, Some(tag)) => text.push_str(&self.format.tags()[tag].text),
                (None, None) => {}
            }
        }
        self.show(&text, None);
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

    /// Reads text, and passes on what is no call.
    pub fn read(&mut self, events: Vec<Event>) -> Vec<Event> {
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
        self.out.take()
    }

    /// In the middle of the answer, of reasoning or of a text among the arguments, with nothing held.
    pub fn rest(&self) -> Option<Rest> {
        let content = self.channel == Channel::Content;
        if let Some(open) = &self.open {
            return self.format.rest(&open.block).filter(|_| content && open.state.open);
        }
        let kind = match &self.channel {
            Channel::Content if self.shown && !self.after_call && self.gap.is_empty() => RestKind::Content,
            Channel::Reasoning => RestKind::Reasoning,
            _ => return None,
        };
        let between = !self.format.heeds_lines() || !self.at_line_start;
        (between && self.part.is_empty()).then(|| Rest::new(kind, self.openings.as_str()))
    }

    /// The stream is over: what is held comes out, and a call that is open ends.
    pub fn end(&mut self) -> Vec<Event> {
        self.interrupt();
        if !self.after_call {
            let gap = std::mem::take(&mut self.gap);
            self.out.text(&Channel::Content, &gap, None);
        }
        self.out.take()
    }

    /// The stream or the channel is over, or an event that is no text comes between.
    fn interrupt(&mut self) {
        if let Some(open) = &self.open {
            if open.state.open && self.channel == Channel::Content {
                self.break_off();
            } else if open.state.any && !open.state.open && self.format.between_calls(&open.block) {
                self.open = None;
            } else {
                self.give_back();
            }
        }
        self.give_back_part();
    }
}

fn bytes(symbol: Symbol, tags: &[Tag]) -> usize {
    match (symbol.as_char(), symbol.as_tag()) {
        (Some(c), _) => c.len_utf8(),
        (None, tag) => tag.and_then(|tag| tags.get(tag)).map_or(0, |tag| tag.text.len()),
    }
}

fn forget<B>(open: &mut Open<B>) {
    open.raw.clear();
    open.raw_bytes = 0;
}
