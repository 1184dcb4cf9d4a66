//! Automation in Rust: `cargo xtask <command>`. Run without a command for the list.

mod bench;
mod clients;
mod demo;
mod examples;
mod fuzz;
mod kernels;
mod plugins;
mod process;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

const USAGE: &str = "\
cargo xtask demo            build the release binary, fetch SmolLM2 and serve it
cargo xtask test            everything that CI checks: format, lints, tidy, guests, tests, fuzz targets
cargo xtask ci              the same, after installing what it needs on Debian
cargo xtask plugins         rebuild the bundled components into plugins/dist
cargo xtask plugin DIR      build the plugin in a folder: DIR/NAME.wasm and DIR/NAME.toml
cargo xtask plugins --check compare plugins/dist with the sources it was built from
cargo xtask plugins --rebuild
                            build all components in the target folder and run the cases with them
cargo xtask examples [NAME] build and test examples with the built server; NAME as python/output
cargo xtask tidy            repository rules: imports, lengths, environment reads, fresh components
cargo xtask clients [ARGS]  client packages, routers and schemathesis against the built server (pytest's arguments)
cargo xtask kernels         every CUDA kernel compiled for every card, with NVRTC from PyPI, and Hopper's attention and some others run
cargo xtask fuzz [SECONDS]  run every fuzz target (60 seconds each)
cargo xtask sim --policy NAME [--trace FILE] [...]
                            what a scheduling policy does to waiting times, without a model; --help lists the rest
cargo xtask bench [NAME]    speed figures, written to tests/bench/results";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = root();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["demo", rest @ ..] => demo::run(&root, rest),
        ["test"] => test::run(&root),
        ["ci"] => {
            process::Step::new("bash", &root).arg("xtask/ci-tools.sh").check()?;
            test::run(&root)
        }
        ["plugins"] => plugins::run(&root, false),
        ["plugins", "--check"] => plugins::run(&root, true),
        ["plugins", "--rebuild"] => plugins::rebuild_and_test(&root),
        ["plugin", dir] => plugins::build_one(&root, Path::new(dir)),
        ["tidy"] => tidy::run(&root),
        ["clients", rest @ ..] => clients::run(&root, rest),
        ["examples", rest @ ..] => examples::run(&root, rest),
        ["kernels"] => kernels::run(&root),
        ["fuzz"] => fuzz::run(&root, 60),
        ["fuzz", seconds] => fuzz::run(&root, seconds.parse()?),
        ["sim", rest @ ..] => {
            process::cargo(&root).args(["run", "--release", "--quiet", "-p", "sim", "--"]).args(rest).check()
        }
        ["bench", rest @ ..] => bench::run(&root, rest),
        _ => anyhow::bail!("unknown command\n\n{USAGE}"),
    }
}

/// The repository: this crate's folder is one below it.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}
