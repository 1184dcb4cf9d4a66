//! A script: answers to prompts, and the vocabulary they need.
//!
//! The file is JSON: `{"context": 4096, "responses": [ … ]}`. A response has
//!
//! | key | meaning |
//! |---|---|
//! | `match` | substring of the prompt's text; without it every prompt matches. The first response that matches answers |
//! | `prompt_tokens` | replaces the counted length of the prompt in usage and limits |
//! | `tokens`, `text` or `token_bytes_hex` | what is said: one token per string; one per byte (and one per special string); one per hexadecimal piece |
//! | `special` | strings that are added tokens of the tokenizer |
//! | `logprobs`, `top` | one number per token; per token a list of `[token, logprob]` pairs |
//! | `finish` | `stop` (default) or `length` |
//! | `then` | `error`, `abort` or `hang`, after the last token and instead of `finish` |
//! | `delay_ms` | how long each step of this sequence takes |
//! | `choices` | several plays for `n > 1`, each with the keys above but `match` and `prompt_tokens` |

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use contract::TokenId;

use crate::format::{FinishFile, PlayFile, ResponseFile, ScriptFile, ThenFile};

/// Token 256 ends a sequence; below it each token is a byte, above it are the script's own.
pub const EOS: TokenId = 256;

/// A script is read into memory whole; 16 MiB hold about a million tokens, far beyond any test.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
/// Context of a script that names none: prompts are bytes, so tool declarations need room.
pub const CONTEXT_DEFAULT: u32 = 32_768;
/// Longest context a script may claim; positions and pages are counted in 32 bits with room to spare.
pub const CONTEXT_MAX: u32 = 1 << 24;
/// A longer delay per step is a hang, which has its own word.
pub const DELAY_MAX: Duration = Duration::from_secs(60);

/// A script that cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    #[error("script `{path}`: {reason}")]
    File { path: String, reason: String },
    #[error("script: {0}")]
    Json(String),
    #[error("script: {place}: {reason}")]
    Invalid { place: String, reason: String },
}

impl ScriptError {
    pub(crate) fn at(place: &str, reason: impl Into<String>) -> Self {
        Self::Invalid { place: place.into(), reason: reason.into() }
    }
}

/// What follows a play's last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Stop,
    Length,
    Error,
    Abort,
    Hang,
}

/// What one sequence says, in tokens of the script's vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Play {
    pub tokens: Vec<TokenId>,
    /// Per token; empty: the script is certain of each.
    pub logprobs: Vec<f32>,
    pub top: Vec<Vec<(TokenId, f32)>>,
    pub end: End,
    pub delay: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Response {
    pub pattern: Option<String>,
    pub prompt_tokens: Option<u32>,
    pub plays: Vec<Play>,
}

/// A checked script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub(crate) responses: Vec<Response>,
    context: u32,
    /// Tokens from 257 on.
    extra: Vec<(Vec<u8>, bool)>,
}

