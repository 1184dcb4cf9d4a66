//! Output stages that misbehave on a stream: the text arrives, other streams go on.

use contract::Severity;
use contract::output::{CallKind, EndReason, OutputEvent, OutputStage, StageRequest, ToolChoice};

use crate::rig::{QUICK, Rig, line, request, rig, stream};

const TEXTS: [&str; 4] = ["Hello ", "wor", "ld", "!"];

fn passed(rig: &Rig, rules: &str) -> String {
    let events = stream(rig.stage(rules).as_ref(), &TEXTS);
    line(&events.unwrap_or_else(|e| panic!("{rules}: {e}")))
}

/// Every fault, in `feed` and in `finish`: nothing is lost and nothing comes twice.
macro_rules! each_fault {
    ($($test:ident: $fault:literal => $cause:literal;)*) => {$(
        #[test]
        fn $test() {
            for rules in [concat!("feed=", $fault, "@3"), concat!("feed=", $fault), concat!("finish=", $fault)] {
                let rig = rig("output", QUICK);
                let stage = rig.stage(rules);
                let events = stream(stage.as_ref(), &TEXTS).unwrap_or_else(|e| panic!("{rules}: {e}"));
                assert_eq!(line(&events), "Hello world!", "{rules}");
                let status = rig.status();
                assert_eq!(status.fallbacks, 1, "{rules}");
                assert!(status.traps.contains_key($cause), "{rules}: {:?}", status.traps);
                assert_eq!(stream(stage.as_ref(), &[]).map_or(0, |events| events.len()), 0, "the stage still opens");
            }
        }
    )*};
}

each_fault! {
    infinite_loop: "loop" => "late";
    trap: "trap" => "trap";
    memory_bomb: "memory" => "memory";
    deep_recursion: "recurse" => "stack";
    huge_output: "huge" => "output";
    very_many_events: "many" => "output";
    events_out_of_order: "disorder" => "violation";
    typed_error: "error" => "refused";
}

#[test]
fn leaking_handles() {
    let rig = rig("output", "[limits]\ncall_ms = 5000\n");
    let stage = rig.stage("feed=leak");
    assert_eq!(line(&stream(stage.as_ref(), &TEXTS).expect("text is passed on")), "Hello world!");
    let status = rig.status();
    assert_eq!((status.fallbacks, status.traps.get("late")), (1, None), "the handles end first: {:?}", status.traps);
}

/// With room for the bytes, the number of events is what is too much.
#[test]
fn events_are_counted() {
    let rig = rig("output", "[limits]\noutput_kib = 65536\nmemory_mib = 64\ncall_ms = 2000\n");
    let stage = rig.stage("feed=many@2");
    assert_eq!(line(&stream(stage.as_ref(), &TEXTS).expect("text is passed on")), "Hello world!");
    assert_eq!(rig.status().traps.get("violation"), Some(&1));
}

/// A stage that keeps everything is given up when it holds more than 256 KiB.
#[test]
fn held_text_is_limited() {
    let rig = rig("output", "");
    let stage = rig.stage("feed=hold");
    let mut session = stage.open(&request()).expect("it opens");
    let text = "x".repeat(100 << 10);
    let mut arrived = Vec::new();
    for _ in 0..3 {
        let out = session.feed(vec![OutputEvent::content(text.as_str())]).expect("it goes on");
        arrived.push(out.len());
    }
    assert_eq!(arrived, [0, 0, 3], "at 300 KiB all of it is passed on");
    assert_eq!(session.finish(EndReason::Length), Ok(Vec::new()));
}

/// Less than that comes out at the end.
#[test]
fn held_text_comes_out_at_the_end() {
    assert_eq!(passed(&rig("output", ""), "feed=hold"), "Hello world!");
}

/// A call that was begun is ended as broken off, and what was not sent of it is text.
#[test]
fn failure_inside_a_call() {
    let rig = rig("output", QUICK);
    let texts = ["a", "<call>", "{\"x\":", "1}", "</call>", "b"];
    let outcome = |rules: &str| line(&stream(rig.stage(rules).as_ref(), &texts).expect("text is passed on"));
    assert_eq!(outcome(""), "a[0:f {\"x\":1}]b");
    assert_eq!(outcome("feed=trap@4"), "a[0:f {\"x\":...]1}</call>b");
    assert_eq!(outcome("feed=trap@6"), "a[0:f {\"x\":1}]b");
}

