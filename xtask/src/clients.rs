//! `cargo xtask clients`: the packages that people call the server with, against the scripted model and (where it was
//! fetched) the demo's, and the whole HTTP surface against its own OpenAPI document. Packages live in the target folder and are installed again when the lists
//! of `tests/clients` change.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::demo::{self, target_dir};
use crate::process::{Step, has};

/// The binary that the host's tests have built; another selection of packages would build its libraries anew.
const BINARY: &str = "debug/tokenloom";

pub fn run(root: &Path, args: &[&str]) -> Result<()> {
    let target = target_dir(root)?;
    let binary = target.join(BINARY);
    ensure!(binary.exists(), "{} is missing; build it with `cargo build --workspace`", binary.display());
    ensure!(has("node", &[]) && has("npm", &[]), "node and npm are missing: `apt-get install nodejs npm`");
    let cache = target.join("clients");
    let tests = root.join("tests/clients");
    let commands = python(&cache, &tests)?;
    let node = node(&cache, &tests)?;
    let model = demo::model_file(root)?;
    Step::new(commands.join("python"), &tests)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"])
        // Before it has read the options' definitions, pytest takes a path that stands alone for a folder of tests.
        .args([("binary", &binary), ("model", &model), ("node", &node), ("bin", &commands)].map(option))
        .args(args)
        // Litellm asks the network for prices at import otherwise.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .check()
}

fn option((name, path): (&str, &PathBuf)) -> String {
    format!("--{name}={}", path.display())
}

/// A virtual environment with the listed packages; answers the folder of its commands.
fn python(cache: &Path, tests: &Path) -> Result<PathBuf> {
    let folder = cache.join("python");
    let commands = folder.join("bin");
    let list = tests.join("requirements.txt");
    if is_stale(&list, &folder)? {
        Step::new("python3", tests).args(["-m", "venv", "--clear"]).arg(&folder).check()?;
        Step::new(commands.join("pip"), tests).args(["install", "--quiet", "--requirement"]).arg(&list).check()?;
        mark(&list, &folder)?;
    }
    Ok(commands)
}

fn node(cache: &Path, tests: &Path) -> Result<PathBuf> {
    let folder = cache.join("node");
    let list = tests.join("node/package.json");
    if is_stale(&list, &folder)? {
        fs::create_dir_all(&folder)?;
        fs::copy(&list, folder.join("package.json"))?;
        Step::new("npm", &folder).args(["install", "--silent", "--no-audit", "--no-fund"]).check()?;
        mark(&list, &folder)?;
    }
    Ok(folder)
}

/// Whether the folder was not filled from this very list.
fn is_stale(list: &Path, folder: &Path) -> Result<bool> {
    let wanted = fs::read_to_string(list).with_context(|| list.display().to_string())?;
    Ok(fs::read_to_string(folder.join("installed")).ok() != Some(wanted))
}

fn mark(list: &Path, folder: &Path) -> Result<()> {
    fs::copy(list, folder.join("installed"))?;
    Ok(())
}
