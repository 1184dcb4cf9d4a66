//! What stands around a call's arguments: openings, names, ids, separators, ends.

use super::{Kind, Reader, State};
use crate::json::Checker;
use crate::layout::{Bare, List};
use crate::markers::Towards;
use crate::object::Object;
use crate::reader::SPACE_MAX;
use crate::symbols::{Symbol, towards_groups, trim_start};
use crate::tagged::Tagged;
use crate::tool::{NAME_BYTES_MAX, Step};
use crate::values::Values;

impl Reader<'_, '_> {
    pub(super) fn section(&mut self) -> Step {
        let texts = &self.format.texts;
        if texts.call_open.is_empty() {
            self.block.state = State::Opened;
            return self.opened();
        }
        match self.towards(&[&texts.call_open, &texts.section_close]) {
            Towards::Yes(0) => self.enter(State::Opened),
            Towards::Yes(_) => self.ended(),
            Towards::Maybe => Step::More,
            Towards::No => self.broken(),
        }
    }

    pub(super) fn opened(&mut self) -> Step {
        let rest = trim_start(&self.block.tail);
        let Some(first) = rest.first().copied() else {
            return if self.block.tail.len() > SPACE_MAX { self.broken() } else { Step::More };
        };
        let (list, in_list) = (self.format.list, self.block.in_list);
        if rest.len() == 1 && list != List::Never {
            if first.is('[') && !in_list {
                self.block.in_list = true;
                return self.enter(State::Opened);
            }
            // An empty list is no text, unless nothing says that it is one of calls.
            if first.is(']') && in_list && !self.block.bare {
                self.block.in_list = false;
                return self.enter(State::After);
            }
        }
        if list == List::Must && !in_list {
            return self.broken();
        }
        // Without a marker, a list of objects is an answer as good as any where calls are not written so.
        let object = self.format.keys.is_some() && !(self.block.bare && self.format.named.is_some());
        if first.is('{') && object {
            self.block.state = State::Object(Box::new(Object::new(self.block.bare)));
            return self.again();
        }
        let texts = &self.format.texts;
        match self.towards(&[&texts.name_open, &texts.section_close]) {
            Towards::Yes(0) => self.enter(State::Name),
            Towards::Yes(_) if self.block.in_section => self.ended(),
            Towards::Maybe => Step::More,
            _ if self.format.named.is_some() && texts.name_open.is_empty() => {
                self.block.state = State::Name;
                self.name()
            }
            _ => self.broken(),
        }
    }

    pub(super) fn name(&mut self) -> Step {
        let texts = &self.format.texts;
        let (key_open, none) = (self.tagged().map(Tagged::key_open), Vec::new());
        let lookahead = texts.name_close.is_empty() && key_open.is_some();
        let groups = [
            &texts.name_close[..],
            &texts.name_until,
            &texts.id_open,
            if lookahead { key_open.unwrap_or_default() } else { &none },
            if lookahead { &texts.arguments_close } else { &none },
            if lookahead { &texts.call_close } else { &none },
        ];
        let rest = trim_start(&self.block.tail);
        let count = rest.iter().take_while(|symbol| is_name(**symbol)).count();
        let (name, behind) = rest.split_at(count);
        let text: String = name.iter().filter_map(|symbol| symbol.as_char()).collect();
        if self.block.tail.len() > NAME_BYTES_MAX + SPACE_MAX || text.len() > NAME_BYTES_MAX {
            return self.broken();
        }
        let behind = trim_start(behind);
        if behind.is_empty() {
            return Step::More;
        }
        match towards_groups(behind, &groups) {
            Towards::Maybe if !text.is_empty() => Step::More,
            Towards::Yes(which) if !text.is_empty() => {
                let until = (which == 1).then(|| behind.to_vec());
                self.block.name = text;
                match which {
                    0 => self.named(None),
                    1 => self.named(until),
                    2 => self.enter(State::Id),
                    _ => self.parameters(which - 3),
                }
            }
            _ => self.broken(),
        }
    }

    pub(super) fn id(&mut self) -> Step {
        let texts = &self.format.texts;
        let rest = trim_start(&self.block.tail);
        let count = rest.iter().take_while(|symbol| is_name(**symbol)).count();
        if count > NAME_BYTES_MAX {
            return self.broken();
        }
        match towards_groups(trim_start(&rest[count..]), &[&texts.name_close, &texts.name_until]) {
            _ if rest.len() == count => Step::More,
            Towards::Maybe => Step::More,
            Towards::Yes(which) => {
                let until = (which == 1).then(|| trim_start(&rest[count..]).to_vec());
                let id: String = rest[..count].iter().filter_map(|symbol| symbol.as_char()).collect();
                self.block.id = (!id.is_empty()).then_some(id);
                self.named(until)
            }
            Towards::No => self.broken(),
        }
    }

