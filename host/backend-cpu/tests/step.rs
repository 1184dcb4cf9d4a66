//! The step trait's promises: what a sequence gets does not depend on its company, and misuse is an error.

mod common;

use backend::ops::ModelSpec;
use backend::step::{Emit, Feed, Mask, Run, SeatFault, SeatInit, Step, StepOut, Table};
use backend::weights::{SharedBytes, Weight, WeightType};
use backend::{Backend, BackendError};
use backend_cpu::Numerics;
use contract::sampling::SamplingParams;
use contract::{PageId, Seat};

use common::{Driver, Go, feed, greedy, load, next, spec};

const BOTH: [Numerics; 2] = [Numerics::Fast, Numerics::Exact];

fn prompt(seat: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * i + 31 * seat + 7 * i) % 256).collect()
}

/// The model with its large matrices stored as Q8_0 or Q4_1, so that their kernels run.
fn quantised(mut spec: ModelSpec, ty: WeightType) -> ModelSpec {
    for weight in &mut spec.weights {
        if weight.rows == 1 {
            continue;
        }
        let mut bytes = Vec::new();
        for i in 0..weight.rows {
            let row: Vec<f32> =
                weight.row(i).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            row.chunks_exact(32).for_each(|block| quantise(ty, block, &mut bytes));
        }
        let (rows, cols) = (weight.rows, weight.cols);
        *weight = Weight::new(weight.name.clone(), ty, rows, cols, SharedBytes::from_vec(bytes)).expect("whole rows");
    }
    spec
}

fn quantise(ty: WeightType, x: &[f32], out: &mut Vec<u8>) {
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let put = |out: &mut Vec<u8>, x: f32| out.extend(half::f16::from_f32(x).to_le_bytes());
    match ty {
        WeightType::Q8_0 => {
            let d = low.abs().max(high.abs()) / 127.0;
            put(out, d);
            out.extend(x.iter().map(|x| (x / d).round() as i8 as u8));
        }
        WeightType::Q4_1 => {
            let d = (high - low) / 15.0;
            put(out, d);
            put(out, low);
            let code = |x: f32| ((x - low) / d).round().clamp(0.0, 15.0) as u8;
            out.extend((0..16).map(|j| code(x[j]) | code(x[j + 16]) << 4));
        }
        other => unreachable!("{other:?} is not made here"),
    }
}

/// What a sequence of its own gives: tokens and the logits of each step, to the bit.
fn alone(driver: &mut Driver, seat: u16, prompt: &[u32], steps: usize) -> Vec<(u32, Vec<u32>)> {
    driver.bind(seat, &greedy(), 0, prompt);
    let mut out = Vec::new();
    for i in 0..steps {
        let run = if i == 0 { feed(seat, prompt, Emit::Next) } else { next(seat) };
        out.extend(observed(driver, &[run]));
    }
    driver.backend.release(Seat(seat));
    out
}

/// Token and logits of each run that emits.
fn observed(driver: &mut Driver, runs: &[Go]) -> Vec<(u32, Vec<u32>)> {
    let ticket = driver.forward(runs).expect("a valid step");
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let logits: Vec<Vec<u32>> = (0..).map_while(|i| driver.backend.logits(i).map(bits)).collect();
    driver.backend.sample(ticket, &[]).expect("an open step");
    let out = driver.backend.collect(ticket, true).expect("sampled").expect("over");
    out.tokens.into_iter().zip(logits).collect()
}

