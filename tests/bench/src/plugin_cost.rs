//! What plugins cost: a real server, eight streamed chats with tools through template, two stages and a scheduler.
//!
//! The figure is all time inside plugins (every export, the template and the scheduler included) per generated token,
//! as a share of the time of the model's steps per generated token. Both come from the server's own metrics.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::{Event, TestServer};

use crate::args::Args;
use crate::metrics::{Between, Reading};

const STREAMS: usize = 8;
/// Plugins may take this share of the step time.
const SHARE_MAX: f64 = 0.01;
const CALLS: &str = "tokenloom_plugin_call_seconds";

const FLAGS: [&str; 6] = ["--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--scheduler", "fcfs"];

pub fn run(args: &Args) -> Result<Value> {
    let tokens = if args.quick { 24 } else { 256 };
    let server = TestServer::model(&args.model, &FLAGS)?;
    eprint!("{}", server.report());
    // The first calls pay for pages of memory that later ones reuse.
    round(&server, 8, 0)?;
    let before = read(&server)?;
    for number in 1..=args.rounds {
        round(&server, tokens, number)?;
    }
    let after = read(&server)?;
    server.shutdown()?;
    figures(&Between(&before, &after))
}

fn read(server: &TestServer) -> Result<Reading> {
    Ok(Reading::parse(&server.get("/metrics")?.text))
}

/// All streams at once, each to its last token.
fn round(server: &TestServer, tokens: u32, number: usize) -> Result<()> {
    let answer = |stream: usize| -> Result<()> {
        let events = server.stream("/v1/chat/completions", &request(tokens, number * STREAMS + stream))?;
        ensure!(events.last() == Some(&Event::Done), "stream {stream} was cut: {:?}", events.last());
        Ok(())
    };
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..STREAMS).map(|stream| scope.spawn(move || answer(stream))).collect();
        streams.into_iter().try_for_each(|stream| stream.join().expect("a stream's thread returns its error"))
    })
}

fn request(tokens: u32, seed: usize) -> Value {
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}});
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    let function =
        json!({"name": "get_weather", "description": "The weather of the next days", "parameters": parameters});
    json!({
        "model": "m",
        "stream": true,
        "max_tokens": tokens,
        "ignore_eos": true,
        "temperature": 0.8,
        "seed": seed,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": format!("Tell me a story about number {seed} and the weather in Oslo.")},
        ],
        "tools": [{"type": "function", "function": function}],
    })
}

fn figures(between: &Between) -> Result<Value> {
    let tokens = between.sum("vllm:generation_tokens_total", &[]);
    let (step_s, steps) = between.total("tokenloom_step_seconds", &[]);
    let (plugin_s, calls) = between.total(CALLS, &[]);
    ensure!(
        tokens > 0.0 && step_s > 0.0 && calls > 0.0,
        "the server's metrics show no generated token or no plugin call"
    );
    let share = plugin_s / step_s;
    let per_token = |seconds: f64| micros(seconds / tokens);

    println!("{STREAMS} streams, {tokens} tokens, {steps} steps");
    println!("{:<12} {:<12} {:>8} {:>12} {:>12}", "plugin", "export", "calls", "us a call", "us a token");
    let mut exports = Vec::new();
    for plugin in between.1.values(&format!("{CALLS}_count"), "plugin") {
        for export in between.1.values(&format!("{CALLS}_count"), "export") {
            let (seconds, calls) = between.total(CALLS, &[("plugin", &plugin), ("export", &export)]);
            if calls == 0.0 {
                continue;
            }
            let (call_us, token_us) = (micros(seconds / calls), per_token(seconds));
            println!("{plugin:<12} {export:<12} {calls:>8} {call_us:>12} {token_us:>12}");
            exports.push(json!({"plugin": plugin, "export": export, "calls": calls, "us_per_call": call_us, "us_per_token": token_us}));
        }
    }
    let scheduler = |q: f64| between.quantile("tokenloom_policy_seconds", &[], q).map(micros);
    let (p50, p99) = (scheduler(0.5).context("the scheduler was never called")?, scheduler(0.99));
    let (render_s, renders) = between.total(CALLS, &[("export", "render")]);
    println!("scheduler step: p50 {p50} us, p99 {} us (within buckets of factor 4)", p99.unwrap_or_default());
    println!("template render: {} us", micros(render_s / renders));
    println!("plugins {} us, steps {} us a token", per_token(plugin_s), per_token(step_s));
    let verdict = if share < SHARE_MAX { "kept" } else { "EXCEEDED" };
    println!("plugins take {:.3} % of the step time; the limit of {} % is {verdict}", share * 100.0, SHARE_MAX * 100.0);
    Ok(json!({
        "streams": STREAMS,
        "generated_tokens": tokens,
        "steps": steps,
        "plugin_us_per_token": per_token(plugin_s),
        "step_us_per_token": per_token(step_s),
        "share_percent": (share * 1e5).round() / 1e3,
        "share_percent_max": SHARE_MAX * 100.0,
        "scheduler_step_us": {"p50": p50, "p99": p99},
        "template_render_us": micros(render_s / renders),
        "exports": exports,
    }))
}

/// Microseconds, to a hundredth.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e8).round() / 100.0
}
