//! Speed figures: `cargo xtask bench [NAME]`. Nothing here is a test; a figure depends on the machine it was taken on.
//!
//! Start with [`plugin_cost`] (a real server under load), [`policy_cost`] (schedulers alone), [`stage_speed`] (output
//! stages alone), [`platform`], [`hostile`], [`swap`] and [`soak`] (what it takes to trust plugins) and [`cpu`] (the
//! engine without the API); [`probe`] compares texts instead of times. The crate `record`
//! says what is written down beside the figures.

mod args;
mod cpu;
mod hostile;
mod memory;
mod metrics;
mod peak;
mod platform;
mod plugin_cost;
mod policy_cost;
mod probe;
mod soak;
mod stage_speed;
mod swap;

use std::process::ExitCode;

use anyhow::Result;
use args::Args;

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1)).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    for name in &args.names {
        let figures = match name.as_str() {
            args::PLUGIN_COST => plugin_cost::run(args)?,
            args::PROBE => probe::run(args)?,
            args::POLICY_COST => policy_cost::run(args)?,
            args::STAGE_SPEED => stage_speed::run(args)?,
            args::PLATFORM => platform::run(args)?,
            args::HOSTILE => hostile::run(args)?,
            args::SWAP => swap::run(args)?,
            args::SOAK => soak::run(args)?,
            _ => cpu::run(args)?,
        };
        let record = record::record(name, args.flags(), figures)?;
        if args.stdout {
            println!("{record}");
        } else {
            println!("written: {}", record::write(name, &record)?.display());
        }
    }
    Ok(())
}
