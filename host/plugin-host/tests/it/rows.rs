//! The 32 misbehaviours that a server of foreign code must survive, each with the test that has it happen.
//!
//! A row whose test is gone fails here. The tests themselves are beside what they are about; those that belong nowhere else
//! are below, named by their row.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::output::{EndReason, OutputEvent};
use plugin_host::{Grants, HostConfig, PluginLoadError};

use crate::fixtures;
use crate::rig::{QUICK, config, line, manifest, request, rig, rig_of, stream};

/// Number, what the plugin does, where the test is, and its name.
const ROWS: [(u8, &str, &str, &str); 32] = [
    (1, "loops in a call", "host/plugin-host/tests/it/stage.rs", "infinite_loop"),
    (2, "loops while it is loaded", "host/plugin-host/tests/it/load.rs", "loops_end_at_the_deadline"),
    (3, "is slow, but ends", "host/plugin-host/tests/it/rows.rs", "row_03_slow_but_finite"),
    (4, "eats memory", "host/plugin-host/tests/it/stage.rs", "memory_bomb"),
    (5, "leaks slowly", "host/plugin-host/tests/it/rows.rs", "row_05_slow_leak"),
    (6, "traps", "host/plugin-host/tests/it/replay.rs", "one_trap_is_hidden"),
    (7, "crashes again and again", "host/engine/src/tests/faults.rs", "a_failing_policy_is_replaced_by_fcfs"),
    (8, "traps on one input wherever it runs", "host/plugin-host/tests/it/replay.rs", "the_second_trap_falls_back"),
    (9, "answers with megabytes", "host/plugin-host/tests/it/stage.rs", "huge_output"),
    (10, "writes long messages", "host/plugin-host/tests/it/load.rs", "error_messages_are_cleaned"),
    (11, "recurses without end", "host/plugin-host/tests/it/stage.rs", "deep_recursion"),
    (12, "speaks another version", "host/plugin-host/tests/it/load.rs", "wrong_interfaces"),
    (13, "lacks an export", "host/plugin-host/tests/it/load.rs", "wrong_interfaces"),
    (14, "imports what nobody granted", "host/plugin-host/tests/it/load.rs", "imports_need_manifest_and_grant"),
    (15, "is no component", "host/plugin-host/tests/it/load.rs", "not_a_component"),
    (16, "is another file than was pinned", "host/plugin-host/tests/it/rows.rs", "row_16_replaced_file"),
    (17, "has forged or damaged compiled code", "host/plugin-host/tests/it/cache.rs", "damage_is_survived"),
    (18, "takes for ever to compile", "host/plugin-host/tests/it/rows.rs", "row_18_compile_bomb"),
    (19, "plans nonsense", "host/engine/src/tests/faults.rs", "hostile_advice_loses_nothing"),
    (20, "breaks the order of events", "host/plugin-host/tests/it/stage.rs", "events_out_of_order"),
    (21, "swallows text", "host/text/src/conform.rs", "faults_are_found"),
    (22, "never flushes", "host/plugin-host/tests/it/stage.rs", "held_text_is_limited"),
    (23, "meets half a character", "host/text/src/pipeline/tests.rs", "a_broken_tail_is_one_replacement_character"),
    (24, "is not deterministic", "host/plugin-host/tests/it/scheduler.rs", "fuel_is_deterministic"),
    (
        25,
        "carries data from one request to the next",
        "host/plugin-host/tests/it/rows.rs",
        "row_25_no_data_between_streams",
    ),
    (26, "is called by what it calls", "host/plugin-host/tests/it/rows.rs", "row_26_host_calls_are_leaves"),
    (27, "leaks handles", "host/plugin-host/tests/it/stage.rs", "leaking_handles"),
    (28, "floods the host with calls", "host/plugin-host/tests/it/replay.rs", "host_calls_are_limited"),
    (29, "gets settings that it does not know", "host/plugin-host/tests/it/bundled.rs", "schemas_are_understood"),
    (30, "copies memory for longer than a tick", "host/plugin-host/tests/it/rows.rs", "row_30_long_copies"),
    (31, "is asked by more threads than it has stores", "host/plugin-host/tests/it/rows.rs", "row_31_pool_exhausted"),
    (32, "is in a call when the server ends", "host/plugin-host/tests/it/rows.rs", "row_32_shutdown_in_a_call"),
];

