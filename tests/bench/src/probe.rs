//! The probe of `tests/probe` on the CPU backend, as JSON.

use anyhow::Result;
use backend::Backend;
use backend::load::LoadOptions;
use backend::ops::ModelSpec;
use probe::{Arm, CONTEXT, Opening};
use serde_json::{Value, json};

use crate::args::Args;
use crate::cpu::spec_of;

/// How often each prompt is asked in the arm of all together.
const COPIES: usize = 2;

pub fn run(args: &Args) -> Result<Value> {
    let arms = arms(&spec_of(args)?, args.threads.first().copied())?;
    eprintln!("{}", probe::table(&arms));
    let rows = arms.iter().map(|arm| {
        let worst =
            arm.worst.map(|(prompt, at)| json!({"prompt": prompt, "position": at.position, "margin": at.margin}));
        json!({"arm": arm.name, "texts": arm.texts, "cached_tokens": arm.cached_tokens, "preemptions": arm.preemptions,
            "diverged": arm.diverged, "moved": arm.moved, "worst": worst})
    });
    Ok(rows.collect())
}

fn arms(spec: &ModelSpec, threads: Option<usize>) -> Result<Vec<Arm>> {
    let mut open = |opening: Opening| {
        let options = LoadOptions {
            max_rows: opening.max_rows,
            kv_tokens: Some(opening.kv_tokens),
            threads,
            context_len: Some(spec.context_len.min(CONTEXT)),
            ..LoadOptions::default()
        };
        let (backend, _) = backend_cpu::load(spec.clone(), &options, &mut |_| {})?;
        Ok(Box::new(backend) as Box<dyn Backend>)
    };
    probe::probe(&mut open, spec.vocab_used as u32, COPIES)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tiny(name: &str) -> ModelSpec {
        let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../reference/data");
        model::load(&data.join(name)).unwrap_or_else(|e| panic!("{name}: {e}")).spec
    }

    /// On the CPU a text does not depend on its company, its chunks or the cache; only a state that an answer left is of
    /// another form of the same sums, so that a tie may fall the other way behind it.
    #[test]
    fn texts_do_not_depend_on_their_company() {
        for name in ["hybrid-1", "hybrid-3", "tiny-qwen3.gguf"] {
            for arm in arms(&tiny(name), Some(2)).unwrap_or_else(|e| panic!("{name}: {e}")) {
                let other_form = name.starts_with("hybrid") && arm.behind_an_answer();
                let margin = arm.margin().unwrap_or(-1.0);
                assert!(margin <= if other_form { 0.05 } else { -1.0 }, "{name}, {}: {:?}", arm.name, arm.worst);
                assert!(arm.moved == 0 || other_form, "{name}, {}: {} texts have other logprobs", arm.name, arm.moved);
                let hits = ["prompt again", "next turn", "parted", "parted again"].contains(&arm.name);
                // A hybrid has no state yet where prompts part for the first time, unless a prompt ended there.
                assert!(arm.cached_tokens > 0 || !hits || arm.name == "parted", "{name}, {}: no hit", arm.name);
            }
        }
    }
}
