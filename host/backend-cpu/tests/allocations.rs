//! A step allocates nothing but what it answers with.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use backend::Backend;
use backend::step::Emit;
use backend_cpu::Numerics;
use contract::sampling::SamplingParams;

use common::{Driver, data, feed, greedy, load, next, spec};

/// Counts what every thread asks for.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` allocates, on any thread.
fn allocations<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = COUNT.load(Ordering::Relaxed);
    let done = work();
    (COUNT.load(Ordering::Relaxed) - before, done)
}

/// The vectors of a step's answer: its runs, and their tokens.
const ANSWER: usize = 2;

fn check(model: &str, sampling: &SamplingParams) {
    let model = if data(&format!("{model}.gguf")).exists() { spec(model) } else { panic!("{model} is not there") };
    let mut driver = Driver::new(load(model, Numerics::Fast, 2));
    let prompt: Vec<u32> = (0..40).map(|i| (37 * i + 11) % 256).collect();
    for seat in 0..4 {
        driver.bind(seat, sampling, 7, &prompt);
        driver.step(&[feed(seat, &prompt, Emit::Next)]);
    }
    // The driver's own vectors are made before counting starts, so the steps are built by hand.
    for turn in 0..40 {
        let runs = [next(0), next(1), next(2), next(3)];
        let (built, step) = allocations(|| driver.build(&runs));
        assert!(built > 0, "allocations are counted");
        let (forward, ticket) = allocations(|| step.forward(&mut driver.backend));
        let (sample, sampled) = allocations(|| driver.backend.sample(ticket, &[]));
        sampled.expect("an open step");
        let (collect, out) = allocations(|| driver.backend.collect(ticket, true));
        let out = out.expect("a sampled step").expect("it is over");
        assert_eq!(out.tokens.len(), 4);
        assert_eq!((forward, collect), (0, 0), "turn {turn}");
        assert!(sample <= ANSWER, "turn {turn}: {sample} allocations while sampling");
    }
}

#[test]
fn a_step_allocates_only_its_answer() {
    let drawn = SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, ..SamplingParams::default() };
    for model in ["tiny-qwen3", "kquant-q4_k_m"] {
        check(model, &greedy());
        check(model, &drawn);
    }
}
