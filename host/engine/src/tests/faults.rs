//! What goes wrong, and what clients are told then.

use super::fake::{Fake, Trouble, UNBINDABLE};
use super::policies::{ByPriority, Failing, Hostile};
use super::*;
use crate::{PolicyState, SubmitError};

fn hostile(how: Failing) -> Option<Box<dyn SchedulePolicy>> {
    Some(Box::new(Hostile { how, seen: Vec::new() }))
}

/// The first fault is kept and told to everybody; afterwards the engine says that it stopped.
#[test]
fn a_device_fault_ends_every_request() {
    for in_flight in [1, 2] {
        let (fake, permits) = Fake::new(2, 60, in_flight).trouble(Trouble::FaultAt(5)).gated();
        let handle = engine(fake);
        let open: Vec<_> = (0..4).map(|n| handle.submit(request(&prompt(n, 10), 50)).expect("fits")).collect();
        drop(permits);
        for generation in open {
            let answer = read(generation);
            assert!(matches!(&answer.end, Err(GenerationError::Engine(why)) if why.contains("the first fault")));
        }
        until(&handle, |status| status.fault.as_ref().is_some_and(|fault| fault.contains("the first fault")));
        let refused = handle.submit(request(&prompt(1, 10), 5)).err();
        assert!(matches!(&refused, Some(SubmitError::Stopped(why)) if why.contains("the first fault")), "{refused:?}");
    }
}

/// A panic in the loop hangs nobody.
#[test]
fn a_panic_ends_every_request() {
    let handle = engine(Fake::new(2, 60, 1).trouble(Trouble::PanicAt(3)));
    let answer = read(handle.submit(request(&prompt(1, 10), 50)).expect("fits"));
    assert!(matches!(&answer.end, Err(GenerationError::Engine(why)) if why.contains("driver panics")), "{answer:?}");
    assert!(matches!(handle.submit(request(&prompt(1, 10), 50)), Err(SubmitError::Stopped(_))));
}

/// A fault of one seat, or a request that the device does not take, concerns nobody else.
#[test]
fn a_seat_fault_ends_one_request() {
    for in_flight in [1, 2] {
        let (good, bad) = (prompt(1, 40), vec![95; 30]);
        let handle = engine(Fake::new(3, 60, in_flight).trouble(Trouble::SeatOf(95)));
        let open = handle.submit(request(&good, 30)).expect("fits");
        let failing = read(handle.submit(request(&bad, 30)).expect("fits"));
        let unbound = read(handle.submit(request(&[UNBINDABLE; 10], 30)).expect("fits"));
        assert_eq!(failing.end, Err(GenerationError::Engine("this seat is at fault".into())));
        assert_eq!(failing.tokens.len(), 2);
        assert!(matches!(&unbound.end, Err(GenerationError::Engine(why)) if why.contains("no response matches")));
        assert_alone(&read(open), &good, 30, &[]);
        assert_alone(&read(handle.submit(request(&good, 30)).expect("fits")), &good, 30, &[]);
        assert_eq!(handle.status().fault, None);
    }
}

/// Three strikes: FCFS stays, the status says so, no request is lost; an exchange ends it.
#[test]
fn a_failing_policy_is_replaced_by_fcfs() {
    for how in [Failing::Traps, Failing::Panics, Failing::Invalid, Failing::Late] {
        let policy_deadline = if how == Failing::Late { Duration::ZERO } else { Duration::from_secs(60) };
        let handle = engine_with(Fake::new(2, 60, 2), hostile(how), EngineConfig { policy_deadline, ..config() });
        let jobs: Vec<_> = (0..5).map(|n| prompt(n, 40)).collect();
        let open: Vec<_> = jobs.iter().map(|prompt| handle.submit(request(prompt, 30)).expect("fits")).collect();
        for (prompt, generation) in jobs.iter().zip(open) {
            assert_alone(&read(generation), prompt, 30, &[]);
        }
        let status = handle.status();
        assert_eq!((status.policy_state, status.strikes), (PolicyState::Benched, 3), "{how:?}");
        assert_eq!(status.degraded.len(), 1, "{how:?}");
        if how != Failing::Late {
            handle.swap_policy(Box::new(ByPriority::default()));
            until(&handle, |status| status.policy_state == PolicyState::Active);
            assert_alone(&read(handle.submit(request(&jobs[0], 30)).expect("fits")), &jobs[0], 30, &[]);
            assert!(handle.status().degraded.is_empty());
        }
    }
}

