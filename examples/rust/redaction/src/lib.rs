//! A stage that hides card numbers while they are streamed: 13 to 19 digits, perhaps with single spaces or dashes between
//! them, that pass the check of ISO/IEC 7812, keep only their last four.
//!
//! A run of digits is held until it ends, because its first digit may not be sent before the last one is known. At most
//! 19 digits are ever held, so a stream of digits flows on. Its manifest says `policy = "error"`: when the stage fails,
//! the answer ends rather than going on unguarded.

use tokenloom_sdk::output::{Channel, EndReason, Event, Request, Requirements, Session, Stage, Text};
use tokenloom_sdk::{NoSettings, PluginError};

const DIGITS: std::ops::RangeInclusive<usize> = 13..=19;

pub struct CardGuard;

impl Stage for CardGuard {
    type Session = Guard;

    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        tokenloom_sdk::parse_settings::<NoSettings>(settings_json).map(|_| Self)
    }

    fn requires(&self) -> Requirements {
        Requirements { markers: vec![], reasoning: vec![], tool_schemas: false, stop: vec![], ext: vec![] }
    }

    fn open(&self, _request: Request) -> Guard {
        Guard { channel: Channel::Content, held: String::new(), digits: 0, too_long: false }
    }
}

pub struct Guard {
    /// Where the held text belongs; digits on both sides of a change of channel are two numbers.
    channel: Channel,
    /// A run of digits that may be a card's, with what separates them.
    held: String,
    digits: usize,
    /// The run has more digits than any card, and goes by until it ends.
    too_long: bool,
}

impl Session for Guard {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, PluginError> {
        let mut out = Vec::new();
        for event in events {
            match event {
                // An added token is no digit, and must arrive as itself.
                Event::Text(Text { channel, text, token: None }) => {
                    if channel != self.channel {
                        self.release(&mut out);
                        self.channel = channel;
                    }
                    let mut shown = String::new();
                    text.chars().for_each(|c| self.read(c, &mut shown));
                    self.emit(shown, &mut out);
                }
                other => {
                    self.release(&mut out);
                    out.push(other);
                }
            }
        }
        Ok(out)
    }

    fn finish(&mut self, _reason: EndReason) -> Result<Vec<Event>, PluginError> {
        let mut out = Vec::new();
        self.release(&mut out);
        Ok(out)
    }
}

impl Guard {
    fn read(&mut self, c: char, shown: &mut String) {
        if c.is_ascii_digit() {
            self.digits += 1;
            self.held.push(c);
            if self.digits > *DIGITS.end() {
                self.too_long = true;
            }
        } else if matches!(c, ' ' | '-') && self.held.ends_with(|last: char| last.is_ascii_digit()) {
            self.held.push(c);
        } else {
            self.end_run(shown);
            shown.push(c);
        }
        if self.too_long {
            shown.push_str(&std::mem::take(&mut self.held));
        }
    }

    fn end_run(&mut self, shown: &mut String) {
        let held = std::mem::take(&mut self.held);
        let is_card = !self.too_long && DIGITS.contains(&self.digits) && has_check_digit(&held);
        (self.digits, self.too_long) = (0, false);
        if !is_card {
            shown.push_str(&held);
            return;
        }
        let number = held.trim_end_matches([' ', '-']);
        shown.push_str("[card ");
        shown.push_str(&last_four(number));
        shown.push(']');
        shown.push_str(&held[number.len()..]);
    }

    fn release(&mut self, out: &mut Vec<Event>) {
        let mut shown = String::new();
        self.end_run(&mut shown);
        self.emit(shown, out);
    }

    fn emit(&self, text: String, out: &mut Vec<Event>) {
        if !text.is_empty() {
            out.push(Event::Text(Text { channel: self.channel.clone(), text, token: None }));
        }
    }
}

fn last_four(number: &str) -> String {
    let digits: Vec<char> = number.chars().filter(char::is_ascii_digit).collect();
    digits[digits.len() - 4..].iter().collect()
}

/// From the right, every second digit counts twice, its digits added; the sum is a multiple of ten.
fn has_check_digit(text: &str) -> bool {
    let digits = text.chars().rev().filter_map(|c| c.to_digit(10));
    let sum: u32 = digits
        .enumerate()
        .map(|(place, digit)| if place % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 })
        .sum();
    sum.is_multiple_of(10)
}

tokenloom_sdk::export_stage!(CardGuard);

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of a text that arrives in pieces of `size` characters.
    fn shown(text: &str, size: usize) -> String {
        let request = Request {
            tools: vec![],
            tool_choice: tokenloom_sdk::output::ToolChoice::Auto,
            parallel_calls: true,
            starts_in: None,
            turn_prefix: String::new(),
            markers: vec![],
            ext: vec![],
        };
        let mut guard = CardGuard.open(request);
        let chars: Vec<char> = text.chars().collect();
        let mut events = Vec::new();
        for piece in chars.chunks(size) {
            let text = piece.iter().collect();
            let event = Event::Text(Text { channel: Channel::Content, text, token: None });
            events.extend(guard.feed(vec![event]).expect("never fails"));
        }
        events.extend(guard.finish(EndReason::Length).expect("never fails"));
        let text = |event| match event {
            Event::Text(text) => text.text,
            other => panic!("{other:?}"),
        };
        events.into_iter().map(text).collect()
    }

    #[test]
    fn numbers_of_cards_are_hidden_whatever_the_pieces_are() {
        for (text, expected) in [
            ("pay with 4111 1111 1111 1111, please", "pay with [card 1111], please"),
            ("5500-0055-5555-5559", "[card 5559]"),
            ("378282246310005 or 42", "[card 0005] or 42"),
            ("4111 1111 1111 1112", "4111 1111 1111 1112"),
            ("tel. +49 30 1234567", "tel. +49 30 1234567"),
            ("pi is 3.14159265358979323846264338327950288", "pi is 3.14159265358979323846264338327950288"),
            ("4111111111111111 ", "[card 1111] "),
        ] {
            for size in 1..=text.len() {
                assert_eq!(shown(text, size), expected, "pieces of {size}");
            }
        }
    }
}
