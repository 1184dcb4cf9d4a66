//! End to end: a real server over a scripted model, with the bundled plugins as WebAssembly. One file per feature.

mod cases;
mod chat;
mod choosing;
mod config;
mod errors;
mod folder;
mod grammars;
mod load;
mod plugins;
mod prompts;
mod reasoning;
mod sched;
mod stream;
mod swap;
mod tools;
mod traps;
mod trust;

use serde_json::{Value, json};
use testkit::fold::{Folded, fold};
use testkit::{Answer, TestServer};

const CHAT: &str = "/v1/chat/completions";

/// A chat request that says `hi`, with `extra` laid over it.
fn request(extra: Value) -> Value {
    let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    if let (Value::Object(request), Value::Object(extra)) = (&mut request, extra) {
        request.extend(extra);
    }
    request
}

fn chat(server: &TestServer, extra: Value) -> anyhow::Result<Answer> {
    server.post(CHAT, &request(extra))
}

/// The answer's first choice; an error answer is an error.
fn message(server: &TestServer, extra: Value) -> anyhow::Result<Value> {
    let answer = chat(server, extra)?;
    anyhow::ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text);
    Ok(answer.json()["choices"][0].clone())
}

fn streamed(server: &TestServer, extra: Value) -> anyhow::Result<Folded> {
    let mut request = request(extra);
    request["stream"] = true.into();
    fold(&server.stream(CHAT, &request)?)
}

/// A script with one response.
fn script(response: Value) -> String {
    json!({"responses": [response]}).to_string()
}
