//! The command line of the benchmarks.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

pub const PLUGIN_COST: &str = "plugin-cost";
pub const POLICY_COST: &str = "policy-cost";
pub const CPU: &str = "cpu";
pub const PROBE: &str = "probe";
pub const STAGE_SPEED: &str = "stage-speed";
pub const PLATFORM: &str = "platform";
pub const HOSTILE: &str = "hostile";
pub const SWAP: &str = "swap";
pub const SOAK: &str = "soak";

/// These need no model.
const WITHOUT_MODEL: [&str; 5] = [STAGE_SPEED, PLATFORM, HOSTILE, SWAP, SOAK];

const USAGE: &str = "\
bench [NAME...] --model MODEL [--dummy] [--threads N,N] [--cells CELL,CELL] [--rounds N] [--quick] [--stdout]
  NAME     plugin-cost, policy-cost, cpu, probe; and without a model stage-speed, platform, hostile, swap, soak;
           without a name, plugin-cost, policy-cost, cpu and stage-speed
  MODEL    a GGUF file or a folder; with --dummy only its config.json is read, and the weights are random
  CELL     prefill:TOKENS, or decode:STREAMSxCONTEXT; only for cpu
  --quick  few tokens, one round: to see that it works, not to measure
  --stdout JSON to stdout instead of tests/bench/results";

#[derive(Clone, Debug)]
pub struct Args {
    pub names: Vec<String>,
    pub model: PathBuf,
    pub dummy: bool,
    pub threads: Vec<usize>,
    pub cells: Vec<Cell>,
    pub rounds: usize,
    pub quick: bool,
    pub stdout: bool,
    /// Of `platform`: only this chain, in a process of its own.
    pub chain: Option<usize>,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    Prefill { tokens: u32 },
    Decode { streams: usize, context: u32 },
}

impl Args {
    /// Tokens of each stream that are timed in a decode cell.
    pub fn timed_tokens(&self) -> usize {
        if self.quick { 8 } else { 64 }
    }

    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self> {
        let mut words = words;
        let mut model = None;
        let mut args = Self {
            names: Vec::new(),
            model: PathBuf::new(),
            dummy: false,
            threads: vec![1, 2],
            cells: default_cells(),
            rounds: 3,
            quick: false,
            stdout: false,
            chain: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value\n\n{USAGE}"));
            match word.as_str() {
                "--model" => model = Some(PathBuf::from(value()?)),
                "--threads" => args.threads = list(&value()?, |n| n.parse().context("not a number"))?,
                "--cells" => args.cells = list(&value()?, Cell::parse)?,
                "--rounds" => args.rounds = value()?.parse().context("--rounds")?,
                "--dummy" => args.dummy = true,
                "--quick" => args.quick = true,
                "--stdout" => args.stdout = true,
                "--chain" => args.chain = Some(value()?.parse().context("--chain")?),
                PLUGIN_COST | POLICY_COST | CPU | PROBE => args.names.push(word),
                name if WITHOUT_MODEL.contains(&name) => args.names.push(word),
                _ => bail!("unknown word `{word}`\n\n{USAGE}"),
            }
        }
        if args.names.is_empty() {
            args.names = [PLUGIN_COST, POLICY_COST, CPU, STAGE_SPEED].map(str::to_owned).to_vec();
        }
        if args.quick {
            args.rounds = 1;
        }
        ensure!((1..=100).contains(&args.rounds), "--rounds {} is not in 1..=100", args.rounds);
        ensure!(args.threads.iter().all(|n| (1..=1024).contains(n)), "--threads must be in 1..=1024");
        if args.names.iter().all(|name| WITHOUT_MODEL.contains(&name.as_str())) {
            return Ok(args);
        }
        args.model = model.with_context(|| format!("--model is missing\n\n{USAGE}"))?;
        Ok(args)
    }
}

impl Args {
    /// What stands beside the figures of this run.
    pub fn flags(&self) -> Value {
        json!({
            "model": self.model.file_name().map(|name| name.to_string_lossy()),
            "dummy": self.dummy,
            "rounds": self.rounds,
            "quick": self.quick,
        })
    }
}

fn default_cells() -> Vec<Cell> {
    let decode = |streams, context| Cell::Decode { streams, context };
    // Not 8 streams at 8,000: the first would reach the context's end before the last is prefilled.
    vec![
        Cell::Prefill { tokens: 128 },
        Cell::Prefill { tokens: 512 },
        Cell::Prefill { tokens: 2048 },
        Cell::Prefill { tokens: 8000 },
        decode(1, 128),
        decode(1, 2048),
        decode(1, 8000),
        decode(8, 128),
        decode(8, 2048),
    ]
}

fn list<T>(text: &str, item: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    text.split(',').map(|part| item(part).with_context(|| format!("`{part}`"))).collect()
}

impl Cell {
    /// Its kind, the number of streams, and the tokens in each prompt.
    pub fn shape(self) -> (&'static str, usize, u32) {
        match self {
            Self::Prefill { tokens } => ("prefill", 1, tokens),
            Self::Decode { streams, context } => ("decode", streams, context),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let shape = || format!("expected prefill:TOKENS or decode:STREAMSxCONTEXT\n\n{USAGE}");
        let (kind, numbers) = text.split_once(':').with_context(shape)?;
        let cell = match kind {
            "prefill" => Self::Prefill { tokens: numbers.parse()? },
            "decode" => {
                let (streams, context) = numbers.split_once('x').with_context(shape)?;
                Self::Decode { streams: streams.parse()?, context: context.parse()? }
            }
            _ => bail!("{}", shape()),
        };
        match cell {
            Self::Prefill { tokens: 0 } | Self::Decode { context: 0, .. } => bail!("a prompt has at least one token"),
            Self::Decode { streams, .. } if !(1..=256).contains(&streams) => bail!("streams must be in 1..=256"),
            _ => Ok(cell),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn words_are_read() {
        let args =
            parse("cpu --model m.gguf --threads 2 --cells prefill:64,decode:8x128 --rounds 5").expect("a command line");
        assert_eq!((args.names, args.threads, args.rounds), (vec!["cpu".to_owned()], vec![2], 5));
        assert!(parse("stage-speed platform --quick").is_ok());
        assert_eq!(args.cells, [Cell::Prefill { tokens: 64 }, Cell::Decode { streams: 8, context: 128 }]);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, expected) in [
            ("cpu", "--model is missing"),
            ("gpu --model m", "unknown word `gpu`"),
            ("cpu --model m --cells decode:8", "`decode:8`"),
            ("cpu --model m --cells decode:0x8", "`decode:0x8`"),
            ("cpu --model m --rounds 0", "--rounds 0"),
            ("cpu --model", "--model needs a value"),
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
