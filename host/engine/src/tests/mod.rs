//! The engine over a fake device: texts are exact, and every way to fail ends in an answer.

mod fake;
mod faults;
mod policies;
mod sched;
mod streams;

use std::time::{Duration, Instant};

use contract::TokenId;
use contract::generation::{FinishReason, GenerationError, Request, TokenEvent};
use contract::policy::SchedulePolicy;
use contract::sampling::SamplingParams;
use prometheus_client::registry::Registry;

use crate::{EngineConfig, EngineParts, Generation, Handle, start};
use fake::{Fake, alone};

fn config() -> EngineConfig {
    EngineConfig {
        // A test must not fail because the machine is busy.
        policy_deadline: Duration::from_secs(60),
        starvation_bound: Duration::from_millis(20),
        ..EngineConfig::new("test")
    }
}

fn engine_with(fake: Fake, policy: Option<Box<dyn SchedulePolicy>>, config: EngineConfig) -> Handle {
    let parts = EngineParts { backend: Box::new(fake), policy, config };
    start(parts, &mut Registry::default()).expect("the engine starts")
}

fn engine(fake: Fake) -> Handle {
    engine_with(fake, None, config())
}

fn request(prompt: &[TokenId], max_new_tokens: u32) -> Request {
    Request {
        id: "r".into(),
        prompt: prompt.into(),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        seed: 0,
        max_new_tokens,
        priority: 0,
        tenant: Default::default(),
        deadline: None,
        namespace: 0,
        group: 0,
        constraint: None,
        prompt_logprobs: None,
    }
}

/// `len` tokens that depend on `seed`.
fn prompt(seed: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|at| (seed.wrapping_mul(31) + at * 7 + at * at * seed) % 90).collect()
}

#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<TokenId>,
    logprobs: usize,
    prompt: Vec<(TokenId, f32)>,
    cached: u32,
    end: Result<FinishReason, GenerationError>,
    preemptions: u32,
}

/// Reads a stream to its end and checks its grammar: `Started`, `Prompt`…, `Tokens`…, one end.
fn read(generation: Generation) -> Answer {
    read_on(generation, false)
}

/// The same for a stream whose `Started` was taken, or not.
fn read_on(mut generation: Generation, mut started: bool) -> Answer {
    let mut answer = Answer {
        tokens: Vec::new(),
        logprobs: 0,
        prompt: Vec::new(),
        cached: 0,
        end: Err(GenerationError::Shutdown),
        preemptions: 0,
    };
    while let Some(event) = generation.blocking_next() {
        match event {
            TokenEvent::Started { cached_tokens, .. } => {
                assert!(!std::mem::replace(&mut started, true) && answer.tokens.is_empty());
                answer.cached = cached_tokens;
            }
            TokenEvent::Prompt { logprobs } => {
                assert!(started && answer.tokens.is_empty());
                answer.prompt.extend(logprobs.iter().map(|at| (at.token, at.logprob)));
            }
            TokenEvent::Tokens { tokens, logprobs } => {
                assert!(started && (logprobs.is_empty() || logprobs.len() == tokens.len()));
                answer.tokens.extend(tokens);
                answer.logprobs += logprobs.len();
            }
            TokenEvent::Finished { reason, preemptions } => {
                answer.end = Ok(reason);
                answer.preemptions = preemptions;
            }
            TokenEvent::Failed(error) => answer.end = Err(error),
        }
    }
    answer
}

/// The text is what the request gives alone, and its end fits the text.
fn assert_alone(answer: &Answer, prompt: &[TokenId], max_new: usize, stop: &[TokenId]) {
    let expected = alone(prompt, max_new, stop);
    assert_eq!(answer.tokens, expected, "another text than alone");
    let last = *expected.last().expect("at least one token");
    let reason = if stop.contains(&last) { FinishReason::Stop { token: last } } else { FinishReason::Length };
    assert_eq!(answer.end, Ok(reason));
}

/// Waits until the engine reports what is wanted; a test that waits for ever fails by its runner's limit.
fn until(handle: &Handle, wanted: impl Fn(&crate::EngineStatus) -> bool) {
    while !wanted(&handle.status()) {
        std::thread::yield_now();
    }
}
