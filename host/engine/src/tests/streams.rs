//! Channels, limits, grammars and numbers of a request.

use contract::constraint::{ConstraintError, TokenConstraint};

use super::fake::{Fake, VOCAB, scores};
use super::*;
use crate::SubmitError;

/// A client that reads nothing is parked; the others go on, and it loses nothing.
#[test]
fn a_full_channel_parks_its_request() {
    for in_flight in [1, 2] {
        let handle = engine(Fake::new(2, 60, in_flight));
        let (slow, quick) = (prompt(1, 30), prompt(2, 30));
        let parked = handle.submit(request(&slow, 500)).expect("fits");
        until(&handle, |status| status.last_token_age.is_some());
        for _ in 0..3 {
            assert_alone(&read(handle.submit(request(&quick, 300)).expect("fits")), &quick, 300, &[]);
        }
        assert_eq!(handle.status().running, 1);
        assert_alone(&read(parked), &slow, 500, &[]);
    }
}

/// The end of a stream waits too when the channel is full.
#[test]
fn the_end_waits_for_a_slow_client() {
    let handle = engine(Fake::new(1, 60, 1));
    let text = prompt(1, 30);
    let open = handle.submit(request(&text, 64)).expect("fits");
    until(&handle, |status| status.steps >= 64 && status.running == 0);
    assert_alone(&read(open), &text, 64, &[]);
}

/// A client that stalls beyond the limit is dropped, so that it does not hold its seat for ever.
#[test]
fn a_stalled_client_is_dropped() {
    let handle = engine_with(Fake::new(1, 60, 1), None, EngineConfig { stall_limit: Duration::ZERO, ..config() });
    let text = prompt(1, 30);
    let stalled = handle.submit(request(&text, 3000)).expect("fits");
    let next = handle.submit(request(&text, 20)).expect("fits");
    assert_alone(&read(next), &text, 20, &[]);
    drop(stalled);
}

/// Context and limit end a request as `Length`; prompts that leave no room are refused with the numbers.
#[test]
fn lengths_are_checked_and_kept() {
    let handle = engine(Fake::new(1, 60, 1).context(128));
    for (len, max_new, expected) in [(127, 100, 1), (100, 100, 28), (100, 5, 5)] {
        let text = prompt(1, len);
        assert_alone(&read(handle.submit(request(&text, max_new)).expect("fits")), &text, expected, &[]);
    }
    let refused = |prompt: &[TokenId], max_new| handle.submit(request(prompt, max_new)).err();
    let too_long = |prompt_tokens| Some(SubmitError::TooLong { prompt_tokens, context_len: 128 });
    assert_eq!(refused(&prompt(1, 128), 1), too_long(128));
    assert_eq!(refused(&prompt(1, 3000), 1), too_long(3000));
    for (prompt, max_new) in [(vec![], 1), (vec![1], 0), (vec![VOCAB], 1)] {
        assert!(matches!(refused(&prompt, max_new), Some(SubmitError::Invalid(_))), "{prompt:?} {max_new}");
    }
    let small = engine(Fake::new(1, 2, 1));
    let never = small.submit(request(&prompt(1, 129), 1)).err();
    assert_eq!(never, Some(SubmitError::NeverFits { needed_tokens: 130, pool_tokens: 128 }));
}

/// Beyond seats and queue a request is refused, with a time to come back; then there is room again.
#[test]
fn a_full_queue_says_when_to_retry() {
    let (fake, permits) = Fake::new(1, 60, 1).gated();
    let handle = engine_with(fake, None, EngineConfig { max_queued: 2, ..config() });
    let text = prompt(1, 10);
    let open: Vec<_> = (0..3).map(|_| handle.submit(request(&text, 2)).expect("fits")).collect();
    let refused = handle.submit(request(&text, 2)).err();
    assert!(matches!(refused, Some(SubmitError::QueueFull { limit: 2, retry_after_s: 1..=60, .. })), "{refused:?}");
    drop(permits);
    for generation in open {
        assert_alone(&read(generation), &text, 2, &[]);
    }
    // The place is free before the client hears of the end.
    assert!(handle.submit(request(&text, 2)).is_ok());
}

/// Logprobs come with their tokens.
#[test]
fn logprobs_are_aligned() {
    let handle = engine(Fake::new(2, 60, 2));
    let text = prompt(1, 10);
    let mut with = request(&text, 40);
    with.sampling.logprobs = Some(1);
    let with = handle.submit(with).expect("fits");
    let without = handle.submit(request(&text, 40)).expect("fits");
    assert_eq!((read(with).logprobs, read(without).logprobs), (40, 0));
}

