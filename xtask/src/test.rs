//! `cargo xtask test`: what CI checks, cheap things first. The budget is 60 minutes on two cores with cold caches.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::process::{Step, cargo, has};
use crate::{clients, demo, examples, fuzz, kernels, plugins, tidy};

/// Seconds per fuzz target.
const FUZZ_SECONDS: u32 = 60;

pub fn run(root: &Path) -> Result<()> {
    let guests = root.join("plugins");
    let mut stage = Stages::default();
    stage.run("format", || {
        cargo(root).args(["fmt", "--all", "--check"]).check()?;
        cargo(&guests).args(["fmt", "--all", "--check"]).check()
    })?;
    stage.run("tidy", || tidy::run(root))?;
    stage.run("lints", || {
        cargo(root).args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]).check()
    })?;
    stage.run("plugins, natively", || tests(&guests))?;
    // Some tests compare with other implementations on a real model, where it is present.
    stage.run("model", || demo::fetch_model(root).map(drop))?;
    stage.run("host", || tests(root))?;
    stage.run("plugins, rebuilt", || plugins::rebuild_and_test(root))?;
    stage.run("examples", || with_tools(&["venv", "node", "npm", "clang-19"], || examples::run(root, &[])))?;
    stage.run("clients", || with_tools(&["venv", "node", "npm"], || clients::run(root, &[])))?;
    stage.run("kernels", || with_tools(&["venv"], || kernels::run(root)))?;
    stage.run("fuzz", || fuzz::run(root, FUZZ_SECONDS))?;
    stage.report();
    Ok(())
}

/// CI has every tool; a contributor's machine need not, and is told what was left out.
fn with_tools(tools: &[&str], work: impl FnOnce() -> Result<()>) -> Result<()> {
    let there = |tool: &&str| match *tool {
        // Debian's Python comes without the part that makes virtual environments.
        "venv" => has("python3", &["-c", "import ensurepip"]),
        other => has(other, &[]),
    };
    match tools.iter().find(|tool| !there(tool)) {
        Some(tool) if std::env::var_os("CI").is_none() => {
            println!("not run: {tool} is missing (on Debian: `bash xtask/ci-tools.sh`)");
            Ok(())
        }
        _ => work(),
    }
}

/// nextest where it is installed, cargo's own runner elsewhere.
fn tests(dir: &Path) -> Result<()> {
    if has("cargo", &["nextest"]) {
        cargo(dir).args(["nextest", "run", "--workspace", "--no-fail-fast"]).check()
    } else {
        Step::new("cargo", dir).args(["test", "--workspace", "--quiet"]).check()
    }
}

#[derive(Default)]
struct Stages(Vec<(&'static str, u64)>);

impl Stages {
    fn run(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let started = Instant::now();
        work()?;
        self.0.push((name, started.elapsed().as_secs()));
        Ok(())
    }

    fn report(&self) {
        println!("\n== done");
        for (name, seconds) in &self.0 {
            println!("{name:<20} {seconds:>5} s");
        }
    }
}
