//! Components that are not to be trusted: each is refused, at start and in an exchange, with what was expected and how
//! to mend it, and what serves goes on serving.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use testkit::TestServer;

use crate::script;
use crate::swap::{CALL, CASE, KEY, answer, bundled, listed, post, put, server_with, sha256};

/// A component with its manifest, and what is wrong with it.
struct Foreign {
    wasm: Vec<u8>,
    manifest: String,
    settings: Value,
    /// The refusal says all of these.
    says: Vec<String>,
}

impl Foreign {
    fn new(wasm: Vec<u8>, manifest: String, says: &[&str]) -> Self {
        Self { wasm, manifest, settings: json!({}), says: says.iter().map(|word| (*word).to_owned()).collect() }
    }
}

/// Hermes as somebody else ships it, changed.
fn changed(from: &str, to: &str, says: &[&str]) -> anyhow::Result<Foreign> {
    let (wasm, manifest) = bundled("hermes")?;
    anyhow::ensure!(manifest.contains(from), "{from}");
    Ok(Foreign::new(wasm, manifest.replace(from, to), says))
}

fn bytes(wasm: &[u8], says: &[&str]) -> anyhow::Result<Foreign> {
    let (_, manifest) = bundled("hermes")?;
    let manifest = manifest.lines().filter(|line| !line.starts_with("sha256")).collect::<Vec<_>>().join("\n");
    Ok(Foreign::new(wasm.to_vec(), manifest, says))
}

/// One that imports host functions.
fn capable(asks: &str, says: &[&str]) -> anyhow::Result<Foreign> {
    let wasm = std::fs::read(testkit::repository().join("plugins/fixtures/dist/capable.wasm"))?;
    let manifest = format!(
        "name = \"hostile-capable\"\nversion = \"0.1.0\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n{asks}"
    );
    Ok(Foreign::new(wasm, manifest, says))
}

fn foreign() -> anyhow::Result<Vec<(&'static str, Foreign)>> {
    let settings = "\n[settings_schema]\nproperties.n = { type = \"integer\" }\n[failure]\n";
    let digest = sha256(&bundled("hermes")?.0);
    let (pinned, told) = (format!("sha256 = \"{digest}"), format!("the component is {digest}"));
    let other = format!("sha256 = \"{}", "0".repeat(64));
    let mut unknown = changed("\n[failure]\n", settings, &["settings of plugin `hermes`", "unknown key `m`", "n"])?;
    unknown.settings = json!({"m": 1});
    let mut wrong = changed("\n[failure]\n", settings, &["`n` is \"x\"", "type is \"integer\""])?;
    wrong.settings = json!({"n": "x"});
    Ok(vec![
        ("lies about its name", changed("\"hermes\"", "\"parser\"", &["`parser`", "calls itself `hermes`"])?),
        (
            "lies about its interface",
            changed("output@0.1.0", "output@0.9.0", &["output@0.9.0", "was built against `tokenloom:output@0.1.0`"])?,
        ),
        ("has a key too many", changed("[limits]", "colour = 1\n[limits]", &["unknown field `colour`"])?),
        ("has another digest", changed(&pinned, &other, &["the manifest says 0000", &told])?),
        ("has unknown settings", unknown),
        ("has settings of another type", wrong),
        ("asks for a limit beyond all limits", changed("call_ms = 50", "call_ms = 999999", &["limits.call_ms"])?),
    ])
}

/// Each foreign component, first in a server that starts with it, then in one that is asked to exchange its stage for it.
#[test]
fn foreign_components_are_refused() -> anyhow::Result<()> {
    let (server, plugins) = server_with("hermes", json!({"text": CALL}), "require_digest = true")?;
    for (what, one) in foreign()? {
        refused_at_start(what, &one, "require_digest = true", plugins.path())?;
        refused_in_exchange(what, &one, &server, plugins.path())?;
    }
    // An exchange names the digest itself.
    let mend = format!("add to its manifest: sha256 = \"{}\"", sha256(&bundled("hermes")?.0));
    let unpinned = changed("sha256 =", "# sha256 =", &["require_digest = true", &mend])?;
    refused_at_start("has no digest", &unpinned, "require_digest = true", plugins.path())
}