/// A prompt's logprobs are all its tokens' but the first's, in any cutting, whatever the cache holds of it; and what was
/// computed for them serves the next request.
#[test]
fn prompts_are_scored_as_a_whole() {
    for in_flight in [1, 2] {
        for len in [1, 2, 64, 65, 300] {
            let handle = engine(Fake::new(2, 60, in_flight));
            let text = prompt(1, len);
            assert_alone(&read(handle.submit(request(&text, 3)).expect("fits")), &text, 3, &[]);
            let mut scored = request(&text, 3);
            scored.prompt_logprobs = Some(0);
            scored.sampling.logprobs = Some(1);
            let answer = read(handle.submit(scored).expect("fits"));
            assert_alone(&answer, &text, 3, &[]);
            assert_eq!((answer.cached, answer.logprobs), (0, 3));
            assert_eq!(answer.prompt, scores(&text));
            let later = read(handle.submit(request(&text, 3)).expect("fits"));
            assert_eq!(later.cached as usize, (len - 1) / 64 * 64);
            assert!(later.prompt.is_empty());
        }
    }
}

/// Also when the pool is so small that requests push each other out and compute parts of their prompts again.
#[test]
fn preempted_prompts_are_scored_once() {
    let handle = engine(Fake::new(4, 9, 2));
    let texts: Vec<Vec<TokenId>> = (0..6).map(|n| prompt(n, 150 + 10 * n as usize)).collect();
    let open: Vec<_> = texts
        .iter()
        .map(|text| handle.submit(Request { prompt_logprobs: Some(3), ..request(text, 200) }).expect("fits"))
        .collect();
    let answers: Vec<Answer> = open.into_iter().map(read).collect();
    for (answer, text) in answers.iter().zip(&texts) {
        assert_alone(answer, text, 200, &[]);
        assert_eq!(answer.prompt, scores(text));
    }
    assert!(answers.iter().any(|answer| answer.preemptions > 0), "nobody was pushed out");
}

/// Each token must be larger than the one before, and after the largest nothing is allowed but 0.
struct Ascending {
    last: Option<TokenId>,
    /// Free tokens before the grammar starts.
    sleep: u32,
}

impl TokenConstraint for Ascending {
    fn is_active(&self) -> bool {
        self.sleep == 0
    }

    fn fill_mask(&mut self, mask: &mut [u32]) -> Result<(), ConstraintError> {
        mask.fill(0);
        let from = self.last.map_or(0, |last| last + 1);
        for token in (from..VOCAB).chain((from >= VOCAB).then_some(0)) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if self.sleep > 0 {
            self.sleep -= 1;
            return Ok(());
        }
        if self.last.is_some_and(|last| token <= last && last + 1 < VOCAB) {
            return Err(ConstraintError(format!("{token} after {:?}", self.last)));
        }
        self.last = Some(token);
        Ok(())
    }
}

/// A mask always knows the token before it, with a step in flight and beside requests without a grammar.
#[test]
fn masks_follow_every_token() {
    for in_flight in [1, 2] {
        let handle = engine(Fake::new(3, 60, in_flight));
        let text = prompt(1, 100);
        let free = handle.submit(request(&text, 60)).expect("fits");
        let open: Vec<_> = [0, 7]
            .map(|sleep| {
                let constraint = Some(Box::new(Ascending { last: None, sleep }) as Box<dyn TokenConstraint>);
                handle.submit(Request { constraint, ..request(&text, 12) }).expect("fits")
            })
            .into_iter()
            .collect();
        for (generation, sleep) in open.into_iter().zip([0, 7]) {
            let answer = read(generation);
            assert_eq!((answer.end, answer.tokens.len()), (Ok(FinishReason::Length), 12), "sleep {sleep}");
            assert_eq!(answer.tokens[..sleep], alone(&text, sleep, &[]), "the grammar sleeps");
            let climbs = |pair: &[TokenId]| pair[0] < pair[1] || pair[0] == VOCAB - 1;
            assert!(answer.tokens[sleep..].windows(2).all(climbs), "{:?}", answer.tokens);
        }
        assert_alone(&read(free), &text, 60, &[]);
    }
}

/// The names that dashboards read are there, with the model's label.
#[test]
fn metrics_have_their_names() {
    let mut registry = Registry::default();
    let parts = EngineParts { backend: Box::new(Fake::new(1, 60, 1)), policy: None, config: config() };
    let handle = start(parts, &mut registry).expect("the engine starts");
    read(handle.submit(request(&prompt(1, 70), 3)).expect("fits"));
    until(&handle, |status| status.running == 0);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
    for line in [
        "vllm:num_requests_running{model_name=\"test\",engine=\"0\"} 0",
        "vllm:prompt_tokens_total{model_name=\"test\",engine=\"0\"} 70",
        "vllm:generation_tokens_total{model_name=\"test\",engine=\"0\"} 3",
        "vllm:request_success_total{model_name=\"test\",engine=\"0\",finished_reason=\"length\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"test\",engine=\"0\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"test\",engine=\"0\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "`{line}` is not in\n{text}");
    }
}
