use std::ffi::OsString;

use super::*;
use crate::cli;

/// Settings of a command line; `{}` stands for a folder that holds `a.json`, and `tokenloom.toml` with `config`.
fn gather(line: &str, config: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), r#"{"responses":[]}"#).unwrap();
    std::fs::write(folder.path().join("tokenloom.toml"), config).unwrap();
    let line = format!("tokenloom serve {}", line.replace("{}", &folder.path().display().to_string()));
    match cli::parse(line.split_whitespace().map(OsString::from).collect()) {
        Ok(cli::Command::Serve(args)) => Settings::gather(&args, None).map_err(|e| format!("{e:#}")),
        Ok(other) => panic!("{other:?}"),
        Err(message) => panic!("{}", message.text()),
    }
}

const TWO: &str = r#"
    [engine.a]
    source = "script:a.json"
    max_num_seqs = 3
    [[model]]
    name = "x"
    engine = "a"
    output = ["qwen3", "hermes"]
    [[model]]
    name = "y"
    engine = "a"
"#;

#[test]
fn a_model_alone_is_enough() {
    let settings = gather("script:{}/a.json", "").unwrap();
    assert_eq!((settings.models[0].name.as_str(), settings.engines[0].name.as_str()), ("a", "main"));
    assert_eq!(settings.server.address.to_string(), "127.0.0.1:8000");
    assert!(settings.warnings.is_empty(), "{:?}", settings.warnings);
}

#[test]
fn flags_win_over_the_file() {
    let settings = gather("--config {}/tokenloom.toml --max-num-seqs 7 --port 0", TWO).unwrap();
    assert_eq!(settings.engines[0].max_num_seqs, Some(7));
    assert_eq!(settings.server.address.port(), 0);
    let chains = settings.models.iter().map(|model| model.output.join(" ")).collect::<Vec<_>>();
    assert_eq!(chains, ["qwen3 hermes", ""]);
}

#[test]
fn parsers_make_a_chain() {
    let chain = |flags: &str| gather(&format!("script:{{}}/a.json {flags}"), "").unwrap().models[0].output.join(" ");
    assert_eq!(chain("--reasoning-parser qwen3 --tool-call-parser hermes"), "qwen3 hermes");
    assert_eq!(chain("--reasoning-parser glm45 --tool-call-parser glm45"), "glm45");
    assert_eq!(chain("--output-stage a --output-stage b"), "a b");
}

#[test]
fn several_names_share_one_engine() {
    let settings = gather("script:{}/a.json --served-model-name one two", "").unwrap();
    let names = settings.models.iter().map(|model| (model.name.as_str(), model.engine)).collect::<Vec<_>>();
    assert_eq!(names, [("one", 0), ("two", 0)]);
}

#[test]
fn what_has_no_effect_is_said() {
    for (flag, key) in
        [("--batch-invariant", "batch_invariant"), ("--mamba-ssm-cache-dtype bfloat16", "mamba_ssm_cache_dtype")]
    {
        let settings = gather(&format!("script:{{}}/a.json {flag}"), "").unwrap();
        assert_eq!(settings.warnings.len(), 1, "{:?}", settings.warnings);
        assert!(settings.warnings[0].contains(&format!("{key} has no effect on the CPU")));
    }
    let config =
        format!("{TWO}\n[plugin.nobody]\ngrant = [\"log\"]\n[plugin.hermes]\n[engine.b]\nsource = \"script:a.json\"");
    let settings = gather("--config {}/tokenloom.toml", &config).unwrap();
    assert_eq!(
        settings.warnings,
        [
            "engine `b` is loaded, but no [[model]] uses it",
            "[plugin.nobody] has no effect: no engine or model uses a plugin of that name"
        ]
    );
}

#[test]
fn mistakes_say_where_they_are() {
    for (line, config, needle) in [
        ("", "", "no model to serve"),
        ("no.gguf", "", "engine `main`: model `no.gguf` does not exist"),
        ("script:{}/a.json --device cuda:0,1", "", "an engine runs on one card"),
        ("script:{}/a.json --device tpu", "", "device `tpu` is not one of cpu"),
        ("script:{}/a.json --kv-cache-dtype fp8", "", "only `auto` is known"),
        ("script:{}/a.json --quantization fp8", "", "`fp8` is for `--device cuda`"),
        ("script:{}/a.json --device cuda --quantization int4", "", "`int4` is not one of fp8"),
        ("script:{}/a.json --mamba-ssm-cache-dtype fp8", "", "`fp8` is not one of auto, float32, bfloat16"),
        ("script:{}/a.json --quantization q4_k_m", "", "`q4_k_m` is not one of fp8, or, of random weights"),
        ("script:{}/a.json --load-format dummy", "", "`dummy` needs a folder with a config.json"),
        ("script:{}/a.json --reasoning-field x", "", "reasoning_field `x` is not one of"),
        ("--config {}/tokenloom.toml --chat-template t", TWO, "model flags are not clear with 2"),
        ("--config {}/tokenloom.toml", "[engine.a]\nmax_num_seqs = 1", "engine `a`: `source` is missing"),
        (
            "--config {}/tokenloom.toml",
            "[engine.a]\nsource = \"script:a.json\"\nthreads = 0",
            "threads is 0; it must be",
        ),
        (
            "--config {}/tokenloom.toml",
            "[engine.a]\nsource = \"script:a.json\"\n[[model]]\nname = \"m\"\nengine = \"b\"",
            "model `m`: engine `b` is not configured; there are `a`",
        ),
    ] {
        let error = gather(line, config).map(|_| ()).unwrap_err();
        assert!(error.contains(needle), "{line}: {error}");
    }
}
