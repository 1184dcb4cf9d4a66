use serde_json::{Value, json};

use super::*;

/// Texts with everything that made decoders disagree: punctuation after spaces, quotes, escapes, several scripts,
/// combining marks, emoji, runs of white space.
const TEXTS: [&str; 12] = [
    "Echo: a 'b' | c \\_ . ] ( `x`",
    "hello",
    " hello",
    "   three spaces  in  it ",
    "do n't , stop ! it 's 3 . 5 ?",
    "né 🌶 Zoë Łódź",
    "你好，世界。",
    "नमस्ते e\u{301}\u{302}",
    "line\nbreak\r\n\ttab",
    "fn main() { println!(\"{}\", 1_000); }",
    "👩‍👩‍👧 family",
    "<tool_call>\n{\"a\": [1, 2]}\n</tool_call>",
];

fn byte_alphabet() -> Vec<String> {
    let map = byte_level::ByteLevel::new();
    let of = |c: u32| char::from_u32(c).map(String::from).unwrap();
    let printable = |c: &u32| !matches!(c, 0..=0x20 | 0x7F..=0xA0 | 0xAD);
    let alphabet: Vec<String> = (0..0x144).filter(printable).map(of).collect();
    assert!(alphabet.len() == 256 && alphabet.iter().all(|c| map.bytes_of(c).len() == 1));
    alphabet
}

fn file(added: &[(&str, bool)], vocab: Vec<String>, parts: Value) -> Vec<u8> {
    let vocab: serde_json::Map<String, Value> = vocab.into_iter().zip(0u32..).map(|(t, id)| (t, id.into())).collect();
    let added: Vec<Value> = added
        .iter()
        .zip(vocab.len()..)
        .map(|((content, special), id)| {
            json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let mut model = parts["model"].clone();
    model["vocab"] = Value::Object(vocab);
    let mut file = parts;
    file["model"] = model;
    file["version"] = json!("1.0");
    file["added_tokens"] = Value::Array(added);
    file.to_string().into_bytes()
}

fn byte_level_file() -> Vec<u8> {
    let mut vocab = byte_alphabet();
    vocab.extend(["he", "ll", "hell", "hello", "Ġhello"].map(String::from));
    file(
        &[("<|end|>", true), ("<tool_call>", false), ("<｜é｜>", false)],
        vocab,
        json!({
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["Ġ", "hello"]]},
        }),
    )
}

/// Like Llama 2: a space is put in front and dropped again, unknown characters are byte tokens.
fn byte_fallback_file() -> Vec<u8> {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    vocab.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
    vocab.extend("▁abcdefghijklmnopqrstuvwxyz".chars().map(String::from));
    vocab.extend(["▁h", "▁▁"].map(String::from));
    file(
        &[("<tool_call>", false)],
        vocab,
        json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "merges": [["▁", "h"], ["▁", "▁"]]},
        }),
    )
}

fn characters() -> Vec<String> {
    let mut characters: Vec<char> = TEXTS.iter().flat_map(|t| t.chars()).filter(|c| !c.is_whitespace()).collect();
    characters.sort_unstable();
    characters.dedup();
    characters.into_iter().map(String::from).collect()
}

/// The decoder drops the marks of the first token only.
fn metaspace_file() -> Vec<u8> {
    let mut vocab = vec!["<unk>".to_owned(), "▁".to_owned(), "▁▁".to_owned()];
    vocab.extend(characters());
    file(
        &[],
        vocab,
        json!({
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
            "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false},
            "model": {"type": "BPE", "unk_token": "<unk>", "merges": [["▁", "▁"]]},
        }),
    )
}

/// Cleans up spaces before punctuation.
fn word_piece_file() -> Vec<u8> {
    let mut vocab = vec!["[UNK]".to_owned(), "hello".to_owned(), "n't".to_owned()];
    vocab.extend(characters());
    vocab.extend(characters().into_iter().map(|c| format!("##{c}")));
    file(
        &[],
        vocab,
        json!({
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        }),
    )
}

fn streamed(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer.clone());
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text.push_str(detokenizer.finish());
    text
}

/// Case api-23: joined stream pieces equal the library's one-shot decode of all ids, also where its decoder is not
/// stable under prefixes.
fn check_decoding(file: &[u8]) {
    let library = tokenizers::Tokenizer::from_bytes(file).unwrap();
    let tokenizer = Tokenizer::from_json(file).unwrap();
    for text in TEXTS {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(ids, library.encode(text, false).unwrap().get_ids(), "{text:?}");
        let expected = library.decode(&ids, false).unwrap();
        assert_eq!(streamed(&tokenizer, &ids), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true), library.decode(&ids, true).unwrap(), "{text:?}");
        for start in 0..ids.len().min(4) {
            let expected = library.decode(&ids[start..], false).unwrap();
            if !expected.contains('\u{FFFD}') {
                assert_eq!(tokenizer.decode(&ids[start..], false), expected, "{text:?} from token {start}");
            }
        }
    }
}

