//! Scheduling, paging and the prefix cache, seen by clients.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use contract::generation::Request;

use super::fake::Fake;
use super::policies::{ByPriority, Resting, Witness};
use super::*;

/// Many requests over a small pool, with one and two steps in flight and the cache on and off.
#[test]
fn texts_do_not_depend_on_what_runs_beside() {
    for (in_flight, pages, prefix_cache) in [(1, 10, true), (2, 10, true), (2, 40, true), (1, 9, false), (2, 9, false)]
    {
        let handle = engine_with(Fake::new(5, pages, in_flight), None, EngineConfig { prefix_cache, ..config() });
        let jobs: Vec<_> = (0..30u32).map(|n| (prompt(n % 4, 1 + (n as usize * 37) % 300), 1 + n * 5 % 120)).collect();
        let open: Vec<_> = jobs
            .iter()
            .map(|(prompt, max_new)| {
                let mut request = request(prompt, *max_new);
                request.sampling.stop_tokens = vec![3];
                handle.submit(request).expect("it fits")
            })
            .collect();
        for ((prompt, max_new), generation) in jobs.iter().zip(open) {
            assert_alone(&read(generation), prompt, *max_new as usize, &[3]);
        }
        until(&handle, |status| status.running == 0 && status.pages_used == 0);
        assert_eq!(handle.status().fault, None);
    }
}

/// Whoever comes while a step runs that takes long is part of the next one, not of the one behind that: two steps give the
/// first token.
#[test]
fn a_request_is_part_of_the_next_step() {
    let (fake, permits) = Fake::new(2, 60, 2).step_time(Duration::from_secs(60)).gated();
    let handle = engine(fake);
    let step = || permits.send(()).expect("the engine runs");
    let mut long = handle.submit(request(&prompt(1, 10), 50)).expect("fits");
    step();
    while !matches!(long.blocking_next(), Some(TokenEvent::Tokens { .. })) {}
    // One step has said how long they take, and the second runs; whoever plans at once has planned the third by then.
    std::thread::sleep(Duration::from_millis(50));
    let mut late = handle.submit(request(&prompt(2, 20), 5)).expect("fits");
    step();
    step();
    while !matches!(late.blocking_next(), Some(TokenEvent::Tokens { .. })) {}
    drop(permits);
    assert_eq!(handle.status().fault, None);
}

/// Abort in each state: queued, in the middle of the prefill, decoding; the pages come back and the others go on.
#[test]
fn sched_04_cancel_while_queued() {
    for in_flight in [1, 2] {
        let (fake, permits) = Fake::new(2, 60, in_flight).gated();
        let handle = engine(fake);
        let long = prompt(1, 1500);
        let (short, other) = (prompt(2, 20), prompt(3, 30));
        let prefilling = handle.submit(request(&long, 50)).expect("fits");
        let decoding = handle.submit(request(&short, 400)).expect("fits");
        let queued: Vec<_> = (0..10).map(|_| handle.submit(request(&other, 5)).expect("fits")).collect();
        for _ in 0..4 {
            permits.send(()).expect("the engine runs");
        }
        until(&handle, |status| status.steps >= 3);
        drop((queued, prefilling, decoding));
        drop(permits);
        until(&handle, |status| (status.running, status.waiting, status.pages_used) == (0, 0, 0));
        assert_alone(&read(handle.submit(request(&short, 20)).expect("fits")), &short, 20, &[]);
        assert_eq!(handle.status().fault, None);
    }
}

/// Abort of a request that lost its seat and waits: it is gone with the step that runs, its pages with it but for what is
/// cached, and nobody else notices.
#[test]
fn sched_04_cancel_while_preempted() {
    for in_flight in [1, 2] {
        let (fake, permits) = Fake::new(1, 60, in_flight).gated();
        let settings = EngineConfig { starvation_bound: Duration::from_secs(3600), ..config() };
        let handle = engine_with(fake, Some(Box::new(ByPriority::default())), settings);
        let steps = |count: u32| (0..count).for_each(|_| permits.send(()).expect("the engine runs"));
        let (low, high) = (prompt(1, 100), prompt(2, 80));
        let mut victim = handle.submit(Request { priority: 5, ..request(&low, 60) }).expect("fits");
        steps(6);
        // It has a token, so its first page is whole.
        assert!(matches!(victim.blocking_next(), Some(TokenEvent::Started { .. })));
        assert!(matches!(victim.blocking_next(), Some(TokenEvent::Tokens { .. })));
        let mut urgent = handle.submit(Request { priority: 1, ..request(&high, 200) }).expect("fits");
        steps(4);
        // There is one seat.
        assert!(matches!(urgent.blocking_next(), Some(TokenEvent::Started { .. })));
        until(&handle, |status| (status.running, status.waiting) == (1, 1) && status.steps == 10);
        drop(victim);
        // The step that ran when it went, and the one that shows what was planned without it.
        steps(2);
        // A step counts a moment before the queue's length is told.
        until(&handle, |status| (status.steps, status.waiting) == (12, 0));
        let status = handle.status();
        assert_eq!((status.running, status.waiting, status.pages_used), (1, 0, 2), "{status:?}");
        assert!(status.pages_cached >= 1, "{status:?}");
        drop(permits);
        assert_alone(&read_on(urgent, true), &high, 200, &[]);
        until(&handle, |status| (status.running, status.pages_used) == (0, 0));
        let again = read(handle.submit(request(&low, 60)).expect("fits"));
        assert_alone(&again, &low, 60, &[]);
        assert_eq!((again.cached, handle.status().fault), (64, None));
    }
}

