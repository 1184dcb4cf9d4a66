//! The command line: `cargo xtask sim` passes it on.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use contract::cost::StepCost;

use crate::fleet::Router;
use crate::load::SCENARIOS;
use crate::policies::HOSTILE;

pub struct Args {
    pub policy: String,
    /// Policies for a hostile load, instead of one policy on a scenario.
    pub hostile: Vec<String>,
    /// JSON.
    pub settings: Option<String>,
    pub trace: Option<PathBuf>,
    pub scenario: String,
    pub seed: u64,
    pub seconds: f64,
    pub load: f64,
    pub device: Device,
    pub seats: u16,
    pub kv_tokens: u32,
    pub context: u32,
    pub in_flight: usize,
    pub step_target_ms: u32,
    pub starvation_ms: u64,
    pub replicas: usize,
    pub router: Router,
    /// Look for the fewest replicas with which the p95 of first tokens stays within this.
    pub plan_ttft_ms: Option<f64>,
    pub svg: Option<PathBuf>,
    pub json: bool,
    pub check: bool,
    /// Of a hostile load, at least.
    pub steps: u64,
    /// Whether the figures of a hostile run are kept in `tests/bench/results`.
    pub record: bool,
}

/// What a simulated device costs and can hold.
#[derive(Clone, Copy)]
pub struct Device {
    pub name: &'static str,
    pub cost: StepCost,
    pub max_rows: u32,
}

/// An 8B model in bf16 on one H200 and SmolLM2-135M on two CPU cores, roughly: for figures of one's own, take the numbers
/// that a server measures.
const DEVICES: [Device; 2] = [
    Device { name: "h200-8b", cost: StepCost { fixed_us: 5500, row_ns: 24_000, context_ps: 1100 }, max_rows: 8192 },
    Device {
        name: "cpu-135m",
        cost: StepCost { fixed_us: 5000, row_ns: 3_800_000, context_ps: 700_000 },
        max_rows: 512,
    },
];

fn usage() -> String {
    let hostile: Vec<_> = HOSTILE.iter().map(|(name, _)| *name).collect();
    format!(
        "sim --policy NAME|FILE.wasm [--settings JSON] [--trace FILE.json | --scenario NAME] [--seed N] [--seconds S]
    [--load SHARE] [--device NAME | --fixed-us N --row-ns N --context-ps N] [--max-rows N] [--seats N] [--kv-tokens N]
    [--context N] [--in-flight N] [--step-target-ms N] [--starvation-ms N] [--replicas N] [--router NAME]
    [--plan-ttft-ms N] [--svg FILE] [--json] [--no-check]
sim --hostile all|NAME,NAME... [--settings JSON] [--steps N] [--seed N] [--record]

policies   native, a scheduler plugin by name or file, or a hostile one: {}
scenarios  {}
devices    h200-8b, cpu-135m
routers    round-robin, least-loaded, prefix-affinity
--trace    requests as a JSON array, or what a server wrote for scheduler_trace: the same arrivals under another policy
--plan-ttft-ms  the fewest replicas with which the same requests keep a p95 of first tokens, tried from --replicas on
--hostile  small pools, cancels, every length for so many steps (10,000,000) per policy, the invariants checked at each;
           any policy may be named, `all` are native and the hostile ones; --record keeps the figures",
        hostile.join(", "),
        SCENARIOS.join(", ")
    )
}

impl Args {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut args = Self {
            policy: String::new(),
            hostile: Vec::new(),
            settings: None,
            trace: None,
            scenario: "mixed".into(),
            seed: 1,
            seconds: 20.0,
            load: 0.9,
            device: DEVICES[0],
            seats: 128,
            kv_tokens: 400_000,
            context: 131_072,
            in_flight: 2,
            step_target_ms: 50,
            starvation_ms: 30_000,
            replicas: 1,
            router: Router::LeastLoaded,
            plan_ttft_ms: None,
            svg: None,
            json: false,
            check: true,
            steps: 10_000_000,
            record: false,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--json" => args.json = true,
                "--no-check" => args.check = false,
                "--record" => args.record = true,
                "--help" | "-h" => bail!("{}", usage()),
                _ => {
                    let value = words.next().with_context(|| format!("{word} needs a value\n\n{}", usage()))?;
                    args.set(&word, value)?;
                }
            }
        }
        ensure!(!args.policy.is_empty() || !args.hostile.is_empty(), "--policy is missing\n\n{}", usage());
        ensure!(args.hostile.is_empty() || args.policy.is_empty(), "--policy and --hostile are two kinds of run");
        Ok(args)
    }

    fn set(&mut self, word: &str, value: String) -> Result<()> {
        let number = || value.parse::<u64>().with_context(|| format!("{word} takes a whole number, not `{value}`"));
        let small = || Ok::<u32, anyhow::Error>(u32::try_from(number()?)?);
        let real = || value.parse::<f64>().with_context(|| format!("{word} takes a number, not `{value}`"));
        match word {
            "--policy" => self.policy = value,
            "--hostile" if value == "all" => {
                let names = HOSTILE.iter().map(|(name, _)| *name);
                self.hostile = std::iter::once("native").chain(names).map(str::to_owned).collect();
            }
            "--hostile" => self.hostile = value.split(',').map(str::to_owned).collect(),
            "--settings" => self.settings = Some(value),
            "--trace" => self.trace = Some(value.into()),
            "--scenario" => self.scenario = value,
            "--seed" => self.seed = number()?,
            "--seconds" => self.seconds = real()?,
            "--load" => self.load = real()?,
            "--device" => {
                let found = DEVICES.into_iter().find(|device| device.name == value);
                self.device =
                    found.with_context(|| format!("unknown device `{value}`; there are h200-8b and cpu-135m"))?;
            }
            "--fixed-us" => self.device.cost.fixed_us = small()?,
            "--row-ns" => self.device.cost.row_ns = small()?,
            "--context-ps" => self.device.cost.context_ps = small()?,
            "--max-rows" => self.device.max_rows = small()?,
            "--seats" => self.seats = number()?.try_into()?,
            "--kv-tokens" => self.kv_tokens = small()?,
            "--context" => self.context = small()?,
            "--in-flight" => self.in_flight = number()?.clamp(1, 2) as usize,
            "--step-target-ms" => self.step_target_ms = small()?,
            "--starvation-ms" => self.starvation_ms = number()?,
            "--replicas" => self.replicas = number()?.clamp(1, 10_000) as usize,
            "--router" => self.router = Router::parse(&value)?,
            "--plan-ttft-ms" => self.plan_ttft_ms = Some(real()?),
            "--svg" => self.svg = Some(value.into()),
            "--steps" => self.steps = number()?,
            _ => bail!("unknown argument {word}\n\n{}", usage()),
        }
        Ok(())
    }
}
