//! The command line of the simulator: runs, and prints figures.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use scheduler::Config;
use serde_json::{Value, json};
use sim::args::Args;
use sim::figures::{deadlines, group_json, groups, jain};
use sim::fleet::{Fleet, Plan, fewest};
use sim::policies::Source;
use sim::replica::{Counts, Machine};
use sim::{load, plot, stress};

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1)).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    if !args.hostile.is_empty() {
        return hostile(args);
    }
    let cost = args.device.cost;
    let jobs = match &args.trace {
        Some(path) => load::read(path)?,
        None => {
            // The share of a step that is not prompt is not there for prompts.
            let row_us = cost.rows_us(0, 1000) / 1000.0 / args.replicas as f64;
            load::scenario(&args.scenario, args.seed, args.seconds, args.load, row_us)?
        }
    };
    let (machine, source) = (machine(args), Source::parse(&args.policy, args.settings.as_deref())?);
    let plan = Plan {
        machine: &machine,
        source: &source,
        replicas: args.replicas,
        router: args.router,
        seed: args.seed,
        check: args.check,
    };
    if let Some(ttft_ms) = args.plan_ttft_ms {
        let (found, tried) = fewest(plan, &jobs, ttft_ms)?;
        for one in &tried {
            println!("{:>5} replicas: ttft p95 {:.1} ms", one.replicas, one.ttft_p95_ms);
        }
        let found = found.with_context(|| format!("no fleet that is tried keeps a ttft p95 of {ttft_ms} ms"))?;
        println!("{found} replicas keep a ttft p95 of {ttft_ms} ms");
        return Ok(());
    }
    let mut fleet = Fleet::new(&plan)?;
    fleet.run(&jobs, plan.check)?;
    let figures = figures(args, &jobs, &fleet);
    if args.json {
        println!("{figures}");
    } else {
        print_figures(args, &figures, started.elapsed().as_secs_f64());
    }
    if let Some(path) = &args.svg {
        let what = args.trace.as_ref().map_or(args.scenario.clone(), |path| path.display().to_string());
        let outcomes = fleet.outcomes();
        std::fs::write(path, plot::svg(&format!("{} on {what}", args.policy), &groups(&jobs, &outcomes)))?;
        eprintln!("written: {}", path.display());
    }
    Ok(())
}

fn hostile(args: &Args) -> Result<()> {
    let mut rows = Vec::new();
    for policy in &args.hostile {
        let survived =
            stress::run(policy, args.settings.as_deref(), args.seed, args.steps).with_context(|| policy.clone())?;
        let counts = survived.counts;
        println!(
            "{policy}: {} steps on {} machines, no invariant violated; {} requests, {} fallbacks, {} pieces of advice not followed, \
             {} preemptions; {:.1} s, {:.1} million steps a minute",
            counts.steps,
            survived.machines,
            survived.requests,
            counts.fallbacks,
            counts.violations,
            counts.preemptions,
            survived.seconds,
            survived.steps_per_minute() / 1e6
        );
        rows.push(survived.json(policy));
    }
    if args.record {
        let flags = json!({"hostile": args.hostile, "settings": args.settings, "steps": args.steps, "seed": args.seed});
        let found = record::record("sim-hostile", flags, Value::Array(rows))?;
        println!("written: {}", record::write("sim-hostile", &found)?.display());
    }
    Ok(())
}

fn machine(args: &Args) -> Machine {
    let config = Config {
        seats: args.seats,
        pages: args.kv_tokens / contract::PAGE_TOKENS,
        context_len: args.context,
        max_rows: args.device.max_rows,
        resume_align: 1,
        rows_tile: 1,
        large_rows_tile: 1,
        prefix_cache: true,
        starvation_bound_us: args.starvation_ms * 1000,
    };
    Machine { config, cost: args.device.cost, step_target_us: args.step_target_ms * 1000, in_flight: args.in_flight }
}