/// A high priority gets the seat of one low priority, whose text is the same as without.
#[test]
fn sched_05_priority_inversion_at_seq_limit() {
    for in_flight in [1, 2] {
        let (fake, permits) = Fake::new(4, 200, in_flight).gated();
        let settings = EngineConfig { starvation_bound: Duration::from_secs(3600), ..config() };
        let handle = engine_with(fake, Some(Box::new(ByPriority::default())), settings);
        let low: Vec<_> = (0..4).map(|n| prompt(n, 40)).collect();
        let running: Vec<_> = low
            .iter()
            .map(|prompt| handle.submit(Request { priority: 5, ..request(prompt, 60) }).expect("fits"))
            .collect();
        for _ in 0..8 {
            permits.send(()).expect("the engine runs");
        }
        until(&handle, |status| status.running == 4);
        let high = prompt(9, 20);
        let urgent = handle.submit(Request { priority: 1, ..request(&high, 20) }).expect("fits");
        let equal = handle.submit(Request { priority: 5, ..request(&low[0], 5) }).expect("fits");
        drop(permits);
        assert_alone(&read(urgent), &high, 20, &[]);
        let mut preemptions = 0;
        for (prompt, generation) in low.iter().zip(running) {
            let answer = read(generation);
            assert_alone(&answer, prompt, 60, &[]);
            preemptions += answer.preemptions;
        }
        assert_alone(&read(equal), &low[0], 5, &[]);
        assert_eq!(preemptions, 1);
        assert_eq!(handle.status().strikes, 0);
    }
}

/// The pool holds about three of eight outputs: all finish with their own text.
#[test]
fn sched_07_preemption_makes_progress() {
    for in_flight in [1, 2] {
        let handle = engine(Fake::new(8, 3 * 16, in_flight));
        let jobs: Vec<_> = (0..8).map(|n| prompt(n, 70)).collect();
        let open: Vec<_> = jobs.iter().map(|prompt| handle.submit(request(prompt, 900)).expect("fits")).collect();
        let readers: Vec<_> = open.into_iter().map(|open| std::thread::spawn(move || read(open))).collect();
        let mut preempted = 0;
        for (prompt, reader) in jobs.iter().zip(readers) {
            let answer = reader.join().expect("the stream is well formed");
            assert_alone(&answer, prompt, 900, &[]);
            assert!(answer.preemptions <= 5, "{} preemptions", answer.preemptions);
            preempted += u32::from(answer.preemptions > 0);
        }
        assert!(preempted > 0, "the pool is too large for this test");
    }
}

/// Pages are shared within a namespace and nowhere else; the control without one does hit.
#[test]
fn sched_09_cache_salt_isolates() {
    let handle = engine(Fake::new(2, 100, 2));
    let long = prompt(5, 1000);
    let cached = |namespace| read(handle.submit(Request { namespace, ..request(&long, 1) }).expect("fits")).cached;
    assert_eq!([cached(1), cached(2), cached(1), cached(0), cached(0)], [0, 0, 960, 0, 960]);
}

