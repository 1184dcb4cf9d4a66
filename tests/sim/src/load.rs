//! What arrives: a file, or a seeded process.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::random::Rng;
use crate::recorded;

/// One request of a trace; a trace is a JSON array of these.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub at_ms: f64,
    pub prompt: u32,
    pub output: u32,
    #[serde(default)]
    pub tenant: String,
    /// What the figures group by; the tenant when it is missing.
    #[serde(default)]
    pub kind: String,
    #[serde(default = "one")]
    pub weight: f64,
    #[serde(default)]
    pub priority: i32,
    /// Of the first token, from arrival.
    #[serde(default)]
    pub deadline_ms: Option<f64>,
    /// Requests of one family begin with the same `shared` tokens.
    #[serde(default)]
    pub family: u32,
    #[serde(default)]
    pub shared: u32,
    /// The client leaves this long after it came.
    #[serde(default)]
    pub cancel_ms: Option<f64>,
}

fn one() -> f64 {
    1.0
}

impl Job {
    pub(crate) fn new(kind: &str, at_ms: f64, prompt: u32, output: u32) -> Self {
        Self {
            at_ms,
            prompt,
            output,
            tenant: String::new(),
            kind: kind.into(),
            weight: 1.0,
            priority: 0,
            deadline_ms: None,
            family: 0,
            shared: 0,
            cancel_ms: None,
        }
    }

    pub fn group(&self) -> &str {
        if self.kind.is_empty() { &self.tenant } else { &self.kind }
    }
}

/// An array of requests, or a server's `scheduler_trace`.
pub fn read(path: &Path) -> Result<Vec<Job>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let parsed =
        if recorded::is_trace(&text) { recorded::jobs(&text) } else { serde_json::from_str(&text).map_err(Into::into) };
    let mut jobs: Vec<Job> = parsed.with_context(|| path.display().to_string())?;
    for (n, job) in jobs.iter().enumerate() {
        let sound = job.at_ms.is_finite() && job.at_ms >= 0.0 && job.prompt > 0 && job.output > 0;
        ensure!(sound, "request {n}: `at_ms` must be 0 or more, `prompt` and `output` at least 1");
    }
    jobs.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    Ok(jobs)
}

/// Seeded processes by name.
pub const SCENARIOS: [&str; 5] = ["mixed", "equal-tenants", "tenants", "deadlines", "chat"];

/// `load` is the share of the device that prompts would keep busy; `row_us` what a token of prompt costs.
pub fn scenario(name: &str, seed: u64, seconds: f64, load: f64, row_us: f64) -> Result<Vec<Job>> {
    let mut rng = Rng(seed);
    let mut jobs = match name {
        "mixed" => mixed(&mut rng, seconds),
        "tenants" => tenants(&mut rng, seconds, load, row_us, 10.0),
        "equal-tenants" => tenants(&mut rng, seconds, load, row_us, 1.0),
        "deadlines" => deadlines(&mut rng, seconds, load, row_us),
        "chat" => chat(&mut rng, seconds, load, row_us),
        _ => bail!("unknown scenario `{name}`; there are {SCENARIOS:?}"),
    };
    jobs.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    Ok(jobs)
}

/// 16 streams that decode throughout, a prompt of 100,000 tokens after two seconds, a short request four times a second.
fn mixed(rng: &mut Rng, seconds: f64) -> Vec<Job> {
    let mut jobs: Vec<Job> = (0..16).map(|_| Job::new("stream", 0.0, 200, 1_000_000)).collect();
    let mut streams = jobs.len();
    jobs.push(Job::new("long", 2000.0, 100_000, 1));
    let mut at_ms = 100.0;
    while at_ms < seconds * 1e3 {
        jobs.push(Job::new("short", at_ms, rng.between(190, 210), 16));
        at_ms += 250.0;
    }
    // Streams end with the run.
    jobs.iter_mut().take(std::mem::take(&mut streams)).for_each(|job| job.cancel_ms = Some(seconds * 1e3));
    jobs
}

fn poisson(rng: &mut Rng, seconds: f64, mean_ms: f64, mut job: impl FnMut(&mut Rng, f64) -> Job) -> Vec<Job> {
    let (mut at_ms, mut jobs) = (0.0, Vec::new());
    loop {
        at_ms += rng.exponential(mean_ms);
        if at_ms >= seconds * 1e3 {
            return jobs;
        }
        jobs.push(job(rng, at_ms));
    }
}

/// Two tenants that would share the load, but one sends `times` as many requests as the other.
fn tenants(rng: &mut Rng, seconds: f64, load: f64, row_us: f64, times: f64) -> Vec<Job> {
    let mean_prompt = 600.0;
    let light_ms = mean_prompt * row_us * 1e-3 / (load / 2.0);
    let job = |tenant: &'static str| {
        move |rng: &mut Rng, at_ms: f64| Job {
            tenant: tenant.into(),
            ..Job::new("", at_ms, rng.between(200, 1000), rng.between(10, 60))
        }
    };
    let mut jobs = poisson(rng, seconds, light_ms, job("light"));
    jobs.extend(poisson(rng, seconds, light_ms / times, job("heavy")));
    jobs
}

/// Prompts of 100 to 4,000 tokens that are due after two to twelve times the time that they need alone.
fn deadlines(rng: &mut Rng, seconds: f64, load: f64, row_us: f64) -> Vec<Job> {
    let mean_ms = 2050.0 * row_us * 1e-3 / load;
    poisson(rng, seconds, mean_ms, |rng, at_ms| {
        let prompt = rng.between(100, 4000);
        let alone_ms = f64::from(prompt) * row_us * 1e-3;
        let due_ms = 200.0 + alone_ms * (2.0 + 10.0 * rng.unit());
        Job { deadline_ms: Some(due_ms), ..Job::new("due", at_ms, prompt, rng.between(1, 8)) }
    })
}

/// Conversations of 20 families that share system prompts.
fn chat(rng: &mut Rng, seconds: f64, load: f64, row_us: f64) -> Vec<Job> {
    let mean_ms = 900.0 * row_us * 1e-3 / load;
    poisson(rng, seconds, mean_ms, |rng, at_ms| {
        let shared = 1024;
        let prompt = shared + rng.between(50, 1500);
        Job { family: 1 + rng.below(20) as u32, shared, ..Job::new("chat", at_ms, prompt, rng.between(20, 300)) }
    })
}
