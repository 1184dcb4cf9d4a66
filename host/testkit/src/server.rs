//! A real server in the test's process, on a free port.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use server::cli::{self, Command};
use server::{Running, Settings};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A server with its own runtime and scratch folder; it ends when it is dropped.
pub struct TestServer {
    // Dropped in this order: the server before its runtime, the folder last.
    running: Option<Running>,
    runtime: Runtime,
    address: SocketAddr,
    report: String,
    folder: TempDir,
}

impl TestServer {
    /// Serves a scripted model with these flags, as on a command line.
    pub fn script(script: &str, flags: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("script.json"), script)?;
        let source = format!("script:{}", folder.path().join("script.json").display());
        let mut words = vec![source.as_str(), "--served-model-name", "m"];
        words.extend(flags);
        Self::in_folder(folder, &words)
    }

    /// Serves what a config file says. `files` are written beside it first.
    pub fn config(config: &str, files: &[(&str, &str)]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text)?;
        }
        let path = folder.path().join("tokenloom.toml");
        std::fs::write(&path, config)?;
        let path = path.display().to_string();
        Self::in_folder(folder, &["--config", &path])
    }

    /// Serves a model file.
    pub fn model(path: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let path = path.display().to_string();
        let mut words = vec![path.as_str(), "--served-model-name", "m"];
        words.extend(flags);
        Self::in_folder(tempfile::tempdir()?, &words)
    }

    fn in_folder(folder: TempDir, words: &[&str]) -> anyhow::Result<Self> {
        let settings = settings(words)?;
        let runtime = server::runtime()?;
        let running = runtime.block_on(server::serve(settings))?;
        let (address, report) = (running.address(), running.report().to_string());
        Ok(Self { running: Some(running), runtime, address, report, folder })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The start-up report.
    pub fn report(&self) -> &str {
        &self.report
    }

    /// A scratch folder that lives as long as the server.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends the server in order.
    pub fn shutdown(mut self) -> anyhow::Result<()> {
        let running = self.running.take().context("already ended")?;
        self.runtime.block_on(running.shutdown())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running.end());
        }
    }
}

/// Settings of `tokenloom serve WORDS --port 0`.
pub fn settings(words: &[&str]) -> anyhow::Result<Settings> {
    let line = ["tokenloom", "serve"].into_iter().chain(words.iter().copied()).chain(["--port", "0"]);
    match cli::parse(line.map(OsString::from).collect()) {
        Ok(Command::Serve(args)) => Settings::gather(&args, None),
        Ok(_) => bail!("not a serve command"),
        Err(message) => bail!("{}", message.text()),
    }
}

/// The root of the checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
