//! GGUF tokenizers on a corpus in many languages, against ids from other implementations: `tokenizers` in Python, with
//! which llama.cpp agrees, and llama.cpp for SmolLM2. `tests/reference/make_tokenizers.py` made them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use text::{GgufVocab, Tokenizer};

fn data(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/data/tokenizers");
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("committed data");
    serde_json::from_str(&text).expect("JSON")
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
}

fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number") as u32).collect()
}

/// Every text has the reference's ids, and the ids give the text back. `composes`: the tokenizer may replace letters and
/// marks by the letter that is both.
fn check(name: &str, tokenizer: &Tokenizer, reference: &Value, composes: bool) {
    let corpus = texts(&data("corpus"));
    let ids = reference["ids"].as_array().expect("a list");
    assert_eq!(corpus.len(), ids.len());
    let mut composed = 0;
    for (text, ids) in corpus.iter().zip(ids) {
        let ids = numbers(ids);
        assert_eq!(tokenizer.encode(text, false).expect("a text"), ids, "{name} {text:?}");
        let back = tokenizer.decode(&ids, false);
        if composes && back != *text {
            composed += 1;
            assert_eq!(tokenizer.encode(&back, false).expect("a text"), ids, "{name} {text:?}");
        } else {
            assert_eq!(back, *text, "{name}");
        }
    }
    assert_eq!(composed > 0, composes, "{name}: texts that changed on the way");
}

#[test]
fn every_pre_tokenizer_has_the_ids_of_the_reference() {
    for name in ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35"] {
        let reference = data(name);
        let vocab = GgufVocab {
            model: "gpt2".into(),
            pre: reference["pre"].as_str().expect("a name").into(),
            tokens: texts(&reference["tokens"]),
            token_types: numbers(&reference["token_types"]).into_iter().map(|ty| ty as i32).collect(),
            merges: texts(&reference["merges"]),
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(vocab).expect("a vocabulary");
        check(name, &tokenizer, &reference, name.starts_with("qwen"));
    }
}

/// The model as `cargo xtask` fetches it for tests and the demo: too large to be committed.
fn smollm2() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let path = exe.ancestors().nth(3)?.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    path.exists().then_some(path)
}

#[test]
fn smollm2_has_the_ids_of_llama_cpp() {
    let Some(path) = smollm2() else {
        println!("SmolLM2 is not there; `cargo xtask test` fetches it");
        return;
    };
    let gguf = model::Gguf::open(&path).expect("a GGUF file");
    let own = model::GgufTokenizerData::read(&gguf).expect("a tokenizer");
    let vocab = GgufVocab {
        model: own.model,
        pre: own.pre.expect("a name"),
        tokens: own.tokens,
        token_types: own.token_types.into_iter().map(|ty| ty as i32).collect(),
        merges: own.merges,
        ..GgufVocab::default()
    };
    check("SmolLM2", &Tokenizer::from_gguf(vocab).expect("a vocabulary"), &data("smollm2"), false);
}
