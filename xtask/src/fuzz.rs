//! `cargo xtask fuzz`: libFuzzer over everything that reads foreign bytes, on stable Rust.
//!
//! libFuzzer comes as C++ source with its crate, so this needs a C++ compiler; everything else needs only C.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{Step, cargo, has};

/// Each is a binary of `tests/fuzz`.
const TARGETS: [&str; 4] = ["request", "stages", "gguf", "hf"];

/// What makes LLVM report covered edges and compared values to libFuzzer. No sanitizer: it would need a nightly
/// compiler, and the code under test holds next to no unsafe code.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// An input of more bytes finds nothing that a shorter one would not, more slowly.
const INPUT_BYTES_MAX: u32 = 4096;

/// One input that takes longer than this is a finding.
const INPUT_SECONDS_MAX: u32 = 5;

/// A process that grows beyond this is a finding: every reader promises limits far below.
const MEMORY_MIB_MAX: u32 = 2048;

pub fn run(root: &Path, seconds: u32) -> Result<()> {
    let compilers = std::env::var("CXX").into_iter().chain(["c++".into(), "g++".into(), "clang++".into()]);
    if !compilers.into_iter().any(|compiler| has(&compiler, &[])) {
        // CI has one; a contributor's machine need not.
        ensure!(std::env::var_os("CI").is_none(), "libFuzzer needs a C++ compiler: none of $CXX, c++, g++, clang++");
        println!("not fuzzed: libFuzzer needs a C++ compiler (for example Debian's g++)");
        return Ok(());
    }
    let dir = root.join("tests/fuzz");
    let host = host_triple(root)?;
    // With a target named, the flags reach no build script and no macro crate: those could not link with them.
    let build = cargo(&dir).env("RUSTFLAGS", COVERAGE).args(["build", "--release", "--quiet", "--target", &host]);
    build.check().context("the fuzz targets did not build")?;
    let built = crate::demo::target_dir(&dir)?;
    let job = Job { dir, binaries: built.join(&host).join("release"), scratch: built.join("fuzz"), seconds };

    let waiting = Mutex::new(TARGETS.iter());
    let reports = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("no worker panics while it holds this").next();
    let work = || {
        while let Some(target) = next() {
            println!("fuzz: {target} for {seconds} s");
            let report = job.run(target);
            reports.lock().expect("no worker panics while it holds this").push((*target, report));
        }
    };
    let workers = std::thread::available_parallelism()?.get().min(TARGETS.len());
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    summary(reports.into_inner().expect("no worker panicked"))
}

fn summary(mut reports: Vec<(&str, Result<String>)>) -> Result<()> {
    reports.sort_by_key(|(target, _)| TARGETS.iter().position(|known| known == target));
    for (target, report) in &reports {
        match report {
            Ok(line) => println!("fuzz: {target:<12} ok      {line}"),
            Err(error) => println!("fuzz: {target:<12} FAILED  {error:#}"),
        }
    }
    let passed = reports.iter().filter(|(_, report)| report.is_ok()).count();
    let failed = TARGETS.len() - passed;
    println!("fuzz: {passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} fuzz targets failed");
    }
    Ok(())
}

fn host_triple(root: &Path) -> Result<String> {
    let version = Step::new("rustc", root).args(["-vV"]).output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

struct Job {
    dir: PathBuf,
    binaries: PathBuf,
    /// New inputs and findings go below it, so that a run leaves the committed corpus as it was.
    scratch: PathBuf,
    seconds: u32,
}

impl Job {
    /// The report's line; an error says what libFuzzer said and where it put the input.
    fn run(&self, target: &str) -> Result<String> {
        let seeds = self.dir.join("corpus").join(target);
        let grown = self.scratch.join("corpus").join(target);
        let findings = self.scratch.join("findings").join(target);
        fs::create_dir_all(&grown)?;
        fs::create_dir_all(&findings)?;
        let seed_count = fs::read_dir(&seeds).with_context(|| format!("{} has no seeds", seeds.display()))?.count();
        let output = Step::new(self.binaries.join(target), &self.dir)
            .args([&grown, &seeds])
            .arg(format!("-artifact_prefix={}/", findings.display()))
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .args(["-print_final_stats=1"])
            .into_command()
            .output()
            .with_context(|| format!("cannot start the target `{target}`"))?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("{}; inputs are kept in {}\n{}", output.status, findings.display(), tail(&log));
        }
        let first = coverage(&log, "INITED").with_context(|| format!("libFuzzer did not start:\n{}", tail(&log)))?;
        let last = coverage(&log, "DONE").with_context(|| format!("libFuzzer did not end:\n{}", tail(&log)))?;
        let runs =
            log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")).unwrap_or_default();
        Ok(format!(
            "{first} edges after {seed_count} seeds and earlier runs, {last} at the end, {} inputs",
            runs.trim()
        ))
    }
}

/// The edges of the status line with this mark (`#123 DONE   cov: 456 ft: …`). Without a count the code was built
/// without coverage, and the fuzzer is blind.
fn coverage(log: &str, mark: &str) -> Option<u32> {
    let line = log.lines().find(|line| line.starts_with('#') && line.contains(mark))?;
    line.split_once("cov: ")?.1.split_whitespace().next()?.parse().ok()
}

/// The end of a log without its lines of progress: the panic, its stack and the input.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with('#')).collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_read_from_its_line() {
        let log =
            "#2\tINITED cov: 30 ft: 31 corp: 1/1b\n#9\tNEW    cov: 41 ft: 50\n#20\tDONE   cov: 52 ft: 60 corp: 3/9b\n";
        assert_eq!((coverage(log, "INITED"), coverage(log, "DONE")), (Some(30), Some(52)));
        assert_eq!(coverage("#2\tINITED exec/s: 0 rss: 30Mb\n", "INITED"), None);
    }
}
