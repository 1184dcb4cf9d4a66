//! Config files, the start-up report, an orderly end.

use serde_json::json;
use testkit::TestServer;

use crate::{message, script};

/// The report sets what was asked beside what is effective, and says what was lowered.
#[test]
fn sched_12_no_silent_clamp() -> anyhow::Result<()> {
    let server = TestServer::script(
        &json!({"context": 512, "responses": [{"text": "x"}]}).to_string(),
        &["--max-model-len", "4096", "--max-num-seqs", "3", "--gpu-memory-utilization", "0.5"],
    )?;
    let report = server.report();
    for line in [
        "max_model_len            asked 4096         effective 512",
        "max_num_seqs             asked 3            effective 3",
        "kv_cache_tokens          asked default      effective 2048",
        "context 4096 lowered to the script's 512",
        "gpu_memory_utilization has no effect on the CPU",
        "capabilities: asked none; granted none; effective none",
        "sampling: temperature 1, top_p 1",
        "listening on http://127.0.0.1:",
    ] {
        assert!(report.contains(line), "{line}\n{report}");
    }
    Ok(())
}

#[test]
fn several_engines_and_models() -> anyhow::Result<()> {
    let config = r#"
        [engine.a]
        source = "script:a.json"
        [engine.b]
        source = "script:b.json"
        max_num_seqs = 2
        [[model]]
        name = "one"
        engine = "a"
        [[model]]
        name = "two"
        engine = "b"
        [model.sampling]
        temperature = 0.5
    "#;
    let files = ["a", "b"].map(|name| (format!("{name}.json"), script(json!({"text": name}))));
    let files = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect::<Vec<_>>();
    let server = TestServer::config(config, &files)?;
    assert_eq!(message(&server, json!({"model": "one"}))?["message"]["content"], "a");
    assert_eq!(message(&server, json!({"model": "two"}))?["message"]["content"], "b");
    assert!(server.report().contains("sampling: temperature 0.5"), "{}", server.report());
    let metrics = server.get("/metrics")?.text;
    for engine in ["a", "b"] {
        let sample = format!("model_name=\"{engine}\"");
        assert!(metrics.contains(&sample), "{sample}\n{metrics}");
    }
    let types = metrics.lines().filter(|line| line.starts_with("# TYPE vllm:num_requests_running ")).count();
    assert_eq!(types, 1, "one TYPE line per metric");
    Ok(())
}

#[test]
fn mistakes_end_the_start() {
    for (config, needle) in [
        ("[engine.a]\nsource = \"script:s.json\"\nfoo = 1", "unknown field `foo`"),
        ("[engine.a]\nsource = \"script:s.json\"\n[[model]]\nname = \"m\"\noutput = [\"nope\"]", "`nope`"),
        ("[engine.a]\nsource = \"script:s.json\"\n[plugin.jinja]\nsha256 = \"00\"", "is pinned to sha256 00"),
        ("[engine.a]\nsource = \"script:bad.json\"", "unknown field `nothing`"),
    ] {
        let files = [("s.json", r#"{"responses":[{"text":"x"}]}"#), ("bad.json", r#"{"nothing":1}"#)];
        let error = TestServer::config(config, &files).map(|_| ()).map_err(|error| format!("{error:#}"));
        assert!(error.as_ref().is_err_and(|error| error.contains(needle)), "{needle}: {error:?}");
    }
}

#[test]
fn an_idle_server_ends_at_once() -> anyhow::Result<()> {
    let server = TestServer::script(&script(json!({"text": "x"})), &[])?;
    let begin = std::time::Instant::now();
    server.shutdown()?;
    assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
    Ok(())
}
