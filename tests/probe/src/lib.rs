//! Whether a text depends on what it was computed beside: the same prompts alone, together, in small chunks, behind cached
//! prefixes, and with too few pages for all, greedily, through the engine. Reported is the first token that differs from
//! the text of the prompt alone in one step, with its margin: how far the likeliest token was ahead of the second, in nats,
//! where the texts part. A margin near 0 is a tie that rounding decided; a large one is a fault. Texts that are equal may
//! still have other logprobs: those are counted too.
//!
//! It knows no device: whoever asks opens backends.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use backend::Backend;
use contract::TokenId;
use contract::generation::{Request, Tenant, TokenEvent};
use contract::sampling::SamplingParams;
use engine::{EngineConfig, EngineParts, Generation, Handle};
use prometheus_client::registry::Registry;

/// Tokens of each text, and of those that are short of pages: more than a request has room for when it is admitted.
const TOKENS: u32 = 48;
const LONG: u32 = 200;
/// Rows of a step in the arm of small chunks: one page.
const SMALL_CHUNK: u32 = 64;
/// Rows of a step that take any of the prompts whole.
const MOST_ROWS: u32 = 1024;
/// Longest sequence: any prompt, its text, and another turn.
pub const CONTEXT: u32 = 1024;
/// Tokens in the pool where nothing is short of pages.
const ROOM: u32 = 65_536;
/// Tokens in the pool where the shortest prompts fit at once, but not their texts.
const SHORT: u32 = 384;
const SHORTEST: usize = 4;

/// What a backend is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub max_rows: u32,
    pub kv_tokens: u32,
}

/// A token of a text: its margin, and the bits of its logprob.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    token: TokenId,
    margin: f32,
    bits: u32,
}

type Text = Vec<Said>;

/// Where two texts part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    pub position: usize,
    pub margin: f32,
}

/// One way to compute the prompts, and what came of it.
#[derive(Clone, Debug)]
pub struct Arm {
    pub name: &'static str,
    pub cached_tokens: u64,
    pub preemptions: u32,
    pub texts: usize,
    pub diverged: usize,
    /// Texts with another logprob somewhere, those that diverged among them.
    pub moved: usize,
    /// The prompt's number with the divergence of the largest margin.
    pub worst: Option<(usize, Divergence)>,
}

impl Arm {
    /// Whether it goes on from what an answer left: for a recurrent state another form of the same sums than a prompt.
    pub fn behind_an_answer(&self) -> bool {
        ["next turn", "short of pages"].contains(&self.name)
    }

    /// The largest margin at which texts part; `None`: all are equal.
    pub fn margin(&self) -> Option<f32> {
        self.worst.map(|(_, at)| at.margin)
    }
}

/// What some texts cost.
#[derive(Default)]
struct Read {
    texts: Vec<Text>,
    cached_tokens: u64,
    preemptions: u32,
}

