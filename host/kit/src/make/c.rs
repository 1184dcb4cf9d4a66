//! C: `plugin.c`, the generated bindings and a runtime of two pages, by clang and wasm-ld, without any C library.

use std::path::{Path, PathBuf};

use super::{encode, read, scratch};
use crate::component;
use crate::embedded::SUPPORT;
use crate::error::KitError;
use crate::project::Project;
use crate::run::{Tool, has};

const FLAGS: [&str; 9] = [
    "--target=wasm32-unknown-unknown",
    "-std=c17",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
    "-mbulk-memory",
    // No headers but ours and the compiler's own.
    "-nostdlibinc",
    "-c",
];

pub fn component(project: &Project) -> Result<Vec<u8>, KitError> {
    let clang = find(&["clang-19", "clang"], "clang")?;
    let linker = find(&["wasm-ld-19", "wasm-ld"], "wasm-ld")?;
    let support = project.folder.join(SUPPORT);
    let own = sources(&project.folder)?;
    let bindings = support.join("c").join(format!("{}_plugin.c", project.kind));
    let scratch = scratch(project)?;
    let mut objects = Vec::new();
    for source in own.iter().chain([&bindings, &support.join("c/runtime.c")]) {
        let object = scratch.join(source.file_name().unwrap_or_default()).with_extension("o");
        let mut flags: Vec<&str> = FLAGS.to_vec();
        if source.starts_with(&support) {
            // Generated code is not the author's to mend.
            flags.push("-w");
        }
        let tool = Tool::new(clang, &project.folder).args(flags).arg("-I").arg(support.join("c/include"));
        tool.arg("-I").arg(support.join("c")).arg(source).arg("-o").arg(&object).run()?;
        objects.push(object);
    }
    let module = scratch.join(format!("{}.module.wasm", project.name));
    // The stack below the data: an overflow is a trap and not a silent overwrite.
    let flags = ["--no-entry", "--stack-first", "-z", "stack-size=131072", "--gc-sections", "--strip-all", "-o"];
    Tool::new(linker, &project.folder).args(flags).arg(&module).args(&objects).run()?;
    let mut bytes = read(&module)?;
    component::describe(&mut bytes, &support.join("wit"), &project.kind.world())
        .map_err(|message| KitError::Component { path: module.clone(), message })?;
    encode(&bytes, &module)
}

fn find(names: &[&'static str], what: &str) -> Result<&'static str, KitError> {
    names.iter().copied().find(|name| has(name, "--version")).ok_or_else(|| KitError::ToolMissing {
        tool: what.into(),
        fix: "clang and lld with the target wasm32 are needed; on Debian `apt-get install clang-19 lld-19`".into(),
    })
}

/// Every `.c` file beside `plugin.toml`, in order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, KitError> {
    let entries = std::fs::read_dir(folder).map_err(|e| KitError::io(folder, &e))?;
    let mut sources: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    Ok(sources)
}
