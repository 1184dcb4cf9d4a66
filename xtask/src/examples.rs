//! The examples, as their readers run them: `tokenloom plugin build` and `plugin test` on each folder, and the Rust ones'
//! own tests.

use std::path::Path;

use anyhow::Result;

use crate::process::{Step, cargo};

/// What `cargo xtask test` runs: compiled ones take seconds each, and one stands for JavaScript, one for Python; the
/// others are run by name. All of them are written out by the tests of `kit`.
const EXAMPLES: [&str; 9] = [
    "rust/output",
    "rust/redaction",
    "rust/scheduler",
    "rust/template",
    "c/output",
    "c/scheduler",
    "c/template",
    "javascript/template",
    "python/output",
];

/// The version that the examples were written with.
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";

/// Without words all of [`EXAMPLES`], else those that are named, as `python/output`.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let target = crate::demo::target_dir(root)?;
    // The binary that the host's tests have just built.
    let tokenloom = target.join("debug/tokenloom");
    let python = target.join("examples-venv");
    let chosen = if words.is_empty() { &EXAMPLES[..] } else { words };
    if chosen.iter().any(|example| example.starts_with("python/")) && !python.join("bin/componentize-py").is_file() {
        Step::new("python3", root).args(["-m", "venv"]).arg(&python).check()?;
        let pip = Step::new(python.join("bin/pip"), root);
        pip.args(["install", "--quiet", "--disable-pip-version-check", COMPONENTIZE_PY]).check()?;
    }
    let path = format!("{}:{}", python.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    // One target folder for all, which has the standard library already.
    let shared = crate::demo::target_dir(&root.join("plugins"))?;
    for example in chosen {
        let folder = root.join("examples").join(example);
        let build = Step::new(&tokenloom, root).env("CARGO_TARGET_DIR", &shared).env("PATH", &path);
        build.args(["plugin", "build"]).arg(&folder).check()?;
        Step::new(&tokenloom, root).args(["plugin", "test"]).arg(&folder).check()?;
        if example.starts_with("rust/") {
            // The native build that the component is measured beside.
            let bench = Step::new(&tokenloom, root).env("CARGO_TARGET_DIR", &shared);
            bench.args(["plugin", "bench"]).arg(&folder).check()?;
            cargo(&folder).env("CARGO_TARGET_DIR", &shared).args(["test", "--quiet"]).check()?;
        }
    }
    Ok(())
}
