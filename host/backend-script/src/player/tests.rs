use std::sync::Arc;

use backend::load::LoadOptions;
use backend::step::{Emit, Feed, Mask, Run, RunOut, SeatFault, SeatInit, Step, StepOut, Table};
use backend::{Backend, BackendError};
use contract::sampling::SamplingParams;
use contract::{PageId, Seat, TokenId};

use super::ScriptBackend;
use crate::script::{EOS, Script};

fn backend(json: &str) -> ScriptBackend {
    ScriptBackend::new(Arc::new(Script::from_json(json).unwrap()), &LoadOptions::default()).0
}

fn sampling() -> SamplingParams {
    SamplingParams { stop_tokens: vec![EOS], ..Default::default() }
}

fn bytes(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

/// Binds `seat` with one page and runs everything that is known of the sequence.
fn start(backend: &mut ScriptBackend, seat: u16, prompt: &str, generated: &[TokenId], seed: u64) -> StepOut {
    let (seat, prompt) = (Seat(seat), bytes(prompt));
    let sampling = sampling();
    let init = SeatInit { sampling: &sampling, seed, adapter: None, start: 0, prompt: &prompt, generated };
    backend.bind(seat, &init).unwrap();
    let tokens = [&prompt[..], generated].concat();
    let rows = tokens.len() as u32;
    let page = [PageId(u32::from(seat.0))];
    let run = Run { seat, feed: Feed::Tokens(0..rows), rows, end_max: rows, emit: Emit::Next, masked: false };
    step(backend, &[Table::Append { seat, at: 0, pages: &page }], &[run], &tokens).unwrap()
}

fn next(backend: &mut ScriptBackend, seat: u16, end_max: u32) -> Result<StepOut, BackendError> {
    step(backend, &[], &[last(seat, end_max)], &[])
}

fn last(seat: u16, end_max: u32) -> Run {
    Run { seat: Seat(seat), feed: Feed::Last, rows: 1, end_max, emit: Emit::Next, masked: false }
}

fn step(
    backend: &mut ScriptBackend,
    tables: &[Table<'_>],
    runs: &[Run],
    tokens: &[TokenId],
) -> Result<StepOut, BackendError> {
    let ticket = backend.forward(&Step { tables, runs, tokens })?;
    backend.sample(ticket, &[])?;
    Ok(backend.collect(ticket, true)?.expect("waited for"))
}

fn only(out: &StepOut) -> (Option<TokenId>, &RunOut) {
    let run = &out.runs[0];
    (out.tokens.get(run.tokens.start as usize).copied().filter(|_| !run.tokens.is_empty()), run)
}

#[test]
fn plays_to_the_end_token() {
    let mut backend = backend(r#"{"responses":[{"tokens":["a","b"]}]}"#);
    let first = start(&mut backend, 0, "hi", &[], 0);
    assert_eq!((only(&first).0, only(&first).1.end), (Some(257), 2));
    let second = next(&mut backend, 0, 3).unwrap();
    assert_eq!((only(&second).0, only(&second).1.done), (Some(258), false));
    let third = next(&mut backend, 0, 4).unwrap();
    assert_eq!((only(&third).0, only(&third).1.done), (Some(EOS), true));
    // The row that was launched before the end was known counts for nothing.
    let wasted = next(&mut backend, 0, 5).unwrap();
    assert_eq!((only(&wasted).0, only(&wasted).1.done, only(&wasted).1.end), (None, true, 4));
}

/// A preempted sequence is bound again with what it had said, and goes on from there, in its own choice.
#[test]
fn recompute_goes_on_where_it_was() {
    let mut backend = backend(r#"{"responses":[{"choices":[{"tokens":["a","b"]},{"tokens":["c","d"]}]}]}"#);
    assert_eq!(only(&start(&mut backend, 0, "hi", &[], 5)).0, Some(257));
    assert_eq!(only(&start(&mut backend, 1, "hi", &[], 6)).0, Some(259));
    backend.release(Seat(0));
    backend.release(Seat(1));
    assert_eq!(only(&start(&mut backend, 0, "hi", &[259], 6)).0, Some(260));
    assert_eq!(only(&start(&mut backend, 1, "hi", &[257], 5)).0, Some(258));
}

/// Two steps in flight; a release between them acts after both.
#[test]
fn steps_overlap() {
    let mut backend = backend(r#"{"responses":[{"tokens":["a","b","c"]}]}"#);
    start(&mut backend, 0, "hi", &[], 0);
    let mut launch = |end_max| {
        let ticket = backend.forward(&Step { tables: &[], runs: &[last(0, end_max)], tokens: &[] }).unwrap();
        backend.sample(ticket, &[]).unwrap();
        ticket
    };
    let (second, third) = (launch(3), launch(4));
    let error = backend.forward(&Step { tables: &[], runs: &[], tokens: &[] }).unwrap_err();
    assert!(error.to_string().contains("2 steps are open, the limit is 2"), "{error}");
    backend.release(Seat(0));
    assert!(backend.collect(third, true).unwrap_err().to_string().contains("collected before"));
    assert_eq!(only(&backend.collect(second, true).unwrap().unwrap()).0, Some(258));
    assert_eq!(only(&backend.collect(third, true).unwrap().unwrap()).0, Some(259));
    assert!(backend.sequences.is_empty());
}

#[test]
fn ends_reach_the_engine_as_faults() {
    let fault = |rest: &str| {
        let mut backend = backend(&format!(r#"{{"responses":[{{"tokens":["a"],{rest}}}]}}"#));
        start(&mut backend, 0, "hi", &[], 0);
        only(&next(&mut backend, 0, 3).unwrap()).1.fault.clone()
    };
    assert_eq!(fault(r#""finish":"length""#), Some(SeatFault::Length));
    assert!(matches!(fault(r#""then":"error""#), Some(SeatFault::Error(_))));
    assert!(matches!(fault(r#""then":"abort""#), Some(SeatFault::Abort(_))));
    assert_eq!(fault(r#""then":"hang""#), Some(SeatFault::Hang));
}

/// A hanging sequence says so in every step, and its length stays.
#[test]
fn a_hang_stays_where_it_is() {
    let mut backend = backend(r#"{"responses":[{"tokens":["a"],"then":"hang"}]}"#);
    start(&mut backend, 0, "hi", &[], 0);
    for _ in 0..3 {
        let out = next(&mut backend, 0, 3).unwrap();
        let (token, run) = only(&out);
        assert_eq!((token, run.done, run.fault.clone(), run.end), (None, false, Some(SeatFault::Hang), 2));
    }
}

#[test]
fn masks_come_with_sample() {
    let mut backend = backend(r#"{"responses":[{"text":"ab"}]}"#);
    start(&mut backend, 0, "hi", &[], 0);
    let masked = Run { masked: true, ..last(0, 3) };
    let ticket = backend.forward(&Step { tables: &[], runs: &[masked], tokens: &[] }).unwrap();
    assert!(backend.sample(ticket, &[]).unwrap_err().to_string().contains("no mask came"));
    let nothing = [0; 9];
    let mut backend = self::backend(r#"{"responses":[{"text":"ab"}]}"#);
    start(&mut backend, 0, "hi", &[], 0);
    let masked = Run { masked: true, ..last(0, 3) };
    let ticket = backend.forward(&Step { tables: &[], runs: &[masked], tokens: &[] }).unwrap();
    backend.sample(ticket, &[Mask { run: 0, row: 0, bits: &nothing, forced: false }]).unwrap();
    let out = backend.collect(ticket, true).unwrap().unwrap();
    assert_eq!(out.runs[0].fault, Some(SeatFault::ScriptViolatesGrammar { position: 1 }));
}

/// Delays are the steps', one after the other, and a poll does not wait for them.
#[test]
fn delays_do_not_block_forward() {
    let mut backend = backend(r#"{"responses":[{"tokens":["a","b"],"delay_ms":30}]}"#);
    let begin = std::time::Instant::now();
    start(&mut backend, 0, "hi", &[], 0);
    assert!(begin.elapsed().as_millis() >= 30);
    let ticket = backend.forward(&Step { tables: &[], runs: &[last(0, 3)], tokens: &[] }).unwrap();
    backend.sample(ticket, &[]).unwrap();
    assert_eq!(backend.collect(ticket, false).unwrap(), None);
    let out = backend.collect(ticket, true).unwrap().unwrap();
    assert_eq!((out.device.as_millis(), only(&out).0), (30, Some(258)));
}

/// An engine's mistakes are named, not played over.
#[test]
fn misuse_is_an_invalid_step() {
    let prompt = bytes("hi");
    let sampling = sampling();
    let init = SeatInit { sampling: &sampling, seed: 0, adapter: None, start: 0, prompt: &prompt, generated: &[] };
    let page = [PageId(0)];
    let tables = [Table::Append { seat: Seat(0), at: 0, pages: &page }];
    let run = |feed, rows, end_max| Run { seat: Seat(0), feed, rows, end_max, emit: Emit::Next, masked: false };
    let fails = |tables: &[Table<'_>], run: Run, needle: &str| {
        let mut backend = backend(r#"{"responses":[{"text":"ab"}]}"#);
        backend.bind(Seat(0), &init).unwrap();
        let error = step(&mut backend, tables, &[run], &prompt).unwrap_err().to_string();
        assert!(error.contains(needle), "{needle}: {error}");
    };
    fails(&tables, run(Feed::Tokens(0..1), 1, 2), "before the prompt's end");
    fails(&tables, run(Feed::Tokens(1..2), 1, 2), "not the sequence's own");
    fails(&tables, run(Feed::Tokens(0..2), 2, 1), "end_max 1");
    fails(&[], run(Feed::Tokens(0..2), 2, 2), "0 pages for 2 tokens");
    fails(&tables, run(Feed::Last, 1, 2), "last token fed at 0");
    fails(&tables, Run { seat: Seat(1), ..run(Feed::Last, 1, 2) }, "is free");
    let mut backend = backend(r#"{"responses":[{"match":"nothing","text":"ab"}]}"#);
    let error = backend.bind(Seat(0), &init).unwrap_err();
    assert_eq!(error.to_string(), "script: none of the 1 responses matches the prompt");
}
