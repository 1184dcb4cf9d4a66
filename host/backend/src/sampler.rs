//! The reference sampler: one row of logits to one token.
//!
//! Every step is defined for every backend: the order of operations is that of [`SamplingParams`], ties go to the lowest
//! token id, and the draw is `argmax(logit / temperature + Gumbel(seed, position, token))`, so a seeded request gives
//! the same text whatever else runs beside it.

use std::cmp::Ordering;
use std::collections::HashMap;

use contract::TokenId;
use contract::sampling::{SamplingParams, TokenLogprobs};

use crate::rng::{GUMBEL_MAX, gumbel};

/// How often each token came, for penalties.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// Token to (seen in the prompt, times generated).
    seen: HashMap<TokenId, (bool, u32)>,
}

impl TokenCounts {
    pub fn new(prompt: &[TokenId], generated: &[TokenId]) -> Self {
        let mut counts = Self::default();
        for &token in prompt {
            counts.seen.entry(token).or_default().0 = true;
        }
        for &token in generated {
            counts.push(token);
        }
        counts
    }

    pub fn push(&mut self, token: TokenId) {
        self.seen.entry(token).or_default().1 += 1;
    }
}

/// One draw.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    pub params: &'a SamplingParams,
    pub seed: u64,
    /// Position of the token that is drawn.
    pub position: u32,
    /// Tokens generated before it.
    pub generated: u32,
    /// Present when [`SamplingParams::needs_history`].
    pub counts: Option<&'a TokenCounts>,
    pub mask: Option<&'a [u32]>,
}

/// Scratch memory of the sampler, kept between rows.
#[derive(Default)]
pub struct Sampler {
    candidates: Vec<(f32, TokenId)>,
}

impl Sampler {
    /// With memory for a vocabulary of this size, so that drawing allocates none.
    pub fn with_capacity(vocab: usize) -> Self {
        Self { candidates: Vec::with_capacity(vocab) }
    }

    /// Chooses a token; `logits` are overwritten. `None` when the mask forbids every token.
    pub fn sample(&mut self, logits: &mut [f32], draw: &Draw<'_>) -> Option<(TokenId, Option<TokenLogprobs>)> {
        let raw = draw.params.logprobs.map(|n| RawLogprobs::of(logits, n));
        let before = raw.as_ref().map(|_| logits.to_vec());
        adjust(logits, draw);
        let token = if draw.params.temperature == 0.0 { argmax(logits)? } else { self.draw(logits, draw)? };
        let logprobs = raw.zip(before).map(|(raw, before)| raw.of_token(&before, token));
        Some((token, logprobs))
    }

    fn draw(&mut self, logits: &mut [f32], draw: &Draw<'_>) -> Option<TokenId> {
        let params = draw.params;
        let scale = 1.0 / params.temperature;
        for logit in logits.iter_mut() {
            *logit *= scale;
        }
        let max = logits[argmax(logits)? as usize];
        if params.top_k == 0 && params.top_p >= 1.0 && params.min_p <= 0.0 {
            return gumbel_argmax(logits.iter().enumerate().map(|(i, &l)| (l, i as TokenId)), draw);
        }
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().enumerate().filter(|(_, l)| l.is_finite()).map(|(i, &l)| (l, i as TokenId)));
        if params.top_k > 0 && (params.top_k as usize) < self.candidates.len() {
            self.candidates.select_nth_unstable_by(params.top_k as usize - 1, likelier);
            self.candidates.truncate(params.top_k as usize);
        }
        if params.top_p < 1.0 {
            keep_top_p(&mut self.candidates, params.top_p, max);
        }
        if params.min_p > 0.0 {
            let floor = max + params.min_p.ln();
            self.candidates.retain(|&(logit, _)| logit >= floor);
        }
        gumbel_argmax(self.candidates.iter().copied(), draw)
    }
}