#[test]
fn every_row_has_its_test() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (at, (row, what, file, test)) in ROWS.iter().enumerate() {
        assert_eq!(usize::from(*row), at + 1);
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        // A macro makes some of them: `name: "fault" => …`.
        let there = text.contains(&format!("fn {test}(")) || text.contains(&format!("    {test}: \""));
        assert!(there, "row {row} ({what}): {file} has no test `{test}`");
    }
}

/// A call that ends after its time is a failure like any other, and costs no more than the tick on top.
#[test]
fn row_03_slow_but_finite() {
    // Filling two gigabytes ends some time, and long after a deadline of one millisecond.
    let rig = rig("output", "[limits]\ncall_ms = 1\nmemory_mib = 2048\n");
    let stage = rig.stage("feed=memory");
    let started = Instant::now();
    assert_eq!(line(&stream(stage.as_ref(), &["a", "b"]).expect("text arrives")), "ab");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(rig.status().fallbacks, 1);
    assert!(rig.status().traps.contains_key("late"), "{:?}", rig.status().traps);
}

/// Shared stores are renewed after so many streams, and a policy's when it has grown to half its limit.
#[test]
fn row_05_slow_leak() {
    let rig = rig("output", "[limits]\nstreams_per_store = 2\n");
    let stage = rig.stage("feed=hold");
    for _ in 0..1000 {
        assert_eq!(line(&stream(stage.as_ref(), &[&"x".repeat(4096)]).expect("text arrives")).len(), 4096);
    }
    let status = rig.status();
    assert_eq!(status.fallbacks, 0);
    assert!(status.memory_bytes_max < 8 << 20, "{} bytes in one store", status.memory_bytes_max);
}

/// The digest is of the bytes that are compiled, and the operator's pin is held against it before any of it runs.
#[test]
fn row_16_replaced_file() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let path = dir.path().join("mine.wasm");
    std::fs::copy(fixtures::path("endless-start"), &path).expect("the fixture can be copied");
    let host = plugin_host::PluginHost::new(config(), &mut prometheus_client::registry::Registry::default());
    let host = host.expect("the host starts");
    let source = plugin_host::PluginSource::File(path.clone());
    let pinned = host.inspect(&source).expect("it can be inspected").digest;
    let grants = Grants { sha256: Some(pinned.to_uppercase()), ..Grants::default() };
    std::fs::copy(fixtures::path("output"), &path).expect("the file can be replaced");
    match host.load_stage(&source, &grants, None).err() {
        Some(PluginLoadError::WrongPin { expected, found, .. }) => assert_ne!(expected.to_lowercase(), found),
        other => panic!("{other:?}"),
    }
    let found = host.inspect(&source).expect("it can be inspected").digest;
    let grants = Grants { sha256: Some(found), ..Grants::default() };
    assert!(host.load_stage(&source, &grants, None).is_ok());
}

#[test]
fn row_18_compile_bomb() {
    let quick = HostConfig { compile_timeout: Duration::from_nanos(1), ..config() };
    let slow = rig_of(fixtures::bytes("output"), manifest("output", ""), quick);
    let error = slow.host.load_stage(&slow.source, &Grants::default(), None).err().expect("it takes longer");
    assert!(matches!(error, PluginLoadError::CompileTimeout { .. }), "{error}");
    assert!(error.to_string().contains("compile_timeout_s"), "{error}");
}

