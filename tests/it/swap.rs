//! Exchanging plugins over the API: the gate, streams that go on, and the way back.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::TestServer;

use crate::script;

pub const KEY: &str = "operator-key";
pub const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
pub const CASE: &str = r#"{"id": "own", "area": "tool", "title": "A call", "input": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "auto", "deltas": ["<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"], "engine_finish_reason": "stop"}, "expected": {"content": null, "tool_calls": [{"index": 0, "name": "f", "arguments": {}}], "finish_reason": "tool_calls"}}"#;

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server with keys and a plugin folder; `stage` is its one output stage.
fn server(stage: &str, responses: Value) -> anyhow::Result<(TestServer, tempfile::TempDir)> {
    server_with(stage, responses, "")
}

/// The same with more lines in `[server]`.
pub fn server_with(stage: &str, responses: Value, more: &str) -> anyhow::Result<(TestServer, tempfile::TempDir)> {
    server_on("stall-free", stage, responses, more)
}

/// The same with this scheduler.
fn server_on(
    scheduler: &str,
    stage: &str,
    responses: Value,
    more: &str,
) -> anyhow::Result<(TestServer, tempfile::TempDir)> {
    let plugins = tempfile::tempdir()?;
    let dir = plugins.path().display();
    let config = format!(
        "[server]\nkeys_file = \"keys.toml\"\nplugins_dir = \"{dir}\"\n{more}\n[engine.e]\nsource = \"script:s.json\"\n\
         scheduler = \"{scheduler}\"\n[[model]]\nname = \"m\"\nengine = \"e\"\noutput = [\"{stage}\"]\n"
    );
    let admin = format!("[[key]]\nsha256 = \"{}\"\ntenant = \"op\"\nadmin = true\n", sha256(KEY.as_bytes()));
    let user = format!("[[key]]\nsha256 = \"{}\"\ntenant = \"user\"\n", sha256(b"user-key"));
    let server = TestServer::config(&config, &[("s.json", &script(responses)), ("keys.toml", &(admin + &user))])?;
    Ok((server, plugins))
}

/// Puts a component, its manifest and one case into the folder.
pub fn put(folder: &Path, name: &str, wasm: &[u8], manifest: &str, case: &str) -> anyhow::Result<String> {
    std::fs::write(folder.join(format!("{name}.wasm")), wasm)?;
    std::fs::write(folder.join(format!("{name}.toml")), manifest)?;
    std::fs::write(folder.join(format!("{name}.cases.jsonl")), case)?;
    Ok(sha256(wasm))
}

pub fn bundled(name: &str) -> anyhow::Result<(Vec<u8>, String)> {
    let dist = testkit::repository().join("plugins/dist");
    Ok((std::fs::read(dist.join(format!("{name}.wasm")))?, std::fs::read_to_string(dist.join(format!("{name}.toml")))?))
}

pub fn post(server: &TestServer, path: &str, key: &str, body: &Value) -> anyhow::Result<testkit::Answer> {
    server.post_with(path, &[("authorization", &format!("Bearer {key}"))], &body.to_string())
}