fn figures(args: &Args, jobs: &[load::Job], fleet: &Fleet) -> Value {
    let outcomes = fleet.outcomes();
    let groups = groups(jobs, &outcomes);
    let mut counts = Counts::default();
    for replica in &fleet.replicas {
        counts.steps += replica.counts.steps;
        counts.calls += replica.counts.calls;
        counts.fallbacks += replica.counts.fallbacks;
        counts.preemptions += replica.counts.preemptions;
        counts.busy_us += replica.counts.busy_us;
        counts.prompt_us += replica.counts.prompt_us;
    }
    let busy = counts.busy_us as f64 / (fleet.end_us().max(1) as f64 * fleet.replicas.len() as f64);
    let (least, most) = fleet.busy_shares();
    let services: Vec<f64> = groups.values().map(|group| group.service).collect();
    // While prompts wait the device is busy, so their share of its busy time is their speed.
    let share = (counts.prompt_us / counts.busy_us.max(1) as f64).clamp(0.01, 1.0);
    let found = deadlines(jobs, &outcomes, &args.device.cost, share).map(|found| {
        json!({
            "asked": found.asked,
            "met_by_offline_edf": found.feasible,
            "missed": found.missed,
            "missed_of_those_percent": (found.missed_of_feasible as f64 / found.feasible.max(1) as f64 * 1e4).round() / 100.0,
        })
    });
    json!({
        "policy": args.policy,
        "settings": args.settings,
        "scenario": args.trace.as_ref().map_or(args.scenario.clone(), |path| path.display().to_string()),
        "seed": args.seed,
        "load": args.load,
        "replicas": fleet.replicas.len(),
        "steps": counts.steps,
        "policy_calls": counts.calls,
        "fallbacks": counts.fallbacks,
        "preemptions": counts.preemptions,
        "busy_share": (busy * 1e4).round() / 1e4,
        "busy_share_least": (least * 1e4).round() / 1e4,
        "busy_share_most": (most * 1e4).round() / 1e4,
        "service_jain": (jain(&services) * 1e4).round() / 1e4,
        "deadlines": found,
        "groups": groups.iter().map(|(name, group)| (name.clone(), group_json(group))).collect::<serde_json::Map<_, _>>(),
    })
}

fn print_figures(args: &Args, figures: &Value, seconds: f64) {
    println!(
        "{}: {} steps, {} policy calls, {} fallbacks, device busy {:.1} %, {seconds:.1} s",
        args.policy,
        figures["steps"],
        figures["policy_calls"],
        figures["fallbacks"],
        figures["busy_share"].as_f64().unwrap_or(0.0) * 100.0
    );
    if args.replicas > 1 {
        let share = |key: &str| figures[key].as_f64().unwrap_or(0.0) * 100.0;
        let (least, most) = (share("busy_share_least"), share("busy_share_most"));
        println!("{} replicas, of which the least busy computed {least:.1} % and the most {most:.1} %", args.replicas);
    }
    println!(
        "{:<12} {:>8} {:>7} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7}",
        "group", "requests", "refused", "ttft p50", "p95", "max", "itl p50", "p99", "max", "cached"
    );
    for (name, group) in figures["groups"].as_object().into_iter().flatten() {
        let (ttft, itl) = (&group["ttft_ms"], &group["itl_ms"]);
        let cached = group["cached_share"].as_f64().unwrap_or(0.0) * 100.0;
        println!(
            "{name:<12} {:>8} {:>7} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {cached:>5.1} %",
            group["requests"],
            group["refused"],
            ttft["p50"],
            ttft["p95"],
            ttft["max"],
            itl["p50"],
            itl["p99"],
            itl["max"]
        );
    }
    println!("service by weight, Jain's index: {}", figures["service_jain"]);
    if let Some(found) = figures["deadlines"].as_object() {
        println!(
            "deadlines: {} asked, offline earliest deadline first meets {}, {} missed; {} % of those it meets",
            found["asked"], found["met_by_offline_edf"], found["missed"], found["missed_of_those_percent"]
        );
    }
}
