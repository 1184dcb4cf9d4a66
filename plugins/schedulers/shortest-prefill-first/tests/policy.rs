//! Who comes first, by what is left to compute.

use shortest_prefill_first::ShortestPrefillFirst;
use tokenloom_sdk::rank::Rank;
use tokenloom_sdk::scheduler::Arrival;
use tokenloom_sdk::testing::arrival;

#[test]
fn less_to_compute_comes_first_within_the_bound() {
    let policy = ShortestPrefillFirst::configure("{\"token_us\": 1000, \"bound_ms\": 2000}").expect("valid");
    let at = |prompt: u32, cached_tokens: u32, ms: u64| Arrival {
        cached_tokens,
        arrived_us: ms * 1000,
        ..arrival(0, prompt, 1)
    };
    let before = |a: Arrival, b: Arrival| policy.rank(&a) < policy.rank(&b);
    assert!(before(at(100, 0, 50), at(1000, 0, 0)));
    assert!(before(at(1000, 950, 40), at(100, 0, 0)), "what is cached need not be computed");
    assert!(before(at(1_000_000, 0, 0), at(1, 0, 2001)), "the bound holds");
    assert!(before(at(100, 0, 0), at(100, 0, 1)));
}

#[test]
fn settings_are_checked() {
    for bad in ["{\"token_us\": 0}", "{\"bound\": 1}", "[]"] {
        assert!(ShortestPrefillFirst::configure(bad).is_err(), "{bad}");
    }
}
