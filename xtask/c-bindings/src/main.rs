//! The C side of the SDK: `plugins/sdk/c/bindings` holds what wit-bindgen makes of each world, committed so that an author
//! needs a C compiler and nothing else. `cargo run` here writes it anew; `cargo test` compares.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::Files;

const KINDS: [&str; 3] = ["output", "template", "scheduler"];

fn main() -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bindings: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> Result<(), String> {
    for (path, text) in bindings()? {
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// Every file of `bindings/`, as it should be. The object with the world's description is left out: `plugin build`
/// adds that description itself.
fn bindings() -> Result<Vec<(PathBuf, Vec<u8>)>, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wit = here.join("../../wit");
    let mut all = Vec::new();
    for kind in KINDS {
        let mut resolve = Resolve::default();
        let mut package = None;
        for folder in ["types", "plugin", kind] {
            let (id, _) = resolve.push_dir(wit.join(folder)).map_err(|e| format!("wit/{folder}: {e:#}"))?;
            package = Some(id);
        }
        let package = package.ok_or("no package")?;
        let world = resolve.select_world(&[package], Some(&format!("{kind}-plugin"))).map_err(|e| format!("{e:#}"))?;
        let mut files = Files::default();
        let mut generator = wit_bindgen_c::Opts::default().build();
        generator.generate(&mut resolve, world, &mut files).map_err(|e| format!("{kind}: {e:#}"))?;
        for (name, text) in files.iter().filter(|(name, _)| name.ends_with(".c") || name.ends_with(".h")) {
            all.push((here.join("../../plugins/sdk/c/bindings").join(name), text.to_vec()));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    /// `cargo run` in this folder mends it.
    #[test]
    fn committed_bindings_are_those_of_the_wit() {
        for (path, text) in super::bindings().expect("the WIT is valid") {
            let committed = std::fs::read(&path).unwrap_or_default();
            assert!(committed == text, "{} is stale: run `cargo run` in xtask/c-bindings", path.display());
        }
    }
}
