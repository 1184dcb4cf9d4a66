//! Output stages that nobody named, chosen by the model's template and tokenizer.

use testkit::{Folder, TestServer};

const HERMES: &str = "{% if tools %}<tool_call>\n{\"name\": 1, \"arguments\": 2}\n</tool_call>{% endif %}<think>\n";

/// The start-up report of a model with this template.
fn report(template: &str, flags: &[&str]) -> anyhow::Result<String> {
    let folder = Folder::whole()?;
    folder.write("chat_template.jinja", template)?;
    let server = TestServer::model(folder.path(), &[&["--threads", "1"], flags].concat())?;
    Ok(server.report().to_string())
}

#[test]
fn the_choice_and_its_doubts_are_printed() -> anyhow::Result<()> {
    // The tokenizer of the test has no `<tool_call>`, as that of a model with this template would.
    let guessed = report(HERMES, &[])?;
    assert!(guessed.contains("output stages: qwen3 -> hermes (chosen by the template)"), "{guessed}");
    assert!(guessed.contains("are a guess: its tokenizer has no token `<tool_call>`"), "{guessed}");
    let unknown = report("{{ tools }}{{ messages }}", &[])?;
    assert!(unknown.contains("output stages: none"), "{unknown}");
    assert!(unknown.contains("writes calls in a format that is not known"), "{unknown}");
    // What the operator names is taken as it is.
    let named = report(HERMES, &["--tool-call-parser", "qwen3_coder"])?;
    assert!(named.contains("output stages: qwen3_coder\n") && !named.contains("guess"), "{named}");
    Ok(())
}