/// Logit bias, penalties, minimum length and grammar mask, in this order.
fn adjust(logits: &mut [f32], draw: &Draw<'_>) {
    let params = draw.params;
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    for (&token, &(_, generated)) in draw.counts.iter().flat_map(|counts| &counts.seen) {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        // Repetition: CTRL (arXiv 1909.05858); presence and frequency: the OpenAI API's definition.
        *logit = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
        if generated > 0 {
            *logit -= params.presence_penalty + params.frequency_penalty * generated as f32;
        }
    }
    if draw.generated < params.min_tokens {
        for &token in &params.stop_tokens {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if let Some(mask) = draw.mask {
        for (word, chunk) in logits.chunks_mut(32).enumerate() {
            let bits = mask.get(word).copied().unwrap_or(0);
            if bits != u32::MAX {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if bits >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// The likeliest token, ties to the lowest id; `None` when nothing is allowed.
fn argmax(logits: &[f32]) -> Option<TokenId> {
    let mut best = (f32::NEG_INFINITY, None);
    for (i, &logit) in logits.iter().enumerate() {
        if logit > best.0 {
            best = (logit, Some(i as TokenId));
        }
    }
    best.1
}

/// Likelier first, ties to the lowest id.
fn likelier(a: &(f32, TokenId), b: &(f32, TokenId)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Keeps the smallest set of likeliest candidates whose probability reaches `top_p` (nucleus sampling, arXiv 1904.09751).
fn keep_top_p(candidates: &mut Vec<(f32, TokenId)>, top_p: f32, max: f32) {
    let total: f64 = candidates.iter().map(|&(l, _)| f64::from((l - max).exp())).sum();
    let wanted = f64::from(top_p) * total;
    // Few candidates carry most of the mass: sort a growing head instead of the whole vocabulary.
    let mut head = 64.min(candidates.len());
    loop {
        if head < candidates.len() {
            candidates.select_nth_unstable_by(head - 1, likelier);
        }
        candidates[..head].sort_unstable_by(likelier);
        let mut sum = 0.0;
        for (i, &(logit, _)) in candidates[..head].iter().enumerate() {
            sum += f64::from((logit - max).exp());
            if sum >= wanted {
                candidates.truncate(i + 1);
                return;
            }
        }
        if head == candidates.len() {
            return;
        }
        head = (head * 4).min(candidates.len());
    }
}

/// Gumbel-max draw. Noise is bounded, so a candidate too far below the best so far need not be drawn.
fn gumbel_argmax(candidates: impl Iterator<Item = (f32, TokenId)>, draw: &Draw<'_>) -> Option<TokenId> {
    let mut best: Option<(f32, TokenId)> = None;
    for (logit, token) in candidates {
        if logit == f32::NEG_INFINITY || best.is_some_and(|(score, _)| logit + GUMBEL_MAX < score) {
            continue;
        }
        let score = logit + gumbel(draw.seed, draw.position, token);
        if best.is_none_or(|(top, id)| score > top || (score == top && token < id)) {
            best = Some((score, token));
        }
    }
    best.map(|(_, token)| token)
}

/// Logprobs of one position whose token is known, such as a prompt's own, from the model's untouched logits; with those
/// of the `top` likeliest.
pub fn raw_logprobs(logits: &[f32], token: TokenId, top: u8) -> TokenLogprobs {
    RawLogprobs::of(logits, top).of_token(logits, token)
}

struct RawLogprobs {
    log_sum: f32,
    top: Vec<(TokenId, f32)>,
}

impl RawLogprobs {
    fn of(logits: &[f32], n: u8) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from((l - max).exp())).sum();
        let log_sum = max + sum.ln() as f32;
        let mut order: Vec<(f32, TokenId)> = logits.iter().enumerate().map(|(i, &l)| (l, i as TokenId)).collect();
        let n = usize::from(n).min(order.len());
        if n > 0 && n < order.len() {
            order.select_nth_unstable_by(n - 1, likelier);
        }
        order.truncate(n);
        order.sort_unstable_by(likelier);
        Self { log_sum, top: order.into_iter().map(|(l, t)| (t, l - log_sum)).collect() }
    }

    /// With `logits` as they were given to [`Self::of`].
    fn of_token(self, logits: &[f32], token: TokenId) -> TokenLogprobs {
        let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let likelier = logits.iter().filter(|&&other| other > logit).count();
        TokenLogprobs { token, logprob: logit - self.log_sum, rank: likelier as u32 + 1, top: self.top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw_many(params: &SamplingParams, logits: &[f32], draws: u32) -> Vec<u32> {
        let mut sampler = Sampler::default();
        let mut counts = vec![0; logits.len()];
        for position in 0..draws {
            let draw = Draw { params, seed: 11, position, generated: 0, counts: None, mask: None };
            let (token, _) = sampler.sample(&mut logits.to_vec(), &draw).expect("something is allowed");
            counts[token as usize] += 1;
        }
        counts
    }

    /// Pearson's chi-squared of the draws against a distribution, over its non-zero cells.
    fn chi_squared(counts: &[u32], probabilities: &[f64]) -> f64 {
        let draws: u32 = counts.iter().sum();
        let cells = counts.iter().zip(probabilities).filter(|(_, p)| **p > 0.0);
        cells.map(|(&c, &p)| (f64::from(c) - p * f64::from(draws)).powi(2) / (p * f64::from(draws))).sum()
    }

    fn softmax(logits: &[f64]) -> Vec<f64> {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exp: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.iter().map(|e| e / sum).collect()
    }

    const LOGITS: [f32; 8] = [1.0, 0.5, 2.0, -1.0, 0.0, 1.5, -0.5, 0.2];

    /// 100,000 draws follow the softmax: chi-squared with 7 degrees of freedom stays under its 0.1 % point.
    #[test]
    fn temperature_draws_from_the_softmax() {
        let params = SamplingParams { temperature: 0.7, ..Default::default() };
        let expected = softmax(&LOGITS.map(|l| f64::from(l) / 0.7));
        assert!(chi_squared(&draw_many(&params, &LOGITS, 100_000), &expected) < 24.32);
    }

    /// Top-k, top-p and min-p keep exactly the tokens of their definition.
    #[test]
    fn filters_keep_the_right_tokens() {
        let kept = |params: SamplingParams| -> Vec<usize> {
            let counts = draw_many(&params, &LOGITS, 20_000);
            (0..counts.len()).filter(|&i| counts[i] > 0).collect()
        };
        assert_eq!(kept(SamplingParams { top_k: 3, ..Default::default() }), [0, 2, 5]);
        // softmax: 2 .38, 5 .23, 0 .14, 1 .08 …: .38 + .23 < .65 <= .38 + .23 + .14
        assert_eq!(kept(SamplingParams { top_p: 0.65, ..Default::default() }), [0, 2, 5]);
        // 0.5 of the best: logits at or above 2 - ln 2 = 1.31
        assert_eq!(kept(SamplingParams { min_p: 0.5, ..Default::default() }), [2, 5]);
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_a_tie() {
        let params = SamplingParams { temperature: 0.0, ..Default::default() };
        let draw = Draw { params: &params, seed: 0, position: 0, generated: 0, counts: None, mask: None };
        let token = Sampler::default().sample(&mut [1.0, 3.0, 3.0], &draw).map(|(t, _)| t);
        assert_eq!(token, Some(1));
    }

    /// A mask decides over everything; a mask without any token is no draw.
    #[test]
    fn masks_forbid() {
        let params = SamplingParams { temperature: 0.0, ..Default::default() };
        let with = |mask: u32| {
            let bits = [mask];
            let draw = Draw { params: &params, seed: 0, position: 0, generated: 0, counts: None, mask: Some(&bits) };
            Sampler::default().sample(&mut [1.0, 3.0, 2.0], &draw).map(|(t, _)| t)
        };
        assert_eq!(with(0b101), Some(2));
        assert_eq!(with(0), None);
    }

    /// Penalties: repetition counts the prompt, presence and frequency only what was generated.
    #[test]
    fn penalties_follow_their_definitions() {
        let params = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let counts = TokenCounts::new(&[0, 1], &[1, 1, 2]);
        let draw = Draw { params: &params, seed: 0, position: 0, generated: 3, counts: Some(&counts), mask: None };
        let mut logits = [4.0, 4.0, -4.0, 4.0];
        adjust(&mut logits, &draw);
        assert_eq!(logits, [2.0, 2.0 - 1.0, -8.0 - 0.75, 4.0]);
    }

    /// Logprobs are of the model's own distribution, before bias and temperature.
    #[test]
    fn logprobs_are_raw() {
        let params =
            SamplingParams { temperature: 0.0, logit_bias: vec![(0, 100.0)], logprobs: Some(2), ..Default::default() };
        let draw = Draw { params: &params, seed: 0, position: 0, generated: 0, counts: None, mask: None };
        let (token, logprobs) = Sampler::default().sample(&mut [0.0, 1.0, 0.5], &draw).expect("allowed");
        let logprobs = logprobs.expect("asked for");
        let expected = softmax(&[0.0, 1.0, 0.5]);
        assert_eq!((token, logprobs.rank), (0, 3));
        assert!((f64::from(logprobs.logprob) - expected[0].ln()).abs() < 1e-6);
        assert_eq!(logprobs.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
    }
}