/// Turns of several conversations, interleaved: each text is that of its own conversation, and a hit is never longer
/// than what it shares with an earlier prompt.
#[test]
fn sched_11_no_foreign_conversation() {
    let handle = engine(Fake::new(2, 30, 2));
    let mut talks: Vec<_> = (0..6u32).map(|n| prompt(n, 50)).collect();
    let mut earlier: Vec<Vec<TokenId>> = Vec::new();
    for turn in 0..8 {
        let open: Vec<_> = talks.iter().map(|talk| handle.submit(request(talk, 40)).expect("fits")).collect();
        let mut next = Vec::new();
        for (n, (talk, generation)) in talks.iter().zip(open).enumerate() {
            let answer = read(generation);
            assert_alone(&answer, talk, 40, &[]);
            let shared = |other: &Vec<TokenId>| other.iter().zip(talk).take_while(|(a, b)| a == b).count();
            let most = earlier.iter().map(shared).max().unwrap_or(0);
            assert!(answer.cached as usize <= most, "{} cached, {most} shared", answer.cached);
            let question = prompt(100 + n as u32 + turn, 10);
            next.push([talk.clone(), answer.tokens, question].concat());
        }
        earlier.extend(next.iter().cloned());
        talks = next;
    }
}

/// A cancelled request keeps its finished pages in the cache.
#[test]
fn cancel_keeps_finished_pages() {
    let handle = engine(Fake::new(1, 60, 1));
    let long = prompt(5, 500);
    let mut open = handle.submit(request(&long, 1000)).expect("fits");
    for _ in 0..3 {
        open.blocking_next();
    }
    drop(open);
    assert_eq!(read(handle.submit(request(&long, 1)).expect("fits")).cached, 448);
}

/// A policy that rests is called for what happens and for nothing else, and what happens does wake it.
#[test]
fn a_resting_policy_sleeps_through_steady_decode() {
    let (calls, idle_calls) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let policy = Resting { inner: ByPriority::default(), calls: calls.clone(), idle_calls: idle_calls.clone() };
    let handle = engine_with(Fake::new(2, 100, 2), Some(Box::new(policy)), config());
    for seed in [1, 2] {
        let asked = prompt(seed, 50);
        let answer = read(handle.submit(request(&asked, 300)).expect("fits"));
        assert_alone(&answer, &asked, 300, &[]);
    }
    // The first call after a snapshot has no news: they were in the snapshot.
    assert!(idle_calls.load(Relaxed) <= 1, "{} calls without news", idle_calls.load(Relaxed));
    let calls = calls.load(Relaxed);
    assert!((2..40).contains(&calls), "{calls} calls for two requests of 300 tokens");
}

/// A request that comes while a step runs has waited for it when the policy hears of it, and is due no later for that.
#[test]
fn arrivals_count_from_when_they_came() {
    let (fake, permits) = Fake::new(2, 60, 1).gated();
    let (arrivals, heard) = std::sync::mpsc::channel();
    let policy = Witness { inner: ByPriority::default(), arrivals };
    let handle = engine_with(fake, Some(Box::new(policy)), config());
    let mut first = handle.submit(request(&prompt(1, 20), 50)).expect("fits");
    // It is planned; its step runs for as long as no permit comes.
    assert!(matches!(first.blocking_next(), Some(TokenEvent::Started { .. })));
    let (waits, due) = (Duration::from_millis(30), Duration::from_millis(500));
    let deadline = Some(Instant::now() + due);
    let second = handle.submit(Request { deadline, ..request(&prompt(2, 20), 5) }).expect("fits");
    std::thread::sleep(waits);
    drop(permits);
    let (now_us, arrival) = heard.iter().find(|(_, arrival)| arrival.max_new_tokens == 5).expect("it came");
    let us = |duration: Duration| duration.as_micros() as u64;
    assert!(now_us - arrival.arrived_us >= us(waits), "{now_us}: {arrival:?}");
    assert!(arrival.deadline_us.is_some_and(|at| at <= arrival.arrived_us + us(due)), "{arrival:?}");
    assert!(read_on(first, true).end.is_ok() && read(second).end.is_ok());
}

/// Who looks on sees a decision and what the policy knew when it took it; answers are what they are without.
#[test]
fn an_observer_sees_what_is_decided() {
    let handle = engine_with(Fake::new(2, 60, 1), Some(Box::new(ByPriority::default())), config());
    let (eyes, seen) = crate::observer();
    handle.observe(eyes);
    let looking = std::thread::spawn(move || seen.next(Duration::from_secs(60)));
    while !looking.is_finished() {
        for seed in [1, 2] {
            let asked = prompt(seed, 20);
            let answer = read(handle.submit(Request { namespace: 7, ..request(&asked, 40) }).expect("fits"));
            assert_eq!((answer.tokens.len(), answer.end.is_ok()), (40, true));
        }
    }
    let first = looking.join().expect("no panic").expect("the policy decides");
    assert!(!first.told.slots.is_empty());
    assert_eq!(scheduler::check_decision(&first.told, &first.decision), Ok(()));
}
