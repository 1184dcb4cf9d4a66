//! Whether a text depends on what it was computed beside: the same prompts alone, together, in small chunks, and behind
//! cached prefixes, greedily. Reported is the first token that differs from the text of the prompt alone in one step, with
//! its margin: how far the likeliest token was ahead of the second, in nats, where the texts part. A margin near 0 is a tie
//! that rounding decided; a large one is a fault.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use backend::load::LoadOptions;
use backend::ops::ModelSpec;
use contract::TokenId;
use contract::generation::{Request, Tenant, TokenEvent};
use contract::sampling::SamplingParams;
use engine::{EngineConfig, EngineParts, Generation, Handle};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::args::Args;
use crate::cpu::spec_of;

/// Tokens of each text.
const TOKENS: u32 = 48;
/// Rows of a step in the arm of small chunks: one page.
const SMALL_CHUNK: u32 = 64;

/// A text: its tokens, and the margin of each.
type Text = Vec<(TokenId, f32)>;

/// Where two texts part.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Divergence {
    position: usize,
    margin: f32,
}

/// One way to compute the prompts, and what came of it.
struct Arm {
    name: &'static str,
    cached_tokens: u64,
    texts: usize,
    /// The prompt's number with the divergence of the largest margin.
    worst: Option<(usize, Divergence)>,
    diverged: usize,
}

pub fn run(args: &Args) -> Result<Value> {
    let spec = spec_of(args)?;
    let arms = probe(&spec, args.threads.first().copied())?;
    let mut rows = Vec::new();
    eprintln!(
        "{:<12} {:>6} {:>14} {:>9}  largest margin where texts part",
        "arm", "texts", "cached tokens", "diverged"
    );
    for arm in &arms {
        let worst =
            arm.worst.map(|(prompt, at)| json!({"prompt": prompt, "position": at.position, "margin": at.margin}));
        let word = worst.as_ref().map_or_else(|| "none".to_owned(), Value::to_string);
        eprintln!("{:<12} {:>6} {:>14} {:>9}  {word}", arm.name, arm.texts, arm.cached_tokens, arm.diverged);
        rows.push(json!({"arm": arm.name, "texts": arm.texts, "cached_tokens": arm.cached_tokens,
            "diverged": arm.diverged, "worst": worst}));
    }
    Ok(Value::Array(rows))
}

fn probe(spec: &ModelSpec, threads: Option<usize>) -> Result<Vec<Arm>> {
    let prompts = prompts(spec.vocab_used as u32);
    let open = |max_rows, prefix_cache| start(spec, threads, max_rows, prefix_cache);
    let alone = open(MOST_ROWS, false)?;
    let expected = one_by_one(&alone, &prompts)?.0;
    let mut arms = vec![compare("again", &expected, one_by_one(&alone, &prompts)?)];
    arms.push(compare("together", &expected, together(&alone, &prompts)?));
    let small = open(SMALL_CHUNK, false)?;
    arms.push(compare("small chunks", &expected, one_by_one(&small, &prompts)?));
    small.shutdown();
    let cached = open(MOST_ROWS, true)?;
    arms.push(compare("cold cache", &expected, one_by_one(&cached, &prompts)?));
    arms.push(compare("prompt again", &expected, one_by_one(&cached, &prompts)?));
    // The next turn of a conversation, and a prompt that leaves another in its middle, twice: the second time where the
    // first one left it.
    let turns: Vec<Vec<TokenId>> =
        prompts.iter().zip(&expected).map(|(prompt, text)| next_turn(prompt, text)).collect();
    let expected = one_by_one(&alone, &turns)?.0;
    arms.push(compare("next turn", &expected, one_by_one(&cached, &turns)?));
    for (name, own) in [("parted", 11), ("parted again", 12)] {
        let parted: Vec<Vec<TokenId>> = prompts.iter().map(|prompt| part(prompt, own)).collect();
        let expected = one_by_one(&alone, &parted)?.0;
        arms.push(compare(name, &expected, one_by_one(&cached, &parted)?));
    }
    cached.shutdown();
    alone.shutdown();
    Ok(arms)
}

/// Of every length that matters: within a page, at its end, several pages, several chunks.
fn prompts(vocab: u32) -> Vec<Vec<TokenId>> {
    let token = |prompt: u32, at: u32| (at + 1).wrapping_mul(2_654_435_761).wrapping_add(prompt * 97) >> 9;
    let lengths = [5, 63, 64, 65, 128, 200, 321, 450];
    (0..).zip(lengths).map(|(prompt, len)| (0..len).map(|at| token(prompt, at) % vocab).collect()).collect()
}

fn next_turn(prompt: &[TokenId], text: &Text) -> Vec<TokenId> {
    prompt.iter().copied().chain(text.iter().map(|&(token, _)| token)).chain([1, 2, 3, 4, 5]).collect()
}

/// The first two thirds of a prompt, and something else.
fn part(prompt: &[TokenId], own: TokenId) -> Vec<TokenId> {
    prompt[..prompt.len() * 2 / 3].iter().copied().chain([own; 70]).collect()
}

/// Rows of a step that take any of the prompts whole.
const MOST_ROWS: u32 = 1024;

