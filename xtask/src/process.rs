//! Child processes that say what they were when they fail.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

pub struct Step(Command);

/// `cargo` in a folder, as the user would call it there.
pub fn cargo(dir: &Path) -> Step {
    Step::new("cargo", dir)
}

impl Step {
    pub fn new(program: impl AsRef<OsStr>, dir: &Path) -> Self {
        let mut command = Command::new(program);
        command.current_dir(dir);
        Self(command)
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.arg(arg);
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.0.args(args);
        self
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(key, value);
        self
    }

    /// Runs it with our own output; a status other than 0 is an error.
    pub fn check(mut self) -> Result<()> {
        println!("$ {}", self.text());
        let status = self.0.status().with_context(|| format!("cannot start `{}`", self.text()))?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.text());
        }
        Ok(())
    }

    pub fn output(mut self) -> Result<String> {
        let output =
            self.0.stderr(Stdio::inherit()).output().with_context(|| format!("cannot start `{}`", self.text()))?;
        if !output.status.success() {
            bail!("`{}` failed: {}", self.text(), output.status);
        }
        String::from_utf8(output.stdout).context("output is not UTF-8")
    }

    pub fn into_command(self) -> Command {
        self.0
    }

    fn text(&self) -> String {
        let words = std::iter::once(self.0.get_program()).chain(self.0.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// Whether a program answers to `--version`.
pub fn has(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
