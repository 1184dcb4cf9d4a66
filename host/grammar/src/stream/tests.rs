use contract::reasoning::{ResolvedSpan, ThinkingBudget};

use super::*;
use crate::compiler::tests::{compiler, parts, tokens};
use crate::{Compiler, Source};

const THINK: u32 = 257;
const CLOSE: u32 = 258;

struct Setup {
    compiler: Compiler,
    parts: StreamParts,
}

/// A stream that must say `yes`, with `<think>` and `</think>` as tokens or as texts.
fn setup(start: Start, starts_open: bool, as_tokens: bool) -> Setup {
    let compiler = compiler(if as_tokens { &["<think>", "</think>"][..] } else { &[] });
    let compiled = compiler.compile(&Source::Regex("yes".into())).unwrap();
    let marker = |token: u32, text: &str| match as_tokens {
        true => ResolvedMarker::Token(token),
        false => ResolvedMarker::Bytes(text.into()),
    };
    let span = ResolvedSpan { open: marker(THINK, "<think>"), close: marker(CLOSE, "</think>") };
    let openings = vec![span.open.clone()];
    let tracker = ReasoningTracker::new(vec![span], starts_open);
    let parts = StreamParts { start, tracker, openings, ..parts(&compiler, &compiled) };
    Setup { compiler, parts }
}

/// How far a text goes: the bytes before the first token that the masks forbid.
fn goes(setup: &Setup, text: &str) -> String {
    let mut stream = setup.parts.open();
    let mut mask = vec![0u32; setup.compiler.vocabulary().size().div_ceil(32)];
    let mut said = String::new();
    for token in tokens(&setup.compiler, text) {
        mask.fill(u32::MAX);
        if stream.is_active() {
            stream.fill_mask(&mut mask).unwrap();
        }
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            return said + "|";
        }
        stream.accept(token).unwrap();
        said += std::str::from_utf8(setup.compiler.vocabulary().bytes(token)).unwrap();
    }
    said
}

fn check(setup: &Setup, texts: &[(&str, &str)]) {
    for (text, expected) in texts {
        assert_eq!(goes(setup, text), *expected);
    }
}

const AFTER: Start = Start::AfterReasoning { may_open: true };

/// Reasoning is free, the answer is bound; between them stands at most a little white space.
#[test]
fn the_grammar_waits_for_the_end_of_reasoning() {
    for as_tokens in [true, false] {
        let open = setup(AFTER, true, as_tokens);
        check(
            &open,
            &[
                ("hm, no</think>\n\nyes<|end|>", "hm, no</think>\n\nyes<|end|>"),
                ("hm</think>yes<|end|>", "hm</think>yes<|end|>"),
                ("hm</think>no", "hm</think>|"),
                ("hm</think>          yes", "hm</think>        |"),
                ("hm</think>yes ", "hm</think>yes|"),
            ],
        );
        let closed = setup(AFTER, false, as_tokens);
        check(
            &closed,
            &[
                ("yes<|end|>", "yes<|end|>"),
                ("no", "|"),
                ("\nyes", "|"),
                ("<think>no</think>yes<|end|>", "<think>no</think>yes<|end|>"),
                ("yes<think>", "yes|"),
            ],
        );
    }
}

/// A model that does not think may not begin to, and a grammar of the whole text holds its own markers.
#[test]
fn the_grammar_may_bind_at_once() {
    check(&setup(Start::AfterReasoning { may_open: false }, false, true), &[("<think>", "|"), ("yes", "yes")]);
    check(&setup(Start::FirstToken, true, true), &[("hm", "|"), ("yes", "yes")]);
}

/// The end may come where the grammar allows it, and not before the least length unless nothing else is left.
#[test]
fn ends() {
    let mut some = setup(AFTER, false, true);
    check(&some, &[("<|end|>", "|"), ("ye<|end|>", "ye|"), ("yes<|end|>", "yes<|end|>")]);
    some.parts.grammar = Some(some.compiler.compile(&Source::Regex("[a-z]+".into())).unwrap());
    some.parts.min_tokens = 3;
    check(&some, &[("ab<|end|>", "ab|"), ("abc<|end|>", "abc<|end|>")]);
    some.parts.grammar = Some(some.compiler.compile(&Source::Regex("a".into())).unwrap());
    check(&some, &[("a<|end|>", "a<|end|>")]);
}

/// A spent budget is closed token by token, and then the grammar binds.
#[test]
fn a_budget_closes_reasoning() {
    let mut some = setup(AFTER, true, true);
    let close = [vec![u32::from(b'.'), CLOSE, u32::from(b'\n')]];
    let budget = ThinkingBudget { tokens_max: 2, closes: Arc::new(close) };
    some.parts.tracker = some.parts.tracker.clone().with_budget(Some(budget));
    check(
        &some,
        &[
            ("abc", "ab|"),
            ("ab.</think>\nyes<|end|>", "ab.</think>\nyes<|end|>"),
            ("ab.</think>yes", "ab.</think>|"),
            ("a</think>yes", "a</think>yes"),
        ],
    );
    // Without a grammar the budget is all there is.
    some.parts.grammar = None;
    check(&some, &[("abc", "ab|"), ("ab.</think>\nanything<|end|>", "ab.</think>\nanything<|end|>")]);
}

/// A token may close the reasoning in its middle: what follows in it is the answer's.
#[test]
fn a_token_that_closes_in_its_middle() {
    let some = setup(AFTER, true, false);
    let mut stream = some.parts.open();
    let vocabulary = crate::Vocabulary::new(
        (0..=255u8)
            .map(|b| (vec![b].into(), false))
            .chain([(b"<|end|>"[..].into(), true), (b"k>\n\nye"[..].into(), false)]),
    );
    stream.parts.vocabulary = Arc::new(vocabulary);
    for token in b"x</thin".iter().map(|&b| u32::from(b)).chain([257]) {
        stream.accept(token).unwrap();
    }
    let mut mask = vec![0u32; 9];
    stream.fill_mask(&mut mask).unwrap();
    assert_eq!(mask[usize::from(b's') / 32], 1 << (b's' % 32));
}