/// A policy that strikes out is exchanged back for the one before it, and no request is lost.
#[test]
fn an_exchange_that_fails_is_taken_back() {
    for how in [Failing::Traps, Failing::Panics, Failing::Invalid] {
        let handle = engine_with(Fake::new(2, 60, 2), Some(Box::new(ByPriority::default())), config());
        let jobs: Vec<_> = (0..6).map(|n| prompt(n, 40)).collect();
        let open: Vec<_> = jobs.iter().map(|prompt| handle.submit(request(prompt, 30)).expect("fits")).collect();
        handle.swap_policy(hostile(how).expect("a policy"));
        for (prompt, generation) in jobs.iter().zip(open) {
            assert_alone(&read(generation), prompt, 30, &[]);
        }
        // The exchange may have come after the last of them.
        assert_alone(&read(handle.submit(request(&jobs[0], 30)).expect("fits")), &jobs[0], 30, &[]);
        let status = handle.status();
        assert_eq!((&*status.policy, status.policy_state), ("by-priority", PolicyState::Returned), "{how:?}");
        assert!(status.degraded[0].contains("hostile") && status.degraded[0].contains("3 strikes"), "{status:?}");
        handle.swap_policy(Box::new(ByPriority::default()));
        until(&handle, |status| status.policy_state == PolicyState::Active && status.degraded.is_empty());
    }
}

/// Valid but hostile advice delays requests by no more than the starvation bound, and loses none.
#[test]
fn hostile_advice_loses_nothing() {
    for how in [Failing::GrantsNothing, Failing::PreemptsAll, Failing::HoldsAll] {
        let settings = EngineConfig { starvation_bound: Duration::ZERO, ..config() };
        let handle = engine_with(Fake::new(2, 60, 2), hostile(how), settings);
        let jobs: Vec<_> = (0..4).map(|n| prompt(n, 90)).collect();
        let open: Vec<_> = jobs.iter().map(|prompt| handle.submit(request(prompt, 10)).expect("fits")).collect();
        for (prompt, generation) in jobs.iter().zip(open) {
            assert_alone(&read(generation), prompt, 10, &[]);
        }
        assert_eq!(handle.status().policy_state, PolicyState::Active, "{how:?}");
    }
}

/// An exchange in the middle of everything: the new policy starts from a snapshot and no request is dropped.
#[test]
fn a_policy_is_exchanged_while_running() {
    let handle = engine(Fake::new(3, 30, 2));
    let jobs: Vec<_> = (0..12).map(|n| prompt(n, 80)).collect();
    let open: Vec<_> = jobs.iter().map(|prompt| handle.submit(request(prompt, 60)).expect("fits")).collect();
    for (n, (prompt, generation)) in jobs.iter().zip(open).enumerate() {
        if n % 2 == 0 {
            handle.swap_policy(Box::new(ByPriority::default()));
        }
        assert_alone(&read(generation), prompt, 60, &[]);
    }
    assert_eq!((handle.status().policy.as_str(), handle.status().strikes), ("by-priority", 0));
}

/// Back to the native policy in the middle of everything, and from it again; no request is dropped.
#[test]
fn the_native_policy_is_brought_back_while_running() {
    let handle = engine_with(Fake::new(3, 30, 2), Some(Box::new(ByPriority::default())), config());
    let jobs: Vec<_> = (0..12).map(|n| prompt(n, 80)).collect();
    let open: Vec<_> = jobs.iter().map(|prompt| handle.submit(request(prompt, 60)).expect("fits")).collect();
    for (n, (prompt, generation)) in jobs.iter().zip(open).enumerate() {
        match n % 2 {
            0 => handle.swap_to_native(),
            _ => handle.swap_policy(Box::new(ByPriority::default())),
        }
        assert_alone(&read(generation), prompt, 60, &[]);
    }
    handle.swap_to_native();
    until(&handle, |status| status.policy_state == PolicyState::Native && status.policy == "fcfs (native)");
    assert_alone(&read(handle.submit(request(&jobs[0], 30)).expect("fits")), &jobs[0], 30, &[]);
    assert!(handle.status().degraded.is_empty());
}

/// Shutdown answers everybody who is still there.
#[test]
fn shutdown_ends_open_requests() {
    let (fake, permits) = Fake::new(1, 60, 1).gated();
    let handle = engine(fake);
    let open: Vec<_> = (0..3).map(|n| handle.submit(request(&prompt(n, 10), 500)).expect("fits")).collect();
    handle.shutdown();
    drop(permits);
    for generation in open {
        assert_eq!(read(generation).end, Err(GenerationError::Shutdown));
    }
    assert!(matches!(handle.submit(request(&prompt(1, 10), 1)), Err(SubmitError::Stopped(_))));
}

/// Caps that the engine cannot work with are an error before anything runs.
#[test]
fn wrong_caps_are_refused() {
    for fake in [Fake::new(0, 60, 1), Fake::new(1, 0, 1), Fake::new(1, 60, 1).context(1)] {
        let parts = EngineParts { backend: Box::new(fake), policy: None, config: config() };
        assert!(matches!(start(parts, &mut Registry::default()), Err(crate::EngineError::Caps { .. })));
    }
}
