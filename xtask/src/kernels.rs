//! `cargo xtask kernels`: every CUDA kernel compiled for every supported card, and some of them run, on a machine without one.
//!
//! NVRTC comes as wheels into a folder of its own under `target`. Two releases are needed: the last one that compiles for
//! Volta, and the current one for the rest. What was compiled is kept by content, so a second run costs seconds.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{Step, cargo};

struct Release {
    wheel: &'static str,
    /// Where its libraries lie among the installed packages.
    folder: &'static str,
    machines: &'static [&'static str],
}

const RELEASES: [Release; 2] = [
    Release { wheel: "nvidia-cuda-nvrtc-cu12==12.9.86", folder: "nvidia/cuda_nvrtc/lib", machines: &["70"] },
    Release {
        wheel: "nvidia-cuda-nvrtc==13.0.88",
        folder: "nvidia/cu13/lib",
        machines: &["75", "80", "86", "89", "90", "100", "120"],
    },
];

/// What `tests/gpu/emulate` computes with.
const NUMPY: &str = "numpy==2.4.6";

pub fn run(root: &Path) -> Result<()> {
    let venv = root.join("target/nvrtc");
    let packages = install(root, &venv)?;
    for release in &RELEASES {
        let folder = packages.join(release.folder);
        cargo(root)
            .args(["run", "--quiet", "-p", "gpu-check", "--", "targets"])
            .args(release.machines)
            .env("LD_LIBRARY_PATH", folder)
            .check()?;
    }
    let newest = packages.join(RELEASES[RELEASES.len() - 1].folder);
    Step::new(venv.join("bin/python"), root).arg("tests/gpu/emulate/check.py").env("LD_LIBRARY_PATH", newest).check()
}

/// The folder of installed packages.
fn install(root: &Path, venv: &Path) -> Result<PathBuf> {
    let pip = venv.join("bin/pip");
    if !pip.exists() {
        Step::new("python3", root).args(["-m", "venv"]).arg(venv).check()?;
    }
    Step::new(&pip, root)
        .args(["install", "--quiet"])
        .args(RELEASES.map(|release| release.wheel))
        .arg(NUMPY)
        .check()?;
    let lib = venv.join("lib");
    let entries = std::fs::read_dir(&lib).with_context(|| lib.display().to_string())?;
    let python = entries.filter_map(|entry| entry.ok()).map(|entry| entry.path().join("site-packages"));
    python.into_iter().find(|path| path.is_dir()).with_context(|| format!("no site-packages under {}", lib.display()))
}
