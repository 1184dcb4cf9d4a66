//! `cargo xtask tidy`: the repository's rules, each checked by reading the tree once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::plugins;
use crate::process::cargo;

/// Which crate may import which. A missing arrow is a rule; a new one is a design change with a decision note.
const IMPORTS: &[(&str, &[&str])] = &[
    ("contract", &[]),
    ("scheduler", &["contract"]),
    ("backend", &["contract"]),
    ("backend-cpu", &["backend", "contract"]),
    ("backend-script", &["backend", "contract"]),
    ("backend-cuda", &["backend", "contract", "kernels"]),
    ("kernels", &[]),
    ("model", &["backend"]),
    ("engine", &["backend", "contract", "scheduler"]),
    ("grammar", &["contract"]),
    ("text", &["contract", "grammar"]),
    ("plugin-host", &["contract"]),
    ("kit", &[]),
    ("api", &["contract", "engine", "text"]),
    (
        "server",
        &[
            "api",
            "backend",
            "backend-cpu",
            "backend-cuda",
            "backend-script",
            "contract",
            "engine",
            "grammar",
            "kit",
            "model",
            "plugin-host",
            "scheduler",
            "text",
        ],
    ),
    ("testkit", &["server"]),
    ("tests", &[]),
    ("gpu-check", &["backend", "backend-cpu", "backend-cuda", "contract", "model", "probe"]),
    ("probe", &["backend", "contract", "engine"]),
    ("record", &[]),
    (
        "bench",
        &[
            "backend",
            "backend-cpu",
            "contract",
            "engine",
            "model",
            "plugin-host",
            "probe",
            "record",
            "scheduler",
            "server",
            "testkit",
            "text",
        ],
    ),
    ("sim", &["contract", "plugin-host", "record", "scheduler"]),
    ("xtask", &[]),
];

/// Heavy or defining libraries, and the only crates that may name them.
const OWNERS: &[(&str, &[&str])] = &[
    ("wasmtime", &["plugin-host"]),
    ("axum", &["api"]),
    ("clap", &["server"]),
    ("hf-hub", &["server"]),
    ("tokenizers", &["text"]),
    ("llguidance", &["grammar"]),
    ("wit-component", &["kit"]),
    ("ring", &["plugin-host"]),
    ("oci-client", &["server"]),
];

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 100;

/// Files that may be longer, with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Functions that may be longer, with the reason.
const LONG_FUNCTIONS: &[(&str, &str)] = &[];

/// Where environment variables may be read: the binary's settings, and automation.
const ENVIRONMENT_READERS: &[&str] = &["host/server/src/", "xtask/", "tests/record/"];

pub fn run(root: &Path) -> Result<()> {
    let mut faults = imports(root)?;
    for path in rust_files(root)? {
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).with_context(|| name.clone())?;
        faults.extend(lengths(&name, &text));
        faults.extend(environment(&name, &text));
        if name.starts_with("host/")
            && name.ends_with("src/lib.rs")
            && !text.starts_with("//!")
            && !text.starts_with("#![")
        {
            faults.push(format!(
                "{name}: a crate begins with a doc comment: what it does, what it must not know, where to start"
            ));
        }
    }
    faults.extend(released_wit(root)?);
    if let Err(error) = plugins::run(root, true) {
        faults.push(format!("{error:#}"));
    }
    if faults.is_empty() {
        println!("tidy: no faults");
        return Ok(());
    }
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    bail!("{} faults", faults.len());
}

