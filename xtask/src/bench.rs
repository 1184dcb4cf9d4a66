//! `cargo xtask bench`: the benchmarks in release, on the demo's model.

use std::path::Path;

use anyhow::Result;

use crate::process::cargo;

/// What these measure is no model. One of them first means that no other follows.
const WITHOUT_MODEL: [&str; 5] = ["stage-speed", "platform", "hostile", "swap", "soak"];

/// Without `--model` among the words, SmolLM2 is fetched and used, except where no model is needed.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let run = cargo(root).args(["run", "--release", "-p", "bench", "--"]).args(words);
    if words.contains(&"--model") || words.first().is_some_and(|name| WITHOUT_MODEL.contains(name)) {
        return run.check();
    }
    run.arg("--model").arg(crate::demo::fetch_model(root)?).check()
}
