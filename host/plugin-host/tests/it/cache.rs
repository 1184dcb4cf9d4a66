//! Compiled code on disk: used when it is ours and whole, compiled again when it is not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use plugin_host::{Grants, HostConfig};

use crate::fixtures;
use crate::rig::{config, line, manifest, rig_of, stream};

/// Loads the fixture in a new host over the cache and makes sure that it works.
fn load(dir: &Path) {
    let config = HostConfig { cache_dir: Some(dir.to_path_buf()), ..config() };
    let rig = rig_of(fixtures::bytes("output"), manifest("output", ""), config);
    let stage = rig.host.load_stage(&rig.source, &Grants::default(), None).expect("it loads");
    assert_eq!(line(&stream(stage.as_ref(), &["a", "b"]).expect("text arrives")), "ab");
}

fn compiled(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the cache is there").map(|e| e.expect("it can be read").path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "cwasm")).collect()
}

#[test]
fn damage_is_survived() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let cache = dir.path().join("cache");
    load(&cache);
    let [file] = compiled(&cache).try_into().expect("one file was written");
    let whole = fs::read(&file).expect("it can be read");
    let written = || fs::metadata(&file).and_then(|meta| meta.modified()).expect("it is there");

    let before = written();
    load(&cache);
    assert_eq!(written(), before, "the second start compiles nothing");

    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let mut forged = vec![7; 32];
    forged.extend_from_slice(&whole[32..]);
    for damaged in [flipped, forged, whole[..whole.len() / 2].to_vec(), whole[..20].to_vec(), Vec::new(), vec![0; 5000]]
    {
        fs::write(&file, &damaged).expect("it can be written");
        load(&cache);
        assert_eq!(fs::read(&file).expect("it can be read"), whole, "it was compiled and written again");
    }
}

/// Without the old key, old code is not trusted.
#[test]
fn another_key() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    load(dir.path());
    let [file] = compiled(dir.path()).try_into().expect("one file was written");
    let old = fs::read(&file).expect("it can be read");
    for key in [None, Some("short")] {
        match key {
            None => fs::remove_file(dir.path().join("key")).expect("it can be removed"),
            Some(text) => fs::write(dir.path().join("key"), text).expect("it can be written"),
        }
        load(dir.path());
        assert_ne!(fs::read(&file).expect("it can be read")[..32], old[..32]);
    }
}

/// The folder is for this user alone; a folder that cannot be made costs only the cache.
#[test]
fn folder() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let open = dir.path().join("open");
    fs::create_dir(&open).expect("it can be made");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("they can be set");
    load(&open);
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&open), mode(&open.join("key"))), (0o700, 0o600));

    let file = dir.path().join("file");
    fs::write(&file, "x").expect("it can be written");
    load(&file);
}

/// Code of another component, or of another server's compiler, is not taken for this one's, although its code is ours.
#[test]
fn stale_and_foreign_code() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let cache = dir.path();
    load(cache);
    let [own] = compiled(cache).try_into().expect("one file was written");
    let whole = fs::read(&own).expect("it can be read");
    let rig = rig_of(
        fixtures::bytes("template"),
        manifest("template", ""),
        HostConfig { cache_dir: Some(cache.to_path_buf()), ..config() },
    );
    rig.host.inspect(&rig.source).expect("it is compiled");
    let other = compiled(cache).into_iter().find(|path| *path != own).expect("two files now");
    fs::copy(&other, &own).expect("it can be copied");
    load(cache);
    assert_eq!(fs::read(&own).expect("it can be read"), whole, "it was compiled and written again");

    // The name says what compiled it: under another one it is not even looked at.
    let name = own.file_name().expect("a name").to_string_lossy().into_owned();
    let stale = own.with_file_name(format!("{}-0000000000000000.cwasm", &name[..64]));
    fs::rename(&own, &stale).expect("it can be renamed");
    load(cache);
    assert!(own.exists() && stale.exists());
    fs::copy(&stale, &own).expect("it can be copied");
    load(cache);
}

/// Code that a loaded plugin has is shared with the next that loads it; what none has is let go of.
#[test]
fn unused_code_is_let_go_of() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let config = HostConfig { cache_dir: Some(dir.path().to_path_buf()), ..config() };
    let rig = rig_of(fixtures::bytes("output"), manifest("output", ""), config);
    let stage = || rig.host.load_stage(&rig.source, &Grants::default(), None).expect("it loads");
    let first = stage();
    let [file] = compiled(dir.path()).try_into().expect("one file was written");
    fs::remove_file(&file).expect("it can be removed");
    rig.host.forget_unused();
    let second = stage();
    assert!(!file.exists(), "nothing was compiled");
    drop((first, second));
    rig.host.forget_unused();
    drop(stage());
    assert!(file.exists(), "it was compiled again");
}
