//! Who comes first, by priority and waiting time.

use priority::Priority;
use tokenloom_sdk::rank::Rank;
use tokenloom_sdk::scheduler::Arrival;

fn request(priority: i32, arrived_ms: u64) -> Arrival {
    Arrival {
        slot: 0,
        group: 0,
        tenant: 0,
        adapter: 0,
        priority,
        arrived_us: arrived_ms * 1000,
        deadline_us: None,
        prompt_tokens: 1,
        cached_tokens: 0,
        max_new_tokens: 1,
        ext: Vec::new(),
    }
}

#[test]
fn priority_first_and_waiting_makes_up_for_it() {
    let policy = Priority::configure("{\"ageing_ms\": 1000}").expect("valid");
    let before = |a: Arrival, b: Arrival| policy.rank(&a) < policy.rank(&b);
    assert!(before(request(0, 500), request(1, 0)));
    assert!(before(request(1, 0), request(0, 1500)));
    assert!(before(request(0, 1), request(0, 2)));
    assert!(before(request(i32::MIN, u64::MAX / 2000), request(i32::MAX, u64::MAX / 2000)));
}

/// However long a request waited, it takes no seat from its equal.
#[test]
fn only_a_lower_priority_loses_its_seat() {
    let policy = Priority::configure("").expect("valid");
    assert!(policy.may_preempt(&request(0, 9), &request(1, 0)));
    assert!(!policy.may_preempt(&request(1, 0), &request(1, 9)));
    assert!(!policy.may_preempt(&request(2, 0), &request(1, 1_000_000)));
    let gentle = Priority::configure("{\"preempt\": false}").expect("valid");
    assert!(!gentle.may_preempt(&request(0, 0), &request(9, 0)));
}

#[test]
fn settings_are_checked() {
    for bad in ["{\"ageing_ms\": 0}", "{\"ageing\": 1}", "{\"ageing_ms\": -1}", "[]"] {
        assert_eq!(
            Priority::configure(bad).err().map(|error| error.code).as_deref(),
            Some("invalid-settings"),
            "{bad}"
        );
    }
}