/// What a stage keeps of one stream is not there in the next one, whose store is its own.
#[test]
fn row_25_no_data_between_streams() {
    let rig = rig("output", QUICK);
    // The count of feeds is a global of the guest: with one store for all, the second stream's would reach 3.
    let stage = rig.stage("feed=trap@3");
    for _ in 0..50 {
        assert_eq!(line(&stream(stage.as_ref(), &["a", "b"]).expect("text arrives")), "ab");
    }
    assert_eq!((rig.status().replays, rig.status().fallbacks), (0, 0));
}

/// Every host function is a leaf: the tokenizer that a plugin is granted is asked for one text at a time, from within the
/// plugin's call, and has no way back into its store.
#[test]
fn row_26_host_calls_are_leaves() {
    use plugin_host::{Capability, PluginTokenizer};
    use std::sync::Mutex;

    /// Calls the stage that calls it.
    struct Loop(Mutex<Option<Arc<dyn contract::output::OutputStage>>>);
    impl PluginTokenizer for Loop {
        fn encode(&self, _: &str) -> Vec<u32> {
            Vec::new()
        }
        fn token_id(&self, token: &str) -> Option<u32> {
            let stage = self.0.lock().expect("no panic").take().filter(|_| token == "again")?;
            let out = stream(stage.as_ref(), &["inside"]).expect("another stream is another store");
            assert_eq!(line(&out), "inside");
            None
        }
    }
    let rig = rig("capable", "capabilities = [\"log\", \"metrics\", \"tokenizer\"]\n");
    let own = Arc::new(Loop(Mutex::new(None)));
    let grants = Grants { capabilities: Capability::ALL.into(), tokenizer: Some(own.clone()), ..Grants::default() };
    let stage = rig.host.load_stage(&rig.source, &grants, None).expect("it is granted all it needs");
    *own.0.lock().expect("no panic") = Some(stage.clone());
    assert_eq!(line(&stream(stage.as_ref(), &["again", "x"]).expect("text arrives")), "againx");
    assert_eq!(rig.status().traps.len(), 0);
}

/// One instruction may copy the whole memory: the memory's limit is what bounds it.
#[test]
fn row_30_long_copies() {
    let rig = rig("output", "[limits]\nmemory_mib = 64\ncall_ms = 20\n");
    let stage = rig.stage("feed=huge");
    let started = Instant::now();
    assert_eq!(line(&stream(stage.as_ref(), &["a"]).expect("text arrives")), "a");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// More renders at once than there are stores: those that find none are told so at once, and the others are served.
#[test]
fn row_31_pool_exhausted() {
    const THREADS: usize = 96;
    let rig = rig("template", "[limits]\ncall_ms = 1000\n");
    let template = rig.host.load_template(&rig.source, &Grants::default(), None, &Default::default());
    let template = template.expect("it loads");
    let barrier = std::sync::Barrier::new(THREADS);
    let outcomes: Vec<bool> = std::thread::scope(|scope| {
        let render = || {
            barrier.wait();
            (0..20).all(|_| match template.render("{}") {
                Ok(rendered) => rendered.prompt == "{}",
                Err(error) => error.code == "plugin-busy",
            })
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(render)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(outcomes.iter().all(|good| *good));
    assert!(template.render("{}").is_ok(), "it serves afterwards");
}

/// The host goes while a call runs: the call ends at its deadline, and nothing hangs.
#[test]
fn row_32_shutdown_in_a_call() {
    let rig = rig("output", QUICK);
    let stage = rig.stage("feed=loop");
    let started = Instant::now();
    let caller = std::thread::spawn(move || {
        let mut session = stage.open(&request()).expect("it opens");
        let out = session.feed(vec![OutputEvent::content("x")]).expect("the text is passed on");
        (line(&out), session.finish(EndReason::Cancelled))
    });
    drop(rig);
    assert_eq!(caller.join().expect("no panic"), ("x".to_string(), Ok(Vec::new())));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}
