//! The text side of a Hugging Face folder: `tokenizer.json`, the chat template, special tokens, end tokens.

use std::path::Path;

use anyhow::{Context, ensure};
use contract::TokenId;
use model::HfFolder;
use serde_json::{Map, Value};
use text::{ByteVocabToken, Tokenizer};

use super::engines::{ModelFiles, tokenizer_file};
use super::generation;

/// Configs and templates are pages of text; with thousands of added tokens a config has a few megabytes.
const CONFIG_BYTES_MAX: u64 = 16 << 20;
/// Ids below are bytes and the end token.
const BYTE_VOCAB: usize = 257;

/// `dummy`: a model without weights may be without a tokenizer too. The second value is what to warn about.
pub fn files(folder: &HfFolder, tokenizer: Option<&Path>, dummy: bool) -> anyhow::Result<(ModelFiles, Vec<String>)> {
    let path = folder.path.as_path();
    let config = read_config(&path.join("tokenizer_config.json"))?;
    let mut warnings = Vec::new();
    let own = path.join("tokenizer.json");
    let tokenizer = match tokenizer {
        Some(file) => tokenizer_file(file)?,
        None if !own.exists() && dummy => {
            warnings.push(format!(
                "{} has no tokenizer.json: text is read as bytes, and tokens beyond them are written as their number",
                path.display()
            ));
            byte_tokenizer(folder.config.vocab)?
        }
        None => tokenizer_file(&own).context("--tokenizer FILE.json names another one")?,
    };
    let special_tokens = special_tokens(&config);
    let id_of =
        |name: &str| special_tokens.iter().find(|(key, _)| key == name).map(|(_, text)| tokenizer.added_token(text));
    let bos = id_of("bos_token").flatten().or(folder.config.bos);
    let eos = end_tokens(folder, id_of("eos_token").flatten())?;
    let tokenizer = tokenizer.with_special(bos, eos);
    let template = template(path, &config)?;
    let folder = Some(path.to_path_buf());
    Ok((ModelFiles { tokenizer, template, special_tokens, folder, script: None }, warnings))
}

/// The tokenizer's own end token and those of `generation_config.json`; `config.json` when neither says one.
fn end_tokens(folder: &HfFolder, own: Option<TokenId>) -> anyhow::Result<Vec<TokenId>> {
    let mut tokens: Vec<TokenId> = own.into_iter().chain(generation::end_tokens(&folder.path)?).collect();
    if tokens.is_empty() {
        tokens.clone_from(&folder.config.eos);
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

/// Bytes, then one token per id that is written as its number: every id of a random model shows in the text.
fn byte_tokenizer(vocab: usize) -> anyhow::Result<Tokenizer> {
    ensure!(vocab >= BYTE_VOCAB, "a vocabulary of {vocab} is too small for bytes and an end token ({BYTE_VOCAB})");
    let number = |id: usize| ByteVocabToken { bytes: format!(" {id}").into_bytes(), added: false };
    Ok(Tokenizer::from_bytes_vocab((BYTE_VOCAB..vocab).map(number).collect()))
}

/// `tokenizer_config.json`; a folder may be without.
fn read_config(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let Some(text) = read_optional(path)? else { return Ok(Map::new()) };
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn read_optional(path: &Path) -> anyhow::Result<Option<String>> {
    if !path.exists() {
        return Ok(None);
    }
    let read = || -> anyhow::Result<String> {
        let size = std::fs::metadata(path)?.len();
        ensure!(size <= CONFIG_BYTES_MAX, "{size} bytes, the limit is {CONFIG_BYTES_MAX}");
        Ok(std::fs::read_to_string(path)?)
    };
    read().map(Some).with_context(|| path.display().to_string())
}

/// `chat_template.jinja`, else the config's: a text, or a list of named ones of which `default` counts.
fn template(folder: &Path, config: &Map<String, Value>) -> anyhow::Result<Option<String>> {
    if let Some(source) = read_optional(&folder.join("chat_template.jinja"))? {
        return Ok(Some(source));
    }
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            let source = default.and_then(|entry| entry["template"].as_str());
            let names = || named.iter().map(|entry| entry["name"].to_string()).collect::<Vec<_>>().join(", ");
            let source = source.with_context(|| {
                format!(
                    "tokenizer_config.json: chat_template is a list without a template named \"default\" (it has {}); \
                     give --chat-template FILE.jinja",
                    names()
                )
            })?;
            Ok(Some(source.to_owned()))
        }
        Some(other) => anyhow::bail!("tokenizer_config.json: chat_template is {other}, expected a text or a list"),
    }
}

/// Every `NAME_token` of the config, as templates see them: a text, or an object with its `content`.
fn special_tokens(config: &Map<String, Value>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let named = config.iter().filter(|(key, _)| key.ends_with("_token"));
    named.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}