/// Calls of an earlier stage go through a stage that broke, whole and once, before and after the break.
#[test]
fn earlier_stages_calls_survive() {
    let start = |index| OutputEvent::CallStart { index, id: None, name: "f".into(), kind: CallKind::Json };
    let arguments = |index, fragment: &str| OutputEvent::CallArguments { index, fragment: fragment.into() };
    let end = |index| OutputEvent::CallEnd { index, complete: true };
    let feeds = [
        vec![OutputEvent::content("a"), start(0)],
        vec![arguments(0, "{")],
        vec![arguments(0, "}"), end(0)],
        vec![start(1), arguments(1, "{}"), end(1), OutputEvent::content("b")],
    ];
    for broken_at in 1..=4 {
        let rig = rig("output", QUICK);
        let stage = rig.stage(&format!("feed=trap@{broken_at}"));
        let mut session = stage.open(&request()).expect("it opens");
        let mut out = Vec::new();
        for events in &feeds {
            out.extend(session.feed(events.clone()).expect("it is passed on"));
        }
        out.extend(session.finish(EndReason::Length).expect("it ends"));
        assert_eq!(line(&out), "a[0:f {}][1:f {}]b", "broken at {broken_at}");
    }
}

/// A call nobody asked for is a violation, and its text is passed on.
#[test]
fn calls_without_tools() {
    let rig = rig("output", "");
    let stage = rig.stage("");
    let none = StageRequest { tool_choice: ToolChoice::None, ..request() };
    for request in [StageRequest::default(), none] {
        let mut session = stage.open(&request).expect("it opens");
        let out = session.feed(vec![OutputEvent::content("<call>")]).expect("it is passed on");
        assert_eq!(line(&out), "<call>");
    }
    assert_eq!(rig.status().traps.get("violation"), Some(&2));
}

/// The other policy: the stream ends with a typed error that names plugin, call and cause.
#[test]
fn policy_error() {
    for (fault, code) in
        [("loop", "plugin-late"), ("trap", "plugin-trap"), ("disorder", "plugin-violation"), ("error", "told-to")]
    {
        let rig = rig("output", &format!("{QUICK}[failure]\npolicy = \"error\"\n"));
        let stage = rig.stage(&format!("feed={fault}"));
        let error = stream(stage.as_ref(), &TEXTS).expect_err("the stream ends with an error");
        assert_eq!((error.plugin.as_str(), error.code.as_str()), ("hostile-output", code));
        let mut session = stage.open(&request()).expect("the next stream opens");
        let first = session.feed(vec![OutputEvent::content("x")]).expect_err("it fails again");
        assert_eq!(session.finish(EndReason::Error), Err(first), "the error stays");
    }
}

/// `constrain`: a grammar that is not essential is done without, one that was asked for is an error.
#[test]
fn constrain() {
    let rig = rig("output", QUICK);
    let required = StageRequest { tool_choice: ToolChoice::Required, ..request() };
    let grammar = rig.stage("").constrain(&request()).expect("it answers").expect("there is one");
    assert_eq!((grammar.language.as_str(), grammar.grammar.as_str()), ("lark", "start: \"a\""));
    for fault in ["loop", "trap", "memory", "recurse", "huge"] {
        let stage = rig.stage(&format!("constrain={fault}"));
        assert_eq!(stage.constrain(&request()), Ok(None), "{fault}");
        assert!(stage.constrain(&required).is_err(), "{fault}");
    }
    let error = rig.stage("constrain=error").constrain(&request()).expect_err("its own error is passed on");
    assert_eq!((error.code.as_str(), error.severity), ("told-to", Severity::DisablePlugin));
    assert!(error.message.len() <= 512);
}

/// While one plugin loops in every call, another one's streams go on on other threads, and all text arrives.
#[test]
fn others_go_on_meanwhile() {
    let rig = rig("output", QUICK);
    let (bad, good) = (rig.stage("feed=loop finish=loop"), rig.stage(""));
    let texts: Vec<String> = (0..500).map(|i| format!("{i} ")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let run = |stage: &dyn OutputStage| line(&stream(stage, &texts).expect("text arrives"));
    std::thread::scope(|scope| {
        let looping = scope.spawn(|| run(bad.as_ref()));
        let fine = scope.spawn(|| run(good.as_ref()));
        assert_eq!(fine.join().expect("no panic"), texts.concat());
        assert_eq!(looping.join().expect("no panic"), texts.concat());
    });
}
