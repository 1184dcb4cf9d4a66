//! `gpu-check [parity|blocks|states|invariant|speed|steps|profile|all|targets|smallest] [fp8|q4_k_m|..] [folder=DIR]
//! [layers=N] [states=bf16] [arch=N] [only=TEXT]`: the CUDA backend against the CPU one on small random models, then the speed
//! table.
//!
//! Parity compares the logprobs of whole models over prefill chunks, mixed steps and decodes, forced along one token
//! sequence, and that graphs, batches and chunk borders change nothing; `arch=70` runs an older card's code paths. Speed
//! drives the backend of a full-size random model without HTTP and prints each figure with its share of the card's floor;
//! `fp8` quantises its weights, the name of a GGUF mix makes them random blocks of it; `steps` shows what chunks of a prompt
//! cost beside 16 decodes. `folder=DIR`: `speed` and `profile` take the shape of that config.json instead of Qwen3-8B's;
//! `layers=N`: its first N layers, which load in a second and show what one of them costs; `states=bf16`: its recurrent
//! states in 16 bits.
//! `blocks` and `states` are the parts of parity that are about block formats and saved recurrent states. `invariant`
//! asks the probe of `tests/probe` whether texts depend on their company, with `batch_invariant` and without. `targets`
//! compiles every kernel for every card, and needs none. `smallest` runs each kernel once or twice, for compute-sanitizer;
//! `few` leaves out what needs the library, and most cells of `speed`; `only` leaves the checks, or the cells, whose name
//! has the text.

mod blocks;
mod drive;
mod fp8;
mod hybrid;
mod invariant;
mod parity;
mod smallest;
mod speed;
mod states;
mod targets;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use backend_cuda::StateType;
use model::dummy::Mix;

/// What the command line asks for.
struct Asked {
    what: String,
    weights: speed::Weights,
    /// Compute capability times ten.
    arch: Option<u32>,
    machines: Vec<u32>,
    shape: speed::Shape,
    /// Of checks those with it in their name.
    only: String,
    /// Of `smallest`: only steps that need nothing of the library; of `speed`: only decodes of few rows.
    few: bool,
}

fn asked() -> Result<Asked> {
    let mut asked = Asked {
        what: "all".into(),
        weights: speed::Weights::Half,
        arch: None,
        machines: Vec::new(),
        shape: speed::Shape::default(),
        only: String::new(),
        few: false,
    };
    for word in std::env::args().skip(1) {
        match word.split_once('=') {
            Some(("arch", number)) => asked.arch = Some(number.parse().with_context(|| word.clone())?),
            Some(("folder", path)) => asked.shape.folder = Some(path.into()),
            Some(("layers", number)) => asked.shape.layers = Some(number.parse().with_context(|| word.clone())?),
            Some(("states", "bf16")) => asked.shape.states = StateType::Bf16,
            Some(("states", _)) => bail!("{word}: `bf16`, or nothing for f32"),
            Some(("only", text)) => asked.only = text.into(),
            _ if word == "few" => asked.few = true,
            _ if word == "fp8" => asked.weights = speed::Weights::Fp8,
            _ if Mix::named(&word).is_some() => {
                asked.weights = speed::Weights::Blocks(word.clone(), Mix::named(&word).context("just looked")?);
            }
            _ if word.bytes().all(|b| b.is_ascii_digit()) => asked.machines.push(word.parse()?),
            _ => asked.what = word,
        }
    }
    Ok(asked)
}

/// How many passed, and how many failed.
fn check<'a>(checks: impl Iterator<Item = &'a parity::Check>, asked: &Asked) -> (u32, u32) {
    let (mut passed, mut failed) = (0, 0);
    for check in checks.filter(|check| check.name.contains(&asked.only)) {
        match (check.run)(asked.arch) {
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
    (passed, failed)
}

fn main() -> ExitCode {
    let asked = match asked() {
        Ok(asked) => asked,
        Err(error) => {
            println!("FAIL  {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let alone = match asked.what.as_str() {
        "profile" => Some(speed::profile(&asked.weights, &asked.shape)),
        "steps" => Some(speed::steps(&asked.weights, &asked.machines)),
        "targets" => Some(targets::run(&asked.machines)),
        "smallest" => Some(smallest::run(asked.arch, asked.few)),
        _ => None,
    };
    if let Some(ran) = alone {
        return match ran {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("FAIL  {}: {error:#}", asked.what);
                ExitCode::FAILURE
            }
        };
    }
    let mut passed = 0;
    let mut failed = 0;
    if asked.what == "blocks" {
        (passed, failed) = check(blocks::CHECKS.iter(), &asked);
    } else if asked.what == "invariant" {
        (passed, failed) = check(invariant::CHECKS.iter(), &asked);
    } else if asked.what == "states" {
        (passed, failed) = check(states::CHECKS.iter(), &asked);
    } else if asked.what != "speed" {
        let all =
            parity::CHECKS.iter().chain(fp8::CHECKS).chain(blocks::CHECKS).chain(hybrid::CHECKS).chain(states::CHECKS);
        (passed, failed) = check(all, &asked);
    }
    if asked.what != "speed" && passed + failed == 0 {
        failed = 1;
        println!("FAIL  no check has `{}` in its name", asked.only);
    }
    let cells = if asked.what == "speed" { asked.only.as_str() } else { "" };
    if !matches!(asked.what.as_str(), "parity" | "blocks" | "states" | "invariant")
        && let Err(error) = speed::run(&asked.weights, &asked.shape, asked.few, cells)
    {
        failed += 1;
        println!("FAIL  speed: {error:#}");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
