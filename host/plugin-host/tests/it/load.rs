//! What is refused before it runs, or while it starts, and in which words.

use std::fs;

use contract::output::StageRequest;
use plugin_host::{Capability, Grants, HostConfig, Kind, PluginHost, PluginLoadError, PluginSource};
use prometheus_client::registry::Registry;

use crate::fixtures;
use crate::rig::{CONFIGURE_TIMEOUT, all_capabilities, config, faults, manifest, rig, rig_of};

/// Loads bytes as a stage under the `output` fixture's manifest and gives the error.
fn refused(wasm: Vec<u8>, more: &str) -> PluginLoadError {
    let rig = rig_of(wasm, manifest("output", more), config());
    match rig.host.load_stage(&rig.source, &Grants::default(), None) {
        Ok(_) => panic!("it was loaded"),
        Err(error) => error,
    }
}

/// Loads a fixture that misbehaves while it is loaded.
fn fails(fixture: &str, rules: &str) -> (&'static str, String) {
    let rig = rig(fixture, "");
    let (grants, settings) = (Grants::default(), faults(rules));
    let outcome = match fixture {
        "template" => rig.host.load_template(&rig.source, &grants, Some(&settings), &Default::default()).map(|_| ()),
        "scheduler" => rig.host.load_scheduler(&rig.source, &grants, Some(&settings)).map(|_| ()),
        _ => rig.host.load_stage(&rig.source, &grants, Some(&settings)).map(|_| ()),
    };
    match outcome {
        Ok(()) => ("loaded", String::new()),
        Err(PluginLoadError::Failed { export, cause, .. }) => (export, cause),
        Err(PluginLoadError::Refused { export, message, .. }) => (export, message),
        Err(other) => ("", other.to_string()),
    }
}

#[track_caller]
fn assert_fails(fixture: &str, rules: &str, export: &str, cause: &str) {
    let (found, message) = fails(fixture, rules);
    assert_eq!(found, export, "{fixture} {rules}: {message}");
    assert!(message.contains(cause), "{fixture} {rules}: {message}");
}

#[test]
fn well_behaved_ones_load() {
    for fixture in ["output", "template", "scheduler"] {
        assert_eq!(fails(fixture, ""), ("loaded", String::new()));
    }
}

/// A loop in every function that is called while loading, in every kind.
#[test]
fn loops_end_at_the_deadline() {
    let late = format!("longer than {} ms", CONFIGURE_TIMEOUT.as_millis());
    assert_fails("endless-start", "", "instantiate", &late);
    for place in ["configure", "describe", "requires"] {
        assert_fails("output", &format!("{place}=loop"), place, &late);
    }
    assert_fails("output", "ctor=loop", "open", &late);
    for place in ["configure", "describe", "load"] {
        assert_fails("template", &format!("{place}=loop"), place, &late);
    }
    // Schedulers are stopped by whichever comes first, their fuel or the deadline.
    for (place, export) in [("configure", "configure"), ("describe", "describe"), ("ctor", "construct")] {
        assert_fails("scheduler", &format!("{place}=loop"), export, "the call ");
    }
}

#[test]
fn other_failures_while_loading() {
    assert_fails("output", "configure=trap", "configure", "panicked");
    assert_fails("output", "configure=memory", "configure", "memory limit of 16777216 bytes");
    assert_fails("output", "configure=recurse", "configure", "stack is exhausted");
    assert_fails("output", "requires=huge", "requires", "the answer is larger than 65536 bytes");
    assert_fails("output", "requires=many", "requires", "the answer is larger");
    assert_fails("output", "ctor=leak", "open", "");
    assert_fails("template", "load=memory", "load", "memory limit of 67108864 bytes");
    assert_fails("scheduler", "ctor=memory", "construct", "memory limit");
}

/// An error message of a guest is cut and cannot steer a terminal.
#[test]
fn error_messages_are_cleaned() {
    let (export, message) = fails("output", "configure=error");
    assert_eq!(export, "configure");
    assert!(message.starts_with("[31mline one line two é"), "{message}");
    assert!(message.len() <= 512 && !message.chars().any(char::is_control));
}

