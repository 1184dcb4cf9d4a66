//! Who is served, by tenant.

use fair::Fair;
use tokenloom_sdk::scheduler::{Arrival, Policy, Scheduler};
use tokenloom_sdk::testing::{Host, arrival};

fn policy(settings: &str) -> impl Policy {
    Fair::configure(settings).expect("valid").policy()
}

fn of(tenant: u32, slot: u32, prompt: u32, new: u32) -> Arrival {
    Arrival { tenant, ..arrival(slot, prompt, new) }
}

/// Prompt tokens of each tenant's finished requests.
fn served(host: &Host, tenant: u32) -> u32 {
    host.finished.iter().filter(|r| r.arrival.tenant == tenant).map(|r| r.arrival.prompt_tokens).sum()
}

fn run(host: &mut Host, policy: &mut impl Policy, steps: u32) {
    (0..steps).for_each(|_| drop(host.step(policy).expect("valid")));
}

/// Both queues are full all the time, one ten times as long: each tenant gets half.
#[test]
fn a_long_queue_is_no_larger_share() {
    let (mut host, mut policy) = (Host::new(16, 256), policy(""));
    (0..400).for_each(|slot| host.arrive(of(1, slot, 100, 1)));
    (400..440).for_each(|slot| host.arrive(of(2, slot, 100, 1)));
    run(&mut host, &mut policy, 25);
    let (one, two) = (served(&host, 1), served(&host, 2));
    assert!(one.abs_diff(two) <= 400, "{one} {two}");
}

/// Three times the weight is three times the service.
#[test]
fn weights_count() {
    let (mut host, mut policy) = (Host::new(16, 256), policy(""));
    host.tenant(1, 3.0);
    host.tenant(2, 1.0);
    (0..200).for_each(|slot| host.arrive(of(1, slot, 100, 1)));
    (200..400).for_each(|slot| host.arrive(of(2, slot, 100, 1)));
    run(&mut host, &mut policy, 40);
    let (one, two) = (served(&host, 1), served(&host, 2));
    assert!((2.5..=3.5).contains(&(f64::from(one) / f64::from(two))), "{one} {two}");
}

/// Who comes back after a pause goes next, and has no credit for the time away.
#[test]
fn nobody_saves_up() {
    let (mut host, mut policy) = (Host::new(16, 256), policy(""));
    (0..400).for_each(|slot| host.arrive(of(1, slot, 100, 1)));
    run(&mut host, &mut policy, 40);
    (400..600).for_each(|slot| host.arrive(of(2, slot, 100, 1)));
    let before = served(&host, 1);
    run(&mut host, &mut policy, 1);
    assert!(served(&host, 2) > 0, "it waits behind the queue");
    run(&mut host, &mut policy, 30);
    let (one, two) = (served(&host, 1) - before, served(&host, 2));
    assert!(one.abs_diff(two) <= 500, "{one} {two}");
}

/// A tenant that holds every seat gives one up to a tenant that has none.
#[test]
fn a_tenant_without_a_seat_takes_one() {
    for (settings, first) in [("{\"reserve\": 0}", Some(1)), ("{\"reserve\": 0, \"preempt\": false}", None)] {
        let (mut host, mut policy) = (Host::new(4, 256), policy(settings));
        (0..8).for_each(|slot| host.arrive(of(1, slot, 20, 500)));
        run(&mut host, &mut policy, 10);
        host.arrive(of(2, 9, 20, 2));
        let preempted = host.step(&mut policy).expect("valid").preempt.len();
        assert_eq!((preempted > 0).then_some(1), first);
        run(&mut host, &mut policy, 3);
        assert_eq!(served(&host, 2), first.map_or(0, |_| 20));
        // It is not thrown out again for the one that had its seat.
        assert!(host.step(&mut policy).expect("valid").preempt.is_empty());
    }
}

/// Who is far behind the others has its prompt computed at once, and not in halves.
#[test]
fn who_is_behind_is_served_whole() {
    let (mut host, mut policy) = (Host::new(16, 256), policy(""));
    (0..40).for_each(|slot| host.arrive(of(1, slot, 100, 1)));
    host.arrive(of(2, 100, 10, 400));
    run(&mut host, &mut policy, 2);
    host.arrive(of(2, 101, 200, 1));
    // The second tenant has had 10 tokens, the first more than 400.
    let decision = host.step(&mut policy).expect("valid");
    assert!(decision.grant.iter().any(|grant| (grant.slot, grant.tokens) == (101, 200)), "{:?}", decision.grant);
}

/// Whoever waits before them, requests on seats go on: here one that came first lost its seat, and none is free.
#[test]
fn who_waits_stops_nobody_on_a_seat() {
    let (mut host, mut policy) = (Host::new(3, 128), policy(""));
    (0..3).for_each(|slot| host.arrive(of(1, slot, 2000, 1)));
    run(&mut host, &mut policy, 3);
    let first = host.requests.get_mut(&0).expect("it runs");
    (first.running, first.computed) = (false, 0);
    host.delta.preempted.push(0);
    host.delta.progress.clear();
    host.seats = 2;
    let decision = host.step(&mut policy).expect("valid");
    assert!(decision.grant.iter().any(|grant| grant.slot > 0), "{:?}", decision.grant);
    run(&mut host, &mut policy, 60);
    assert_eq!(host.finished.len(), 3);
}

/// Everything ends, also through a resync.
#[test]
fn everything_ends() {
    let (mut host, mut policy) = (Host::new(3, 128), policy(""));
    for slot in 0..60 {
        host.arrive(of(slot % 4, slot, 1 + slot * 37 % 400, 1 + slot % 9));
    }
    run(&mut host, &mut policy, 20);
    policy.resync(host.snapshot());
    run(&mut host, &mut policy, 600);
    assert_eq!(host.finished.len(), 60);
}

#[test]
fn settings_are_checked() {
    for bad in ["{\"output_cost\": -1}", "{\"step_ms\": 0}", "{\"shared_step_ms\": 0}", "{\"costs\": 1}", "[]"] {
        assert!(Fair::configure(bad).is_err(), "{bad}");
    }
}
