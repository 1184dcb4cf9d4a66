//! Cases of schedulers: requests that arrive, and who must be served first.
//!
//! The policy runs over the real scheduler core and a device on which every step takes a millisecond. A case passes
//! only if the host never had to decide in the policy's place: `expected` says the order of first tokens, of ends, and
//! who is refused.

use std::collections::HashMap;

use contract::Slot;
use contract::policy::SchedulePolicy;
use serde::Deserialize;
use text::cases::{CaseResult, Outcome};

use crate::rehearsal::{Actor, News, Rehearsal, Stage, TOKENS_MAX};

/// A case that is not over by then never will be.
const STEPS_MAX: u64 = 20_000;
const REQUESTS_MAX: usize = 1024;

/// What a policy without cases of its own is measured on.
pub(super) const EXAMPLE: &str = include_str!("../../../../examples/rust/scheduler/cases.jsonl");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    title: String,
    /// Always `schedule`.
    area: String,
    input: Input,
    expected: Expected,
    #[serde(default)]
    #[allow(dead_code, reason = "for people")]
    why: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    /// Requests that run at once.
    seats: u16,
    /// Tokens of a step.
    token_budget: u32,
    #[serde(default = "pages_default")]
    pages: u32,
    requests: Vec<Request>,
}

fn pages_default() -> u32 {
    4096
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    name: String,
    #[serde(default)]
    at_ms: u64,
    prompt_tokens: u32,
    max_new_tokens: u32,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    tenant: String,
    /// Of its first token, counted from its arrival.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    first_token_order: Option<Vec<String>>,
    finish_order: Option<Vec<String>>,
    refused: Option<Vec<String>>,
}

/// What happened, by the requests' names.
#[derive(Default)]
struct Happened {
    first: Vec<String>,
    finished: Vec<String>,
    refused: Vec<String>,
}

/// Runs every line of a case file, each with a policy of its own.
pub(crate) fn run_jsonl(
    text: &str,
    mut policy: impl FnMut() -> Result<Box<dyn SchedulePolicy>, String>,
) -> Vec<CaseResult> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| match serde_json::from_str::<Case>(line) {
            Err(e) => CaseResult {
                id: format!("line {}", number + 1),
                title: String::new(),
                outcome: Outcome::Failed(format!("no case of a scheduler: {e}")),
            },
            Ok(case) => {
                let outcome = match policy().and_then(|policy| run(&case, policy)) {
                    Ok(()) => Outcome::Passed,
                    Err(why) => Outcome::Failed(why),
                };
                CaseResult { id: case.id, title: case.title, outcome }
            }
        })
        .collect()
}

fn run(case: &Case, policy: Box<dyn SchedulePolicy>) -> Result<(), String> {
    if case.area != "schedule" {
        return Err(format!("area is `{}`; cases of schedulers have `schedule`", case.area));
    }
    let expected = &case.expected;
    if expected.first_token_order.is_none() && expected.finish_order.is_none() && expected.refused.is_none() {
        return Err("nothing is expected: give first_token_order, finish_order or refused".into());
    }
    let happened = Running::new(&case.input, policy)?.run()?;
    let lists = [
        ("first_token_order", &expected.first_token_order, &happened.first),
        ("finish_order", &expected.finish_order, &happened.finished),
        ("refused", &expected.refused, &happened.refused),
    ];
    for (name, wanted, got) in lists {
        if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != got) {
            return Err(format!("{name}:\n  expected {}\n  got      {}", wanted.join(", "), got.join(", ")));
        }
    }
    Ok(())
}

/// A case that runs: its requests, by the slots they got.
struct Running<'a> {
    input: &'a Input,
    rehearsal: Rehearsal,
    names: HashMap<Slot, &'a Request>,
    happened: Happened,
    arrived: usize,
}

