//! What a scheduling policy costs a step: each bundled component, called as the engine calls it, and beside it the same
//! policies compiled natively, and the host's own first come, first served.
//!
//! Two kinds of step: *steady*, 64 requests that decode without speculation, so that nothing is listed; and
//! *speculating*, 1,024 requests whose drafts were accepted in part, so that every one is listed. A call right after
//! another finds its memory in the caches; in a server a step of the model comes between and leaves it in none, so each
//! is also timed after reading [`FLUSH_BYTES`].

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use contract::Slot;
use contract::cost::StepCost;
use contract::policy::{Arrival, Delta, Limits, Progress, SlotState, SlotView, Snapshot};
use plugin_host::{Grants, HostConfig, PluginHost, PluginSource};
use prometheus_client::registry::Registry;
use scheduler::{Advice, Config, NewRequest, RunResult, Scheduler, Tick};
use serde_json::{Value, json};

use crate::args::Args;

const POLICIES: [&str; 6] = ["fcfs", "priority", "fair", "deadline", "shortest-prefill-first", "stall-free"];

/// (name, requests, whether drafts were accepted, what half of the calls and what 99 % of them may take in us).
const CASES: [Case; 2] = [
    Case { name: "steady", requests: 64, drafts: false, p50_us_max: Some(2.0), p99_us_max: None },
    Case { name: "speculating", requests: 1024, drafts: true, p50_us_max: None, p99_us_max: Some(50.0) },
];

const PROMPT_TOKENS: u32 = 200;

/// More than the last level of a server's caches gives one core.
const FLUSH_BYTES: usize = 128 << 20;

struct Case {
    name: &'static str,
    requests: u32,
    drafts: bool,
    p50_us_max: Option<f64>,
    p99_us_max: Option<f64>,
}

pub fn run(args: &Args) -> Result<Value> {
    let (hot, cold) = if args.quick { (1_000, 20) } else { (50_000, 300) };
    let host = PluginHost::new(HostConfig::default(), &mut Registry::default())?;
    let mut flush = vec![1u8; FLUSH_BYTES];
    let mut rows = Vec::new();
    println!("{:<36} {:<12} {:>9} {:>9} {:>9} {:>9}", "policy", "step", "p50 us", "p99 us", "cold p50", "cold p99");
    for name in POLICIES {
        for case in &CASES {
            let mut policy = host.load_scheduler(&PluginSource::parse(name), &Grants::default(), None)?;
            let mut load = Load::new(case);
            policy.resync(&load.snapshot())?;
            let mut times = (Vec::new(), Vec::new());
            for call in 0..hot + cold {
                load.advance();
                if call >= hot {
                    read_all(&mut flush);
                }
                let start = Instant::now();
                policy.step(&load.delta)?;
                let us = start.elapsed().as_secs_f64() * 1e6;
                // The first calls grow lists to their size.
                match call {
                    call if call >= hot => times.1.push(us),
                    call if call >= hot / 10 => times.0.push(us),
                    _ => {}
                }
            }
            rows.push(Row::of(format!("{name} (component)"), case.name, times));
        }
    }
    for case in CASES.iter().filter(|case| !case.drafts) {
        rows.extend(native_host(case, hot, cold, &mut flush)?);
    }
    rows.extend(native_policies()?);
    let mut kept = true;
    for row in &rows {
        row.print();
        let case = CASES.iter().find(|case| case.name == row.step).context("a row of a known step")?;
        let over = |limit: Option<f64>, value: f64| limit.is_some_and(|limit| value > limit);
        if row.policy.ends_with("(component)") && (over(case.p50_us_max, row.p50) || over(case.p99_us_max, row.p99)) {
            kept = false;
        }
    }
    println!("limits (steady p50 2 us, speculating p99 50 us): {}", if kept { "kept" } else { "EXCEEDED" });
    let limits = CASES.map(|case| json!({"step": case.name, "requests": case.requests, "p50_us_max": case.p50_us_max, "p99_us_max": case.p99_us_max}));
    Ok(
        json!({"limits": limits, "kept": kept, "flushed_bytes": FLUSH_BYTES, "rows": rows.iter().map(Row::json).collect::<Vec<_>>()}),
    )
}

struct Row {
    policy: String,
    step: String,
    p50: f64,
    p99: f64,
    /// Calls that found nothing in the caches.
    cold: Option<(f64, f64)>,
}

impl Row {
    fn of(policy: String, step: &str, (hot, cold): (Vec<f64>, Vec<f64>)) -> Self {
        let ((p50, p99), cold) = (quantiles(hot), quantiles(cold));
        Self { policy, step: step.into(), p50, p99, cold: Some(cold) }
    }

    fn print(&self) {
        let cold = |pick: fn((f64, f64)) -> f64| self.cold.map_or("-".into(), |cold| format!("{:.2}", pick(cold)));
        let (cold_p50, cold_p99) = (cold(|cold| cold.0), cold(|cold| cold.1));
        println!(
            "{:<36} {:<12} {:>9.2} {:>9.2} {cold_p50:>9} {cold_p99:>9}",
            self.policy, self.step, self.p50, self.p99
        );
    }

    fn json(&self) -> Value {
        let round = |us: f64| (us * 1000.0).round() / 1000.0;
        json!({
            "policy": self.policy,
            "step": self.step,
            "p50_us": round(self.p50),
            "p99_us": round(self.p99),
            "cold_p50_us": self.cold.map(|cold| round(cold.0)),
            "cold_p99_us": self.cold.map(|cold| round(cold.1)),
        })
    }
}

