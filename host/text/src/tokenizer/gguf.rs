//! Byte-level BPE from GGUF metadata.
//!
//! The file names its pre-tokenizer instead of carrying it. Each name stands for one regular expression; a wrong one
//! gives plausible but wrong ids, so an unknown name is refused.

use std::collections::HashSet;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use contract::TokenId;

use crate::TextError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a pre-tokenizer name stands for.
struct Rules {
    name: &'static str,
    regex: &'static str,
    /// Every digit is a word of its own before the regex runs.
    split_digits: bool,
    nfc: bool,
    /// A word that is a vocabulary entry is that token, whatever the merges say.
    ignore_merges: bool,
    add_bos: bool,
}

const KNOWN: [Rules; 6] = [
    Rules { name: "llama-bpe", regex: LLAMA3, split_digits: false, nfc: false, ignore_merges: true, add_bos: true },
    Rules { name: "qwen2", regex: QWEN2, split_digits: false, nfc: true, ignore_merges: false, add_bos: false },
    Rules { name: "qwen35", regex: QWEN35, split_digits: false, nfc: true, ignore_merges: false, add_bos: false },
    Rules { name: "smollm", regex: GPT2, split_digits: true, nfc: false, ignore_merges: false, add_bos: false },
    Rules { name: "gpt-2", regex: GPT2, split_digits: false, nfc: false, ignore_merges: false, add_bos: false },
    Rules { name: "default", regex: GPT2, split_digits: false, nfc: false, ignore_merges: false, add_bos: false },
];

/// GGUF token types that matter here.
const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_UNUSED: i32 = 5;

/// A GGUF file's tokenizer metadata, as read by the caller.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`, such as `gpt2`.
    pub model: String,
    /// `tokenizer.ggml.pre`, such as `smollm`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte. May be empty.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, each `left right`.
    pub merges: Vec<String>,
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    /// `tokenizer.ggml.eot_token_id`: the end of a turn, a second end token.
    pub eot: Option<TokenId>,
    /// `tokenizer.ggml.add_bos_token`; `None`: the pre-tokenizer's own rule.
    pub add_bos: Option<bool>,
}

/// Texts of control tokens that end a text or a turn in the families we know. Files name one or two of them; a model
/// may write any, and one that is not known as an end would be hidden and generation would go on.
const END_TEXTS: [&str; 7] =
    ["<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "</s>"];

/// The end tokens: those the file names, then those known by their text.
pub(super) fn end_tokens(vocab: &GgufVocab) -> Vec<TokenId> {
    let mut ends: Vec<TokenId> = vocab.eos.into_iter().chain(vocab.eot).collect();
    let known = |(token, id): (&String, TokenId)| {
        (token_type(vocab, id) == TYPE_CONTROL && END_TEXTS.contains(&token.as_str())).then_some(id)
    };
    for id in vocab.tokens.iter().zip(0..).filter_map(known) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
}

/// The library's tokenizer, and whether a begin token is put in front.
pub(super) fn build(vocab: &GgufVocab) -> Result<(tokenizers::Tokenizer, bool), TextError> {
    if vocab.model != "gpt2" {
        return Err(TextError::Tokenizer(format!(
            "tokenizer.ggml.model `{}` is not supported; supported: gpt2 (byte-level BPE)",
            vocab.model
        )));
    }
    let rules = KNOWN.iter().find(|r| r.name == vocab.pre).ok_or_else(|| TextError::UnknownPreTokenizer {
        name: vocab.pre.clone(),
        known: KNOWN.map(|r| r.name).join(", "),
    })?;
    check_sizes(vocab)?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe(vocab, rules)?);
    if rules.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(library)?;
    }
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(rules)?));
    add_tokens(&mut tokenizer, vocab)?;
    Ok((tokenizer, vocab.add_bos.unwrap_or(rules.add_bos)))
}