/// The same without the demand for a digest in the manifest: an exchange names the digest itself.
#[test]
fn foreign_bytes_are_refused() -> anyhow::Result<()> {
    let cache = tempfile::tempdir()?;
    let more = format!("component_mib_max = 1\nplugin_cache = \"{}\"", cache.path().display());
    let (server, plugins) = server_with("hermes", json!({"text": CALL}), &more)?;
    // What the server itself has compiled, behind the code that says so.
    let compiled = std::fs::read_dir(cache.path())?.filter_map(Result::ok).map(|entry| entry.path());
    let compiled = compiled.filter(|path| path.extension().is_some_and(|e| e == "cwasm"));
    let smallest = compiled.min_by_key(|path| std::fs::metadata(path).map_or(u64::MAX, |meta| meta.len()));
    let compiled = std::fs::read(smallest.ok_or_else(|| anyhow::anyhow!("nothing was compiled"))?)?;
    let asks = "capabilities = [\"log\", \"metrics\", \"tokenizer\"]\n";
    for (what, one) in [
        ("is a core module", bytes(b"\0asm\x01\0\0\0", &["is a core module", "tokenloom plugin build"])?),
        ("is text", bytes(b"(component)", &["is WebAssembly text; assemble it first"])?),
        ("is compiled code", bytes(&compiled[32..], &["is not WebAssembly: it is a native binary"])?),
        ("is a cache file", bytes(&compiled, &["is not WebAssembly"])?),
        ("is too large", bytes(&vec![0; (1 << 20) + 1], &["the limit is 1048576", "component_mib_max"])?),
        ("imports in secret", capable("", &["without asking", "capabilities = ["])?),
        ("asks for what nobody grants", capable(asks, &["does not grant", "grant = ["])?),
    ] {
        refused_at_start(what, &one, "component_mib_max = 1", plugins.path())?;
        refused_in_exchange(what, &one, &server, plugins.path())?;
    }
    Ok(())
}

/// A component that takes for ever to compile costs the exchange, and no stream.
#[test]
fn a_compile_bomb_is_left_behind() -> anyhow::Result<()> {
    let cache = tempfile::tempdir()?;
    let cached = format!("plugin_cache = \"{}\"\n", cache.path().display());
    // What the server needs is compiled before, in whatever time that takes.
    drop(server_with("hermes", json!({"text": CALL}), &cached)?);
    let (server, plugins) = server_with("hermes", json!({"text": CALL}), &(cached + "compile_timeout_s = 1"))?;
    let one = bytes(&bomb(), &["was not compiled within 1s", "compile_timeout_s"])?;
    refused_in_exchange("is a compile bomb", &one, &server, plugins.path())
}

/// A component around a module of twelve megabytes of arithmetic.
fn bomb() -> Vec<u8> {
    fn number(mut n: usize, into: &mut Vec<u8>) {
        while n >= 128 {
            into.push((n & 127) as u8 | 128);
            n >>= 7;
        }
        into.push(n as u8);
    }
    let section = |id: u8, body: &[u8], into: &mut Vec<u8>| {
        into.push(id);
        number(body.len(), into);
        into.extend_from_slice(body);
    };
    const FUNCTIONS: usize = 120;
    let mut body = vec![0];
    while body.len() < 100_000 {
        // local.get 0, i32.const N, i32.mul, local.get 0, i32.rotl, local.set 0
        body.extend([0x20, 0, 0x41, (body.len() % 60) as u8, 0x6c, 0x20, 0, 0x77, 0x21, 0]);
    }
    body.push(0x0b);
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    section(1, &[1, 0x60, 1, 0x7f, 0], &mut module);
    let mut functions = Vec::new();
    number(FUNCTIONS, &mut functions);
    functions.extend([0; FUNCTIONS]);
    section(3, &functions, &mut module);
    let mut code = Vec::new();
    number(FUNCTIONS, &mut code);
    for _ in 0..FUNCTIONS {
        number(body.len(), &mut code);
        code.extend_from_slice(&body);
    }
    section(10, &code, &mut module);
    let mut component = b"\0asm\x0d\0\x01\0".to_vec();
    section(1, &module, &mut component);
    component
}

fn tokenloom(words: &[&str]) -> bool {
    let words = ["tokenloom", "plugin"].into_iter().chain(words.iter().copied());
    // Exit codes cannot be compared.
    format!("{:?}", server::run(words.map(OsString::from).collect())) == format!("{:?}", ExitCode::SUCCESS)
}