impl Script {
    pub fn from_file(path: &Path) -> Result<Self, ScriptError> {
        let failed = |reason: String| ScriptError::File { path: path.display().to_string(), reason };
        let size = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
        if size > FILE_BYTES_MAX {
            return Err(failed(format!("{size} bytes, the limit is {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        Self::from_json(&text).map_err(|e| failed(e.to_string().trim_start_matches("script: ").to_string()))
    }

    pub fn from_json(text: &str) -> Result<Self, ScriptError> {
        let file: ScriptFile = serde_json::from_str(text).map_err(|e| ScriptError::Json(e.to_string()))?;
        let context = file.context.unwrap_or(CONTEXT_DEFAULT);
        if !(2..=CONTEXT_MAX).contains(&context) {
            return Err(ScriptError::at("context", format!("{context} is not in 2..={CONTEXT_MAX}")));
        }
        let mut vocabulary = Vocabulary::default();
        let mut responses = Vec::with_capacity(file.responses.len());
        for (i, response) in file.responses.iter().enumerate() {
            responses.push(read_response(response, &format!("responses[{i}]"), &mut vocabulary)?);
        }
        Ok(Self { responses, context, extra: vocabulary.extra })
    }

    /// Longest sequence, prompt and output together.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// The tokens from id 257 on: their bytes, and whether each is an added token of the tokenizer.
    pub fn vocabulary(&self) -> Vec<(Vec<u8>, bool)> {
        self.extra.clone()
    }

    pub fn vocab_size(&self) -> u32 {
        EOS + 1 + self.extra.len() as u32
    }

    /// Whether any response answers this prompt; a server refuses the others with a 400.
    pub fn matches(&self, prompt: &[TokenId]) -> bool {
        self.response(prompt).is_some()
    }

    /// The prompt length the script wants to be counted instead of the real one.
    pub fn counted_prompt_tokens(&self, prompt: &[TokenId]) -> Option<u32> {
        self.response(prompt).and_then(|(_, response)| response.prompt_tokens)
    }

    /// The first response whose pattern the prompt's text holds, with its index.
    pub(crate) fn response(&self, prompt: &[TokenId]) -> Option<(usize, &Response)> {
        let bytes = self.bytes_of(prompt);
        let holds = |pattern: &String| {
            pattern.is_empty() || bytes.windows(pattern.len()).any(|window| window == pattern.as_bytes())
        };
        self.responses.iter().enumerate().find(|(_, response)| response.pattern.as_ref().is_none_or(holds))
    }

    fn bytes_of(&self, tokens: &[TokenId]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(tokens.len());
        for &token in tokens {
            match u8::try_from(token) {
                Ok(byte) => bytes.push(byte),
                Err(_) if token > EOS => {
                    let extra = self.extra.get((token - EOS - 1) as usize);
                    bytes.extend_from_slice(extra.map_or(&[][..], |(bytes, _)| bytes));
                }
                Err(_) => {}
            }
        }
        bytes
    }
}

/// Tokens from 257 on, one per distinct byte string. A string that any response calls special is an added token.
#[derive(Default)]
struct Vocabulary {
    ids: HashMap<Vec<u8>, TokenId>,
    extra: Vec<(Vec<u8>, bool)>,
}

impl Vocabulary {
    fn token(&mut self, bytes: &[u8], added: bool) -> TokenId {
        if let Some(&id) = self.ids.get(bytes) {
            self.extra[(id - EOS - 1) as usize].1 |= added;
            return id;
        }
        let id = EOS + 1 + self.extra.len() as u32;
        self.extra.push((bytes.to_vec(), added));
        self.ids.insert(bytes.to_vec(), id);
        id
    }
}

fn read_response(file: &ResponseFile, place: &str, vocabulary: &mut Vocabulary) -> Result<Response, ScriptError> {
    let plays = file.plays(place)?;
    let many = file.choices.is_some();
    let plays = plays.iter().enumerate().map(|(i, play)| {
        let place = if many { format!("{place}.choices[{i}]") } else { place.to_string() };
        read_play(play, &place, vocabulary)
    });
    Ok(Response {
        pattern: file.r#match.clone(),
        prompt_tokens: file.prompt_tokens,
        plays: plays.collect::<Result<_, _>>()?,
    })
}

fn read_play(file: &PlayFile, place: &str, vocabulary: &mut Vocabulary) -> Result<Play, ScriptError> {
    let special = file.special.as_deref().unwrap_or_default();
    if special.iter().any(String::is_empty) {
        return Err(ScriptError::at(place, "`special` holds an empty string"));
    }
    for text in special {
        vocabulary.token(text.as_bytes(), true);
    }
    let tokens = read_tokens(file, special, place, vocabulary)?;
    let logprobs = file.logprobs.clone().unwrap_or_default();
    let top = read_top(file, place, vocabulary)?;
    for (key, len) in [("logprobs", logprobs.len()), ("top", top.len())] {
        if len != 0 && len != tokens.len() {
            let reason = format!("`{key}` has {len} entries for {} tokens", tokens.len());
            return Err(ScriptError::at(place, reason));
        }
    }
    if let Some(bad) = logprobs.iter().chain(top.iter().flatten().map(|(_, l)| l)).find(|l| **l > 0.0) {
        return Err(ScriptError::at(place, format!("a logprob of {bad}: logprobs are at most 0")));
    }
    let end = match (file.then, file.finish) {
        (Some(_), Some(_)) => return Err(ScriptError::at(place, "`then` and `finish` exclude each other")),
        (Some(ThenFile::Error), None) => End::Error,
        (Some(ThenFile::Abort), None) => End::Abort,
        (Some(ThenFile::Hang), None) => End::Hang,
        (None, Some(FinishFile::Length)) => End::Length,
        (None, Some(FinishFile::Stop) | None) => End::Stop,
    };
    let delay = Duration::from_millis(file.delay_ms.unwrap_or(0));
    if delay > DELAY_MAX {
        let reason = format!("`delay_ms` {} is above the limit of {}", delay.as_millis(), DELAY_MAX.as_millis());
        return Err(ScriptError::at(place, reason));
    }
    Ok(Play { tokens, logprobs, top, end, delay })
}

fn read_tokens(
    file: &PlayFile,
    special: &[String],
    place: &str,
    vocabulary: &mut Vocabulary,
) -> Result<Vec<TokenId>, ScriptError> {
    match (&file.tokens, &file.text, &file.token_bytes_hex) {
        (Some(tokens), None, None) => {
            if tokens.iter().any(String::is_empty) {
                return Err(ScriptError::at(place, "`tokens` holds an empty string"));
            }
            Ok(tokens.iter().map(|text| vocabulary.token(text.as_bytes(), false)).collect())
        }
        (None, Some(text), None) => Ok(split_text(text, special, vocabulary)),
        (None, None, Some(pieces)) => pieces
            .iter()
            .map(|piece| {
                let bytes = unhex(piece).filter(|bytes| !bytes.is_empty());
                let bytes = bytes.ok_or_else(|| {
                    ScriptError::at(
                        place,
                        format!("`token_bytes_hex` holds `{piece}`, which is not pairs of hex digits"),
                    )
                })?;
                Ok(vocabulary.token(&bytes, false))
            })
            .collect(),
        (None, None, None) if file.then.is_some() => Ok(Vec::new()),
        (None, None, None) => Err(ScriptError::at(place, "needs `tokens`, `text` or `token_bytes_hex`")),
        _ => Err(ScriptError::at(place, "`tokens`, `text` and `token_bytes_hex` exclude each other")),
    }
}

/// Byte tokens, but one token for each special string; of several that start at one place the longest.
fn split_text(text: &str, special: &[String], vocabulary: &mut Vocabulary) -> Vec<TokenId> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some(&first) = rest.first() {
        let here = special.iter().filter(|s| rest.starts_with(s.as_bytes())).max_by_key(|s| s.len());
        let (token, len) = match here {
            Some(s) => (vocabulary.token(s.as_bytes(), true), s.len()),
            None => (TokenId::from(first), 1),
        };
        tokens.push(token);
        rest = &rest[len..];
    }
    tokens
}

fn read_top(
    file: &PlayFile,
    place: &str,
    vocabulary: &mut Vocabulary,
) -> Result<Vec<Vec<(TokenId, f32)>>, ScriptError> {
    let mut top = Vec::new();
    for position in file.top.as_deref().unwrap_or_default() {
        if position.iter().any(|(text, _)| text.is_empty()) {
            return Err(ScriptError::at(place, "`top` holds an empty string"));
        }
        top.push(position.iter().map(|(text, logprob)| (vocabulary.token(text.as_bytes(), false), *logprob)).collect());
    }
    Ok(top)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |c: u8| char::from(c).to_digit(16);
    digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(json: &str) -> String {
        Script::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn every_mistake_is_named() {
        let cases = [
            (r#"{"responses":[],"contxt":1}"#, "unknown field `contxt`"),
            (r#"{"responses":[{"tokens":["a"],"foo":1}]}"#, "unknown field `foo`"),
            (r#"{"responses":[{"choices":[{"tokens":["a"],"match":"b"}]}]}"#, "unknown field `match`"),
            (r#"{"responses":[{}]}"#, "script: responses[0]: needs `tokens`, `text` or `token_bytes_hex`"),
            (r#"{"responses":[{"text":"a","tokens":["a"]}]}"#, "exclude each other"),
            (r#"{"responses":[{"token_bytes_hex":["f"]}]}"#, "`f`, which is not pairs of hex digits"),
            (r#"{"responses":[{"text":"ab","logprobs":[-1]}]}"#, "`logprobs` has 1 entries for 2 tokens"),
            (r#"{"responses":[{"text":"a","logprobs":[0.5]}]}"#, "logprobs are at most 0"),
            (r#"{"responses":[{"text":"a","finish":"stop","then":"hang"}]}"#, "`then` and `finish` exclude"),
            (r#"{"responses":[{"text":"a","finish":"tools"}]}"#, "unknown variant `tools`"),
            (r#"{"responses":[{"text":"a","delay_ms":60001}]}"#, "60001 is above the limit of 60000"),
            (r#"{"responses":[{"text":"a","choices":[{"text":"b"}]}]}"#, "exclude each other"),
            (r#"{"responses":[{"choices":[]}]}"#, "must not be empty"),
            (r#"{"context":1,"responses":[]}"#, "1 is not in 2..="),
        ];
        for (json, expected) in cases {
            assert!(error(json).contains(expected), "{json}: {}", error(json));
        }
    }

    /// One token per distinct string; a string that is special anywhere is an added token.
    #[test]
    fn vocabulary_is_distinct() {
        let json = r#"{"responses":[
            {"tokens":["a","<t>","a"]}, {"text":"x<t>y","special":["<t>"]}, {"token_bytes_hex":["61","e280"]}]}"#;
        let script = Script::from_json(json).unwrap();
        let expected: [(&[u8], bool); 3] = [(b"a", false), (b"<t>", true), (b"\xe2\x80", false)];
        assert_eq!(script.vocabulary(), expected.map(|(bytes, added)| (bytes.to_vec(), added)));
        let plays = script.responses.iter().map(|r| r.plays[0].tokens.clone()).collect::<Vec<_>>();
        assert_eq!(plays, [vec![257, 258, 257], vec![120, 258, 121], vec![257, 259]]);
        assert_eq!(script.vocab_size(), 260);
    }

    #[test]
    fn the_first_match_answers() {
        let json = r#"{"responses":[{"match":"weather","text":"w","prompt_tokens":7},{"match":"hé","text":"h"}]}"#;
        let script = Script::from_json(json).unwrap();
        let prompt = |text: &str| text.bytes().map(TokenId::from).collect::<Vec<_>>();
        let found = |text: &str| script.response(&prompt(text)).map(|(i, _)| i);
        assert_eq!(found("hé, the weather?"), Some(0));
        assert_eq!(found("oh hé"), Some(1));
        assert_eq!(found("nothing"), None);
        assert_eq!(script.counted_prompt_tokens(&prompt("weather")), Some(7));
        assert!(!script.matches(&prompt("nothing")));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Script::from_file(Path::new("no/such.json")).unwrap_err().to_string();
        assert!(error.starts_with("script `no/such.json`: "), "{error}");
    }
}