/// Rows of other sequences in the step, prefill and decode, change nothing: not a token, not a bit of the logits.
#[test]
fn a_sequence_does_not_depend_on_its_company() {
    let models = [
        spec("tiny-llama"),
        quantised(spec("tiny-llama3-rope"), WeightType::Q4_1),
        quantised(spec("tiny-qwen3"), WeightType::Q8_0),
    ];
    for model in models {
        for (numerics, threads) in [(Numerics::Fast, 2), (Numerics::Fast, 3), (Numerics::Exact, 2)] {
            let prompts: Vec<Vec<u32>> = [70, 1, 33, 130].iter().zip(0..).map(|(&len, s)| prompt(s, len)).collect();
            let mut driver = Driver::new(load(model.clone(), numerics, 1));
            let expected: Vec<_> =
                prompts.iter().zip(0..).map(|(prompt, seat)| alone(&mut driver, seat, prompt, 5)).collect();
            let mut driver = Driver::new(load(model.clone(), numerics, threads));
            let mut found = vec![Vec::new(); prompts.len()];
            (0..4).for_each(|seat| driver.bind(seat, &greedy(), 0, &prompts[usize::from(seat)]));
            // Sequence s joins in step s; the last is fed in two chunks cut inside a page.
            for step in 0..9u16 {
                let mut runs = Vec::new();
                for seat in 0..3.min(step) {
                    runs.push(next(seat));
                }
                if step > 4 {
                    runs.push(next(3));
                }
                match step {
                    0..3 => runs.push(feed(step, &prompts[usize::from(step)], Emit::Next)),
                    3 => runs.push(feed(3, &prompts[3][..77], Emit::Nothing)),
                    4 => runs.push(feed(3, &prompts[3][77..], Emit::Next)),
                    _ => {}
                }
                let emitting: Vec<u16> = runs.iter().filter(|r| r.emit == Emit::Next).map(|r| r.seat).collect();
                for (seat, got) in emitting.into_iter().zip(observed(&mut driver, &runs)) {
                    found[usize::from(seat)].push(got);
                }
            }
            for (seat, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found[..5], expected[..], "{} {numerics:?} sequence {seat}", model.family);
            }
        }
    }
}

/// A long sequence whose attention several threads share gives the same bits as on one thread, alone or in company.
#[test]
fn long_sequences_are_shared_among_threads() {
    let mut model = quantised(spec("tiny-llama"), WeightType::Q4_1);
    model.context_len = 2048;
    let prompt = prompt(5, 1_300);
    let run = |threads: usize, chunk: usize| {
        let mut driver = Driver::new(load(model.clone(), Numerics::Fast, threads));
        driver.bind(0, &greedy(), 0, &prompt);
        driver.bind(1, &greedy(), 0, &prompt[..9]);
        driver.step(&[feed(1, &prompt[..9], Emit::Next)]);
        let mut chunks = prompt.chunks(chunk).peekable();
        let mut found = Vec::new();
        while let Some(chunk) = chunks.next() {
            let emit = if chunks.peek().is_none() { Emit::Next } else { Emit::Nothing };
            found.extend(observed(&mut driver, &[feed(0, chunk, emit)]));
        }
        (0..3).for_each(|_| found.extend(observed(&mut driver, &[next(0)])));
        (0..3).for_each(|_| found.push(observed(&mut driver, &[next(0), next(1)]).remove(0)));
        found
    };
    let expected = run(1, 256);
    assert_eq!(expected.len(), 7);
    for (threads, chunk) in [(2, 256), (3, 200), (2, 65)] {
        assert_eq!(run(threads, chunk), expected, "{threads} threads, chunks of {chunk}");
    }
}

/// 12-bit activations stay near the oracle.
#[test]
fn quantised_models_follow_the_oracle() {
    for ty in [WeightType::Q4_1, WeightType::Q8_0] {
        let model = quantised(spec("tiny-qwen3"), ty);
        let prompt = prompt(0, 100);
        let [fast, exact] = BOTH.map(|numerics| {
            let mut driver = Driver::new(load(model.clone(), numerics, 2));
            driver.bind(0, &greedy(), 0, &prompt);
            driver.logits(feed(0, &prompt, Emit::Next))
        });
        let square = |x: &[f32]| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        let difference: Vec<f32> = fast.iter().zip(&exact).map(|(a, b)| a - b).collect();
        let relative = (square(&difference) / square(&exact)).sqrt();
        // Each product adds up to 0.05 % (12 bits in blocks of 32); 14 of them follow one another here.
        assert!(relative < 0.004, "{ty:?}: {relative}");
    }
}

