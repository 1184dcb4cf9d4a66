//! Components that were built when a version of the interfaces was released, from `examples/c` of that day: each must load
//! and work for as long as that version is spoken. They are never rebuilt; their digests say so.

use std::path::PathBuf;

use contract::Slot;
use contract::output::{Channel, EndReason, OutputEvent, StageRequest};
use contract::policy::{Arrival, Delta, Limits, Snapshot};
use plugin_host::{Grants, PluginHost, PluginSource};
use prometheus_client::registry::Registry;

use crate::rig::config;

/// Version, file, SHA-256.
const RELEASED: [(&str, &str, &str); 3] = [
    ("0.1", "output", "320eeed97f33f1c7a10a94cca4580c2dee554d7a2a20a64d54375171c09ac122"),
    ("0.1", "template", "31d0fc030f595489dd91aae90809765dddddf27d863bd9b061d673c73f487193"),
    ("0.1", "scheduler", "d7ed5b8903540bcf98f396711e30cb23ce29e9baa12cf3381409335fa73e93d3"),
];

/// The component of a kind, held to its digest.
fn source(version: &str, name: &str) -> (PluginHost, PluginSource, Grants) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../plugins/fixtures/released").join(version);
    let host = PluginHost::new(config(), &mut Registry::default()).expect("the host starts");
    let digest = RELEASED.iter().find(|(v, n, _)| (*v, *n) == (version, name)).map(|(_, _, digest)| *digest);
    let grants = Grants { sha256: digest.map(str::to_owned), ..Grants::default() };
    (host, PluginSource::File(folder.join(format!("{name}.wasm"))), grants)
}

#[test]
fn every_released_version_has_every_kind() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../wit/released");
    let versions = std::fs::read_dir(folder).expect("versions were released").map(|v| v.expect("readable").file_name());
    for version in versions {
        let version = version.to_string_lossy().into_owned();
        for kind in ["output", "template", "scheduler"] {
            assert!(RELEASED.iter().any(|(v, name, _)| *v == version && *name == kind), "{version} has no old {kind}");
        }
    }
}

#[test]
fn an_old_output_stage_works() {
    let (host, source, grants) = source("0.1", "output");
    let stage = host.load_stage(&source, &grants, None).expect("it loads");
    let mut session = stage.open(&StageRequest::default()).expect("it opens");
    let mut text = (String::new(), String::new());
    let events = ["Paris", "[", "[capital of Fr", "ance]", "] it is."].map(|text| vec![OutputEvent::content(text)]);
    let mut out: Vec<OutputEvent> = Vec::new();
    for event in events {
        out.extend(session.feed(event).expect("it reads"));
    }
    out.extend(session.finish(EndReason::Length).expect("it ends"));
    for event in out {
        match event {
            OutputEvent::Text { channel: Channel::Reasoning, text: piece, .. } => text.1 += &piece,
            OutputEvent::Text { text: piece, .. } => text.0 += &piece,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text, ("Paris it is.".to_owned(), "capital of France".to_owned()));
}

#[test]
fn an_old_template_works() {
    let (host, source, grants) = source("0.1", "template");
    let template = host.load_template(&source, &grants, None, &Default::default()).expect("it loads");
    let request = r#"{"messages": [{"role": "user", "content": "Hi"}], "tools": null, "documents": null,
        "add_generation_prompt": true, "continue_final_message": false, "kwargs": {}, "now": "2025-01-01T00:00:00+00:00"}"#;
    assert_eq!(template.render(request).expect("it renders").prompt, "### user\nHi\n\n### assistant\n");
}

#[test]
fn an_old_scheduler_works() {
    let (host, source, grants) = source("0.1", "scheduler");
    let mut policy = host.load_scheduler(&source, &grants, None).expect("it loads");
    assert_eq!(policy.resync(&Snapshot::default()), Ok(()));
    let arrival = |slot: u32| Arrival {
        slot: Slot(slot),
        group: slot.into(),
        tenant: 0,
        adapter: 0,
        priority: 0,
        arrived_us: slot.into(),
        deadline_us: None,
        prompt_tokens: 70,
        cached_tokens: 0,
        max_new_tokens: 9,
    };
    let limits = Limits {
        token_budget: 512,
        tokens_max: 512,
        free_seats: 4,
        free_pages: 64,
        page_tokens: 64,
        resume_align: 1,
        ..Limits::default()
    };
    let delta = Delta { limits, arrived: vec![arrival(3), arrival(4)], ..Delta::default() };
    let granted: Vec<u32> = policy.step(&delta).expect("it decides").grant.iter().map(|grant| grant.slot.0).collect();
    assert_eq!(granted, [3, 4]);
}
