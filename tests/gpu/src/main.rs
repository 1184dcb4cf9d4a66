//! `gpu-check [parity|speed|profile|all]`: the CUDA backend against the CPU one on small random models, then the speed table.
//!
//! Parity compares the logprobs of whole models over prefill chunks, mixed steps and decodes, forced along one token
//! sequence, and that graphs, batches and chunk borders change nothing. Speed drives the backend of a full-size random
//! model without HTTP and prints each figure with its share of the card's floor.

mod drive;
mod parity;
mod speed;

use std::process::ExitCode;

fn main() -> ExitCode {
    let what = std::env::args().nth(1).unwrap_or_else(|| "all".into());
    if what == "profile" {
        return match speed::profile() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("FAIL  profile: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let mut passed = 0;
    let mut failed = 0;
    if what != "speed" {
        for check in parity::CHECKS {
            match (check.run)() {
                Ok(note) => {
                    passed += 1;
                    println!("ok    {:<32} {note}", check.name);
                }
                Err(error) => {
                    failed += 1;
                    println!("FAIL  {:<32} {error:#}", check.name);
                }
            }
        }
    }
    if what != "parity"
        && let Err(error) = speed::run()
    {
        failed += 1;
        println!("FAIL  speed: {error:#}");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
