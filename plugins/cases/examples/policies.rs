//! What a policy's decision takes natively, as JSON: 64 requests that decode and nothing is listed, and 1,024 whose
//! drafts were accepted in part and all are. `cargo run --release -p cases --example policies`.
//!
//! The same steps as in the host's benchmark `policy-cost`, which runs this for the figures beside the components'.

use std::time::Instant;

use serde_json::{Value, json};
use tokenloom_sdk::rank::{Rank, Ranked};
use tokenloom_sdk::scheduler::{Delta, Limits, Policy, Scheduler, Seat, Snapshot, State, StepCost};
use tokenloom_sdk::testing::{arrival, empty};

const CALLS: u32 = 50_000;

fn main() {
    let mut rows = Vec::new();
    for (step, requests, drafts) in [("steady", 64, false), ("speculating", 1024, true)] {
        let fcfs = Ranked::new(fcfs::Fcfs::configure("").expect("no settings"));
        rows.push(measure("fcfs", fcfs, step, requests, drafts));
        let fair = fair::Fair::configure("").expect("defaults").policy();
        rows.push(measure("fair", fair, step, requests, drafts));
        let stall_free = stall_free::StallFree::configure("").expect("defaults").policy();
        rows.push(measure("stall-free", stall_free, step, requests, drafts));
    }
    println!("{}", Value::from(rows));
}

fn measure(name: &str, mut policy: impl Policy, step: &str, requests: u32, drafts: bool) -> Value {
    let limits = Limits {
        token_budget: 2048,
        tokens_max: 8192,
        target_us: 30_000,
        decode_us: 12_000,
        cost: StepCost { fixed_us: 5500, row_ns: 24_000, context_ps: 1100 },
        free_seats: 128,
        free_pages: 4096,
        in_flight_steps: 1,
        ..empty().limits
    };
    let seat = |slot| Seat {
        request: arrival(slot, 200, 1 << 30),
        state: State::Decoding,
        computed: 200,
        emitted: 1,
        pages: 4,
        preemptions: 0,
    };
    policy.resync(Snapshot { limits: limits.clone(), tenants: Vec::new(), seats: (0..requests).map(seat).collect() });
    let mut totals = vec![(200, 1); requests as usize];
    let mut times = Vec::new();
    for call in 0..CALLS {
        let mut delta = Delta { limits: Limits { step: call.into(), ..limits.clone() }, ..empty() };
        for (slot, (computed, emitted)) in (0..).zip(&mut totals).filter(|_| drafts) {
            let tokens = 2 + (slot + call) % 4;
            (*computed, *emitted) = (*computed + tokens, *emitted + tokens);
            delta.progress.extend([slot, *computed, *emitted]);
        }
        let start = Instant::now();
        let decision = policy.step(delta);
        times.push(start.elapsed().as_secs_f64() * 1e6);
        std::hint::black_box(decision);
    }
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    json!({"policy": name, "step": step, "p50_us": at(0.5), "p99_us": at(0.99)})
}
