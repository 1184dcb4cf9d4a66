//! What stands beside the figures of a benchmark: commit, machine, flags, date; and the file they are kept in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Instruction sets that decide which kernels run.
const CPU_FLAGS: [&str; 9] =
    ["avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8"];

/// `flags`: what the run was asked for, so that it can be asked again.
pub fn record(name: &str, flags: Value, figures: Value) -> Result<Value> {
    Ok(json!({
        "name": name,
        "date": output("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"])?,
        // Figures of a source archive are worth keeping too.
        "commit": output("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
            .unwrap_or_else(|_| "unknown".to_owned()),
        "hardware": hardware(),
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "rustflags": std::env::var("RUSTFLAGS").unwrap_or_default(),
        "flags": flags,
        "figures": figures,
    }))
}

/// Writes a record to `tests/bench/results`; answers where.
pub fn write(name: &str, record: &Value) -> Result<PathBuf> {
    let text = |key: &str| record[key].as_str().unwrap_or_default().replace(':', "");
    let folder = repository().join("tests/bench/results");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}-{}-{}.json", text("date"), text("commit")));
    fs::write(&path, serde_json::to_string_pretty(record)? + "\n").with_context(|| path.display().to_string())?;
    Ok(path)
}

fn hardware() -> Value {
    // Linux says it here; elsewhere the fields stay empty.
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = info.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(": ")).map_or("", |(_, value)| value)
    };
    let has = |flag: &&&str| field("flags").split_whitespace().any(|found| found == **flag);
    json!({
        "cpu": field("model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu_flags": CPU_FLAGS.iter().filter(has).collect::<Vec<_>>(),
    })
}

fn output(program: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(program).args(words).current_dir(repository()).output();
    let output = output.with_context(|| format!("cannot start `{program}`"))?;
    ensure!(output.status.success(), "`{program}` failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