fn imports(root: &Path) -> Result<Vec<String>> {
    let metadata = cargo(root).args(["metadata", "--no-deps", "--format-version=1"]).output()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let allowed: BTreeMap<&str, &[&str]> = IMPORTS.iter().copied().collect();
    let owners: BTreeMap<&str, &[&str]> = OWNERS.iter().copied().collect();
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(arrows) = allowed.get(name) else {
            faults.push(format!("crate `{name}` is not in tidy's map of imports: add it there with its arrows"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may look at anything below them; what ships may not.
            if dependency["kind"] == "dev" {
                continue;
            }
            let used = dependency["name"].as_str().unwrap_or_default();
            if allowed.contains_key(used) && !arrows.contains(&used) {
                faults.push(format!("crate `{name}` imports `{used}`: allowed are {arrows:?}"));
            }
            if owners.get(used).is_some_and(|owners| !owners.contains(&name)) {
                faults.push(format!("crate `{name}` depends on `{used}`, which belongs to {:?}", owners[used]));
            }
        }
    }
    Ok(faults)
}

/// Long files and functions. rustfmt puts a function's end at the column of its `fn` line, so counting is enough.
fn lengths(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let excused = |list: &[(&str, &str)], item: &str| list.iter().any(|(excused, _)| *excused == item);
    let code = text.lines().take_while(|line| *line != "mod tests {").count();
    if code > FILE_LINES_MAX && !excused(LONG_FILES, name) {
        faults.push(format!("{name}: {code} lines before its tests, the limit is {FILE_LINES_MAX}"));
    }
    let mut open: Option<(usize, String, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let body = line.trim_start();
        let indent = &line[..line.len() - body.len()];
        if open.is_none() && is_function(body) && !body.ends_with(';') && !body.ends_with('}') {
            open = Some((number, format!("{indent}}}"), body.to_owned()));
        } else if let Some((start, end, head)) = &open
            && line == end
        {
            let lines = number - start + 1;
            if lines > FUNCTION_LINES_MAX && !excused(LONG_FUNCTIONS, &format!("{name}:{head}")) {
                faults.push(format!(
                    "{name}:{}: function of {lines} lines, the limit is {FUNCTION_LINES_MAX}",
                    start + 1
                ));
            }
            open = None;
        }
    }
    faults
}

fn is_function(line: &str) -> bool {
    let mut rest = line;
    loop {
        let Some((word, tail)) = rest.split_once(' ') else { return false };
        match word {
            "fn" => return true,
            "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"" => rest = tail,
            _ if word.starts_with("pub(") => rest = tail,
            _ => return false,
        }
    }
}

fn environment(name: &str, text: &str) -> Vec<String> {
    if ENVIRONMENT_READERS.iter().any(|prefix| name.starts_with(prefix)) || name == "xtask/src/tidy.rs"
        // Cargo tells a build script where things are through the environment.
        || name.ends_with("/build.rs")
    {
        return Vec::new();
    }
    let reads = |line: &&str| line.contains("env::var") || line.contains("env::vars");
    let found = text.lines().enumerate().filter(|(_, line)| reads(line));
    found.map(|(number, _)| format!("{name}:{}: reads the environment; only `server` may", number + 1)).collect()
}

/// A published WIT file never changes: its digest is written beside it when it is frozen.
fn released_wit(root: &Path) -> Result<Vec<String>> {
    let released = root.join("wit/released");
    let mut faults = Vec::new();
    if !released.exists() {
        return Ok(faults);
    }
    for file in walk(&released, "wit")? {
        let digest = crate::demo::sha256(&file)?;
        let recorded = fs::read_to_string(file.with_extension("wit.sha256")).unwrap_or_default();
        if recorded.trim() != digest {
            faults.push(format!("{}: a released file never changes; add a version instead", file.display()));
        }
        // `released/VERSION/PACKAGE/FILE.wit` is what `PACKAGE/FILE.wit` says, for as long as that version is spoken.
        let spoken: PathBuf = file.strip_prefix(&released)?.components().skip(1).collect();
        let now = fs::read_to_string(root.join("wit").join(&spoken)).unwrap_or_default();
        faults.extend(changed_wit(&spoken.display().to_string(), &fs::read_to_string(&file)?, &now));
    }
    Ok(faults)
}

/// What a package says may be said better, and must be the same.
fn changed_wit(name: &str, released: &str, now: &str) -> Option<String> {
    let said = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
        lines.map(str::to_owned).collect()
    };
    let (released, now) = (said(released), said(now));
    let first = released.iter().zip(&now).find(|(before, after)| before != after);
    let what = match first {
        Some((before, after)) => format!("`{before}` became `{after}`"),
        None if released.len() != now.len() => format!("{} lines became {}", released.len(), now.len()),
        None => return None,
    };
    Some(format!(
        "wit/{name} is not what was released: {what}; a component built against the released version must go on working, so \
         give the package a new version and an adapter"
    ))
}

fn rust_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for top in ["host", "plugins", "tests", "xtask", "examples", "kernels"] {
        if root.join(top).exists() {
            files.extend(walk(&root.join(top), "rs")?);
        }
    }
    Ok(files)
}

fn walk(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                files.extend(walk(&path, extension)?);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function over the limit is found with its line, one under it is not.
    #[test]
    fn long_functions_are_found() {
        let long = format!("fn a() {{\n{}}}\n\npub(crate) fn b() {{\n}}\n", "    x();\n".repeat(FUNCTION_LINES_MAX));
        assert_eq!(lengths("f.rs", &long).len(), 1);
        let short = format!("fn a() {{\n{}}}\n", "    x();\n".repeat(FUNCTION_LINES_MAX - 2));
        assert_eq!(lengths("f.rs", &short), Vec::<String>::new());
    }

    /// Comments may change; a field may not.
    #[test]
    fn changes_of_a_released_interface_are_found() {
        let released = "/// A.\npackage a:b@0.1.0;\nrecord r {\n  x: u32,\n}\n";
        assert_eq!(changed_wit("b/b.wit", released, &released.replace("/// A.", "/// Better.\n\n")), None);
        for (from, to) in [("u32", "u64"), ("  x: u32,\n", "  x: u32,\n  y: u32,\n"), ("record", "variant")] {
            assert!(changed_wit("b/b.wit", released, &released.replace(from, to)).is_some(), "{from}");
        }
    }

    #[test]
    fn environment_reads_are_found_outside_the_server() {
        let text = "let x = std::env::var(\"X\");\n";
        assert_eq!(environment("host/engine/src/lib.rs", text).len(), 1);
        assert!(environment("host/server/src/main.rs", text).is_empty());
    }
}