impl<'a> Running<'a> {
    fn new(input: &'a Input, policy: Box<dyn SchedulePolicy>) -> Result<Self, String> {
        if input.requests.len() > REQUESTS_MAX {
            return Err(format!("{} requests; at most {REQUESTS_MAX} are possible", input.requests.len()));
        }
        let late = input.requests.windows(2).find(|pair| pair[1].at_ms < pair[0].at_ms);
        if let Some(pair) = late {
            return Err(format!("request `{}` arrives before the one above it", pair[1].name));
        }
        let stage = Stage { seats: input.seats, pages: input.pages, token_budget: input.token_budget };
        let rehearsal = Rehearsal::new(&stage, policy)?;
        Ok(Self { input, rehearsal, names: HashMap::new(), happened: Happened::default(), arrived: 0 })
    }

    fn run(mut self) -> Result<Happened, String> {
        for _ in 0..STEPS_MAX {
            self.arrive()?;
            if self.names.is_empty() && self.arrived == self.input.requests.len() {
                return Ok(self.happened);
            }
            let news = self.rehearsal.step()?;
            self.note(news);
        }
        let mut left: Vec<&str> = self.names.values().map(|request| request.name.as_str()).collect();
        left.sort_unstable();
        Err(format!("after {STEPS_MAX} steps these have not ended: {}", left.join(", ")))
    }

    fn arrive(&mut self) -> Result<(), String> {
        let now_ms = self.rehearsal.now_us() / 1000;
        while let Some(request) = self.input.requests.get(self.arrived).filter(|request| request.at_ms <= now_ms) {
            let number = self.arrived as u32;
            if request.prompt_tokens == 0 || request.prompt_tokens > TOKENS_MAX {
                return Err(format!("request `{}`: 1 to {TOKENS_MAX} prompt tokens are possible", request.name));
            }
            let tenant = if request.tenant.is_empty() { "default" } else { &request.tenant };
            let slot = self.rehearsal.submit(&Actor {
                number,
                prompt_tokens: request.prompt_tokens,
                max_new_tokens: request.max_new_tokens,
                priority: request.priority,
                tenant,
                deadline_ms: request.deadline_ms,
            });
            self.names.insert(slot.map_err(|e| format!("request `{}` {e}", request.name))?, request);
            self.arrived += 1;
        }
        Ok(())
    }

    fn note(&mut self, news: Vec<News>) {
        for one in news {
            let (News::First(slot) | News::Ended(slot) | News::Refused(slot)) = one;
            let Some(name) = self.names.get(&slot).map(|request| request.name.clone()) else { continue };
            match one {
                News::First(_) => self.happened.first.push(name),
                News::Ended(_) => self.happened.finished.push(name),
                News::Refused(_) => self.happened.refused.push(name),
            }
            if !matches!(one, News::First(_)) {
                self.names.remove(&slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugin_host::{Grants, PluginSource};

    fn outcome(policy: &str, expected: &str) -> Outcome {
        let case = format!(
            r#"{{"id": "a", "area": "schedule", "title": "t", "input": {{"seats": 1, "token_budget": 64, "requests": [
            {{"name": "long", "prompt_tokens": 300, "max_new_tokens": 2}},
            {{"name": "short", "prompt_tokens": 10, "max_new_tokens": 2}},
            {{"name": "urgent", "prompt_tokens": 10, "max_new_tokens": 2, "priority": -1}}]}},
            "expected": {expected}}}"#
        )
        .replace('\n', "");
        let host = super::super::host().unwrap();
        let load = || {
            let source = PluginSource::Bundled(policy.into());
            host.load_scheduler(&source, &Grants::default(), None).map_err(|e| e.to_string())
        };
        run_jsonl(&case, load).remove(0).outcome
    }

    /// What a case says is held against what the bundled policies really do.
    #[test]
    fn orders_are_those_of_the_policy() {
        assert_eq!(outcome("fcfs", r#"{"finish_order": ["long", "short", "urgent"]}"#), Outcome::Passed);
        let first = r#"{"first_token_order": ["urgent", "long", "short"]}"#;
        assert_eq!(outcome("priority", first), Outcome::Passed);
        let Outcome::Failed(why) = outcome("fcfs", first) else { panic!("it passed") };
        assert!(why.contains("got      long, short, urgent"), "{why}");
        assert!(matches!(outcome("fcfs", "{}"), Outcome::Failed(why) if why.contains("nothing is expected")));
    }
}