/// A key as `plugin keygen` makes it: its file, and the line for the config.
fn key(folder: &Path, name: &str) -> anyhow::Result<(String, String)> {
    let file = folder.join(name).display().to_string();
    anyhow::ensure!(tokenloom(&["keygen", &file]), "keygen");
    let key = plugin_host::SigningKey::parse(std::fs::read_to_string(&file)?.trim());
    let public = key.ok_or_else(|| anyhow::anyhow!("keygen wrote no key"))?.public();
    Ok((file, format!("{name} = \"{public}\"")))
}

/// Where signatures are required, only what a trusted key signed is loaded, at start and in an exchange.
#[test]
fn signatures() -> anyhow::Result<()> {
    let keys = tempfile::tempdir()?;
    let (ours, our_line) = key(keys.path(), "ours")?;
    let (theirs, _) = key(keys.path(), "theirs")?;
    let more = format!("require_signature = true\n[server.plugin_keys]\n{our_line}\n");
    let (server, plugins) = server_with("kimi_k2", json!({"text": CALL}), &more)?;
    let folder = plugins.path();
    let (wasm, manifest) = bundled("hermes")?;
    let signed = |key: &str, wasm: &[u8]| -> anyhow::Result<String> {
        put(folder, "mine", wasm, &manifest, CASE)?;
        let file = folder.join("mine.wasm").display().to_string();
        anyhow::ensure!(tokenloom(&["sign", &file, "--key", key]), "sign");
        Ok(std::fs::read_to_string(folder.join("mine.toml"))?)
    };
    let other = std::fs::read(testkit::repository().join("plugins/fixtures/dist/output.wasm"))?;
    let of_other = signed(&ours, &other)?;
    let signature = of_other.lines().find(|line| line.starts_with("signature")).unwrap_or_default();
    let moved = manifest.replace("\nsha256", &format!("\n{signature}\nsha256"));
    let row = |manifest: String, says: &[&str]| Foreign::new(wasm.clone(), manifest, says);
    let broken = manifest.replace("\nsha256", "\nsignature = \"12\"\nsha256");
    for (what, one) in [
        ("is not signed", row(manifest.clone(), &["is not signed", "keys of `ours`", "tokenloom plugin sign"])),
        ("is signed by somebody else", row(signed(&theirs, &wasm)?, &["no trusted key", "`ours`", "plugin_keys"])),
        ("has another component's signature", row(moved, &["no trusted key made of sha256", &sha256(&wasm)])),
        ("has no signature that could be one", row(broken, &["signature `12`: 128 lower-case hex digits"])),
    ] {
        refused_at_start(what, &one, &more, folder)?;
        refused_in_exchange(what, &one, &server, folder)?;
    }
    assert_eq!(answer(&server)?.1, "", "the stage that was there reads another format");

    let good = signed(&ours, &wasm)?;
    let order = json!({"file": "mine.wasm", "sha256": sha256(&wasm), "shadow_seconds": 0});
    let live = post(&server, "/plugins/m/output", KEY, &order)?;
    assert_eq!(live.status, 200, "{}", live.text);
    assert_eq!(answer(&server)?.1, "f");
    let rows = listed(&server)?;
    let row = rows["data"].as_array().into_iter().flatten().find(|row| row["signed_by"] == "ours");
    assert_eq!(row.map(|row| &row["serves"]), Some(&json!(["m/output"])), "{rows}");
    let good = Foreign::new(wasm, good, &[]);
    start(&good, &more, folder)?;
    let without_keys = start(&good, "require_signature = true", folder).map(drop);
    let error = without_keys.map_err(|error| format!("{error:#}"));
    assert!(error.as_ref().is_err_and(|error| error.contains("[server.plugin_keys]")), "{error:?}");
    Ok(())
}

