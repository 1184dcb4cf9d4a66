//! A call's arguments: values that know their own end, and a tag for each.

use super::{Kind, Reader, State};
use crate::json;
use crate::markers::Towards;
use crate::object::Read;
use crate::symbols::Symbol;
use crate::tagged::Value;
use crate::tool::{NAME_BYTES_MAX, Step};
use crate::values::Notation;

impl Reader<'_, '_> {
    /// A symbol of a value that knows its own end. Markers inside are text like any other, except the quotes of the
    /// format's own.
    pub(super) fn read_value(&mut self, symbol: Symbol) -> Step {
        let own = matches!((&self.block.state, self.format.kind()),
            (State::Values(_), Some(Kind::Values(Notation::Bare { quote }))) if quote.contains(&symbol));
        let Some(tag) = symbol.as_tag().filter(|_| !own) else { return self.value_symbol(symbol) };
        let format = self.format;
        for c in format.tags[tag].text.chars() {
            match self.value_symbol(c.into()) {
                Step::More => {}
                // The marker is read again as a whole.
                Step::NotACall(_) => return Step::NotACall(vec![symbol]),
                Step::Broken(_) => return Step::Broken(vec![symbol]),
                Step::Ended(_) => return Step::Ended(vec![symbol]),
            }
        }
        Step::More
    }

    pub(super) fn value_symbol(&mut self, symbol: Symbol) -> Step {
        let done = match &mut self.block.state {
            State::Json(checker) => match symbol.as_char() {
                Some(c) if c.encode_utf8(&mut [0; 4]).bytes().all(|byte| checker.push(byte).is_ok()) => {
                    self.out.argument(c);
                    Ok(checker.done())
                }
                _ => Err(()),
            },
            State::Object(object) => match (symbol.as_char(), &self.format.keys) {
                (Some(c), Some(keys)) => match object.push(c, keys, self.out) {
                    Read::More => return Step::More,
                    Read::Done => return self.enter(State::After),
                    Read::Broken => Err(()),
                },
                _ => Err(()),
            },
            State::Values(_) => self.values(symbol),
            _ => Err(()),
        };
        match done {
            Ok(false) => Step::More,
            Ok(true) => {
                self.out.end();
                self.enter(State::After)
            }
            Err(()) => {
                self.block.tail = vec![symbol];
                self.broken()
            }
        }
    }

    pub(super) fn values(&mut self, symbol: Symbol) -> Result<bool, ()> {
        let Some(Kind::Values(notation)) = self.format.kind() else { return Err(()) };
        let State::Values(values) = &mut self.block.state else { return Err(()) };
        values.push(symbol, notation).map_err(|_| ())?;
        if !values.certain() {
            return Ok(false);
        }
        let (json, done) = (values.take(), values.done());
        if !self.out.is_open() {
            self.start();
        }
        self.out.arguments(&json);
        Ok(done)
    }

    pub(super) fn body(&mut self) -> Step {
        let Some(tagged) = self.tagged() else { return self.broken() };
        let texts = &self.format.texts;
        let groups = [tagged.key_open(), &texts.arguments_close, &texts.call_close, &texts.section_close];
        match self.towards(&groups) {
            Towards::Yes(which) => self.mark(which),
            Towards::Maybe => Step::More,
            Towards::No => self.broken(),
        }
    }

    /// A parameter begins, or the arguments, the call or the section end.
    pub(super) fn mark(&mut self, which: usize) -> Step {
        if which == 0 {
            return self.enter(State::Key);
        }
        self.out.arguments(if self.block.parameters == 0 { "{}" } else { "}" });
        self.out.end();
        match which {
            1 => self.enter(State::After),
            2 if self.block.in_section || self.block.in_list => self.enter(State::After),
            _ => self.ended(),
        }
    }

    pub(super) fn key(&mut self) -> Step {
        let Some(tagged) = self.tagged() else { return self.broken() };
        match tagged.key_end(&self.block.tail) {
            Some((length, opening)) => {
                let key = self.block.tail[..self.block.tail.len() - length].iter();
                let key: String = key.filter_map(|symbol| symbol.as_char()).collect();
                self.begin_parameter(key.trim());
                match opening {
                    Some(opening) => self.begin_value(opening),
                    None => self.enter(State::Keyed),
                }
            }
            None => {
                let last = self.block.tail.last();
                let fits = self.block.tail.len() <= NAME_BYTES_MAX && !last.is_some_and(|symbol| symbol.is('\n'));
                if fits { Step::More } else { self.broken() }
            }
        }
    }

    pub(super) fn begin_parameter(&mut self, key: &str) {
        self.out.arguments(if self.block.parameters == 0 { "{" } else { ", " });
        self.out.arguments(&json::quoted(key));
        self.out.arguments(": ");
        self.block.parameters += 1;
        self.block.key = key.to_string();
    }

    pub(super) fn keyed(&mut self) -> Step {
        let Some(tagged) = self.tagged() else { return self.broken() };
        match self.towards(&tagged.openings()) {
            Towards::Yes(opening) => self.begin_value(opening),
            Towards::Maybe => Step::More,
            Towards::No => self.broken(),
        }
    }

    pub(super) fn begin_value(&mut self, opening: usize) -> Step {
        let declared = self.format.tools.kind(&self.block.name, &self.block.key);
        let value = Value::begin(opening, declared, self.out);
        self.enter(State::Value(Box::new(value)))
    }

    /// The end is a closing text with another of the format's behind it: the value may hold look-alikes.
    pub(super) fn value(&mut self) -> Step {
        loop {
            let (Some(tagged), State::Value(_)) = (self.tagged(), &self.block.state) else { return self.broken() };
            let texts = &self.format.texts;
            let groups = [tagged.key_open(), &texts.arguments_close, &texts.call_close, &texts.section_close];
            match tagged.value_end(&self.block.tail, &groups) {
                Towards::Maybe => return Step::More,
                Towards::Yes(which) => {
                    if let State::Value(value) = &self.block.state {
                        value.end(self.out);
                    }
                    return self.mark(which);
                }
                Towards::No => self.one_of_value(),
            }
            if self.block.tail.is_empty() {
                return Step::More;
            }
        }
    }

    /// The first symbol of the tail is part of the value.
    pub(super) fn one_of_value(&mut self) {
        let symbol = self.block.tail.remove(0);
        let format = self.format;
        let Some(Kind::Tags(tagged)) = format.kind() else { return };
        let State::Value(value) = &mut self.block.state else { return };
        match (symbol.as_char(), symbol.as_tag()) {
            (Some(c), _) => value.push(c, tagged, self.out),
            (None, Some(tag)) => format.tags[tag].text.chars().for_each(|c| value.push(c, tagged, self.out)),
            (None, None) => {}
        }
    }
}
