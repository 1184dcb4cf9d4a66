//! Sampling defaults: `generation_config.json`, then the operator's own.

use std::path::Path;

use anyhow::{Context, ensure};
use api::SamplingDefaults;
use contract::TokenId;
use serde::Deserialize;

use super::engines::ModelFiles;
use crate::config::SamplingTable;
use crate::settings::{GenerationConfig, ModelSettings};

const FILE_NAME: &str = "generation_config.json";
/// The file is a page of text.
const BYTES_MAX: u64 = 1 << 20;

/// What of the file matters here. Its other keys are for other programs and are left alone.
#[derive(Debug, Default, Deserialize)]
struct GenerationFile {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    eos_token_id: Option<EndTokens>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum EndTokens {
    One(TokenId),
    Many(Vec<TokenId>),
}

impl GenerationFile {
    fn end_tokens(&self) -> Vec<TokenId> {
        match &self.eos_token_id {
            None => Vec::new(),
            Some(EndTokens::One(token)) => vec![*token],
            Some(EndTokens::Many(tokens)) => tokens.clone(),
        }
    }
}

/// The end tokens of a folder's `generation_config.json`: they hold even when its sampling is not wanted.
pub fn end_tokens(folder: &Path) -> anyhow::Result<Vec<TokenId>> {
    let path = folder.join(FILE_NAME);
    if path.exists() { Ok(read_file(&path)?.end_tokens()) } else { Ok(Vec::new()) }
}

/// Sampling defaults in effect, and where they came from.
pub struct Generation {
    pub sampling: SamplingDefaults,
    /// Empty: the tokenizer's.
    pub end_tokens: Vec<TokenId>,
    pub from: String,
}

pub fn read(settings: &ModelSettings, files: &ModelFiles) -> anyhow::Result<Generation> {
    let (file, mut from) = match &settings.generation_config {
        GenerationConfig::None => (GenerationFile::default(), "neutral defaults".to_string()),
        GenerationConfig::File(path) => (read_file(path)?, path.display().to_string()),
        GenerationConfig::Auto => match files.folder.as_ref().map(|folder| folder.join(FILE_NAME)) {
            Some(path) if path.exists() => (read_file(&path)?, path.display().to_string()),
            _ => (GenerationFile::default(), format!("neutral defaults (the model has no {FILE_NAME})")),
        },
    };
    if settings.sampling != SamplingTable::default() {
        from += " and the config's [model.sampling]";
    }
    let end_tokens = file.end_tokens();
    let vocab = files.tokenizer.vocab_size();
    if let Some(bad) = end_tokens.iter().find(|&&token| token as usize >= vocab) {
        anyhow::bail!("{from}: eos_token_id {bad} is not below the vocabulary size {vocab}");
    }
    let sampling = lay(&file, &settings.sampling).with_context(|| format!("sampling defaults from {from}"))?;
    Ok(Generation { sampling, end_tokens, from })
}

fn read_file(path: &Path) -> anyhow::Result<GenerationFile> {
    let read = || -> anyhow::Result<GenerationFile> {
        let size = std::fs::metadata(path)?.len();
        ensure!(size <= BYTES_MAX, "{size} bytes, the limit is {BYTES_MAX}");
        Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
    };
    read().with_context(|| format!("generation config {}", path.display()))
}

/// The operator's values over the file's over the neutral ones, within the ranges of the API's own parameters.
fn lay(file: &GenerationFile, own: &SamplingTable) -> anyhow::Result<SamplingDefaults> {
    let neutral = SamplingDefaults::default();
    let pick = |name: &str, own: Option<f32>, file: Option<f32>, neutral: f32, range: std::ops::RangeInclusive<f32>| {
        let value = own.or(file).unwrap_or(neutral);
        ensure!(range.contains(&value), "{name} is {value}; it must be in {}..={}", range.start(), range.end());
        Ok(value)
    };
    Ok(SamplingDefaults {
        temperature: pick("temperature", own.temperature, file.temperature, neutral.temperature, 0.0..=2.0)?,
        top_p: pick("top_p", own.top_p, file.top_p, neutral.top_p, f32::MIN_POSITIVE..=1.0)?,
        top_k: own.top_k.or(file.top_k).unwrap_or(neutral.top_k),
        min_p: pick("min_p", own.min_p, file.min_p, neutral.min_p, 0.0..=1.0)?,
        repetition_penalty: pick(
            "repetition_penalty",
            own.repetition_penalty,
            file.repetition_penalty,
            neutral.repetition_penalty,
            f32::MIN_POSITIVE..=10.0,
        )?,
        presence_penalty: pick("presence_penalty", own.presence_penalty, None, 0.0, -2.0..=2.0)?,
        frequency_penalty: pick("frequency_penalty", own.frequency_penalty, None, 0.0, -2.0..=2.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> GenerationFile {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_operator_wins_over_the_file() {
        let file = parse(r#"{"temperature":0.6,"top_k":20,"do_sample":true,"eos_token_id":[1,2]}"#);
        let own = SamplingTable { temperature: Some(0.2), ..Default::default() };
        let sampling = lay(&file, &own).unwrap();
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.2, 20, 1.0));
        assert!(matches!(file.eos_token_id, Some(EndTokens::Many(ref ids)) if ids == &[1, 2]));
        assert!(matches!(parse(r#"{"eos_token_id":7}"#).eos_token_id, Some(EndTokens::One(7))));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let error = lay(&parse(r#"{"temperature":9}"#), &SamplingTable::default()).unwrap_err().to_string();
        assert_eq!(error, "temperature is 9; it must be in 0..=2");
    }
}
