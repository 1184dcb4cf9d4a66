//! The binary as a person calls it: exit status, and what it prints.

use std::process::Command;

/// Status and both outputs of `tokenloom ARGS`.
fn call(args: &[&str]) -> anyhow::Result<(bool, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_tokenloom")).args(args).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn what_it_says() -> anyhow::Result<()> {
    let table: &[(&[&str], bool, &str)] = &[
        (&["plugin", "list"], true, "hermes 0.1.0 (output stage)"),
        (&["plugin", "inspect", "hermes"], true, "sha256"),
        (&["plugin", "inspect", "no-such-plugin"], false, "no-such-plugin"),
        (&["serve"], false, "model"),
        (&["serve", "--model", "no/such/file.gguf"], false, "no/such/file.gguf"),
        (&["serve", "--model", "x.gguf", "--no-such-flag"], false, "--no-such-flag"),
        (&["plugin", "test", "hermes", "--cases", "no/such/cases.jsonl"], false, "no/such/cases.jsonl"),
    ];
    for (args, succeeds, expected) in table {
        let (success, text) = call(args)?;
        assert_eq!(success, *succeeds, "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    Ok(())
}
