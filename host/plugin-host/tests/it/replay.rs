//! A failure that does not come again is invisible: the stream is replayed into a fresh store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use contract::output::{EndReason, OutputEvent, OutputStage};
use plugin_host::{Grants, PluginTokenizer};
use prometheus_client::encoding::text::encode;

use crate::rig::{Rig, all_capabilities, line, request, rig, stream};

/// Tells the `capable` fixture what to do at the text `boom`, as often as `times` says.
struct Director {
    order: u32,
    times: AtomicU32,
}

impl PluginTokenizer for Director {
    fn encode(&self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        let left = token == "boom" && self.times.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok();
        left.then_some(self.order)
    }
}

fn capable(order: u32, times: u32) -> (Rig, Arc<dyn OutputStage>) {
    let rig = rig("capable", "capabilities = [\"log\", \"metrics\", \"tokenizer\"]\n");
    let tokenizer: Arc<dyn PluginTokenizer> = Arc::new(Director { order, times: AtomicU32::new(times) });
    let grants = Grants { tokenizer: Some(tokenizer), ..all_capabilities() };
    let stage = rig.host.load_stage(&rig.source, &grants, None).expect("it is granted all it needs");
    (rig, stage)
}

const TRAP: u32 = 1;
const FLOOD_LOG: u32 = 2;
const FLOOD_TOKENIZER: u32 = 3;
const METRICS: u32 = 4;

#[test]
fn one_trap_is_hidden() {
    let (rig, stage) = capable(TRAP, 1);
    let events = stream(stage.as_ref(), &["a", "b", "boom", "c"]).expect("text arrives");
    let expected: Vec<OutputEvent> = ["a", "b", "boom", "c"].map(OutputEvent::content).into();
    assert_eq!(events, expected, "each event once");
    let status = rig.status();
    assert_eq!((status.replays, status.fallbacks, status.traps.get("trap")), (1, 0, Some(&1)));
}

#[test]
fn the_second_trap_falls_back() {
    let (rig, stage) = capable(TRAP, 2);
    let events = stream(stage.as_ref(), &["a", "b", "boom", "c"]).expect("text arrives");
    assert_eq!(line(&events), "abboomc");
    let status = rig.status();
    assert_eq!((status.replays, status.fallbacks, status.traps.get("trap")), (1, 1, Some(&2)));
    // The plugin stays up for everybody else.
    assert_eq!(line(&stream(stage.as_ref(), &["x"]).expect("text arrives")), "x");
    assert_eq!(rig.status().fallbacks, 1);
}

/// Two traps in one stream, each mended by a replay, would be two replays: the second one falls back.
#[test]
fn a_stream_is_replayed_once() {
    let (rig, stage) = capable(TRAP, 1);
    let mut session = stage.open(&request()).expect("it opens");
    let mut feed = |text: &str| line(&session.feed(vec![OutputEvent::content(text)]).expect("text arrives"));
    assert_eq!((feed("boom"), feed("a")), ("boom".to_string(), "a".to_string()));
    assert_eq!(rig.status().replays, 1);
    assert_eq!(session.finish(EndReason::Length), Ok(Vec::new()));
}

/// Capabilities have quotas: floods of log and metrics are dropped, a flood of the tokenizer ends the call.
#[test]
fn host_calls_are_limited() {
    let (rig, stage) = capable(FLOOD_LOG, 1);
    assert_eq!(line(&stream(stage.as_ref(), &["boom"]).expect("text arrives")), "boom");
    assert_eq!(rig.status().traps.len(), 0);

    let (rig, stage) = capable(FLOOD_TOKENIZER, 2);
    assert_eq!(line(&stream(stage.as_ref(), &["boom"]).expect("text arrives")), "boom");
    assert_eq!(rig.status().traps.get("quota"), Some(&2));

    let (rig, stage) = capable(METRICS, 1);
    assert_eq!(line(&stream(stage.as_ref(), &["boom"]).expect("text arrives")), "boom");
    let mut text = String::new();
    encode(&mut text, &rig.registry).expect("metrics can be written");
    let own = |line: &&str| line.starts_with("tokenloom_plugin_own_total{");
    assert_eq!(text.lines().filter(own).count(), 31, "32 names less the histogram's");
    assert!(text.contains("tokenloom_plugin_own_total{plugin=\"hostile-capable\",name=\"texts\"} 1.0"), "{text}");
}

/// Streams that share a store: a trap of one ends the store for both, and both go on in stores of their own.
#[test]
fn neighbours_survive() {
    let rig = rig("output", "[limits]\nstreams_per_store = 2\n");
    let stage = rig.stage("feed=trap@5");
    let open = || stage.open(&request()).expect("it opens");
    let (mut one, mut two) = (open(), open());
    let mut text = (String::new(), String::new());
    for i in 0..4 {
        let event = || vec![OutputEvent::content(format!("{i}"))];
        text.0 += &line(&one.feed(event()).expect("text arrives"));
        text.1 += &line(&two.feed(event()).expect("text arrives"));
    }
    assert_eq!(text, ("0123".to_string(), "0123".to_string()));
    let status = rig.status();
    assert_eq!((status.replays, status.fallbacks, status.traps.get("trap")), (2, 0, Some(&1)));
}

/// Many streams through shared stores: handles are given back and stores are renewed.
#[test]
fn shared_stores_do_not_fill_up() {
    let rig = rig("output", "[limits]\nstreams_per_store = 4\n");
    let stage = rig.stage("");
    for _ in 0..2000 {
        assert_eq!(line(&stream(stage.as_ref(), &["x", "y"]).expect("text arrives")), "xy");
    }
    assert_eq!(rig.status().fallbacks, 0);
}