/// Content and the name of the first call of a chat answer.
pub fn answer(server: &TestServer) -> anyhow::Result<(String, String)> {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": tools});
    let answer = post(server, "/v1/chat/completions", "user-key", &body)?;
    let message = &answer.json()["choices"][0]["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok((text(&message["content"]), text(&message["tool_calls"][0]["function"]["name"])))
}

/// Only the operator may, only a file of the folder, only with its digest, and nothing is changed by a refusal.
#[test]
fn refusals() -> anyhow::Result<()> {
    let (server, plugins) = server("hermes", json!({"text": CALL}))?;
    let (wasm, manifest) = bundled("hermes")?;
    let digest = put(plugins.path(), "mine", &wasm, &manifest, CASE)?;
    let good = json!({"file": "mine.wasm", "sha256": digest, "shadow_seconds": 0});
    assert_eq!(post(&server, "/plugins/m/output", "user-key", &good)?.status, 403);
    assert_eq!(post(&server, "/plugins/m/output", "nobody", &good)?.status, 401);
    assert_eq!(post(&server, "/plugins/x/output", KEY, &good)?.status, 404);
    assert_eq!(post(&server, "/plugins/m/colour", KEY, &good)?.status, 404);
    let wrong = json!({"file": "mine.wasm", "sha256": "0".repeat(64)});
    let refused = post(&server, "/plugins/m/output", KEY, &wrong)?;
    assert_eq!((refused.status, refused.error_code()), (422, "plugin_refused".into()));
    assert!(refused.error_message().contains("is pinned to sha256 0000"), "{}", refused.text);
    for file in ["../mine.wasm", "/etc/passwd", "mine.toml", "a/../mine.wasm"] {
        let body = json!({"file": file, "sha256": digest});
        assert_eq!(post(&server, "/plugins/m/output", KEY, &body)?.status, 422, "{file}");
    }
    std::fs::write(
        plugins.path().join("mine.cases.jsonl"),
        CASE.replace("\"index\": 0, \"name\": \"f\"", "\"index\": 0, \"name\": \"g\""),
    )?;
    let failing = post(&server, "/plugins/m/output", KEY, &good)?;
    assert!(failing.error_message().contains("case `own`"), "{}", failing.text);
    assert_eq!(post(&server, "/plugins/m/output/rollback", KEY, &json!({}))?.status, 409);
    assert_eq!(answer(&server)?, (String::new(), "f".into()));
    Ok(())
}

/// The new stage reads the next answer, the way back is one request, and both show in `GET /plugins`.
#[test]
fn a_stage_is_exchanged_and_brought_back() -> anyhow::Result<()> {
    let (server, plugins) = server("kimi_k2", json!({"text": CALL}))?;
    assert_eq!(answer(&server)?.1, "", "the live stage reads another format");
    let (wasm, manifest) = bundled("hermes")?;
    let digest = put(plugins.path(), "mine", &wasm, &manifest, CASE)?;
    let order = json!({"file": "mine.wasm", "sha256": digest, "shadow_seconds": 0});
    let live = post(&server, "/plugins/m/output", KEY, &order)?;
    assert_eq!((live.status, live.json()["state"].as_str()), (200, Some("live")), "{}", live.text);
    assert_eq!(answer(&server)?, (String::new(), "f".into()));
    let listed = server.get("/plugins")?;
    assert_eq!(listed.status, 401, "the list is for who has a key");
    let back = post(&server, "/plugins/m/output/rollback", KEY, &json!({}))?;
    assert_eq!(back.json()["state"], "rolled-back", "{}", back.text);
    assert_eq!(answer(&server)?.1, "");
    Ok(())
}

/// In the shadow period clients get the live stage's answers; a candidate that reads them otherwise is refused.
#[test]
fn differences_in_the_shadow_period_refuse() -> anyhow::Result<()> {
    let (server, plugins) = server("kimi_k2", json!({"text": CALL}))?;
    let (wasm, manifest) = bundled("hermes")?;
    let digest = put(plugins.path(), "mine", &wasm, &manifest, CASE)?;
    let order = json!({"file": "mine.wasm", "sha256": digest, "shadow_seconds": 60, "shadow_streams": 3});
    let verdict = std::thread::scope(|scope| {
        let exchange = scope.spawn(|| post(&server, "/plugins/m/output", KEY, &order));
        while !exchange.is_finished() {
            assert_eq!(answer(&server).map(|(_, call)| call).unwrap_or_default(), "");
        }
        exchange.join().expect("no panic")
    })?;
    assert_eq!(verdict.status, 422, "{}", verdict.text);
    assert!(verdict.error_message().contains("came out differently"), "{}", verdict.text);
    // The difference quotes an answer: tenants see that there was one, the operator what it was.
    let seen = |key: &str| -> anyhow::Result<Value> {
        let listed = server.get_with("/plugins", &[("authorization", &format!("Bearer {key}"))])?.json();
        let rows = listed["data"].as_array().cloned().unwrap_or_default();
        Ok(rows.into_iter().map(|row| row["exchange"].clone()).find(Value::is_object).unwrap_or_default())
    };
    assert_eq!((&seen("user-key")?["state"], &seen("user-key")?["why"]), (&json!("refused"), &Value::Null));
    assert!(seen(KEY)?["why"].as_str().is_some_and(|why| why.contains("live [")), "{}", seen(KEY)?);
    assert_eq!(answer(&server)?.1, "");
    Ok(())
}

/// A stage that begins to trap when it is live is taken back by itself, and no client loses text meanwhile.
#[test]
fn a_stage_that_traps_is_taken_back() -> anyhow::Result<()> {
    let text = "word ".repeat(300);
    let (server, plugins) = server("kimi_k2", json!({"text": text}))?;
    let wasm = std::fs::read(testkit::repository().join("plugins/fixtures/dist/output.wasm"))?;
    let manifest = "name = \"hostile-output\"\nversion = \"0.1.0\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n\
                    [settings]\nfaults = \"feed=trap@200\"\n";
    let case = r#"{"id": "own", "area": "tool", "title": "Text passes", "input": {"tools": [], "tool_choice": "none", "deltas": ["some ", "text"], "engine_finish_reason": "stop"}, "expected": {"content": "some text", "finish_reason": "stop"}}"#;
    let digest = put(plugins.path(), "trap", &wasm, manifest, case)?;
    let order = json!({"file": "trap.wasm", "sha256": digest, "shadow_seconds": 0});
    let live = post(&server, "/plugins/m/output", KEY, &order)?;
    assert_eq!(live.status, 200, "{}", live.text);
    let state = || -> anyhow::Result<String> {
        let listed = listed(&server)?;
        let rows = listed["data"].as_array().cloned().unwrap_or_default();
        let state = rows.iter().find_map(|row| row["exchange"]["state"].as_str());
        Ok(state.unwrap_or_default().to_owned())
    };
    let started = Instant::now();
    while state()? != "rolled-back" {
        assert_eq!(answer(&server)?.0, text, "all text arrives");
        assert!(started.elapsed() < Duration::from_secs(30), "it was not taken back");
    }
    assert_eq!(answer(&server)?.0, text);
    Ok(())
}

pub fn listed(server: &TestServer) -> anyhow::Result<Value> {
    Ok(server.get_with("/plugins", &[("authorization", "Bearer user-key")])?.json())
}

const SCHEDULE: &str = r#"{"id": "own", "area": "schedule", "title": "One request ends", "input": {"seats": 1, "token_budget": 64, "requests": [{"name": "a", "prompt_tokens": 10, "max_new_tokens": 2}]}, "expected": {"finish_order": ["a"]}}"#;

/// The row of the place of schedulers in `GET /plugins`, and what its last exchange came to.
fn scheduler_place(server: &TestServer) -> anyhow::Result<(Value, Value)> {
    let listed = listed(server)?;
    let find = |list: &Value, is: &dyn Fn(&Value) -> bool| {
        list.as_array().into_iter().flatten().find(|row| is(row)).cloned().unwrap_or_default()
    };
    let place = find(&listed["places"], &|place| place["kind"] == "scheduler");
    let exchange = find(&listed["data"], &|row| row["exchange"]["kind"] == "scheduler");
    Ok((place, exchange["exchange"].clone()))
}

/// A scheduler passes the conformance set, decides beside the live one for a while, then in its place.
#[test]
fn a_scheduler_is_exchanged_and_brought_back() -> anyhow::Result<()> {
    let (server, plugins) = server("hermes", json!({"text": "word ".repeat(50)}))?;
    let (wasm, manifest) = bundled("priority")?;
    let digest = put(plugins.path(), "policy", &wasm, &manifest, SCHEDULE)?;
    let order = json!({"file": "policy.wasm", "sha256": digest, "shadow_streams": 10});
    let live = std::thread::scope(|scope| {
        let exchange = scope.spawn(|| post(&server, "/plugins/e/scheduler", KEY, &order));
        while !exchange.is_finished() {
            assert_eq!(answer(&server).map(|(text, _)| text).unwrap_or_default(), "word ".repeat(50));
        }
        exchange.join().expect("no panic")
    })?;
    assert_eq!((live.status, live.json()["state"].as_str()), (200, Some("live")), "{}", live.text);
    assert!(live.json()["shadow"]["compared"].as_u64() >= Some(10), "{}", live.text);
    answer(&server)?;
    let (place, _) = scheduler_place(&server)?;
    assert_eq!((&place["chain"][0]["name"], &place["state"]), (&json!("priority"), &json!("active")), "{place}");
    let back = post(&server, "/plugins/e/scheduler/rollback", KEY, &json!({}))?;
    assert_eq!(back.json()["state"], "rolled-back", "{}", back.text);
    answer(&server)?;
    assert_eq!(scheduler_place(&server)?.0["chain"][0]["name"], "stall-free");
    Ok(())
}

/// One that loses requests is refused by the conformance set, and the live one goes on.
#[test]
fn a_bad_scheduler_is_refused() -> anyhow::Result<()> {
    let (server, plugins) = server("hermes", json!({"text": "word ".repeat(50)}))?;
    let wasm = std::fs::read(testkit::repository().join("plugins/fixtures/dist/scheduler.wasm"))?;
    let manifest = "name = \"hostile-scheduler\"\nversion = \"0.1.0\"\nkind = \"scheduler\"\nwit = \"tokenloom:scheduler@0.1.0\"\n";
    let digest = put(plugins.path(), "bad", &wasm, manifest, SCHEDULE)?;
    let order = json!({"file": "bad.wasm", "sha256": digest, "shadow_seconds": 0});
    let refused = post(&server, "/plugins/e/scheduler", KEY, &order)?;
    assert_eq!(refused.status, 422);
    assert!(refused.error_message().contains("case `conformance-"), "{}", refused.text);
    assert_eq!(answer(&server)?.0, "word ".repeat(50));
    assert_eq!(scheduler_place(&server)?.0["chain"][0]["name"], "stall-free");
    Ok(())
}

/// The fixture that is a good scheduler until it meets a request of this priority.
const TURNCOAT: &str =
    "name = \"hostile-turncoat\"\nversion = \"0.1.0\"\nkind = \"scheduler\"\nwit = \"tokenloom:scheduler@0.1.0\"\n";
const POISON: i32 = 6666;

/// A live scheduler that starts trapping is taken back within a second, for what decided before it; every stream goes on to
/// its end, that of the request it traps on too.
#[test]
fn a_scheduler_that_starts_trapping_is_taken_back() -> anyhow::Result<()> {
    for (before, name) in [("stall-free", "stall-free"), ("native", "fcfs (native)")] {
        let text = "word ".repeat(200);
        let (server, plugins) = server_on(before, "hermes", json!({"text": text, "delay_ms": 2}), "")?;
        let wasm = std::fs::read(testkit::repository().join("plugins/fixtures/dist/turncoat.wasm"))?;
        let digest = put(plugins.path(), "turncoat", &wasm, TURNCOAT, SCHEDULE)?;
        let order = json!({"file": "turncoat.wasm", "sha256": digest, "shadow_seconds": 0});
        let live = post(&server, "/plugins/e/scheduler", KEY, &order)?;
        assert_eq!((live.status, live.json()["state"].as_str()), (200, Some("live")), "{}", live.text);
        let say = |priority: i32| -> anyhow::Result<String> {
            let messages = json!([{"role": "user", "content": "go"}]);
            let body = json!({"model": "m", "messages": messages, "priority": priority});
            let answer = post(&server, "/v1/chat/completions", "user-key", &body)?;
            Ok(answer.json()["choices"][0]["message"]["content"].as_str().unwrap_or(&answer.text).to_owned())
        };
        let took = std::thread::scope(|scope| -> anyhow::Result<Duration> {
            let streams: Vec<_> = (0..16).map(|number| scope.spawn(move || say(number))).collect();
            while scheduler_place(&server)?.0["state"] != "active" {}
            let started = Instant::now();
            let poison = scope.spawn(|| say(POISON));
            while scheduler_place(&server)?.1["state"] != "rolled-back" {
                assert!(started.elapsed() < Duration::from_secs(30), "{before}: it was not taken back");
            }
            let took = started.elapsed();
            for stream in streams.into_iter().chain([poison]) {
                assert_eq!(stream.join().expect("no panic")?, text, "{before}: a stream was changed");
            }
            Ok(took)
        })?;
        assert!(took < Duration::from_secs(1), "{before}: it took {took:?}");
        let (place, exchange) = scheduler_place(&server)?;
        assert_eq!(place["chain"][0]["name"], *name, "{place}");
        assert!(exchange["why"].as_str().is_some_and(|why| why.contains("3 strikes")), "{exchange}");
        let again = post(&server, "/plugins/e/scheduler/rollback", KEY, &json!({}))?;
        assert_eq!(again.status, 409, "there is no further way back: {}", again.text);
    }
    Ok(())
}

/// What an engine started with is a way back too, where that is the native policy.
#[test]
fn the_native_policy_is_brought_back() -> anyhow::Result<()> {
    let (server, plugins) = server_on("native", "hermes", json!({"text": "word ".repeat(50)}), "")?;
    let (wasm, manifest) = bundled("priority")?;
    let digest = put(plugins.path(), "policy", &wasm, &manifest, SCHEDULE)?;
    let order = json!({"file": "policy.wasm", "sha256": digest, "shadow_seconds": 0});
    assert_eq!(post(&server, "/plugins/e/scheduler", KEY, &order)?.status, 200);
    answer(&server)?;
    assert_eq!(scheduler_place(&server)?.0["chain"][0]["name"], "priority");
    let back = post(&server, "/plugins/e/scheduler/rollback", KEY, &json!({}))?;
    assert_eq!(back.json()["state"], "rolled-back", "{}", back.text);
    assert_eq!(answer(&server)?.0, "word ".repeat(50));
    let place = scheduler_place(&server)?.0;
    assert_eq!((&place["chain"][0]["name"], &place["state"]), (&json!("fcfs (native)"), &json!("native")), "{place}");
    Ok(())
}

/// A candidate that traps in its shadow period is refused with the call, although a replay or a fallback made its answers
/// right.
#[test]
fn a_trap_in_the_shadow_period_refuses() -> anyhow::Result<()> {
    let text = "word ".repeat(300);
    let wasm = std::fs::read(testkit::repository().join("plugins/fixtures/dist/output.wasm"))?;
    let case = r#"{"id": "own", "area": "tool", "title": "Text passes", "input": {"tools": [], "tool_choice": "none", "deltas": ["some ", "text"], "engine_finish_reason": "stop"}, "expected": {"content": "some text", "finish_reason": "stop"}}"#;
    for (faults, call) in [("feed=trap@200", "feed: "), ("constrain=trap", "constrain: "), ("feed=error@200", "feed: ")]
    {
        let (server, plugins) = server("hermes", json!({"text": text}))?;
        let manifest = format!(
            "name = \"hostile-output\"\nversion = \"0.1.0\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n\
             [settings]\nfaults = \"{faults}\"\n"
        );
        let digest = put(plugins.path(), "trap", &wasm, &manifest, case)?;
        let order = json!({"file": "trap.wasm", "sha256": digest, "shadow_seconds": 60, "shadow_streams": 3});
        let verdict = std::thread::scope(|scope| {
            let exchange = scope.spawn(|| post(&server, "/plugins/m/output", KEY, &order));
            while !exchange.is_finished() {
                assert_eq!(answer(&server).map(|(text, _)| text).unwrap_or_default(), text, "{faults}");
            }
            exchange.join().expect("no panic")
        })?;
        assert_eq!(verdict.status, 422, "{faults}: {}", verdict.text);
        let why = verdict.error_message();
        assert!(why.contains("failed in the shadow period") && why.contains(call), "{faults}: {why}");
    }
    Ok(())
}