fn start(spec: &ModelSpec, threads: Option<usize>, max_rows: u32, prefix_cache: bool) -> Result<Handle> {
    let context_len = Some(spec.context_len.min(1024));
    let options = LoadOptions { max_rows, threads, context_len, ..LoadOptions::default() };
    let (backend, _) = backend_cpu::load(spec.clone(), &options, &mut |_| {})?;
    let config = EngineConfig { prefix_cache, ..EngineConfig::new("probe") };
    Ok(engine::start(EngineParts { backend: Box::new(backend), policy: None, config }, &mut Registry::default())?)
}

fn request(prompt: &[TokenId]) -> Request {
    Request {
        id: "probe".into(),
        prompt: Arc::from(prompt),
        sampling: SamplingParams { temperature: 0.0, logprobs: Some(2), ..SamplingParams::default() },
        seed: 0,
        max_new_tokens: TOKENS,
        priority: 0,
        tenant: Tenant::default(),
        deadline: None,
        namespace: 0,
        group: 0,
        constraint: None,
        prompt_logprobs: None,
    }
}

fn one_by_one(engine: &Handle, prompts: &[Vec<TokenId>]) -> Result<(Vec<Text>, u64)> {
    gather(prompts.iter().map(|prompt| read(engine.submit(request(prompt))?)))
}

fn together(engine: &Handle, prompts: &[Vec<TokenId>]) -> Result<(Vec<Text>, u64)> {
    let running = prompts.iter().map(|prompt| Ok(engine.submit(request(prompt))?)).collect::<Result<Vec<_>>>()?;
    gather(running.into_iter().map(read))
}

fn gather(texts: impl Iterator<Item = Result<(Text, u32)>>) -> Result<(Vec<Text>, u64)> {
    let (mut all, mut cached) = (Vec::new(), 0);
    for text in texts {
        let (text, tokens) = text?;
        cached += u64::from(tokens);
        all.push(text);
    }
    Ok((all, cached))
}

fn read(mut generation: Generation) -> Result<(Text, u32)> {
    let (mut text, mut cached) = (Vec::new(), 0);
    loop {
        match generation.blocking_next().context("the engine ended")? {
            TokenEvent::Started { cached_tokens, .. } => cached = cached_tokens,
            TokenEvent::Tokens { tokens, logprobs } => {
                let margin = |top: &[(TokenId, f32)]| match top {
                    [first, second, ..] => first.1 - second.1,
                    _ => f32::INFINITY,
                };
                text.extend(tokens.iter().zip(&logprobs).map(|(&token, probs)| (token, margin(&probs.top))));
            }
            TokenEvent::Finished { .. } => return Ok((text, cached)),
            other => bail!("a text did not end well: {other:?}"),
        }
    }
}

fn compare(name: &'static str, expected: &[Text], (found, cached_tokens): (Vec<Text>, u64)) -> Arm {
    let apart = expected.iter().zip(&found).map(|(a, b)| divergence(a, b)).enumerate();
    let apart: Vec<(usize, Divergence)> = apart.filter_map(|(prompt, at)| Some((prompt, at?))).collect();
    let worst = apart.iter().copied().max_by(|a, b| a.1.margin.total_cmp(&b.1.margin));
    Arm { name, cached_tokens, texts: found.len(), worst, diverged: apart.len() }
}

/// The first position at which two texts have another token, or only one has any.
fn divergence(expected: &Text, found: &Text) -> Option<Divergence> {
    let same = expected.iter().zip(found).take_while(|(a, b)| a.0 == b.0).count();
    let margin = match (expected.get(same), found.get(same)) {
        (None, None) => return None,
        (Some(&(_, margin)), _) | (None, Some(&(_, margin))) => margin,
    };
    Some(Divergence { position: same, margin })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tiny(name: &str) -> ModelSpec {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../reference/data");
        model::load(&data.join(name)).unwrap_or_else(|e| panic!("{name}: {e}")).spec
    }

    /// On the CPU a text does not depend on its company, its chunks or the cache; only a state that an answer left is of
    /// another form of the same sums, so that a tie may fall the other way behind it.
    #[test]
    fn texts_do_not_depend_on_their_company() {
        for name in ["hybrid-1", "hybrid-3", "tiny-qwen3.gguf"] {
            for arm in probe(&tiny(name), Some(2)).unwrap_or_else(|e| panic!("{name}: {e}")) {
                let allowed = if arm.name == "next turn" { 0.05 } else { -1.0 };
                let margin = arm.worst.map_or(-1.0, |(_, at)| at.margin);
                assert!(margin <= allowed, "{name}, {}: {:?}", arm.name, arm.worst);
                let hits = ["prompt again", "next turn", "parted", "parted again"].contains(&arm.name);
                // A hybrid has no state yet where prompts part for the first time, unless a prompt ended there.
                assert!(arm.cached_tokens > 0 || !hits || arm.name == "parted", "{name}, {}: no hit", arm.name);
            }
        }
    }

    #[test]
    fn the_first_difference_is_found() {
        let text = |tokens: &[(TokenId, f32)]| tokens.to_vec();
        let at = |position, margin| Some(Divergence { position, margin });
        let base = text(&[(1, 0.5), (2, 0.25), (3, 1.0)]);
        assert_eq!(divergence(&base, &base), None);
        assert_eq!(divergence(&base, &text(&[(1, 0.5), (9, 0.1), (8, 0.1)])), at(1, 0.25));
        assert_eq!(divergence(&base, &base[..2].to_vec()), at(2, 1.0));
        assert_eq!(divergence(&base[..2].to_vec(), &base), at(2, 1.0));
    }
}