#[test]
fn byte_level_decoding() {
    check_decoding(&byte_level_file());
}

#[test]
fn byte_fallback_decoding() {
    check_decoding(&byte_fallback_file());
}

#[test]
fn metaspace_decoding() {
    check_decoding(&metaspace_file());
}

#[test]
fn word_piece_decoding() {
    check_decoding(&word_piece_file());
}

#[test]
fn token_bytes_are_exact() {
    let check = |file: &[u8], token: &str, expected: &[u8]| {
        let library = tokenizers::Tokenizer::from_bytes(file).unwrap();
        let id = library.token_to_id(token).unwrap();
        assert_eq!(Tokenizer::from_json(file).unwrap().token_bytes(id).as_ref(), expected, "{token}");
    };
    check(&byte_level_file(), "Ġhello", b" hello");
    check(&byte_level_file(), "Ã", &[0xC3]);
    check(&byte_level_file(), "<｜é｜>", "<｜é｜>".as_bytes());
    check(&byte_fallback_file(), "<0xE2>", &[0xE2]);
    check(&byte_fallback_file(), "▁h", b" h");
    check(&byte_fallback_file(), "<s>", b"<s>");
    check(&metaspace_file(), "▁▁", b"  ");
    check(&word_piece_file(), "##e", b"e");
    check(&word_piece_file(), ".", b".");
}

#[test]
fn added_tokens_are_found_and_flagged() {
    let tokenizer = Tokenizer::from_json(&byte_level_file()).unwrap();
    let (end, call) = (tokenizer.added_token("<|end|>").unwrap(), tokenizer.added_token("<tool_call>").unwrap());
    assert_eq!(tokenizer.encode("<tool_call><|end|>", false).unwrap(), [call, end]);
    assert_eq!((tokenizer.is_special(end), tokenizer.is_special(call)), (true, false));
    assert_eq!((tokenizer.is_added(call), tokenizer.is_added(0)), (true, false));
    assert_eq!(tokenizer.added_token("hello"), None);
    assert_eq!(tokenizer.decode(&[call, end, 9_999_999], true), "<tool_call>");
    assert_eq!(tokenizer.vocab_size(), 256 + 5 + 3);
}

#[test]
fn the_byte_vocabulary_knows_added_tokens() {
    let token = |text: &str, added| ByteVocabToken { bytes: text.into(), added };
    let tokenizer = Tokenizer::from_bytes_vocab(vec![token("He", false), token("<x>", true), token("<x>y", true)]);
    assert_eq!(tokenizer.encode("aé<x>y<x>He", true).unwrap(), [97, 0xC3, 0xA9, 259, 258, 72, 101]);
    assert_eq!(tokenizer.decode(&[257, 258, 256], true), "He<x>");
    assert_eq!((tokenizer.eos(), tokenizer.bos(), tokenizer.vocab_size()), (&[256][..], None, 260));
}

fn check_refused(decoder: Value, expected: &str) {
    let bytes = file(&[], vec!["a".into()], json!({"decoder": decoder, "model": {"type": "BPE", "merges": []}}));
    let error = Tokenizer::from_json(&bytes).err().expect("the decoder is refused").to_string();
    assert!(error.starts_with(expected), "{error}");
}

/// What cannot be decoded token by token is refused by name, not decoded wrongly.
#[test]
fn unsupported_decoders_are_named() {
    check_refused(json!({"type": "BPEDecoder", "suffix": "</w>"}), "tokenizer: decoder `BPEDecoder` is not supported");
    check_refused(
        json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
        "tokenizer: decoder `CTC` is not supported",
    );
    check_refused(json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}), "tokenizer: decoder `Strip`");
}

#[test]
fn a_broken_file_is_an_error() {
    for bytes in [&b"{"[..], b"", b"[]", b"{\"model\": 3}", &byte_level_file()[..200]] {
        let error = Tokenizer::from_json(bytes).err().expect("the file is broken").to_string();
        assert!(error.starts_with("tokenizer: tokenizer.json is not usable: "), "{error}");
    }
}

#[test]
fn a_text_beyond_the_limit_is_refused_with_the_numbers() {
    let text = "a".repeat(ENCODE_BYTES_MAX + 1);
    let error = Tokenizer::from_bytes_vocab(vec![]).encode(&text, false).unwrap_err();
    assert_eq!(error.to_string(), "tokenizer: text of 4194305 bytes could not be encoded: the limit is 4194304 bytes");
    assert!(error.is_request_fault());
}
