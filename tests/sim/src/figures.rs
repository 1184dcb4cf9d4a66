//! What a run was like for those who waited.

use std::collections::BTreeMap;

use contract::cost::StepCost;
use serde_json::{Value, json};

use crate::load::Job;
use crate::replica::Outcome;

/// Times of one kind of request, or of one tenant.
#[derive(Default)]
pub struct Group {
    pub ttft_ms: Vec<f64>,
    pub gaps_ms: Vec<f64>,
    pub requests: usize,
    pub refused: usize,
    pub cancelled: usize,
    /// Prompt tokens computed and tokens generated, per weight.
    pub service: f64,
    pub cached: u64,
    pub prompt: u64,
    pub preemptions: u64,
}

pub fn groups(jobs: &[Job], outcomes: &[&Outcome]) -> BTreeMap<String, Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for outcome in outcomes {
        let job = &jobs[outcome.job];
        let group = groups.entry(job.group().to_owned()).or_default();
        group.requests += 1;
        group.refused += usize::from(outcome.refused);
        group.cancelled += usize::from(outcome.cancelled);
        group.preemptions += u64::from(outcome.preemptions);
        if let Some(first_us) = outcome.first_us {
            group.ttft_ms.push((first_us - outcome.arrived_us) as f64 / 1e3);
            group.cached += u64::from(outcome.cached);
            group.prompt += u64::from(job.prompt);
            let computed = f64::from(job.prompt - outcome.cached.min(job.prompt));
            group.service += (computed + f64::from(outcome.tokens)) / job.weight;
        }
        group.gaps_ms.extend(outcome.gaps_us.iter().map(|&us| f64::from(us) / 1e3));
    }
    for group in groups.values_mut() {
        group.ttft_ms.sort_by(f64::total_cmp);
        group.gaps_ms.sort_by(f64::total_cmp);
    }
    groups
}

/// The value below which `share` of the sorted values lie; 0 without values.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len().saturating_sub(1)) as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = (values.iter().sum::<f64>(), values.iter().map(|value| value * value).sum::<f64>());
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

pub fn group_json(group: &Group) -> Value {
    let q = |values: &[f64], share| (quantile(values, share) * 100.0).round() / 100.0;
    json!({
        "requests": group.requests,
        "refused": group.refused,
        "cancelled": group.cancelled,
        "preemptions": group.preemptions,
        "ttft_ms": {"p50": q(&group.ttft_ms, 0.5), "p95": q(&group.ttft_ms, 0.95), "max": q(&group.ttft_ms, 1.0)},
        "itl_ms": {"p50": q(&group.gaps_ms, 0.5), "p99": q(&group.gaps_ms, 0.99), "max": q(&group.gaps_ms, 1.0)},
        "cached_share": if group.prompt == 0 { 0.0 } else { group.cached as f64 / group.prompt as f64 },
    })
}

/// Deadlines that offline earliest deadline first meets, and how many of those were missed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    pub asked: usize,
    pub feasible: usize,
    pub missed: usize,
    pub missed_of_feasible: usize,
}

/// Offline: every arrival is known, a prompt can be interrupted at any time, and who cannot be in time any more is dropped.
/// Prompts have `share` of the device; the rest goes to decoding and to what a step costs before its first row.
pub fn deadlines(jobs: &[Job], outcomes: &[&Outcome], cost: &StepCost, share: f64) -> Option<Deadlines> {
    let asked: Vec<usize> = (0..jobs.len()).filter(|&n| jobs[n].deadline_ms.is_some()).collect();
    if asked.is_empty() {
        return None;
    }
    let met = offline(jobs, &asked, cost, share);
    let late = |outcome: &Outcome| {
        let due_us = jobs[outcome.job].deadline_ms.unwrap_or(f64::INFINITY) * 1e3;
        outcome.first_us.is_none_or(|first_us| (first_us - outcome.arrived_us) as f64 > due_us)
    };
    let missed: Vec<usize> = outcomes.iter().filter(|o| late(o)).map(|o| o.job).collect();
    let missed_of_feasible = missed.iter().filter(|job| met.contains(job)).count();
    Some(Deadlines { asked: asked.len(), feasible: met.len(), missed: missed.len(), missed_of_feasible })
}

fn offline(jobs: &[Job], asked: &[usize], cost: &StepCost, share: f64) -> Vec<usize> {
    let due_ms = |n: usize| jobs[n].at_ms + jobs[n].deadline_ms.unwrap_or(f64::INFINITY);
    // (due, job, work left), the earliest first.
    let mut open: Vec<(f64, usize, f64)> = Vec::new();
    let (mut met, mut now_ms) = (Vec::new(), 0.0);
    let mut run = |open: &mut Vec<(f64, usize, f64)>, until_ms: f64| {
        while now_ms < until_ms {
            open.retain(|(due, _, left)| now_ms + left <= *due);
            let Some(first) = open.first_mut() else { break };
            let used = first.2.min(until_ms - now_ms);
            now_ms += used;
            first.2 -= used;
            if first.2 <= 0.0 {
                met.push(open.remove(0).1);
            }
        }
        now_ms = now_ms.max(until_ms);
    };
    for &n in asked {
        run(&mut open, jobs[n].at_ms);
        let work_ms = cost.rows_us(0, jobs[n].prompt) / 1e3 / share;
        let due = due_ms(n);
        let at = open.partition_point(|other| other.0 <= due);
        open.insert(at, (due, n, work_ms));
    }
    run(&mut open, 1e15);
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(at_ms: f64, prompt: u32, deadline_ms: f64) -> Job {
        let text =
            format!("{{\"at_ms\": {at_ms}, \"prompt\": {prompt}, \"output\": 1, \"deadline_ms\": {deadline_ms}}}");
        serde_json::from_str(&text).expect("a job")
    }

    /// One millisecond a token: the second is more urgent and interrupts the first; the third cannot be met.
    #[test]
    fn offline_meets_what_can_be_met() {
        let jobs = [due(0.0, 100, 130.0), due(10.0, 20, 25.0), due(20.0, 50, 10.0)];
        let cost = StepCost { fixed_us: 0, row_ns: 1_000_000, context_ps: 0 };
        let outcomes =
            [1u64, 2, 3].map(|n| Outcome { job: n as usize - 1, first_us: Some(120_000), ..Outcome::default() });
        let found = deadlines(&jobs, &outcomes.iter().collect::<Vec<_>>(), &cost, 1.0);
        assert_eq!(found, Some(Deadlines { asked: 3, feasible: 2, missed: 2, missed_of_feasible: 1 }));
    }

    #[test]
    fn fairness_is_one_when_all_are_equal() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0]), 0.5);
    }
}
