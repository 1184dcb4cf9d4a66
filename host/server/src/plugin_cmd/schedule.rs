//! Cases of schedulers: requests that arrive, and who must be served first.
//!
//! The policy runs over the real scheduler core and a device on which every step takes a millisecond. A case passes
//! only if the host never had to decide in the policy's place: `expected` says the order of first tokens, of ends, and
//! who is refused.

use std::collections::HashMap;

use contract::cost::StepCost;
use contract::generation::Tenant;
use contract::policy::SchedulePolicy;
use contract::{PAGE_TOKENS, Slot};
use scheduler::{Advice, Config, NewRequest, RunResult, Scheduler, Tick};
use serde::Deserialize;
use text::cases::{CaseResult, Outcome};

/// A step of the device, in microseconds.
const STEP_US: u64 = 1000;
/// A case that is not over by then never will be.
const STEPS_MAX: u64 = 20_000;
const REQUESTS_MAX: usize = 1024;
const TOKENS_MAX: u32 = 1 << 20;

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
    let happened = Rehearsal::new(&case.input, policy)?.run()?;
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

struct Rehearsal<'a> {
    input: &'a Input,
    policy: Box<dyn SchedulePolicy>,
    scheduler: Scheduler,
    names: HashMap<Slot, &'a Request>,
    happened: Happened,
    now_us: u64,
    last_tokens: u32,
    arrived: usize,
}

impl<'a> Rehearsal<'a> {
    fn new(input: &'a Input, policy: Box<dyn SchedulePolicy>) -> Result<Self, String> {
        if input.requests.len() > REQUESTS_MAX {
            return Err(format!("{} requests; at most {REQUESTS_MAX} are possible", input.requests.len()));
        }
        let late = input.requests.windows(2).find(|pair| pair[1].at_ms < pair[0].at_ms);
        if let Some(pair) = late {
            return Err(format!("request `{}` arrives before the one above it", pair[1].name));
        }
        let config = Config {
            seats: input.seats,
            pages: input.pages,
            context_len: input.pages.saturating_mul(PAGE_TOKENS).min(TOKENS_MAX),
            max_rows: input.token_budget,
            rows_tile: 1,
            resume_align: 1,
            prefix_cache: false,
            starvation_bound_us: u64::MAX / 4,
        };
        let scheduler = Scheduler::new(config).map_err(|e| e.to_string())?;
        let (names, happened) = (HashMap::new(), Happened::default());
        Ok(Self { input, policy, scheduler, names, happened, now_us: 0, last_tokens: 0, arrived: 0 })
    }

    fn run(mut self) -> Result<Happened, String> {
        let tick = self.tick();
        self.policy.resync(&self.scheduler.snapshot(&tick)).map_err(|e| e.to_string())?;
        for _ in 0..STEPS_MAX {
            self.arrive()?;
            if self.names.is_empty() && self.arrived == self.input.requests.len() {
                return Ok(self.happened);
            }
            self.step()?;
        }
        let mut left: Vec<&str> = self.names.values().map(|request| request.name.as_str()).collect();
        left.sort_unstable();
        Err(format!("after {STEPS_MAX} steps these have not ended: {}", left.join(", ")))
    }

    fn tick(&self) -> Tick {
        Tick {
            now_us: self.now_us,
            token_budget: self.input.token_budget,
            target_us: 0,
            cost: StepCost::default(),
            last_step_us: STEP_US as u32,
            last_step_tokens: self.last_tokens,
            in_flight_steps: 0,
        }
    }

    fn arrive(&mut self) -> Result<(), String> {
        let requests = &self.input.requests;
        while let Some(request) = requests.get(self.arrived).filter(|r| r.at_ms.saturating_mul(1000) <= self.now_us) {
            let number = self.arrived as u32;
            if request.prompt_tokens == 0 || request.prompt_tokens > TOKENS_MAX {
                return Err(format!("request `{}`: 1 to {TOKENS_MAX} prompt tokens are possible", request.name));
            }
            let tenant = if request.tenant.is_empty() { "default" } else { &request.tenant };
            let new = NewRequest {
                prompt: (0..request.prompt_tokens).map(|at| at ^ number.wrapping_mul(0x9E37_79B9)).collect(),
                max_new_tokens: request.max_new_tokens,
                priority: request.priority,
                tenant: Tenant { name: tenant.into(), weight: 1.0 },
                deadline_us: request.deadline_ms.map(|ms| self.now_us + ms * 1000),
                namespace: 0,
                group: u64::from(number),
                reads_prompt: false,
            };
            let slot = self.scheduler.submit(new, self.now_us);
            let slot = slot.map_err(|e| format!("request `{}` never fits: {e:?}", request.name))?;
            self.names.insert(slot, request);
            self.arrived += 1;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let tick = self.tick();
        let decision = self.policy.step(self.scheduler.delta(&tick)).map_err(|e| e.to_string())?;
        self.scheduler.plan(&tick, Advice::Policy(&decision)).map_err(|e| format!("an invalid decision: {e}"))?;
        let plan = self.scheduler.current();
        let runs: Vec<(u32, bool)> = plan.runs.iter().map(|run| (run.end, run.emits)).collect();
        let refused: Vec<Slot> = plan.refused.iter().map(|refused| refused.slot).collect();
        self.last_tokens = plan.rows;
        for slot in refused {
            if let Some(request) = self.names.remove(&slot) {
                self.happened.refused.push(request.name.clone());
            }
        }
        self.now_us += STEP_US;
        let launched = !runs.is_empty();
        for (run, (end, emits)) in runs.into_iter().enumerate() {
            let tokens: &[u32] = if emits { &[7] } else { &[] };
            let Some(done) = self.scheduler.commit_run(run, &RunResult { tokens, end, done: false }) else { continue };
            let Some(request) = self.names.get(&done.slot) else { continue };
            if done.tokens > 0 && !self.happened.first.contains(&request.name) {
                self.happened.first.push(request.name.clone());
            }
            if done.ended.is_some() {
                self.happened.finished.push(request.name.clone());
                self.names.remove(&done.slot);
            }
        }
        if launched {
            self.scheduler.commit_done();
        }
        self.scheduler.take_released(&mut Vec::new());
        Ok(())
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
