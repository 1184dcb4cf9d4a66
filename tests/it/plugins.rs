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
    assert!(refused(&["--tool-call-parser", "jinja"]).contains("is of kind template"));
    assert!(refused(&["--scheduler", "hermes"]).contains("is of kind output stage"));
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
    for name in ["fcfs", "priority", "fair", "deadline", "shortest-prefill-first", "stall-free"] {
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

const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

/// The bundled parser as somebody's own file: no rebuild, a digest that is checked, a config that may demand it.
#[test]
fn a_parser_from_a_file() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let dist = testkit::repository().join("plugins/dist");
    let wasm = folder.path().join("mine.wasm");
    std::fs::copy(dist.join("hermes.wasm"), &wasm)?;
    let flags = ["--tool-call-parser", &wasm.display().to_string()];
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let name = || -> anyhow::Result<serde_json::Value> {
        let server = TestServer::script(&script(json!({"text": CALL})), &flags)?;
        let choice = message(&server, json!({"tools": tools}))?;
        Ok(choice["message"]["tool_calls"][0]["function"]["name"].clone())
    };
    assert_eq!(name()?, "f", "without a manifest");
    let manifest = std::fs::read_to_string(dist.join("hermes.toml"))?;
    std::fs::write(folder.path().join("mine.toml"), &manifest)?;
    assert_eq!(name()?, "f", "with its manifest");

    let pin = manifest.lines().find(|line| line.starts_with("sha256")).unwrap_or_default();
    let wrong = manifest.replace(pin, &format!("sha256 = \"{}\"", "0".repeat(64)));
    std::fs::write(folder.path().join("mine.toml"), wrong)?;
    assert!(refused(&flags).contains("has the wrong digest"));

    std::fs::remove_file(folder.path().join("mine.toml"))?;
    let path = wasm.display();
    let config = format!(
        "[server]\nrequire_digest = true\n[engine.e]\nsource = \"script:s.json\"\n[[model]]\nname = \"m\"\noutput = [\"{path}\"]"
    );
    let error = TestServer::config(&config, &[("s.json", &script(json!({"text": CALL})))]).map(|_| ());
    let error = error.map_err(|error| format!("{error:#}"));
    assert!(error.as_ref().is_err_and(|error| error.contains("has no digest")), "{error:?}");
    Ok(())
}