/// The median and the 99th percentile.
fn quantiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| times.get(((times.len().saturating_sub(1)) as f64 * share) as usize).copied().unwrap_or(0.0);
    (at(0.5), at(0.99))
}

/// Leaves nothing of ours in the caches.
fn read_all(bytes: &mut [u8]) {
    for line in bytes.chunks_mut(64) {
        line[0] = line[0].wrapping_add(1);
    }
    std::hint::black_box(bytes);
}

/// Requests that all decode, as a policy hears of them.
struct Load {
    drafts: bool,
    slots: Vec<SlotView>,
    delta: Delta,
    calls: u32,
}

impl Load {
    fn new(case: &Case) -> Self {
        let slot = |n: u32| SlotView {
            request: Arrival {
                slot: Slot(n),
                group: u64::from(n),
                tenant: n % 4,
                adapter: 0,
                priority: 0,
                arrived_us: u64::from(n),
                deadline_us: None,
                prompt_tokens: PROMPT_TOKENS,
                cached_tokens: 0,
                max_new_tokens: 1 << 30,
            },
            state: SlotState::Decoding,
            computed: PROMPT_TOKENS,
            emitted: 1,
            pages: PROMPT_TOKENS.div_ceil(contract::PAGE_TOKENS),
            preemptions: 0,
        };
        let slots = (0..case.requests).map(slot).collect();
        let limits = Limits {
            token_budget: 2048,
            tokens_max: 8192,
            target_us: 30_000,
            decode_us: 12_000,
            cost: StepCost { fixed_us: 5500, row_ns: 24_000, context_ps: 1100 },
            free_seats: 128,
            free_pages: 4096,
            page_tokens: contract::PAGE_TOKENS,
            resume_align: 1,
            last_step_us: 12_000,
            last_step_tokens: case.requests,
            in_flight_steps: 1,
            ..Limits::default()
        };
        Self { drafts: case.drafts, slots, delta: Delta { limits, ..Delta::default() }, calls: 0 }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { limits: self.delta.limits.clone(), tenants: Vec::new(), slots: self.slots.clone() }
    }

    /// The next step: with drafts, each request went on by two to five tokens.
    fn advance(&mut self) {
        self.calls += 1;
        self.delta.limits.step += 1;
        self.delta.limits.now_us += 12_000;
        self.delta.progress.clear();
        if !self.drafts {
            return;
        }
        for view in &mut self.slots {
            let tokens = 2 + (view.request.slot.0 + self.calls) % 4;
            (view.computed, view.emitted) = (view.computed + tokens, view.emitted + tokens);
            let progress = Progress { slot: view.request.slot, computed: view.computed, emitted: view.emitted };
            self.delta.progress.push(progress);
        }
    }
}

/// The scheduler core itself: what a step's plan takes when nobody advises, and when the advice is to go on.
fn native_host(case: &Case, hot: usize, cold: usize, flush: &mut [u8]) -> Result<[Row; 2]> {
    let mut rows = Vec::new();
    for (policy, advised) in [("fcfs (native), whole plan", false), ("a component's decision, whole plan", true)] {
        let config = Config {
            seats: case.requests as u16,
            // The prompts and a token for every call.
            pages: case.requests * (PROMPT_TOKENS + (hot + cold) as u32).div_ceil(contract::PAGE_TOKENS)
                + 2 * case.requests,
            context_len: 1 << 20,
            max_rows: 8192,
            resume_align: 1,
            rows_tile: 1,
            large_rows_tile: 1,
            prefix_cache: true,
            starvation_bound_us: 30_000_000,
        };
        let mut scheduler = Scheduler::new(config)?;
        for n in 0..case.requests {
            let request = NewRequest {
                prompt: (0..PROMPT_TOKENS).map(|at| n * PROMPT_TOKENS + at).collect(),
                max_new_tokens: 1 << 19,
                priority: 0,
                tenant: Default::default(),
                deadline_us: None,
                namespace: 0,
                group: u64::from(n),
                reads_prompt: false,
            };
            scheduler.submit(request, 0)?;
        }
        let (mut times, decision) = ((Vec::new(), Vec::new()), Default::default());
        for call in 0..hot + cold {
            let tick = Tick { now_us: call as u64 * 12_000, token_budget: 8192, ..Tick::default() };
            if call >= hot {
                read_all(flush);
            }
            let start = Instant::now();
            let advice = if advised && call > 10 { Advice::Policy(&decision) } else { Advice::Native };
            let runs = scheduler.plan(&tick, advice)?.runs.len();
            let us = start.elapsed().as_secs_f64() * 1e6;
            for run in 0..runs {
                let end = scheduler.current().runs[run].end;
                scheduler.commit_run(run, &RunResult { tokens: &[7], end, done: false });
            }
            scheduler.commit_done();
            match call {
                call if call >= hot => times.1.push(us),
                call if call >= hot / 10 => times.0.push(us),
                _ => {}
            }
        }
        rows.push(Row::of(policy.into(), case.name, times));
    }
    rows.try_into().ok().context("two rows")
}

/// The same policies without a sandbox, from the guests' workspace.
fn native_policies() -> Result<Vec<Row>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins");
    let output = Command::new("cargo")
        .args(["run", "--release", "--quiet", "-p", "cases", "--example", "policies"])
        .current_dir(folder)
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "the native policies failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).context("the native policies' figures")?;
    let row = |row: &Value| {
        let number = |key: &str| row[key].as_f64().context("a native policy's figure");
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let policy = format!("{} (natively)", text("policy"));
        Ok(Row { policy, step: text("step"), p50: number("p50_us")?, p99: number("p99_us")?, cold: None })
    };
    rows.iter().map(row).collect()
}
