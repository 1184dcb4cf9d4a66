//! A core module with embedded WIT becomes a component.
//!
//! The module's `component-type` sections say which world it is; bindings write them, or [`describe`] does. No adapter
//! is given, so an import the world does not name is an error here and not at load.

use std::path::Path;

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Writes a world's description into a module whose bindings do not carry it.
pub fn describe(module: &mut Vec<u8>, wit: &Path, world: &str) -> Result<(), String> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit).map_err(|e| format!("{}: {e:#}", wit.display()))?;
    let world = resolve.select_world(&[package], Some(world)).map_err(|e| format!("{}: {e:#}", wit.display()))?;
    embed_component_metadata(module, &resolve, world, StringEncoding::UTF8).map_err(|e| format!("{e:#}"))
}

pub fn encode(module: &[u8]) -> Result<Vec<u8>, String> {
    // The component model's preamble has a layer of 1 where a core module has 0.
    if module.get(..4) != Some(b"\0asm") {
        return Err("not a WebAssembly file".into());
    }
    if module.get(6) == Some(&1) {
        return Err("already a component".into());
    }
    let encoder = ComponentEncoder::default().validate(true).module(module);
    encoder.and_then(|mut encoder| encoder.encode()).map_err(|e| format!("{e:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_core_module_is_refused() {
        assert_eq!(encode(b"hello"), Err("not a WebAssembly file".into()));
        assert_eq!(encode(b"\0asm\x0d\0\x01\0"), Err("already a component".into()));
    }

    /// A module without bindings' sections makes an empty component: the host then names the missing export.
    #[test]
    fn an_empty_module_is_encoded() {
        assert!(encode(b"\0asm\x01\0\0\0").is_ok_and(|component| component.get(6) == Some(&1)));
    }

    /// A world that the module does not fill is named.
    #[test]
    fn a_missing_export_is_named() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let wit = folder.path().join("a.wit");
        std::fs::write(&wit, "package a:b; world w { export run: func(); }").expect("it can be written");
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        describe(&mut module, folder.path(), "w").expect("the world is there");
        assert!(encode(&module).is_err_and(|message| message.contains("run")));
    }
}
