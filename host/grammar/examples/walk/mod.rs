//! Texts under a grammar, without a model: which are accepted, and what chance says.

use std::sync::Arc;

use contract::constraint::TokenConstraint;
use contract::reasoning::ReasoningTracker;
use grammar::{Compiled, Compiler, Start, StreamConstraint, StreamParts};

fn open(compiler: &Compiler, compiled: &Compiled, end: u32) -> StreamConstraint {
    StreamParts {
        vocabulary: Arc::clone(compiler.vocabulary()),
        grammar: Some(compiled.clone()),
        start: Start::FirstToken,
        tracker: ReasoningTracker::new(Vec::new(), false),
        openings: Vec::new(),
        ends: [end].into(),
        min_tokens: 0,
    }
    .open()
}

/// Xorshift: the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// Tokens that `choose` picks among the allowed ones, up to the end, which is not given; `None` when no end came within
/// `tokens_max`.
pub fn walk(
    compiler: &Compiler,
    compiled: &Compiled,
    (end, tokens_max): (u32, usize),
    mut choose: impl FnMut(&[u32]) -> u32,
) -> Option<Vec<u32>> {
    let mut stream = open(compiler, compiled, end);
    let mut mask = vec![0u32; compiler.vocabulary().size().div_ceil(32)];
    let mut tokens = Vec::new();
    for _ in 0..tokens_max {
        stream.fill_mask(&mut mask).ok()?;
        let size = u32::try_from(compiler.vocabulary().size()).ok()?;
        let allowed: Vec<u32> = (0..size).filter(|t| mask[*t as usize / 32] >> (t % 32) & 1 == 1).collect();
        if allowed.is_empty() {
            return None;
        }
        let token = choose(&allowed);
        stream.accept(token).ok()?;
        if token == end {
            return Some(tokens);
        }
        tokens.push(token);
    }
    None
}

/// How many of the tokens, with the end behind them, could be the answer's first; all of them: it is accepted.
pub fn accepted(compiler: &Compiler, compiled: &Compiled, end: u32, tokens: &[u32]) -> usize {
    let mut stream = open(compiler, compiled, end);
    let mut mask = vec![0u32; compiler.vocabulary().size().div_ceil(32)];
    let mut fits = |token: u32| {
        stream.fill_mask(&mut mask).is_ok()
            && mask[token as usize / 32] >> (token % 32) & 1 == 1
            && stream.accept(token).is_ok()
    };
    tokens.iter().copied().chain([end]).take_while(|token| fits(*token)).count()
}
