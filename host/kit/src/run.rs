//! Calls of compilers, whose own words are the error.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::KitError;

/// A compiler's complaint is kept to its end, where the summary is.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

pub struct Tool(Command);

impl Tool {
    pub fn new(program: impl AsRef<OsStr>, folder: &Path) -> Self {
        let mut command = Command::new(program);
        command.current_dir(folder).stdin(Stdio::null());
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

    /// Runs it and gives its standard output; the error holds both outputs' end.
    pub fn run(mut self) -> Result<String, KitError> {
        let words = std::iter::once(self.0.get_program()).chain(self.0.get_args());
        let command = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let folder = self.0.get_current_dir().unwrap_or(Path::new(".")).to_path_buf();
        let output =
            self.0.output().map_err(|e| KitError::ToolMissing { tool: command.clone(), fix: e.to_string() })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let all = text(&output.stdout) + &text(&output.stderr);
        let from = all.ceil_char_boundary(all.len().saturating_sub(OUTPUT_BYTES_MAX));
        let status = output.status.to_string();
        Err(KitError::ToolFailed { command, folder, status, output: all[from..].trim().to_owned() })
    }
}

/// Whether a program answers.
pub fn has(program: impl AsRef<OsStr>, arg: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(arg).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