/// All arms. `copies`: how often each prompt is asked in the arm of all together.
pub fn probe(open: &mut dyn FnMut(Opening) -> Result<Box<dyn Backend>>, vocab: u32, copies: usize) -> Result<Vec<Arm>> {
    let prompts = prompts(vocab);
    let mut start = |max_rows, kv_tokens, prefix_cache| {
        let backend = open(Opening { max_rows, kv_tokens })?;
        let config = EngineConfig { prefix_cache, ..EngineConfig::new("probe") };
        Ok::<_, anyhow::Error>(engine::start(EngineParts { backend, policy: None, config }, &mut Registry::default())?)
    };
    let alone = start(MOST_ROWS, ROOM, false)?;
    let expected = one_by_one(&alone, &prompts, TOKENS)?.texts;
    let mut arms = vec![compare("again", &expected, &one_by_one(&alone, &prompts, TOKENS)?)];
    let all: Vec<Vec<TokenId>> = (0..copies).flat_map(|_| prompts.clone()).collect();
    arms.push(compare("together", &expected, &together(&alone, &all, TOKENS)?));
    let small = start(SMALL_CHUNK, ROOM, false)?;
    arms.push(compare("small chunks", &expected, &one_by_one(&small, &prompts, TOKENS)?));
    small.shutdown();
    let short = start(MOST_ROWS, SHORT, true)?;
    let long = one_by_one(&alone, &prompts[..SHORTEST], LONG)?.texts;
    let found = together(&short, &prompts[..SHORTEST], LONG)?;
    ensure!(found.preemptions > 0, "nobody was preempted with {SHORT} tokens in the pool");
    arms.push(compare("short of pages", &long, &found));
    short.shutdown();
    let cached = start(MOST_ROWS, ROOM, true)?;
    arms.push(compare("cold cache", &expected, &one_by_one(&cached, &prompts, TOKENS)?));
    arms.push(compare("prompt again", &expected, &one_by_one(&cached, &prompts, TOKENS)?));
    // The next turn of a conversation, and a prompt that leaves another in its middle, twice: the second time where the
    // first one left it.
    let turns: Vec<Vec<TokenId>> =
        prompts.iter().zip(&expected).map(|(prompt, text)| next_turn(prompt, text)).collect();
    let expected = one_by_one(&alone, &turns, TOKENS)?.texts;
    arms.push(compare("next turn", &expected, &one_by_one(&cached, &turns, TOKENS)?));
    for (name, own) in [("parted", 11), ("parted again", 12)] {
        let parted: Vec<Vec<TokenId>> = prompts.iter().map(|prompt| part(prompt, own)).collect();
        let expected = one_by_one(&alone, &parted, TOKENS)?.texts;
        arms.push(compare(name, &expected, &one_by_one(&cached, &parted, TOKENS)?));
    }
    cached.shutdown();
    alone.shutdown();
    Ok(arms)
}

/// One line for each arm, under a head.
pub fn table(arms: &[Arm]) -> String {
    let mut lines = vec![format!(
        "{:<14} {:>6} {:>8} {:>9} {:>9} {:>6}  largest margin where texts part",
        "arm", "texts", "cached", "preempted", "diverged", "moved"
    )];
    lines.extend(arms.iter().map(|arm| {
        let word = arm.worst.map_or_else(
            || "none".to_owned(),
            |(prompt, at)| format!("{:.5} at token {} of prompt {prompt}", at.margin, at.position),
        );
        let Arm { name, texts, cached_tokens, preemptions, diverged, moved, .. } = arm;
        format!("{name:<14} {texts:>6} {cached_tokens:>8} {preemptions:>9} {diverged:>9} {moved:>6}  {word}")
    }));
    lines.join("\n")
}

/// Of every length that matters: within a page, at its end, several pages, several chunks.
fn prompts(vocab: u32) -> Vec<Vec<TokenId>> {
    let token = |prompt: u32, at: u32| (at + 1).wrapping_mul(2_654_435_761).wrapping_add(prompt * 97) >> 9;
    let lengths = [5, 63, 64, 65, 128, 200, 321, 450];
    (0..).zip(lengths).map(|(prompt, len)| (0..len).map(|at| token(prompt, at) % vocab).collect()).collect()
}

fn next_turn(prompt: &[TokenId], text: &Text) -> Vec<TokenId> {
    prompt.iter().copied().chain(text.iter().map(|said| said.token)).chain([1, 2, 3, 4, 5]).collect()
}

/// The first two thirds of a prompt, and something else.
fn part(prompt: &[TokenId], own: TokenId) -> Vec<TokenId> {
    prompt[..prompt.len() * 2 / 3].iter().copied().chain([own; 70]).collect()
}

fn request(prompt: &[TokenId], tokens: u32) -> Request {
    Request {
        id: "probe".into(),
        prompt: Arc::from(prompt),
        sampling: SamplingParams { temperature: 0.0, logprobs: Some(2), ..SamplingParams::default() },
        seed: 0,
        max_new_tokens: tokens,
        priority: 0,
        tenant: Tenant::default(),
        deadline: None,
        namespace: 0,
        group: 0,
        constraint: None,
        prompt_logprobs: None,
    }
}

fn one_by_one(engine: &Handle, prompts: &[Vec<TokenId>], tokens: u32) -> Result<Read> {
    let mut all = Read::default();
    prompts.iter().try_for_each(|prompt| read(engine.submit(request(prompt, tokens))?, &mut all))?;
    Ok(all)
}

