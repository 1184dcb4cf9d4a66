//! Exchanges while many streams run: a good candidate, one that the gate refuses, and one that begins to trap when it is
//! live. The test of it runs some dozens of streams, the benchmark hundreds.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::TestServer;
use crate::fold::{Choice, fold};

const KEY: &str = "operator-key";
const TRAPS_AT: usize = 120;
/// Streams of the model whose stage will trap reach that feed.
const PLAIN_WORDS: usize = TRAPS_AT + 40;
const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

/// What was seen.
#[derive(Clone, Debug)]
pub struct Swapped {
    pub clients: usize,
    /// Streams that were read to their end, each compared with what it has to be.
    pub answers: usize,
    /// How long the good candidate's gate, shadow period and switch took.
    pub exchange: Duration,
    /// Streams of the shadow period that were compared.
    pub compared: u64,
    /// What the operator was told of the bad candidate.
    pub refusal: String,
    /// From the first trap to the plugin before it.
    pub back_after: Duration,
}

/// Runs it with so many clients; a dropped or changed stream is an error.
pub fn under_load(clients: usize, step_ms: u64) -> anyhow::Result<Swapped> {
    let plugins = tempfile::tempdir()?;
    let server = server(plugins.path(), clients, step_ms)?;
    let load = Load { server: &server, over: AtomicBool::new(false), answers: AtomicUsize::new(0) };
    let wanted = [load.once("calls")?, load.once("plain")?];
    ensure!(wanted[0].calls.len() == 1 && wanted[1].calls.is_empty(), "the live stage reads calls: {wanted:?}");
    std::thread::scope(|scope| {
        let client = |number: usize| {
            let (load, wanted) = (&load, &wanted[number % 2]);
            scope.spawn(move || load.client(["calls", "plain"][number % 2], wanted))
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        let operated = operate(&load, plugins.path(), clients);
        load.over.store(true, Relaxed);
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        let mut swapped = operated?;
        swapped.answers = load.answers.load(Relaxed);
        Ok(swapped)
    })
}

fn server(plugins: &Path, clients: usize, step_ms: u64) -> anyhow::Result<TestServer> {
    let words = |count: usize| vec!["word "; count];
    let calls: Vec<&str> = words(40).into_iter().chain([CALL]).collect();
    let script = json!({"responses": [
        {"match": "calls", "tokens": calls, "delay_ms": step_ms},
        {"match": "plain", "tokens": words(PLAIN_WORDS), "delay_ms": step_ms},
    ]});
    let config = format!(
        "[server]\nkeys_file = \"keys.toml\"\nplugins_dir = \"{}\"\n[engine.e]\nsource = \"script:s.json\"\n\
         max_num_seqs = {}\n[[model]]\nname = \"calls\"\nengine = \"e\"\noutput = [\"hermes\"]\n\
         [[model]]\nname = \"plain\"\nengine = \"e\"\noutput = [\"hermes\"]\n",
        plugins.display(),
        clients.max(1)
    );
    let keys = format!("[[key]]\nsha256 = \"{}\"\ntenant = \"op\"\nadmin = true\n", sha256(KEY.as_bytes()));
    TestServer::config(&config, &[("s.json", &script.to_string()), ("keys.toml", &keys)])
}

struct Load<'a> {
    server: &'a TestServer,
    over: AtomicBool,
    answers: AtomicUsize,
}

