//! The examples, as their readers run them: `tokenloom plugin build` and `plugin test` on each folder, and the Rust ones'
//! own tests.

use std::path::Path;

use anyhow::Result;

use crate::process::{Step, cargo};

/// Compiled ones take seconds each. Of the interpreted ones, which take a minute, one stands for its language; all of
/// them are written out by the tests of `kit`.
const EXAMPLES: [&str; 9] = [
    "rust/output",
    "rust/redaction",
    "rust/scheduler",
    "rust/template",
    "c/output",
    "c/scheduler",
    "c/template",
    "python/output",
    "javascript/template",
];

/// The version that the examples were written with.
const COMPONENTIZE_PY: &str = "componentize-py==0.25.1";

pub fn run(root: &Path) -> Result<()> {
    let target = crate::demo::target_dir(root)?;
    // The binary that the host's tests have just built.
    let tokenloom = target.join("debug/tokenloom");
    let python = target.join("examples-venv");
    if !python.join("bin/componentize-py").is_file() {
        Step::new("python3", root).args(["-m", "venv"]).arg(&python).check()?;
        let pip = Step::new(python.join("bin/pip"), root);
        pip.args(["install", "--quiet", "--disable-pip-version-check", COMPONENTIZE_PY]).check()?;
    }
    let path = format!("{}:{}", python.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    // One target folder for all, which has the standard library already.
    let shared = crate::demo::target_dir(&root.join("plugins"))?;
    for example in EXAMPLES {
        let folder = root.join("examples").join(example);
        let build = Step::new(&tokenloom, root).env("CARGO_TARGET_DIR", &shared).env("PATH", &path);
        build.args(["plugin", "build"]).arg(&folder).check()?;
        Step::new(&tokenloom, root).args(["plugin", "test"]).arg(&folder).check()?;
        if example.starts_with("rust/") {
            cargo(&folder).env("CARGO_TARGET_DIR", &shared).args(["test", "--quiet"]).check()?;
        }
    }
    Ok(())
}