fn together(engine: &Handle, prompts: &[Vec<TokenId>], tokens: u32) -> Result<Read> {
    let running =
        prompts.iter().map(|prompt| Ok(engine.submit(request(prompt, tokens))?)).collect::<Result<Vec<_>>>()?;
    let mut all = Read::default();
    running.into_iter().try_for_each(|generation| read(generation, &mut all))?;
    Ok(all)
}

fn read(mut generation: Generation, all: &mut Read) -> Result<()> {
    let mut text = Vec::new();
    loop {
        match generation.blocking_next().context("the engine ended")? {
            TokenEvent::Started { cached_tokens, .. } => all.cached_tokens += u64::from(cached_tokens),
            TokenEvent::Tokens { tokens, logprobs } => {
                let said = |(&token, top): (&TokenId, &[(TokenId, f32)])| match top {
                    [first, second, ..] => Said { token, margin: first.1 - second.1, bits: first.1.to_bits() },
                    _ => Said { token, margin: f32::INFINITY, bits: 0 },
                };
                text.extend(tokens.iter().zip(logprobs.iter().map(|probs| &probs.top[..])).map(said));
            }
            TokenEvent::Finished { preemptions, .. } => {
                all.preemptions += preemptions;
                all.texts.push(text);
                return Ok(());
            }
            other => bail!("a text did not end well: {other:?}"),
        }
    }
}

/// `found` may hold the prompts several times over.
fn compare(name: &'static str, expected: &[Text], found: &Read) -> Arm {
    let pairs = || expected.iter().cycle().zip(&found.texts);
    let apart: Vec<(usize, Divergence)> =
        pairs().map(|(a, b)| divergence(a, b)).enumerate().filter_map(|(at, apart)| Some((at, apart?))).collect();
    let worst = apart.iter().copied().max_by(|a, b| a.1.margin.total_cmp(&b.1.margin));
    Arm {
        name,
        cached_tokens: found.cached_tokens,
        preemptions: found.preemptions,
        texts: found.texts.len(),
        diverged: apart.len(),
        moved: pairs().filter(|(a, b)| a != b).count(),
        worst: worst.map(|(at, apart)| (at % expected.len().max(1), apart)),
    }
}

/// The first position at which two texts have another token, or only one has any.
fn divergence(expected: &Text, found: &Text) -> Option<Divergence> {
    let same = expected.iter().zip(found).take_while(|(a, b)| a.token == b.token).count();
    let margin = match (expected.get(same), found.get(same)) {
        (None, None) => return None,
        (Some(said), _) | (None, Some(said)) => said.margin,
    };
    Some(Divergence { position: same, margin })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: &[(TokenId, f32)]) -> Text {
        tokens.iter().map(|&(token, margin)| Said { token, margin, bits: 0 }).collect()
    }

    #[test]
    fn the_first_difference_is_found() {
        let at = |position, margin| Some(Divergence { position, margin });
        let base = text(&[(1, 0.5), (2, 0.25), (3, 1.0)]);
        assert_eq!(divergence(&base, &base), None);
        assert_eq!(divergence(&base, &text(&[(1, 0.5), (9, 0.1), (8, 0.1)])), at(1, 0.25));
        assert_eq!(divergence(&base, &base[..2].to_vec()), at(2, 1.0));
        assert_eq!(divergence(&base[..2].to_vec(), &base), at(2, 1.0));
    }

    /// Texts that were asked twice over, one of them with another logprob.
    #[test]
    fn arms_count_what_moved() {
        let expected = [text(&[(1, 0.5)]), text(&[(2, 0.5)])];
        let mut moved = expected[0].clone();
        moved[0].bits = 1;
        let texts = vec![expected[0].clone(), text(&[(3, 0.5)]), moved, expected[1].clone()];
        let arm = compare("together", &expected, &Read { texts, ..Read::default() });
        assert_eq!((arm.texts, arm.diverged, arm.moved), (4, 1, 2));
        assert_eq!(arm.worst, Some((1, Divergence { position: 0, margin: 0.5 })));
    }
}