/// A file that changes after its digest was told, or that is overwritten while it serves.
#[test]
fn replaced_files_change_nothing() -> anyhow::Result<()> {
    let (server, plugins) = server_with("kimi_k2", json!({"text": CALL}), "")?;
    let (wasm, manifest) = bundled("hermes")?;
    let digest = put(plugins.path(), "mine", &wasm, &manifest, CASE)?;
    let order = json!({"file": "mine.wasm", "sha256": digest, "shadow_seconds": 0});
    let other = std::fs::read(testkit::repository().join("plugins/fixtures/dist/output.wasm"))?;
    std::fs::write(plugins.path().join("mine.wasm"), &other)?;
    let refused = post(&server, "/plugins/m/output", KEY, &order)?;
    assert_eq!(refused.status, 422);
    std::fs::write(plugins.path().join("mine.wasm"), &wasm)?;
    assert_eq!(post(&server, "/plugins/m/output", KEY, &order)?.status, 200);
    std::fs::write(plugins.path().join("mine.wasm"), &other)?;
    assert_eq!(answer(&server)?.1, "f", "what was loaded serves on");

    // Both schedulers come from one file name: the way back does not depend on the file.
    let policy = |name: &str| -> anyhow::Result<Value> {
        let (wasm, manifest) = bundled(name)?;
        let digest = put(plugins.path(), "policy", &wasm, &manifest, SCHEDULE)?;
        Ok(json!({"file": "policy.wasm", "sha256": digest, "shadow_seconds": 0}))
    };
    for name in ["fcfs", "priority"] {
        let live = post(&server, "/plugins/e/scheduler", KEY, &policy(name)?)?;
        assert_eq!(live.status, 200, "{}", live.text);
    }
    let back = post(&server, "/plugins/e/scheduler/rollback", KEY, &json!({}))?;
    assert_eq!(back.status, 200, "{}", back.text);
    assert_eq!(answer(&server)?.1, "f");
    let rows = listed(&server)?;
    let place = rows["places"].as_array().into_iter().flatten().find(|place| place["kind"] == "scheduler");
    assert_eq!(place.map(|place| &place["chain"][0]["name"]), Some(&json!("fcfs")), "{rows}");
    Ok(())
}

const SCHEDULE: &str = r#"{"id": "one", "area": "schedule", "title": "One request", "input": {"seats": 1, "token_budget": 64, "requests": [{"name": "a", "prompt_tokens": 10, "max_new_tokens": 2}]}, "expected": {"finish_order": ["a"]}}"#;

fn start(one: &Foreign, more: &str, folder: &Path) -> anyhow::Result<TestServer> {
    put(folder, "mine", &one.wasm, &one.manifest, CASE)?;
    let file = folder.join("mine.wasm");
    let settings = toml_of(&one.settings);
    let config = format!(
        "[engine.e]\nsource = \"script:s.json\"\n[[model]]\nname = \"m\"\noutput = [\"{}\"]\n{settings}\n[server]\n{more}\n",
        file.display()
    );
    TestServer::config(&config, &[("s.json", &script(json!({"text": CALL})))])
}

fn toml_of(settings: &Value) -> String {
    let rows = settings.as_object().into_iter().flatten().map(|(key, value)| format!("{key} = {value}\n"));
    match rows.collect::<String>() {
        none if none.is_empty() => none,
        rows => format!("[plugin.mine.settings]\n{rows}"),
    }
}

fn refused_at_start(what: &str, one: &Foreign, more: &str, folder: &Path) -> anyhow::Result<()> {
    let message = match start(one, more, folder) {
        Ok(_) => anyhow::bail!("started with a component that {what}"),
        Err(error) => format!("{error:#}"),
    };
    says(what, one, &message)
}

fn refused_in_exchange(what: &str, one: &Foreign, server: &TestServer, folder: &Path) -> anyhow::Result<()> {
    let before = answer(server)?;
    let digest = put(folder, "mine", &one.wasm, &one.manifest, CASE)?;
    let order = json!({"file": "mine.wasm", "sha256": digest, "shadow_seconds": 0, "settings": one.settings});
    let refused = post(server, "/plugins/m/output", KEY, &order)?;
    anyhow::ensure!(
        (refused.status, refused.error_code().as_str()) == (422, "plugin_refused"),
        "{what}: {}",
        refused.text
    );
    says(what, one, &refused.error_message())?;
    anyhow::ensure!(answer(server)? == before, "a component that {what} changed what serves");
    Ok(())
}

fn says(what: &str, one: &Foreign, message: &str) -> anyhow::Result<()> {
    match one.says.iter().find(|needle| !message.contains(needle.as_str())) {
        None => Ok(()),
        Some(needle) => anyhow::bail!("a component that {what}: `{needle}` is not in: {message}"),
    }
}
