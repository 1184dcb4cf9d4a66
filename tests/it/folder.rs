//! Hugging Face folders: served whole, with random weights, and what is missing said.

use serde_json::{Value, json};
use testkit::folder::{KNOWN, VOCAB};
use testkit::{Folder, TestServer};

use crate::message;

fn serve(folder: &Folder, flags: &[&str]) -> anyhow::Result<TestServer> {
    TestServer::model(folder.path(), &[&["--threads", "1"], flags].concat())
}

fn error(folder: &Folder, flags: &[&str]) -> String {
    match serve(folder, flags) {
        Ok(server) => panic!("served:\n{}", server.report()),
        Err(error) => format!("{error:#}"),
    }
}

/// The answer to a prompt of token ids, greedy.
fn complete(server: &TestServer, prompt: &[u32]) -> anyhow::Result<Value> {
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body)?;
    anyhow::ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text);
    Ok(answer.json())
}

#[test]
fn a_whole_folder_is_served() -> anyhow::Result<()> {
    let server = serve(&Folder::whole()?, &[])?;
    for line in ["(qwen3) on cpu", "end tokens: [257, 3]", "sampling: temperature 0.6", "the model's own, in `jinja`"] {
        assert!(server.report().contains(line), "{line}\n{}", server.report());
    }
    assert!(!server.report().contains("warning"), "{}", server.report());
    let tokens = server.post("/tokenize", &json!({"model": "m", "prompt": "hé<|im_end|>"}))?.json();
    assert_eq!(tokens["tokens"], json!([0x68, 0xc3, 0xa9, 257]));
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let rendered = server.post("/tokenize", &body)?.json();
    // Three markers, `user`, a line end and `hi`.
    assert_eq!(rendered["count"], 3 + 4 + 1 + 2, "{rendered}");
    let choice = message(&server, json!({"max_tokens": 5, "ignore_eos": true, "temperature": 0}))?;
    assert_eq!(choice["finish_reason"], "length", "{choice}");
    Ok(())
}

/// What the tokenizer does not know but the model can say is no text.
#[test]
fn ids_beyond_the_tokenizer_are_served() -> anyhow::Result<()> {
    let server = serve(&Folder::whole()?, &[])?;
    let answer = complete(&server, &[0, KNOWN, VOCAB - 1])?;
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    let text = server.post("/detokenize", &json!({"model": "m", "tokens": [0x68, VOCAB - 1, 0x69]}))?.json();
    assert_eq!(text["prompt"], "hi", "{text}");
    let refused = server.post("/v1/completions", &json!({"model": "m", "prompt": [VOCAB]}))?;
    assert_eq!(refused.status, 400, "{}", refused.text);
    Ok(())
}

#[test]
fn templates_and_end_tokens_have_several_places() -> anyhow::Result<()> {
    let folder = Folder::whole()?;
    let list =
        json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }}<|im_end|>x"}]);
    let config = json!({"bos_token": "<|im_start|>", "chat_template": list});
    folder.write("tokenizer_config.json", config.to_string())?;
    folder.remove("generation_config.json")?;
    let prompt = |server: &TestServer| -> anyhow::Result<Value> {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        Ok(server.post("/tokenize", &body)?.json()["tokens"].clone())
    };
    let server = serve(&folder, &[])?;
    assert_eq!(prompt(&server)?, json!([256, 257, 0x78]));
    assert!(server.report().contains("end tokens: [257]"), "{}", server.report());
    // The file of its own wins over the config.
    folder.write("chat_template.jinja", "y")?;
    assert_eq!(prompt(&serve(&folder, &[])?)?, json!([0x79]));
    Ok(())
}

#[test]
fn settings_alone_are_served_with_random_weights() -> anyhow::Result<()> {
    let folder = Folder::config_only()?;
    let server = serve(&folder, &["--load-format", "dummy"])?;
    for line in ["(qwen3, random weights)", "the weights are random", "text is read as bytes", "end tokens: [257]"] {
        assert!(server.report().contains(line), "{line}\n{}", server.report());
    }
    let answer = complete(&server, &[0, KNOWN, VOCAB - 1])?;
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    let again = serve(&folder, &["--load-format", "dummy"])?;
    assert_eq!(complete(&again, &[0, KNOWN, VOCAB - 1])?["choices"], answer["choices"], "the same weights every time");
    let text = server.post("/detokenize", &json!({"model": "m", "tokens": [0x68, VOCAB - 1]}))?.json();
    assert_eq!(text["prompt"], format!("h {}", VOCAB - 1), "{text}");
    Ok(())
}

#[test]
fn what_is_missing_is_said() -> anyhow::Result<()> {
    let folder = Folder::config_only()?;
    let text = error(&folder, &[]);
    assert!(text.contains("no model*.safetensors in this folder") && text.contains("--load-format dummy"), "{text}");
    let folder = Folder::whole()?;
    folder.remove("tokenizer.json")?;
    let text = error(&folder, &[]);
    assert!(text.contains("tokenizer.json") && text.contains("--tokenizer FILE.json"), "{text}");
    let folder = Folder::whole()?;
    folder.write("tokenizer_config.json", r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#)?;
    let text = error(&folder, &[]);
    assert!(text.contains("without a template named \"default\" (it has \"rag\")"), "{text}");
    // Without CUDA its libraries are named, with it the count of cards; both say what to use instead.
    let text = error(&Folder::whole()?, &["--device", "cuda:7777"]);
    assert!(text.contains("--device cpu"), "{text}");
    Ok(())
}
