//! The native bench of a scheduler: the traces that the component was timed on, on the same crate without a sandbox.

mod common;

use common::{Times, list, number, text, work};
use plugin::PLUGIN as Plugin;
use serde_json::Value;
use tokenloom_sdk::scheduler::{Arrival, Delta, Limits, Policy, Seat, Snapshot, State, StepCost, Tenant};

fn main() {
    let (work, rounds) = work();
    let mut times = Times::default();
    for _ in 0..rounds {
        for trace in list(&work["traces"]) {
            let mut policy = POLICY(&text(&work["settings"]));
            for call in list(trace) {
                if let Some(full) = call.get("resync") {
                    let full = snapshot(full);
                    times.time("resync", || policy.resync(full));
                } else {
                    let delta = delta(&call["step"]);
                    times.time("step", || policy.step(delta));
                }
            }
        }
    }
    times.print();
}

fn long(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn numbers(value: &Value) -> Vec<u32> {
    list(value).iter().map(number).collect()
}

/// A list of short lists, one after the other.
fn flat(value: &Value) -> Vec<u32> {
    list(value).iter().flat_map(numbers).collect()
}

fn limits(value: &Value) -> Limits {
    let of = |key: &str| number(&value[key]);
    let cost = numbers(&value["cost"]);
    Limits {
        step: long(&value["step"]),
        now_us: long(&value["now_us"]),
        token_budget: of("token_budget"),
        tokens_max: of("tokens_max"),
        target_us: of("target_us"),
        decode_us: of("decode_us"),
        cost: StepCost { fixed_us: cost[0], row_ns: cost[1], context_ps: cost[2] },
        free_seats: of("free_seats"),
        free_pages: of("free_pages"),
        page_tokens: of("page_tokens"),
        resume_align: of("resume_align"),
        last_step_us: of("last_step_us"),
        last_step_tokens: of("last_step_tokens"),
        in_flight_steps: of("in_flight_steps"),
        ext: Vec::new(),
    }
}

fn tenants(value: &Value) -> Vec<Tenant> {
    let tenant =
        |t: &Value| Tenant { id: number(&t[0]), name: text(&t[1]), weight: f64::from_bits(long(&t[2])) };
    list(value).iter().map(tenant).collect()
}

fn arrival(value: &Value) -> Arrival {
    let of = |key: &str| number(&value[key]);
    Arrival {
        slot: of("slot"),
        group: long(&value["group"]),
        tenant: of("tenant"),
        adapter: of("adapter"),
        priority: value["priority"].as_i64().unwrap_or_default() as i32,
        arrived_us: long(&value["arrived_us"]),
        deadline_us: value["deadline_us"].as_u64(),
        prompt_tokens: of("prompt_tokens"),
        cached_tokens: of("cached_tokens"),
        max_new_tokens: of("max_new_tokens"),
        ext: Vec::new(),
    }
}

fn delta(value: &Value) -> Delta {
    Delta {
        limits: limits(&value["limits"]),
        tenants: tenants(&value["tenants"]),
        arrived: list(&value["arrived"]).iter().map(arrival).collect(),
        finished: flat(&value["finished"]),
        preempted: numbers(&value["preempted"]),
        progress: flat(&value["progress"]),
        clamped: flat(&value["clamped"]),
    }
}

fn snapshot(value: &Value) -> Snapshot {
    let seat = |seat: &Value| Seat {
        request: arrival(&seat["request"]),
        state: match number(&seat["state"]) {
            0 => State::Waiting,
            1 => State::Prefilling,
            2 => State::Decoding,
            _ => State::Preempted,
        },
        computed: number(&seat["computed"]),
        emitted: number(&seat["emitted"]),
        pages: number(&seat["pages"]),
        preemptions: number(&seat["preemptions"]),
    };
    Snapshot {
        limits: limits(&value["limits"]),
        tenants: tenants(&value["tenants"]),
        seats: list(&value["slots"]).iter().map(seat).collect(),
    }
}