/// A seeded sequence gives the same tokens before and after a preemption, and on a shared prefix.
#[test]
fn a_sequence_resumes_where_it_was() {
    let sampling = SamplingParams { temperature: 0.9, repetition_penalty: 1.2, ..SamplingParams::default() };
    let prompt = prompt(1, 90);
    let mut driver = Driver::new(load(spec("tiny-llama"), Numerics::Fast, 2));
    driver.bind(0, &sampling, 42, &prompt);
    let mut expected = driver.step(&[feed(0, &prompt, Emit::Next)]).tokens;
    (1..8).for_each(|_| expected.extend(driver.step(&[next(0)]).tokens));
    // Recompute on another seat, whose first page is the first sequence's (page 0) and holds 64 tokens.
    let backend = &mut driver.backend;
    let generated = &expected[..4];
    let init = SeatInit { sampling: &sampling, seed: 42, adapter: None, start: 64, prompt: &prompt, generated };
    backend.bind(Seat(1), &init).expect("a free seat");
    let tokens = [&prompt[64..], generated].concat();
    let (shared, own) = ([PageId(0)], [PageId(9)]);
    let tables =
        [Table::Append { seat: Seat(1), at: 0, pages: &shared }, Table::Append { seat: Seat(1), at: 1, pages: &own }];
    let rows = tokens.len() as u32;
    let run =
        Run { seat: Seat(1), feed: Feed::Tokens(0..rows), rows, end_max: 64 + rows, emit: Emit::Next, masked: false };
    let mut found = run_step(backend, &Step { tables: &tables, runs: &[run], tokens: &tokens }).tokens;
    for i in 1..4 {
        let end_max = 64 + rows + i;
        let run = Run { seat: Seat(1), feed: Feed::Last, rows: 1, end_max, emit: Emit::Next, masked: false };
        found.extend(run_step(backend, &Step { tables: &[], runs: &[run], tokens: &[] }).tokens);
    }
    assert_eq!(found, expected[4..]);
}

fn run_step(backend: &mut dyn Backend, step: &Step<'_>) -> StepOut {
    let ticket = backend.forward(step).expect("a valid step");
    backend.sample(ticket, &[]).expect("an open step");
    backend.collect(ticket, true).expect("sampled").expect("over")
}

/// Prompt logprobs and pooled states agree with what single steps give.
#[test]
fn prompts_are_scored_and_pooled() {
    let prompt = prompt(3, 20);
    let sampling = SamplingParams { logprobs: Some(2), ..greedy() };
    for numerics in BOTH {
        let mut driver = Driver::new(load(spec("tiny-qwen3"), numerics, 2));
        driver.bind(0, &sampling, 0, &prompt);
        let every = |from, next| Emit::Every { from, top: 2, next };
        let out = driver.step(&[feed(0, &prompt, every(0, None))]);
        assert_eq!((out.tokens.len(), out.logprobs.len()), (1, 20), "19 prompt tokens and the next");
        driver.bind(1, &sampling, 0, &prompt);
        for (i, &token) in prompt.iter().enumerate().take(19) {
            let logits = driver.logits(feed(1, &[token], Emit::Next));
            let expected = backend::sampler::raw_logprobs(&logits, prompt[i + 1], 2);
            assert_eq!(out.logprobs[i], expected, "{numerics:?} token {i}");
        }
        driver.bind(2, &greedy(), 0, &prompt);
        let first = driver.step(&[feed(2, &prompt[..17], every(0, Some(prompt[17])))]);
        assert_eq!((first.tokens.len(), &first.logprobs[..]), (0, &out.logprobs[..17]));
        let second = driver.step(&[feed(2, &prompt[17..], every(1, None))]);
        assert_eq!((second.tokens.len(), &second.logprobs[..]), (1, &out.logprobs[18..19]), "{numerics:?}");
        driver.release(2);
        driver.bind(2, &sampling, 0, &prompt);
        driver.bind(3, &sampling, 0, &prompt);
        let out =
            driver.step(&[feed(2, &prompt, Emit::Pool { mean: false }), feed(3, &prompt, Emit::Pool { mean: true })]);
        assert!(out.tokens.is_empty());
        let pooled = out.runs.iter().map(|run| &out.pooled[run.pooled.start as usize..run.pooled.end as usize]);
        let pooled: Vec<_> = pooled.collect();
        assert_eq!(pooled.iter().map(|p| p.len()).collect::<Vec<_>>(), [64, 64]);
        assert_ne!(pooled[0], pooled[1]);
    }
}

