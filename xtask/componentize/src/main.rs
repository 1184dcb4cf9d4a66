//! A core module with embedded WIT becomes a component.
//!
//! `componentize IN.wasm OUT.wasm`: the module's `component-type` sections (written by the guest's bindings) say which
//! world it is; no adapter is given, so an import the world does not name is an error here and not at load. It is a
//! crate of its own because `wit-component` is the only heavy thing in it, and `xtask` must stay quick to build.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use wit_component::ComponentEncoder;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("componentize: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [input, output] = paths.as_slice() else {
        bail!("usage: componentize MODULE.wasm COMPONENT.wasm");
    };
    let module = std::fs::read(input).with_context(|| format!("cannot read {}", input.display()))?;
    let component = encode(&module).with_context(|| format!("{} does not become a component", input.display()))?;
    std::fs::write(output, component).with_context(|| format!("cannot write {}", output.display()))
}

fn encode(module: &[u8]) -> Result<Vec<u8>> {
    // The component model's preamble has a layer of 1 where a core module has 0.
    if module.get(..4) != Some(b"\0asm") {
        bail!("not a WebAssembly file");
    }
    if module.get(6) == Some(&1) {
        bail!("already a component");
    }
    ComponentEncoder::default().validate(true).module(module)?.encode()
}

#[cfg(test)]
mod tests {
    use super::encode;

    fn message(bytes: &[u8]) -> String {
        encode(bytes).err().map(|e| format!("{e:#}")).unwrap_or_default()
    }

    #[test]
    fn what_is_no_core_module_is_refused() {
        assert_eq!(message(b"hello"), "not a WebAssembly file");
        assert_eq!(message(b"\0asm\x0d\0\x01\0"), "already a component");
    }

    /// A module without bindings' sections makes an empty component: the host then names the missing export.
    #[test]
    fn an_empty_module_is_encoded() {
        assert!(encode(b"\0asm\x01\0\0\0").is_ok_and(|component| component.get(6) == Some(&1)));
    }
}