impl Load<'_> {
    /// Streams one after the other until it is over.
    fn client(&self, model: &str, wanted: &Choice) -> anyhow::Result<()> {
        while !self.over.load(Relaxed) {
            let choice = self.once(model)?;
            let same = Choice { calls: wanted.calls.clone(), ..choice.clone() } == *wanted
                && choice
                    .calls
                    .iter()
                    .map(|call| (&call.name, &call.arguments))
                    .eq(wanted.calls.iter().map(|call| (&call.name, &call.arguments)));
            ensure!(same, "{model}: {wanted:?} became {choice:?}");
            self.answers.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn once(&self, model: &str) -> anyhow::Result<Choice> {
        let body = json!({
            "model": model, "stream": true, "messages": [{"role": "user", "content": model}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
        });
        let events = self.server.open_stream_with("/v1/chat/completions", &authorization(), &body)?;
        let folded = fold(&events.collect::<anyhow::Result<Vec<_>>>()?)?;
        ensure!(folded.done && folded.error.is_none(), "{model}: a stream was cut: {folded:?}");
        folded.choices.into_iter().next().context("an answer has a choice")
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<crate::Answer> {
        self.server.post_with(path, &authorization(), &body.to_string())
    }
}

fn authorization() -> [(&'static str, &'static str); 1] {
    [("authorization", "Bearer operator-key")]
}

fn operate(load: &Load<'_>, folder: &Path, clients: usize) -> anyhow::Result<Swapped> {
    let dist = crate::repository().join("plugins/dist");
    let hermes = std::fs::read(dist.join("hermes.wasm"))?;
    let manifest = std::fs::read_to_string(dist.join("hermes.toml"))?;
    let unpinned: Vec<&str> = manifest.lines().filter(|line| !line.starts_with("sha256")).collect();
    let unpinned = unpinned.join("\n");
    // The same code under another digest: a custom section named `next`.
    let next = [hermes.as_slice(), &[0, 5, 4], b"next"].concat();
    let call = case(
        "own",
        CALL,
        json!({"content": null, "tool_calls": [{"index": 0, "name": "f", "arguments": {"a": 1}}], "finish_reason": "tool_calls"}),
    );
    let good = put(folder, "next", &next, &unpinned, &call)?;
    let order = json!({"file": "next.wasm", "sha256": good, "shadow_streams": clients.min(64), "shadow_seconds": 20});
    let started = Instant::now();
    let promoted = load.post("/plugins/calls/output", &order)?;
    let exchange = started.elapsed();
    ensure!(promoted.status == 200, "the good candidate was refused: {}", promoted.text);
    let compared = promoted.json()["shadow"]["compared"].as_u64().unwrap_or_default();

    // It passes text on as it is, so the call of its own case never comes.
    let fixture = std::fs::read(crate::repository().join("plugins/fixtures/dist/output.wasm"))?;
    let bad = put(folder, "bad", &fixture, &hostile(""), &call)?;
    let refused =
        load.post("/plugins/calls/output", &json!({"file": "bad.wasm", "sha256": bad, "shadow_seconds": 0}))?;
    ensure!(refused.status == 422, "the bad candidate was taken: {}", refused.text);

    let text = case("own", "some text", json!({"content": "some text", "finish_reason": "stop"}));
    let trap = put(folder, "trap", &fixture, &hostile(&format!("feed=trap@{TRAPS_AT}")), &text)?;
    let order = json!({"file": "trap.wasm", "sha256": trap, "shadow_seconds": 0});
    let live = load.post("/plugins/plain/output", &order)?;
    ensure!(live.status == 200, "the candidate that will trap was refused: {}", live.text);
    let back_after = back_after(load, &trap)?;
    Ok(Swapped { clients, answers: 0, exchange, compared, refusal: refused.error_message(), back_after })
}

/// Waits until the plugin of that digest trapped and was taken back.
fn back_after(load: &Load<'_>, digest: &str) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let mut first_trap = None;
    loop {
        let listed = load.server.get_with("/plugins", &authorization())?.json();
        let rows = listed["data"].as_array().cloned().unwrap_or_default();
        let trapped = rows.iter().any(|row| row["sha256"] == digest && row["traps"]["trap"].as_u64() > Some(0));
        let back =
            rows.iter().any(|row| row["exchange"]["target"] == "plain" && row["exchange"]["state"] == "rolled-back");
        let now = Instant::now();
        if trapped {
            first_trap.get_or_insert(now);
        }
        if back {
            return Ok(now.duration_since(first_trap.unwrap_or(now)));
        }
        ensure!(started.elapsed() < Duration::from_secs(60), "it was not taken back: {listed}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn hostile(faults: &str) -> String {
    format!(
        "name = \"hostile-output\"\nversion = \"0.1.0\"\nkind = \"output\"\nwit = \"tokenloom:output@0.1.0\"\n\
         [settings]\nfaults = \"{faults}\"\n"
    )
}

fn case(id: &str, text: &str, expected: Value) -> String {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    json!({
        "id": id, "area": "tool", "title": "What it is for",
        "input": {"tools": tools, "tool_choice": "auto", "deltas": [text], "engine_finish_reason": "stop"},
        "expected": expected,
    })
    .to_string()
}

fn put(folder: &Path, name: &str, wasm: &[u8], manifest: &str, case: &str) -> anyhow::Result<String> {
    std::fs::write(folder.join(format!("{name}.wasm")), wasm)?;
    std::fs::write(folder.join(format!("{name}.toml")), manifest)?;
    std::fs::write(folder.join(format!("{name}.cases.jsonl")), case)?;
    Ok(sha256(wasm))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