#[test]
fn masks_come_late_and_an_empty_one_ends_the_sequence() {
    let mut driver = Driver::new(load(spec("tiny-llama"), Numerics::Fast, 1));
    let prompt = prompt(0, 5);
    let cases = [([0u32, 1 << 3, 0, 0, 0, 0, 0, 0], Some(35)), ([0; 8], None)];
    for (seat, (bits, expected)) in cases.into_iter().enumerate() {
        let seat = seat as u16;
        driver.bind(seat, &greedy(), 0, &prompt);
        let pages = [PageId(u32::from(seat))];
        let tables = [Table::Append { seat: Seat(seat), at: 0, pages: &pages }];
        let run =
            Run { seat: Seat(seat), feed: Feed::Tokens(0..5), rows: 5, end_max: 5, emit: Emit::Next, masked: true };
        let step = Step { tables: &tables, runs: &[run], tokens: &prompt };
        let ticket = driver.backend.forward(&step).expect("a valid step");
        let wrong = Mask { run: 0, row: 0, bits: &bits[..7], forced: false };
        assert!(matches!(driver.backend.sample(ticket, &[]), Err(BackendError::InvalidStep(_))), "no mask");
        assert!(matches!(driver.backend.sample(ticket, &[wrong]), Err(BackendError::InvalidStep(_))), "short mask");
        driver
            .backend
            .sample(ticket, &[Mask { run: 0, row: 0, bits: &bits, forced: false }])
            .expect("a mask for the masked run");
        let out = driver.backend.collect(ticket, true).expect("sampled").expect("over");
        assert_eq!(out.tokens.first().copied(), expected);
        assert_eq!(matches!(out.runs[0].fault, Some(SeatFault::Error(_))), expected.is_none());
    }
}

/// A stop token ends the sequence; a row that was already planned gives nothing; the seat is free after its step.
#[test]
fn stop_tokens_and_release() {
    let mut driver = Driver::new(load(spec("tiny-llama"), Numerics::Fast, 1));
    let prompt = prompt(2, 9);
    driver.bind(0, &greedy(), 0, &prompt);
    let stop = driver.step(&[feed(0, &prompt, Emit::Next)]).tokens[0];
    let sampling = SamplingParams { stop_tokens: vec![stop], ..greedy() };
    driver.bind(1, &sampling, 0, &prompt);
    let out = driver.step(&[feed(1, &prompt, Emit::Next)]);
    assert!(out.runs[0].done && out.tokens == [stop]);
    let out = driver.step(&[next(1)]);
    assert!(out.runs[0].done && out.tokens.is_empty() && out.runs[0].end == 9);
    let ticket = driver.forward(&[next(0)]).expect("a valid step");
    driver.backend.release(Seat(0));
    let init = SeatInit { sampling: &sampling, seed: 0, adapter: None, start: 0, prompt: &prompt, generated: &[] };
    assert!(driver.backend.bind(Seat(0), &init).is_err(), "its step is still open");
    driver.backend.sample(ticket, &[]).expect("an open step");
    driver.backend.collect(ticket, true).expect("sampled");
    assert_eq!(driver.backend.bind(Seat(0), &init), Ok(()));
}

