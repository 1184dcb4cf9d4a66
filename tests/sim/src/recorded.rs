//! What a server wrote for `scheduler_trace`, as requests that arrive: the same load under another policy.
//!
//! A trace tells when requests came, how long they were and how many tokens they gave, and not which tokens: prompts count
//! without what the server's prefix cache held of them, and a request that had not ended when the trace did gives all it
//! may.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::load::Job;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    Resync(Resync),
    Step(Step),
}

#[derive(Deserialize)]
struct Line {
    call: Call,
}

/// (id, name, bits of the weight).
type Tenant = (u32, String, u64);

#[derive(Deserialize)]
struct Resync {
    tenants: Vec<Tenant>,
    slots: Vec<Seat>,
}

#[derive(Deserialize)]
struct Seat {
    request: Arrival,
}

#[derive(Deserialize)]
struct Step {
    tenants: Vec<Tenant>,
    /// (slot, computed, emitted).
    finished: Vec<[u32; 3]>,
    arrived: Vec<Arrival>,
}

#[derive(Deserialize)]
struct Arrival {
    slot: u32,
    tenant: u32,
    priority: i32,
    arrived_us: u64,
    deadline_us: Option<u64>,
    prompt_tokens: u32,
    cached_tokens: u32,
    max_new_tokens: u32,
}

#[derive(Default)]
struct Found {
    jobs: Vec<Job>,
    tenants: HashMap<u32, (String, f64)>,
    /// The job that has a slot now, and when it arrived.
    slots: HashMap<u32, (usize, u64)>,
}

/// Whether a text is such a trace rather than an array of requests.
pub fn is_trace(text: &str) -> bool {
    text.lines().next().is_some_and(|first| first.contains("\"tokenloom_trace\""))
}

pub fn jobs(text: &str) -> Result<Vec<Job>> {
    let mut found = Found::default();
    for (number, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty()) {
        let line: Line = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        match line.call {
            Call::Resync(full) => {
                found.name(full.tenants);
                full.slots.into_iter().for_each(|seat| found.arrive(seat.request));
            }
            Call::Step(delta) => {
                found.name(delta.tenants);
                for [slot, _, emitted] in delta.finished {
                    if let Some((job, _)) = found.slots.remove(&slot) {
                        found.jobs[job].output = emitted.max(1);
                    }
                }
                delta.arrived.into_iter().for_each(|arrival| found.arrive(arrival));
            }
        }
    }
    let first_ms = found.jobs.iter().map(|job| job.at_ms).fold(f64::INFINITY, f64::min);
    found.jobs.iter_mut().for_each(|job| job.at_ms -= first_ms);
    Ok(found.jobs)
}

impl Found {
    fn name(&mut self, tenants: Vec<Tenant>) {
        self.tenants.extend(tenants.into_iter().map(|(id, name, bits)| (id, (name, f64::from_bits(bits)))));
    }

    fn arrive(&mut self, arrival: Arrival) {
        let at = (self.jobs.len(), arrival.arrived_us);
        // A snapshot names requests that are known already.
        if self.slots.get(&arrival.slot).is_some_and(|&(_, arrived_us)| arrived_us == arrival.arrived_us) {
            return;
        }
        self.slots.insert(arrival.slot, at);
        let (tenant, weight) = self.tenants.get(&arrival.tenant).cloned().unwrap_or((String::new(), 1.0));
        let ms = |us: u64| us as f64 / 1e3;
        self.jobs.push(Job {
            tenant,
            weight,
            priority: arrival.priority,
            deadline_ms: arrival.deadline_us.map(|due_us| ms(due_us.saturating_sub(arrival.arrived_us))),
            ..Job::new(
                "",
                ms(arrival.arrived_us),
                arrival.prompt_tokens.saturating_sub(arrival.cached_tokens).max(1),
                arrival.max_new_tokens,
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests, one of them named again by a snapshot; the first ends after three tokens.
    #[test]
    fn arrivals_and_ends_become_requests() {
        let arrival = |slot: u32, at: u64, prompt: u32, cached: u32| {
            format!(
                "{{\"slot\": {slot}, \"group\": 1, \"tenant\": 7, \"adapter\": 0, \"priority\": -1, \"arrived_us\": {at}, \
                 \"deadline_us\": {}, \"prompt_tokens\": {prompt}, \"cached_tokens\": {cached}, \"max_new_tokens\": 50}}",
                at + 9000
            )
        };
        let step = |arrived: &str, finished: &str| {
            format!(
                "{{\"call\": {{\"step\": {{\"tenants\": [[7, \"red\", {}]], \"finished\": [{finished}], \"arrived\": [{arrived}]}}}}}}",
                2.0f64.to_bits()
            )
        };
        let snapshot = format!(
            "{{\"call\": {{\"resync\": {{\"tenants\": [], \"slots\": [{{\"request\": {}}}]}}}}}}",
            arrival(1, 5000, 100, 64)
        );
        let text = [
            "{\"tokenloom_trace\": 1, \"policy\": \"fcfs\"}".to_owned(),
            step(&arrival(1, 5000, 100, 64), ""),
            snapshot,
            step(&arrival(2, 8000, 30, 0), "[1, 102, 3]"),
        ]
        .join("\n");
        assert!(is_trace(&text) && !is_trace("[{\"at_ms\": 0}]"));
        let jobs = jobs(&text).expect("a trace");
        let seen: Vec<_> = jobs.iter().map(|job| (job.at_ms, job.prompt, job.output, job.deadline_ms)).collect();
        assert_eq!(seen, [(0.0, 36, 3, Some(9.0)), (3.0, 30, 50, Some(9.0))]);
        assert!(jobs.iter().all(|job| job.tenant == "red" && job.weight == 2.0 && job.priority == -1));
    }
}
