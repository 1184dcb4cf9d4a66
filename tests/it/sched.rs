//! Scheduling as clients see it: what can never fit, and whose prefixes are shared.

use serde_json::{Value, json};
use testkit::{Answer, Event, TestServer};

use crate::script;

fn complete(server: &TestServer, headers: &[(&str, &str)], body: Value) -> anyhow::Result<Answer> {
    let mut request = json!({"model": "m", "max_tokens": 1});
    if let (Value::Object(request), Value::Object(extra)) = (&mut request, body) {
        request.extend(extra);
    }
    server.post_with("/v1/completions", headers, &request.to_string())
}

fn metric(server: &TestServer, name: &str) -> anyhow::Result<f64> {
    let text = server.get("/metrics")?.text;
    let values = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    Ok(values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}

/// The pool is smaller than the context: what exceeds it is refused with both numbers, what is behind it is served.
#[test]
fn sched_02_too_big_request_is_refused() -> anyhow::Result<()> {
    let script = json!({"context": 8192, "responses": [{"tokens": ["x"]}]}).to_string();
    let flags = ["--max-model-len", "8192", "--kv-cache-tokens", "4032", "--max-num-seqs", "4"];
    let server = TestServer::script(&script, &flags)?;
    let ask = |prompt: usize, max_tokens: u32| {
        let prompt = "a".repeat(prompt);
        complete(&server, &[], json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true}))
    };
    let refused = ask(5000, 1)?;
    assert_eq!((refused.status, refused.error_code().as_str()), (400, "context_length_exceeded"), "{}", refused.text);
    for number in ["5001", "4032"] {
        assert!(refused.error_message().contains(number), "{}", refused.text);
    }
    assert_eq!(ask(100, 1)?.status, 200);
    let full = ask(3900, 4000)?;
    let (choice, usage) = (&full.json()["choices"][0], &full.json()["usage"]);
    assert_eq!((full.status, &choice["finish_reason"]), (200, &json!("length")), "{}", full.text);
    assert_eq!(usage["completion_tokens"], 4032 - 3900 + 1, "the last token needs no page");
    for (prompt, status) in [(4032 - 64, 200), (4031, 200), (4032, 200), (4033, 400)] {
        assert_eq!(ask(prompt, 1)?.status, status, "prompt of {prompt}");
    }
    assert_eq!(metric(&server, "vllm:num_requests_waiting")?, 0.0);
    assert_eq!(metric(&server, "vllm:kv_cache_usage_perc")?, 0.0);
    Ok(())
}

/// A request that lost its seat is called off: its client is told, and who has the seat goes on.
#[test]
fn sched_04_cancel_while_preempted() -> anyhow::Result<()> {
    let response = |prompt: &str, token: &str| json!({"match": prompt, "tokens": [token], "delay_ms": 5});
    let script = json!({"responses": [response("slow", "a"), response("urgent", "b")]}).to_string();
    let server = TestServer::script(&script, &["--scheduler", "priority", "--max-num-seqs", "1"])?;
    let open = |name: &str, priority: u32, max_tokens: u32| {
        let body = json!({"model": "m", "prompt": name, "max_tokens": max_tokens, "ignore_eos": true, "stream": true, "priority": priority});
        server.open_stream_with("/v1/completions", &[("x-request-id", name)], &body)
    };
    let mut slow = open("slow", 5, 2000)?;
    slow.next().transpose()?;
    let mut urgent = open("urgent", 0, 100)?;
    urgent.next().transpose()?;
    assert_eq!(metric(&server, "vllm:num_preemptions_total")?, 1.0);
    let aborted = server.post("/abort", &json!({"request_id": "slow"}))?;
    assert_eq!((aborted.status, &aborted.json()["aborted"]), (200, &json!(1)), "{}", aborted.text);
    let events: Vec<_> = slow.collect::<anyhow::Result<_>>()?;
    let end = events.last().map(|event| event.data()["error"]["code"].clone());
    assert_eq!(end, Some(json!("request_aborted")), "{events:?}");
    let events: Vec<_> = urgent.collect::<anyhow::Result<_>>()?;
    let tokens = events.iter().filter(|event| event.data()["choices"][0]["text"] == "b").count();
    assert!(tokens >= 90 && events.last() == Some(&Event::Done), "{events:?}");
    assert_eq!(metric(&server, "vllm:num_requests_waiting")?, 0.0);
    assert_eq!(metric(&server, "vllm:kv_cache_usage_perc")?, 0.0);
    Ok(())
}

/// A prefix is shared within a tenant and a salt; an empty salt is refused, and a salt opens no other tenant's prefixes.
#[test]
fn sched_09_cache_salt_isolates() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"text": "x"})), &["--max-model-len", "4096"])?;
    let prompt = "word ".repeat(400);
    for (tenant, salt, cached) in [
        ("a", json!("s1"), 0),
        ("a", json!("s2"), 0),
        ("a", json!("s1"), 1984),
        ("a", json!(null), 0),
        ("b", json!("s1"), 0),
        ("b", json!(null), 0),
        ("b", json!(null), 1984),
    ] {
        let body = json!({"prompt": prompt, "cache_salt": salt});
        let answer = complete(&server, &[("x-tenant", tenant)], body)?;
        let found = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(*found, cached, "tenant {tenant}, salt {salt}: {}", answer.text);
    }
    let (asked, hit) =
        (metric(&server, "vllm:prefix_cache_queries_total")?, metric(&server, "vllm:prefix_cache_hits_total")?);
    assert_eq!((asked, hit), (7.0 * 2000.0, 2.0 * 1984.0));
    let empty = complete(&server, &[], json!({"prompt": prompt, "cache_salt": ""}))?;
    assert_eq!((empty.status, empty.error_message().contains("cache_salt")), (400, true), "{}", empty.text);
    Ok(())
}
