//! Reasoning text through the bundled stage.

use serde_json::json;
use testkit::{TestServer, chunks};

use crate::{chat, script, streamed};

#[test]
fn reasoning_is_split_off_in_every_cutting() -> anyhow::Result<()> {
    let text = "<think>\nhm, naïve\n</think>\n\nHello!";
    for size in chunks::SIZES {
        let server = TestServer::script(&chunks::script(text, size).to_string(), &["--reasoning-parser", "qwen3"])?;
        let answer = chat(&server, json!({}))?.json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"].as_str().map(str::trim), Some("Hello!"), "size {size}: {message}");
        assert_eq!(message["reasoning"].as_str().map(str::trim), Some("hm, naïve"), "size {size}: {message}");
        let choice = &streamed(&server, json!({}))?.choices[0];
        assert_eq!(choice.content, message["content"].as_str().unwrap_or_default(), "size {size}");
        assert_eq!(choice.reasoning, message["reasoning"].as_str().unwrap_or_default(), "size {size}");
        // Counted per token: one that holds the whole block is not inside of it.
        let counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
        assert_eq!(counted > Some(0), size <= 8, "size {size}: {answer}");
    }
    Ok(())
}

/// The name of the field is the operator's choice.
#[test]
fn the_field_is_configurable() -> anyhow::Result<()> {
    let text = json!({"text": "<think>a</think>b"});
    for (field, present) in [("reasoning", [true, false]), ("reasoning_content", [false, true]), ("both", [true, true])]
    {
        let flags = ["--reasoning-parser", "qwen3", "--reasoning-field", field];
        let server = TestServer::script(&script(text.clone()), &flags)?;
        let message = chat(&server, json!({}))?.json()["choices"][0]["message"].clone();
        assert_eq!(["reasoning", "reasoning_content"].map(|key| message[key].is_string()), present, "{field}");
    }
    Ok(())
}
