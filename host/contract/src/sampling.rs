//! How the next token is chosen.

use crate::TokenId;

/// Parameters of one request's sampling, already checked: every value is finite and in range.
///
/// The order is fixed and the same on every backend: logit bias, penalties, minimum length, grammar mask,
/// temperature, top-k, top-p, min-p, then one draw by Gumbel noise that depends only on (seed, position, token).
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 means greedy; ties go to the lowest token id.
    pub temperature: f32,
    /// 0 means off.
    pub top_k: u32,
    /// 1 means off.
    pub top_p: f32,
    /// 0 means off.
    pub min_p: f32,
    /// Added once to every token that was generated, subtracted from its logit.
    pub presence_penalty: f32,
    /// Subtracted per occurrence among the generated tokens.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 means off.
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Stop tokens cannot be sampled before this many tokens were generated.
    pub min_tokens: u32,
    /// Sampling one of these ends the sequence. Holds the model's end tokens unless they are ignored.
    pub stop_tokens: Vec<TokenId>,
    /// `Some(n)`: the sampled token's logprob and those of the `n` likeliest.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            min_tokens: 0,
            stop_tokens: Vec::new(),
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Whether any penalty needs to know which tokens came before.
    pub fn needs_history(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 || self.repetition_penalty != 1.0
    }
}

/// Logprobs of one position, of the model's own distribution (before temperature and filters).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub token: TokenId,
    pub logprob: f32,
    /// How many tokens are likelier, and one.
    pub rank: u32,
    /// The likeliest tokens, best first.
    pub top: Vec<(TokenId, f32)>,
}
