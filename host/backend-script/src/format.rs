//! The file as it is written: JSON, every unknown key an error.

use serde::Deserialize;

use crate::script::ScriptError;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptFile {
    pub context: Option<u32>,
    pub responses: Vec<ResponseFile>,
}

/// One answer: what it matches, and either one play or one per choice.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseFile {
    pub r#match: Option<String>,
    pub prompt_tokens: Option<u32>,
    pub choices: Option<Vec<PlayFile>>,
    // The keys of [`PlayFile`], spelt out: serde cannot flatten and still refuse unknown keys.
    tokens: Option<Vec<String>>,
    text: Option<String>,
    token_bytes_hex: Option<Vec<String>>,
    special: Option<Vec<String>>,
    logprobs: Option<Vec<f32>>,
    top: Option<Vec<Vec<(String, f32)>>>,
    finish: Option<FinishFile>,
    then: Option<ThenFile>,
    delay_ms: Option<u64>,
}

/// What one sequence says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlayFile {
    pub tokens: Option<Vec<String>>,
    pub text: Option<String>,
    pub token_bytes_hex: Option<Vec<String>>,
    pub special: Option<Vec<String>>,
    pub logprobs: Option<Vec<f32>>,
    /// Per token: (token, logprob) pairs.
    pub top: Option<Vec<Vec<(String, f32)>>>,
    pub finish: Option<FinishFile>,
    pub then: Option<ThenFile>,
    pub delay_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishFile {
    Stop,
    Length,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ThenFile {
    Error,
    Abort,
    Hang,
}

impl ResponseFile {
    /// The plays of this response, one per choice. What a choice leaves out of `special` and `delay_ms` it takes from
    /// the response; what it says must not be said twice.
    pub(crate) fn plays(&self, place: &str) -> Result<Vec<PlayFile>, ScriptError> {
        let own = PlayFile {
            tokens: self.tokens.clone(),
            text: self.text.clone(),
            token_bytes_hex: self.token_bytes_hex.clone(),
            special: self.special.clone(),
            logprobs: self.logprobs.clone(),
            top: self.top.clone(),
            finish: self.finish,
            then: self.then,
            delay_ms: self.delay_ms,
        };
        let Some(choices) = &self.choices else { return Ok(vec![own]) };
        if own.says_something() || own.logprobs.is_some() || own.top.is_some() {
            return Err(ScriptError::at(place, "`choices` and the response's own output exclude each other"));
        }
        if own.finish.is_some() || own.then.is_some() {
            return Err(ScriptError::at(place, "with `choices`, `finish` and `then` belong to each choice"));
        }
        if choices.is_empty() {
            return Err(ScriptError::at(place, "`choices` must not be empty"));
        }
        let inherit = |choice: &PlayFile| PlayFile {
            special: choice.special.clone().or_else(|| own.special.clone()),
            delay_ms: choice.delay_ms.or(own.delay_ms),
            ..choice.clone()
        };
        Ok(choices.iter().map(inherit).collect())
    }
}

impl PlayFile {
    fn says_something(&self) -> bool {
        self.tokens.is_some() || self.text.is_some() || self.token_bytes_hex.is_some()
    }
}