    /// The name is complete; `until` is the beginning of the arguments.
    pub(super) fn named(&mut self, until: Option<Vec<Symbol>>) -> Step {
        let Some(shape) = &self.format.named else { return self.broken() };
        // At the start of a line only a declared tool is believed.
        if self.block.bare && self.format.bare == Bare::LineStart && !self.format.tools.has(&self.block.name) {
            return self.broken();
        }
        if shape.id_in_name {
            let (name, id) = split_id(&self.block.name);
            (self.block.name, self.block.id) = (name, id);
        }
        self.block.tail.clear();
        self.block.state = match &shape.kind {
            Kind::Json => State::Waiting,
            Kind::Values(notation) => State::Values(Box::new(Values::new(notation))),
            Kind::Tags(_) => {
                self.start();
                State::Body
            }
        };
        // The values' own reader begins behind the opening parenthesis or brace.
        let consumed = matches!(shape.kind, Kind::Values(_));
        self.block.tail = until.filter(|_| !consumed).unwrap_or_default();
        if self.block.tail.is_empty() { Step::More } else { self.decide() }
    }

    pub(super) fn start(&mut self) {
        self.block.parameters = 0;
        self.out.start(&self.block.name, self.block.id.take().as_deref());
    }

    /// The name ended where a parameter, the arguments' end or the call's end was seen.
    pub(super) fn parameters(&mut self, which: usize) -> Step {
        match self.named(None) {
            Step::More => self.mark(which),
            other => other,
        }
    }

    pub(super) fn tagged(&self) -> Option<&Tagged> {
        match self.format.kind() {
            Some(Kind::Tags(tagged)) => Some(tagged),
            _ => None,
        }
    }

    /// JSON must come; without any there are no arguments.
    pub(super) fn waiting(&mut self) -> Step {
        let rest = trim_start(&self.block.tail);
        if rest.len() == 1 && rest[0].is('{') {
            self.block.tail = rest.to_vec();
            self.start();
            self.block.state = State::Json(Checker::default());
            return self.again();
        }
        let texts = &self.format.texts;
        match self.towards(&[&texts.arguments_close, &texts.call_close, &texts.section_close]) {
            Towards::Maybe => Step::More,
            Towards::Yes(_) => {
                self.start();
                self.out.arguments("{}");
                self.out.end();
                self.block.state = State::After;
                self.after()
            }
            Towards::No => self.broken(),
        }
    }

    /// Behind a call: the rest of its format, and what may follow.
    pub(super) fn after(&mut self) -> Step {
        let rest = trim_start(&self.block.tail);
        if self.block.in_list && rest.len() == 1 {
            if rest[0].is(',') {
                return self.enter(State::Opened);
            }
            if rest[0].is(']') {
                self.block.in_list = false;
                return self.enter(State::After);
            }
        }
        let (texts, none) = (&self.format.texts, Vec::new());
        let in_section = self.block.in_section;
        let call_open = if in_section { &texts.call_open } else { &none };
        let direct = in_section && texts.call_open.is_empty() && !self.block.in_list;
        let groups = [
            &texts.arguments_close[..],
            &texts.call_close,
            if in_section { &texts.section_close } else { &none },
            call_open,
            &texts.separators,
            if direct { &texts.name_open } else { &none },
        ];
        match self.towards(&groups) {
            Towards::Yes(0) => self.enter(State::After),
            Towards::Yes(1) if in_section => self.enter(State::After),
            Towards::Yes(1 | 2) => self.ended(),
            Towards::Yes(3 | 4) => self.enter(State::Opened),
            Towards::Yes(_) => self.enter(State::Name),
            Towards::Maybe => Step::More,
            Towards::No if self.format.adjacent && !self.block.in_list && self.tail_begins_call() => {
                self.block.state = State::Opened;
                self.opened()
            }
            Towards::No => Step::Ended(std::mem::take(&mut self.block.tail)),
        }
    }

    /// Whether the tail may be the next call, which nothing announces.
    pub(super) fn tail_begins_call(&self) -> bool {
        match trim_start(&self.block.tail) {
            [first] if self.format.keys.is_some() && first.is('{') => true,
            [first] => {
                let named = self.format.named.is_some() && self.format.texts.name_open.is_empty();
                named && self.block.in_section && is_name(*first)
            }
            _ => false,
        }
    }
}

/// What a function's name is written with: no white space, brackets, quotes or separators.
fn is_name(symbol: Symbol) -> bool {
    symbol.as_char().is_some_and(|c| !c.is_whitespace() && !c.is_control() && !"<>{}[]()\"'`,;=|\\".contains(c))
}

/// `functions.NAME:NUMBER` is an id; anything else is a name.
fn split_id(text: &str) -> (String, Option<String>) {
    let short = text.strip_prefix("functions.").unwrap_or(text);
    match short.rsplit_once(':') {
        Some((name, number))
            if !name.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            (name.into(), Some(text.into()))
        }
        _ if short.is_empty() => (text.into(), None),
        _ => (short.into(), None),
    }
}