/// Each way to break the protocol is an error that says so, and the backend serves on.
#[test]
fn misuse_is_an_error() {
    let good = Run { seat: Seat(0), feed: Feed::Tokens(0..3), rows: 3, end_max: 3, emit: Emit::Next, masked: false };
    let run = |change: fn(&mut Run)| {
        let mut run = good.clone();
        change(&mut run);
        vec![run]
    };
    let cases: Vec<(&str, Vec<Run>, Vec<u32>)> = vec![
        ("unbound seat", run(|r| r.seat = Seat(3)), vec![1, 2, 3]),
        ("no such seat", run(|r| r.seat = Seat(999)), vec![1, 2, 3]),
        ("two runs", vec![good.clone(), good.clone()], vec![1, 2, 3]),
        ("rows and tokens differ", run(|r| r.rows = 2), vec![1, 2, 3]),
        ("tokens missing", run(|_| {}), vec![1, 2]),
        ("token beyond the vocabulary", run(|_| {}), vec![1, 256, 3]),
        ("no last token", run(|r| (r.feed, r.rows) = (Feed::Last, 1)), vec![]),
        ("drafts", run(|r| r.feed = Feed::Draft { max: 2 }), vec![1, 2, 3]),
        ("verify", run(|r| r.emit = Emit::Verify), vec![1, 2, 3]),
        ("logprobs from beyond", run(|r| r.emit = Emit::Every { from: 3, top: 0, next: None }), vec![1, 2, 3]),
        ("no such next", run(|r| r.emit = Emit::Every { from: 0, top: 0, next: Some(256) }), vec![1, 2, 3]),
        ("end_max too low", run(|r| r.end_max = 2), vec![1, 2, 3]),
        ("end_max beyond the context", run(|r| r.end_max = 513), vec![1, 2, 3]),
        ("no pages", run(|r| (r.feed, r.rows, r.end_max) = (Feed::Tokens(0..65), 65, 65)), vec![1; 65]),
        ("too many rows", run(|r| (r.feed, r.rows, r.end_max) = (Feed::Tokens(0..300), 300, 300)), vec![1; 300]),
    ];
    let mut backend = load(spec("tiny-llama"), Numerics::Fast, 2);
    let sampling = greedy();
    let init = SeatInit { sampling: &sampling, seed: 0, adapter: None, start: 0, prompt: &[], generated: &[] };
    backend.bind(Seat(0), &init).expect("a free seat");
    let pages = [PageId(0)];
    let tables = [Table::Append { seat: Seat(0), at: 0, pages: &pages }];
    assert!(backend.forward(&Step { tables: &tables, runs: &[], tokens: &[] }).is_ok());
    for attempt in [backend.bind(Seat(0), &init), backend.bind(Seat(77), &init)] {
        assert!(matches!(attempt, Err(BackendError::InvalidStep(_))), "{attempt:?}");
    }
    let ticket = backend::step::Ticket(0);
    assert!(backend.collect(ticket, true).is_err(), "not sampled");
    assert!(backend.forward(&Step { tables: &[], runs: &[], tokens: &[] }).is_err(), "one step is open");
    assert!(backend.sample(backend::step::Ticket(5), &[]).is_err(), "no such step");
    backend.sample(ticket, &[]).expect("an open step");
    assert!(backend.sample(ticket, &[]).is_err(), "sampled already");
    backend.collect(ticket, true).expect("sampled");
    for (name, runs, tokens) in &cases {
        let answer = backend.forward(&Step { tables: &[], runs, tokens });
        assert!(matches!(answer, Err(BackendError::InvalidStep(_))), "{name}: {answer:?}");
    }
    let far = [PageId(u32::MAX)];
    let bad = [
        Table::Append { seat: Seat(0), at: 1, pages: &far },
        Table::Append { seat: Seat(0), at: 7, pages: &pages },
        Table::CopyPage { from: PageId(0), to: far[0] },
    ];
    for table in bad {
        let answer = backend.forward(&Step { tables: &[table], runs: &[], tokens: &[] });
        assert!(matches!(answer, Err(BackendError::InvalidStep(_))), "{answer:?}");
    }
    let ticket = backend.forward(&Step { tables: &[], runs: &[good], tokens: &[1, 2, 3] }).expect("a valid step");
    backend.sample(ticket, &[]).expect("an open step");
    assert_eq!(backend.collect(ticket, true).expect("sampled").expect("over").tokens.len(), 1);
}