#[test]
fn not_a_component() {
    let plugin = "hostile-output".to_string();
    assert_eq!(refused(b"\0asm\x01\0\0\0".to_vec(), ""), PluginLoadError::CoreModule { plugin: plugin.clone() });
    for (bytes, found) in [
        (&b"hello world"[..], "it starts with the bytes 68656c6c6f20776f"),
        (b"(component)", "it is WebAssembly text; assemble it first"),
        (b"", "it is empty"),
        (b"\x7fELF....", "it is a native binary"),
    ] {
        let error = PluginLoadError::NotWasm { plugin: plugin.clone(), found: found.into() };
        assert_eq!(refused(bytes.to_vec(), ""), error);
    }
    let mut broken = fixtures::bytes("output");
    broken.truncate(broken.len() / 2);
    assert!(matches!(refused(broken, ""), PluginLoadError::Compile { .. }));
    let mut garbage = fixtures::bytes("output");
    garbage[2000..3000].fill(0xee);
    assert!(matches!(refused(garbage, ""), PluginLoadError::Compile { .. }));
}

#[test]
fn wrong_interfaces() {
    let missing = refused(b"\0asm\x0d\0\x01\0".to_vec(), "").to_string();
    assert!(missing.contains("does not export `tokenloom:plugin/lifecycle@0.1.0`"), "{missing}");
    assert!(missing.contains("it exports nothing"), "{missing}");

    let renamed = fixtures::renamed("output", "tokenloom:output/stage", "tokenloom:output/slate");
    let missing = refused(renamed, "").to_string();
    assert!(missing.contains("does not export `tokenloom:output/stage@0.1.0`"), "{missing}");
    assert!(missing.contains("tokenloom:output/slate@0.1.0"), "{missing}");

    let other = fixtures::renamed("output", "tokenloom:output/stage@0.1.0", "tokenloom:output/stage@0.2.0");
    let error = refused(other, "");
    let (expected, found) = ("tokenloom:output/stage@0.1.0".to_string(), "tokenloom:output/stage@0.2.0".to_string());
    assert_eq!(error, PluginLoadError::WrongWitVersion { plugin: "hostile-output".into(), expected, found });
    assert!(error.to_string().contains("rebuild"), "{error}");

    let error = refused(fixtures::renamed("output", "constrain", "constrict"), "");
    assert!(matches!(&error, PluginLoadError::WrongSignature { .. }), "{error}");
    assert!(error.to_string().contains("constrain"), "{error}");
}

/// A patch version more is the same interface.
#[test]
fn later_patch_versions_are_compatible() {
    let patched = fixtures::renamed("output", "tokenloom:output/stage@0.1.0", "tokenloom:output/stage@0.1.7");
    let text = manifest("output", "").replace("output@0.1.0", "output@0.1.7");
    let rig = rig_of(patched, text, config());
    let stage = rig.host.load_stage(&rig.source, &Grants::default(), None).expect("0.1.7 fits 0.1");
    assert!(stage.open(&StageRequest::default()).is_ok());
}

