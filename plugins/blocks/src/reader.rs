//! Reads the calls that a [`Layout`] describes.

mod arguments;
mod calls;

use tokenloom_sdk::output::{Rest, RestKind};

use crate::json::Checker;
use crate::layout::{Arguments, Bare, Layout, List};
use crate::markers::{Tag, Towards};
use crate::object::{Keys, Object};
use crate::symbols::{Symbol, literal, literals, towards_groups, trim_start};
use crate::tagged::{Tagged, Value};
use crate::tool::{Begin, CallOut, Format, Place, Step};
use crate::types::Tools;
use crate::values::{Notation, Values};

/// White space between two parts. More is text.
pub(crate) const SPACE_MAX: usize = 64;

/// The texts of a layout as a stream spells them.
pub(crate) struct Texts {
    pub section_close: Vec<Vec<Symbol>>,
    pub call_open: Vec<Vec<Symbol>>,
    pub call_close: Vec<Vec<Symbol>>,
    pub separators: Vec<Vec<Symbol>>,
    pub name_open: Vec<Vec<Symbol>>,
    pub name_close: Vec<Vec<Symbol>>,
    pub name_until: Vec<Vec<Symbol>>,
    pub id_open: Vec<Vec<Symbol>>,
    pub arguments_close: Vec<Vec<Symbol>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opener {
    Section,
    Call,
    Bare,
}

pub struct LayoutFormat {
    tags: Vec<Tag>,
    openers: Vec<Opener>,
    bare: Bare,
    list: List,
    /// The next call may follow without anything between.
    adjacent: bool,
    keys: Option<Keys>,
    named: Option<Shape>,
    pub(crate) texts: Texts,
    pub(crate) tools: Tools,
}

/// How a name's arguments are written.
struct Shape {
    id_in_name: bool,
    kind: Kind,
}

enum Kind {
    Json,
    Values(Notation),
    Tags(Tagged),
}

impl LayoutFormat {
    /// `tag` is how the host resolved a marker.
    pub fn new(layout: &Layout, tools: Tools, tag: impl Fn(&str) -> Tag) -> Self {
        let bare_openers = layout.bare_openers();
        let kinds =
            [(&layout.section_open, Opener::Section), (&layout.call_open, Opener::Call), (&bare_openers, Opener::Bare)];
        let opening = kinds.into_iter().flat_map(|(texts, kind)| texts.iter().map(move |text| (text, kind)));
        let (mut tags, mut openers) = (Vec::new(), Vec::new());
        for (text, kind) in opening {
            tags.push(if kind == Opener::Bare { Tag { text: text.clone(), token: None } } else { tag(text) });
            openers.push(kind);
        }
        for text in layout.markers() {
            if !tags.iter().any(|tag| tag.text == text) {
                tags.push(tag(&text));
            }
        }
        let named = layout.named.clone().unwrap_or_default();
        let spell = |texts: &[String]| literals(texts, &tags);
        let texts = Texts {
            section_close: spell(&layout.section_close),
            call_open: spell(&layout.call_open),
            call_close: spell(&layout.call_close),
            separators: spell(&layout.separators),
            name_open: spell(&[named.name_open]),
            name_close: spell(&named.name_close),
            name_until: spell(&named.name_until),
            id_open: spell(&[named.id_open]),
            arguments_close: spell(&named.arguments_close),
        };
        let shape = layout.named.as_ref().map(|named| Shape {
            id_in_name: named.id_in_name,
            kind: match named.arguments {
                Arguments::Json => Kind::Json,
                Arguments::Python => Kind::Values(Notation::Python),
                Arguments::Bare => Kind::Values(Notation::Bare { quote: literal(&named.quote, &tags) }),
                Arguments::Tags => Kind::Tags(Tagged::new(&named.tags, &tags)),
            },
        });
        let keys = layout.object.as_ref();
        Self {
            bare: layout.bare,
            list: layout.list,
            adjacent: layout.separators.iter().any(String::is_empty),
            keys: keys.map(|keys| Keys { name: keys.name_keys.clone(), arguments: keys.argument_keys.clone() }),
            named: shape,
            texts,
            tools,
            tags,
            openers,
        }
    }

    fn kind(&self) -> Option<&Kind> {
        self.named.as_ref().map(|shape| &shape.kind)
    }
}

enum State {
    /// Behind a section's opening: a call's must come.
    Section,
    /// A call, or a list of them, must come.
    Opened,
    Name,
    Id,
    /// Arguments must come.
    Waiting,
    Json(Checker),
    Values(Box<Values>),
    Object(Box<Object>),
    /// Between parameters.
    Body,
    Key,
    /// Between a parameter's key and its value.
    Keyed,
    Value(Box<Value>),
    /// A call has ended.
    After,
}

pub struct Block {
    state: State,
    /// Symbols that are not decided.
    tail: Vec<Symbol>,
    name: String,
    id: Option<String>,
    /// The parameter that is being read.
    key: String,
    parameters: u32,
    in_section: bool,
    in_list: bool,
    bare: bool,
}

impl Format for LayoutFormat {
    type Block = Block;

