//! Plugins as an operator meets them: swapped, refused, listed.

use serde_json::json;
use testkit::{TestServer, settings};

use crate::{message, script};

fn refused(flags: &[&str]) -> String {
    match TestServer::script(&script(json!({"text": "x"})), flags) {
        Ok(_) => panic!("started with {flags:?}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn unknown_names_and_wrong_kinds_are_said() {
    assert!(refused(&["--tool-call-parser", "no_such"]).contains("no bundled plugin is called `no_such`"));
    assert!(refused(&["--tool-call-parser", "jinja"]).contains("is a template"));
    assert!(refused(&["--scheduler", "hermes"]).contains("is a output stage"));
    assert!(refused(&["--output-stage", "no/such.wasm"]).contains("no/such.wasm"));
    assert!(settings(&["script:x.json"]).is_err_and(|error| format!("{error:#}").contains("does not exist")));
}

#[test]
fn a_template_file_replaces_the_models_own() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.jinja");
    std::fs::write(&path, "{% for m in messages %}[{{ m.content }}]{% endfor %}")?;
    let flags = ["--chat-template", &path.display().to_string()];
    let server = TestServer::script(&script(json!({"match": "[hi]", "text": "fine"})), &flags)?;
    assert_eq!(message(&server, json!({}))?["message"]["content"], "fine");
    Ok(())
}

/// The policy is a component; what it is shows in the report and at `/plugins`.
#[test]
fn schedulers_are_components() -> anyhow::Result<()> {
    for name in ["fcfs", "priority"] {
        let server = TestServer::script(&script(json!({"text": "fine"})), &["--scheduler", name])?;
        assert_eq!(message(&server, json!({"priority": 3}))?["message"]["content"], "fine");
        assert!(server.report().contains(&format!("effective plugin `{name}`")), "{}", server.report());
        let plugins = server.get("/plugins")?.text;
        assert!(plugins.contains(&format!("\"{name}\"")) && plugins.contains("sha256"), "{plugins}");
    }
    Ok(())
}

/// A component that is no component is refused with what it is.
#[test]
fn broken_components_are_refused() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |name: &str, bytes: &[u8]| -> anyhow::Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes)?;
        Ok(path.display().to_string())
    };
    let text = file("text.wasm", b"hello")?;
    assert!(refused(&["--output-stage", &text]).contains("is not WebAssembly"));
    let module = file("module.wasm", b"\0asm\x01\0\0\0")?;
    assert!(refused(&["--output-stage", &module]).contains("is a core module, not a component"));
    Ok(())
}