#[test]
fn imports_need_manifest_and_grant() {
    let load = |wasm: Vec<u8>, more: &str, grants: &Grants| {
        let rig = rig_of(wasm, manifest("capable", more), config());
        rig.host.load_stage(&rig.source, grants, None).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let capable = || fixtures::bytes("capable");
    let asked = "capabilities = [\"log\", \"metrics\", \"tokenizer\"]\n";

    let error = load(capable(), "", &all_capabilities());
    assert!(error.contains("without asking") && error.contains("tokenloom:host/log"), "{error}");
    let error = load(capable(), asked, &Grants::default());
    assert!(error.contains("does not grant") && error.contains("\"tokenizer\""), "{error}");
    let two = Grants { capabilities: [Capability::Log, Capability::Metrics].into(), ..Grants::default() };
    let error = load(capable(), asked, &two);
    assert!(error.contains("\"tokenizer\"") && !error.contains("\"log\""), "{error}");
    let error = load(capable(), asked, &all_capabilities());
    assert!(error.contains("there is no tokenizer"), "{error}");

    let sockets = fixtures::renamed("capable", "tokenloom:host/log@0.1.0", "wasi:sockets/netwk@0.1.0");
    let error = load(sockets, asked, &all_capabilities());
    assert!(error.contains("wasi:sockets/netwk@0.1.0") && error.contains("no WASI"), "{error}");
    let newer = fixtures::renamed("capable", "tokenloom:host/log@0.1.0", "tokenloom:host/log@0.9.0");
    let error = load(newer, asked, &all_capabilities());
    assert!(error.contains("tokenloom:host/log@0.9.0"), "{error}");
}

#[test]
fn digests() {
    let wrong = "0".repeat(64);
    match refused(fixtures::bytes("output"), &format!("sha256 = \"{wrong}\"\n")) {
        PluginLoadError::WrongDigest { expected, found, .. } => {
            assert_eq!(expected, wrong);
            let rig = rig("output", &format!("sha256 = \"{found}\"\n"));
            assert!(rig.host.load_stage(&rig.source, &Grants::default(), None).is_ok());
            assert_eq!(rig.host.inspect(&rig.source).expect("it can be inspected").digest, found);
        }
        other => panic!("{other}"),
    }
    let strict = HostConfig { require_digest: true, ..config() };
    let rig = rig_of(fixtures::bytes("output"), manifest("output", ""), strict);
    let error = rig.host.load_stage(&rig.source, &Grants::default(), None).err().expect("there is no digest");
    assert!(error.to_string().contains("add to its manifest: sha256 = \""), "{error}");
}

/// Files: manifest beside the component, size limit, things that are not there.
#[test]
fn files() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let path = dir.path().join("mine.wasm");
    fs::copy(fixtures::path("output"), &path).expect("the fixture can be copied");
    let load = |config: HostConfig| {
        let host = PluginHost::new(config, &mut Registry::default()).expect("the host starts");
        let stage = host.load_stage(&PluginSource::File(path.clone()), &Grants::default(), None);
        stage.map(|stage| stage.name().to_string()).map_err(|e| e.to_string())
    };
    assert_eq!(load(config()), Ok("mine".to_string()), "without a manifest the file's name counts");
    let error = load(HostConfig { component_bytes_max: 1000, ..config() }).expect_err("it is larger");
    assert!(error.contains("the limit is 1000"), "{error}");
    fs::write(dir.path().join("mine.toml"), manifest("output", "colour = 1\n")).expect("it can be written");
    let error = load(config()).expect_err("a key is unknown");
    assert!(error.contains("unknown field `colour`"), "{error}");
    fs::write(dir.path().join("mine.toml"), manifest("output", "").replace("hostile-output", "other"))
        .expect("written");
    let error = load(config()).expect_err("the names differ");
    assert!(error.contains("the component calls itself `hostile-output`"), "{error}");
    fs::remove_file(&path).expect("it can be removed");
    assert!(load(config()).expect_err("it is gone").starts_with("cannot read"));
}

#[test]
fn wrong_words() {
    let rig = rig("output", "[[provides]]\nname = \"alias\"\nsettings = { faults = \"configure=error\" }\n");
    let load = |name: &str| {
        let stage = rig.host.load_stage(&PluginSource::parse(name), &Grants::default(), None);
        stage.err().map(|e| e.to_string()).unwrap_or_default()
    };
    let unknown = load("nothing");
    assert!(unknown.contains("there are hostile-output (output stage), alias (output stage)"), "{unknown}");
    assert!(load("alias").contains("told-to"), "an alias brings its settings");
    let error = rig.host.load_scheduler(&rig.source, &Grants::default(), None).err().expect("it is no scheduler");
    let plugin = "hostile-output".to_string();
    assert_eq!(error, PluginLoadError::WrongKind { plugin, found: Kind::Output, wanted: Kind::Scheduler });
    let limits = refused(fixtures::bytes("output"), "[limits]\nmemory_mib = 0\n").to_string();
    assert!(limits.contains("limits.memory_mib is 0; 1 to 2048 are allowed"), "{limits}");
}

/// What `plugin inspect` shows comes from the component, not from its manifest.
#[test]
fn inspection_reads_the_component() {
    let rig = rig("capable", "capabilities = [\"log\"]\n");
    let seen = rig.host.inspect(&rig.source).expect("it can be inspected");
    assert_eq!((seen.kind, seen.wit.as_deref()), (Some(Kind::Output), Some("tokenloom:output/stage@0.1.0")));
    assert_eq!(seen.capabilities_asked, [Capability::Log]);
    assert_eq!(seen.capabilities_needed.len(), 3);
    assert_eq!(seen.imports_unknown, Vec::<String>::new());
    assert!(rig.host.status().is_empty(), "inspecting loads nothing");
}
