//! A stream as symbols: characters, and tags that are tokens of their own.
//!
//! A tag that the tokenizer has as a token is one symbol, whatever its text; one that it has not is its characters. So
//! a format writes its literals as text, and they match by id or by text as the tokenizer would have it.

use crate::markers::{Tag, Towards};

/// Unicode ends below; a tag's number is counted from here.
const TAGS_FROM: u32 = 0x11_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol(u32);

impl Symbol {
    pub fn tag(number: usize) -> Self {
        Self(TAGS_FROM + u32::try_from(number).expect("a format has a handful of tags"))
    }

    pub fn as_char(self) -> Option<char> {
        char::from_u32(self.0)
    }

    /// The tag's number, if it is one.
    pub fn as_tag(self) -> Option<usize> {
        self.0.checked_sub(TAGS_FROM).map(|number| number as usize)
    }

    pub fn is(self, c: char) -> bool {
        self.0 == u32::from(c)
    }

    pub fn is_space(self) -> bool {
        self.as_char().is_some_and(char::is_whitespace)
    }
}

impl From<char> for Symbol {
    fn from(c: char) -> Self {
        Self(u32::from(c))
    }
}

/// A literal as the stream spells it: where a tag with a token begins, the longest one is its symbol.
pub fn literal(text: &str, tags: &[Tag]) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let here = |tag: &&(usize, &Tag)| tag.1.token.is_some() && rest.starts_with(tag.1.text.as_str());
        let numbered: Vec<(usize, &Tag)> = tags.iter().enumerate().collect();
        match numbered.iter().filter(here).max_by_key(|(_, tag)| tag.text.len()) {
            Some((number, tag)) if !tag.text.is_empty() => {
                symbols.push(Symbol::tag(*number));
                rest = &rest[tag.text.len()..];
            }
            _ => {
                symbols.push(c.into());
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    symbols
}

/// The literals without those that are empty.
pub fn literals(texts: &[String], tags: &[Tag]) -> Vec<Vec<Symbol>> {
    texts.iter().filter(|text| !text.is_empty()).map(|text| literal(text, tags)).collect()
}

pub fn trim_start(symbols: &[Symbol]) -> &[Symbol] {
    let space = symbols.iter().take_while(|symbol| symbol.is_space()).count();
    &symbols[space..]
}

/// How far `symbols` has come towards a literal of one of the groups; the answer is the group's number.
pub fn towards_groups(symbols: &[Symbol], groups: &[&[Vec<Symbol>]]) -> Towards {
    let mut maybe = false;
    for (number, group) in groups.iter().enumerate() {
        for literal in *group {
            if literal == symbols {
                return Towards::Yes(number);
            }
            maybe |= literal.starts_with(symbols);
        }
    }
    if maybe { Towards::Maybe } else { Towards::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(text: &str, token: Option<u32>) -> Tag {
        Tag { text: text.into(), token }
    }

    #[test]
    fn literals_are_spelled_with_tokens() {
        let tags = [tag("<a>", Some(1)), tag("<b>", None), tag("<a>+", Some(2))];
        let spelled = literal("x<a><b><a>+", &tags);
        let first = [Symbol::from('x'), Symbol::tag(0)];
        assert_eq!(&spelled[..2], first);
        assert_eq!(&spelled[2..5], ['<', 'b', '>'].map(Symbol::from));
        assert_eq!(spelled[5..], [Symbol::tag(2)]);
        let groups: &[&[Vec<Symbol>]] = &[&[], std::slice::from_ref(&spelled)];
        assert_eq!(towards_groups(&first, groups), Towards::Maybe);
        assert_eq!(towards_groups(&spelled, groups), Towards::Yes(1));
        assert_eq!(towards_groups(&spelled[1..], groups), Towards::No);
    }
}