    fn tags(&self) -> &[Tag] {
        &self.tags
    }

    fn openers(&self) -> usize {
        self.openers.len()
    }

    fn only_at_start(&self, opener: usize) -> bool {
        self.bare == Bare::AnswerStart && self.openers[opener] == Opener::Bare
    }

    fn begin(&self, opener: usize, place: Place) -> Begin<Block> {
        let block = |state, in_section, bare| Block {
            state,
            tail: Vec::new(),
            name: String::new(),
            id: None,
            key: String::new(),
            parameters: 0,
            in_section,
            in_list: false,
            bare,
        };
        match self.openers[opener] {
            Opener::Section => Begin::Behind(block(State::Section, true, false)),
            // A call without its section may still be followed by the section's end.
            Opener::Call => Begin::Behind(block(State::Opened, !self.texts.section_close.is_empty(), false)),
            Opener::Bare => {
                let stands = match self.bare {
                    Bare::Never => false,
                    Bare::AnswerStart => place.answer_start,
                    Bare::LineStart => place.line_start,
                };
                if stands { Begin::With(block(State::Opened, false, true)) } else { Begin::Text }
            }
        }
    }

    fn push(&self, block: &mut Block, symbol: Symbol, out: &mut CallOut) -> Step {
        Reader { format: self, block, out }.push(symbol)
    }

    fn between_calls(&self, block: &Block) -> bool {
        matches!(block.state, State::After)
    }

    fn heeds_lines(&self) -> bool {
        self.bare == Bare::LineStart
    }

    fn rest(&self, block: &Block) -> Option<Rest> {
        let json = |in_text: bool| in_text.then(|| Rest::new(RestKind::ContentToJson, ""));
        match (&block.state, self.kind()) {
            (State::Json(checker), _) => json(checker.in_text()),
            (State::Object(object), _) => json(object.in_text()),
            (State::Values(values), Some(Kind::Values(notation))) => values.rest(notation),
            (State::Value(value), Some(Kind::Tags(tagged))) if block.tail.is_empty() => value.rest(tagged),
            _ => None,
        }
    }
}

/// One symbol into a block. `calls` reads what stands around arguments, `arguments` the arguments.
struct Reader<'a, 'b> {
    format: &'a LayoutFormat,
    block: &'a mut Block,
    out: &'a mut CallOut<'b>,
}

impl Reader<'_, '_> {
    fn push(&mut self, symbol: Symbol) -> Step {
        match &mut self.block.state {
            State::Json(_) | State::Object(_) | State::Values(_) => return self.read_value(symbol),
            State::Value(value) => {
                if self.block.tail.is_empty()
                    && let Some(Kind::Tags(tagged)) = self.format.kind()
                    && tagged.is_plain(symbol)
                    && let Some(c) = symbol.as_char()
                {
                    value.push(c, tagged, self.out);
                    return Step::More;
                }
            }
            _ => {}
        }
        self.block.tail.push(symbol);
        self.decide()
    }

    /// Looks at the tail in the present state.
    fn decide(&mut self) -> Step {
        match self.block.state {
            State::Section => self.section(),
            State::Opened => self.opened(),
            State::Name => self.name(),
            State::Id => self.id(),
            State::Waiting => self.waiting(),
            State::Body => self.body(),
            State::Key => self.key(),
            State::Keyed => self.keyed(),
            State::Value(_) => self.value(),
            State::After => self.after(),
            State::Json(_) | State::Object(_) | State::Values(_) => self.again(),
        }
    }

    /// The tail belongs to a state that reads symbol by symbol.
    fn again(&mut self) -> Step {
        let tail = std::mem::take(&mut self.block.tail);
        for (at, symbol) in tail.iter().enumerate() {
            match self.push(*symbol) {
                Step::More => {}
                Step::NotACall(rest) => return Step::NotACall([&rest, &tail[at + 1..]].concat()),
                Step::Ended(rest) => return Step::Ended([&rest, &tail[at + 1..]].concat()),
                Step::Broken(rest) => return Step::Broken([&rest, &tail[at + 1..]].concat()),
            }
        }
        Step::More
    }

    fn enter(&mut self, state: State) -> Step {
        self.block.state = state;
        self.block.tail.clear();
        Step::More
    }

    /// White space, then a literal of one of `groups`.
    fn towards(&self, groups: &[&[Vec<Symbol>]]) -> Towards {
        let rest = trim_start(&self.block.tail);
        match self.block.tail.len() - rest.len() {
            space if space > SPACE_MAX => Towards::No,
            _ if rest.is_empty() => Towards::Maybe,
            _ => towards_groups(rest, groups),
        }
    }

    fn broken(&mut self) -> Step {
        let tail = std::mem::take(&mut self.block.tail);
        if self.out.is_open() { Step::Broken(tail) } else { Step::NotACall(tail) }
    }

    fn ended(&mut self) -> Step {
        self.block.tail.clear();
        Step::Ended(Vec::new())
    }
}
