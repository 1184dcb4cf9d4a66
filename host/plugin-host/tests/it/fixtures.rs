//! The components under test, and changed copies of them.

use std::path::PathBuf;

/// Every fixture of `plugins/fixtures/dist`. `turncoat` is tested over HTTP, in `tests/it/swap.rs`.
const FIXTURES: [&str; 6] = ["capable", "endless-start", "output", "scheduler", "template", "turncoat"];

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../plugins/fixtures/dist").join(format!("{name}.wasm"))
}

pub fn bytes(name: &str) -> Vec<u8> {
    assert!(FIXTURES.contains(&name), "`{name}` is not in the list of fixtures");
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("fixture {name}: {e}"))
}

/// A copy with every occurrence of one name replaced by another of the same length, which keeps the binary well formed.
pub fn renamed(name: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes(name);
    let places: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from.as_bytes()).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "{from} does not occur in {name}");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

/// A fixture that nothing tests is an attack that nobody looks at.
#[test]
fn every_fixture_is_listed() {
    let dir = std::fs::read_dir(path("x").with_file_name("")).expect("the fixtures are committed");
    let names = dir.map(|entry| entry.expect("the folder can be read").path());
    let components = names.filter(|path| path.extension().is_some_and(|extension| extension == "wasm"));
    let mut names: Vec<String> = components.filter_map(|p| Some(p.file_stem()?.to_str()?.to_string())).collect();
    names.sort();
    assert_eq!(names, FIXTURES);
}
