//! `cargo xtask fuzz`: libFuzzer over everything that reads foreign bytes, on stable Rust.

use std::path::Path;

use anyhow::Result;

use crate::process::cargo;

/// Each is a binary of `tests/fuzz`.
const TARGETS: [&str; 5] = ["request", "think", "hermes", "qwen3_coder", "gguf"];

/// The flags that cargo-fuzz would pass, without a sanitizer: the crates under test hold next to no unsafe code.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

pub fn run(root: &Path, seconds: u32) -> Result<()> {
    let dir = root.join("tests/fuzz");
    // A target of its own: the flags would otherwise rebuild every dependency of the host at each change of mind.
    let build = |cargo: crate::process::Step| cargo.env("RUSTFLAGS", COVERAGE).env("RUSTC_BOOTSTRAP", "1");
    build(cargo(&dir)).args(["build", "--release", "--quiet"]).check()?;
    for target in TARGETS {
        let corpus = dir.join("corpus").join(target);
        std::fs::create_dir_all(&corpus)?;
        let scratch = tempdir(&dir, target)?;
        build(cargo(&dir))
            .args(["run", "--release", "--quiet", "--bin", target, "--"])
            .arg(&scratch)
            .arg(&corpus)
            .args([
                &format!("-max_total_time={seconds}"),
                "-timeout=5",
                "-rss_limit_mb=2048",
                "-max_len=8192",
                "-verbosity=0",
            ])
            .args(["-print_final_stats=1"])
            .check()?;
    }
    println!("fuzz: {} passed, 0 failed", TARGETS.len());
    Ok(())
}

/// New inputs go under the build folder, so that a run leaves the committed corpus as it was.
fn tempdir(dir: &Path, target: &str) -> Result<std::path::PathBuf> {
    let scratch = crate::demo::target_dir(dir)?.join("fuzz-corpus").join(target);
    std::fs::create_dir_all(&scratch)?;
    Ok(scratch)
}