fn check_sizes(vocab: &GgufVocab) -> Result<(), TextError> {
    let (tokens, types) = (vocab.tokens.len(), vocab.token_types.len());
    if tokens == 0 || tokens > super::vocab::TOKEN_ID_MAX as usize {
        return Err(TextError::Tokenizer(format!(
            "tokenizer.ggml.tokens has {tokens} entries; 1 to {} are possible",
            super::vocab::TOKEN_ID_MAX
        )));
    }
    if types != 0 && types != tokens {
        return Err(TextError::Tokenizer(format!(
            "tokenizer.ggml.token_type has {types} entries, tokenizer.ggml.tokens {tokens}"
        )));
    }
    for (name, id) in [("bos", vocab.bos), ("eos", vocab.eos), ("eot", vocab.eot)] {
        if let Some(id) = id.filter(|id| *id as usize >= tokens) {
            return Err(TextError::Tokenizer(format!(
                "tokenizer.ggml.{name}_token_id is {id}, the vocabulary has {tokens} tokens"
            )));
        }
    }
    Ok(())
}

fn bpe(vocab: &GgufVocab, rules: &Rules) -> Result<BPE, TextError> {
    let ids: Vocab = vocab
        .tokens
        .iter()
        .zip(0u32..)
        .filter(|(_, id)| token_type(vocab, *id) != TYPE_UNUSED)
        .map(|(token, id)| (token.clone(), id))
        .collect();
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (position, merge) in vocab.merges.iter().enumerate() {
        let (left, right) = merge.split_once(' ').ok_or_else(|| {
            TextError::Tokenizer(format!("tokenizer.ggml.merges[{position}] is {merge:?}, not two tokens and a space"))
        })?;
        merges.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder().vocab_and_merges(ids, merges).ignore_merges(rules.ignore_merges).build().map_err(library)
}

fn pre_tokenizer(rules: &Rules) -> Result<Sequence, TextError> {
    let regex = SplitPattern::Regex(rules.regex.to_owned());
    let split = Split::new(regex, SplitDelimiterBehavior::Isolated, false).map_err(library)?;
    let mut steps = Vec::new();
    if rules.split_digits {
        steps.push(PreTokenizerWrapper::Digits(Digits::new(true)));
    }
    steps.push(PreTokenizerWrapper::Split(split));
    steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
    Ok(Sequence::new(steps))
}

fn add_tokens(tokenizer: &mut tokenizers::Tokenizer, vocab: &GgufVocab) -> Result<(), TextError> {
    let mut seen = HashSet::new();
    let added: Vec<AddedToken> = vocab
        .tokens
        .iter()
        .zip(0u32..)
        .filter_map(|(token, id)| match token_type(vocab, id) {
            TYPE_CONTROL => Some(AddedToken::from(token.as_str(), true)),
            TYPE_USER_DEFINED => Some(AddedToken::from(token.as_str(), false).normalized(false)),
            _ => None,
        })
        .filter(|token| !token.content.is_empty() && seen.insert(token.content.clone()))
        .collect();
    tokenizer.add_tokens(added).map_err(library)?;
    Ok(())
}

fn token_type(vocab: &GgufVocab, id: TokenId) -> i32 {
    vocab.token_types.get(id as usize).copied().unwrap_or(1)
}

fn library(error: tokenizers::Error) -> TextError {
    TextError::Tokenizer(error.to_string())
}

#[cfg(test)]
mod tests {
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;
    use crate::Tokenizer;

    /// The words of a text in the byte-to-unicode alphabet, joined by `|`.
    fn check_words(pre: &str, text: &str, expected: &str) {
        let rules = KNOWN.iter().find(|r| r.name == pre).expect("the name is in the table");
        let mut words = PreTokenizedString::from(text);
        pre_tokenizer(rules).unwrap().pre_tokenize(&mut words).unwrap();
        let words: Vec<String> = words
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(word, ..)| word.to_owned())
            .collect();
        assert_eq!(words.join("|"), expected, "{pre} {text:?}");
    }

    #[test]
    fn each_name_cuts_words_its_own_way() {
        check_words("gpt-2", "I'LL pay 1234 now!!\n\n x", "I|'|LL|Ġpay|Ġ1234|Ġnow|!!|ĊĊ|Ġx");
        check_words("smollm", "pay 1234 now", "pay|Ġ|1|2|3|4|Ġnow");
        check_words("llama-bpe", "I'LL pay 12345 now!!\n\n x", "I|'LL|Ġpay|Ġ|123|45|Ġnow|!!ĊĊ|Ġx");
        check_words("qwen2", "I'LL pay 123 now", "I|'LL|Ġpay|Ġ|1|2|3|Ġnow");
        check_words("qwen2", "e\u{301}a", "e|Ìģa");
        check_words("qwen35", "e\u{301}a", "eÌģa");
        check_words("qwen35", "न\u{94d}म", "à¤¨à¥įà¤®");
        check_words("qwen2", "न\u{94d}म", "à¤¨|à¥įà¤®");
    }

    fn vocab(pre: &str) -> GgufVocab {
        let tokens = ["h", "e", "he", "<|end|>", "<tool>", "[PAD6]"].map(String::from).to_vec();
        GgufVocab {
            model: "gpt2".into(),
            pre: pre.into(),
            tokens,
            token_types: vec![1, 1, 1, 3, 4, 5],
            merges: vec!["h e".into()],
            bos: Some(0),
            eos: Some(2),
            ..GgufVocab::default()
        }
    }

    #[test]
    fn a_vocabulary_becomes_a_tokenizer() {
        let tokenizer = Tokenizer::from_gguf(vocab("gpt-2")).unwrap();
        assert_eq!(tokenizer.encode("hehhe<tool>e<|end|>", true).unwrap(), [2, 0, 2, 4, 1, 3]);
        assert_eq!((tokenizer.is_special(3), tokenizer.is_special(4), tokenizer.is_added(4)), (true, false, true));
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), &[2, 3][..]));
        assert_eq!(tokenizer.decode(&[2, 3, 4], true), "he<tool>");
    }

    /// Llama 3 starts every text with its begin token, unless the file says otherwise.
    #[test]
    fn the_begin_token_is_put_in_front_once() {
        let mut llama = vocab("llama-bpe");
        let tokenizer = Tokenizer::from_gguf(llama.clone()).unwrap();
        assert_eq!(tokenizer.encode("he", true).unwrap(), [0, 2]);
        assert_eq!(tokenizer.encode("hhe", true).unwrap(), [0, 2]);
        assert_eq!(tokenizer.encode("he", false).unwrap(), [2]);
        llama.add_bos = Some(false);
        assert_eq!(Tokenizer::from_gguf(llama).unwrap().encode("he", true).unwrap(), [2]);
    }

    fn check_refused(change: fn(&mut GgufVocab), expected: &str) {
        let mut vocab = vocab("gpt-2");
        change(&mut vocab);
        let error = Tokenizer::from_gguf(vocab).err().expect("the vocabulary is refused").to_string();
        assert_eq!(error, expected);
    }

    #[test]
    fn bad_vocabularies_name_what_is_wrong() {
        check_refused(
            |v| v.pre = "martian".into(),
            "tokenizer: unknown pre-tokenizer `martian`; known: llama-bpe, qwen2, qwen35, smollm, gpt-2, default",
        );
        check_refused(
            |v| v.model = "llama".into(),
            "tokenizer: tokenizer.ggml.model `llama` is not supported; supported: gpt2 (byte-level BPE)",
        );
        check_refused(
            |v| v.tokens.clear(),
            "tokenizer: tokenizer.ggml.tokens has 0 entries; 1 to 4000000 are possible",
        );
        check_refused(
            |v| v.token_types.truncate(2),
            "tokenizer: tokenizer.ggml.token_type has 2 entries, tokenizer.ggml.tokens 6",
        );
        check_refused(|v| v.eos = Some(6), "tokenizer: tokenizer.ggml.eos_token_id is 6, the vocabulary has 6 tokens");
        check_refused(
            |v| v.merges.push("he".into()),
            "tokenizer: tokenizer.ggml.merges[1] is \"he\", not two tokens and a space",
        );
    }
}
