//! Runs recorded failure cases through the real pipeline (`docs/protocols.md`, case runner).
//!
//! A case file has one JSON object per line. Areas `tool` and `reasoning` feed model output through a chain of stages,
//! `template` renders messages; `api` and `sched` cases are prose and are skipped. A case that asks for a check, or
//! expects a key, that this runner does not verify fails: a check that is silently left out would read as passed.
//!
//! Module `output` runs model output, `checks` compares it, `render` runs templates, `constrained` holds random output
//! to a grammar by means of `walk`.

mod checks;
mod constrained;
mod output;
mod render;
pub mod walk;

use std::sync::Arc;

use contract::output::OutputStage;
use contract::template::ChatTemplate;
use serde_json::{Map, Value};

/// A longer line is no case: the longest published one has 4 KiB.
pub const CASE_LINE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Keys of `expected` that say where an expectation comes from; there is nothing to verify in them.
fn is_remark(key: &str) -> bool {
    matches!(key, "why" | "verified_with") || key.starts_with("minijinja_") || key.starts_with("raw_")
}

/// Where the runner gets plugins from; by itself there are none.
pub trait CasePlugins {
    /// The stage of that parser name; `None`: no such stage, the case is skipped.
    fn stage(&mut self, _name: &str) -> Result<Option<Arc<dyn OutputStage>>, String> {
        Ok(None)
    }
    /// A template plugin loaded with this Jinja source and these special tokens (`bos_token`, `eos_token`);
    /// `None`: no template plugin is under test, the case is skipped.
    fn template(
        &mut self,
        _source: &str,
        _special_tokens: &[(String, String)],
    ) -> Result<Option<Arc<dyn ChatTemplate>>, String> {
        Ok(None)
    }
}

/// Which stages a case runs through.
pub enum Chain {
    /// `input.parser`, then `input.tool_parser`, looked up by name.
    FromCase,
    /// These stages, whatever the case names; `provides`: a case that names another parser is skipped.
    Given { stages: Vec<Arc<dyn OutputStage>>, provides: Vec<String> },
    /// Only templates are under test; cases for stages are skipped.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseResult {
    pub id: String,
    pub title: String,
    pub outcome: Outcome,
}

/// Counts of one run, for the last line `N passed, N failed, N skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Summary {
    pub fn of(results: &[CaseResult]) -> Self {
        let mut summary = Self::default();
        for result in results {
            match result.outcome {
                Outcome::Passed => summary.passed += 1,
                Outcome::Failed(_) => summary.failed += 1,
                Outcome::Skipped(_) => summary.skipped += 1,
            }
        }
        summary
    }

    /// A failure, or a run in which nothing was checked, is not a success.
    pub fn is_success(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Why a case did not pass.
enum Stop {
    Fail(String),
    Skip(String),
}

impl Stop {
    fn fail(message: impl Into<String>) -> Self {
        Self::Fail(message.into())
    }
}

/// Runs every line of a case file. A line that is no case is a failed result, not an error.
pub fn run_jsonl(text: &str, chain: &Chain, plugins: &mut dyn CasePlugins) -> Vec<CaseResult> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(number, line)| run_line(number + 1, line, chain, plugins)).collect()
}

fn run_line(number: usize, line: &str, chain: &Chain, plugins: &mut dyn CasePlugins) -> CaseResult {
    let no_case = |reason: String| CaseResult {
        id: format!("line {number}"),
        title: String::new(),
        outcome: Outcome::Failed(reason),
    };
    if line.len() > CASE_LINE_BYTES_MAX {
        return no_case(format!("{} bytes; a case has at most {CASE_LINE_BYTES_MAX}", line.len()));
    }
    match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(case) if case.get("id").is_some_and(Value::is_string) => run_case(&case, chain, plugins),
        Ok(_) => no_case("a case needs a string `id`".to_owned()),
        Err(error) => no_case(format!("not a JSON object: {error}")),
    }
}

/// Runs one case.
pub fn run_case(case: &Map<String, Value>, chain: &Chain, plugins: &mut dyn CasePlugins) -> CaseResult {
    let text = |key: &str| case.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let outcome = match dispatch(case, chain, plugins) {
        Ok(()) => Outcome::Passed,
        Err(Stop::Fail(reason)) => Outcome::Failed(reason),
        Err(Stop::Skip(reason)) => Outcome::Skipped(reason),
    };
    CaseResult { id: text("id"), title: text("title"), outcome }
}

fn dispatch(case: &Map<String, Value>, chain: &Chain, plugins: &mut dyn CasePlugins) -> Result<(), Stop> {
    let area = case.get("area").and_then(Value::as_str).unwrap_or_default();
    if matches!(area, "api" | "sched") {
        return Err(Stop::Skip(format!("area {area} is prose: its tests are written by hand")));
    }
    if !matches!(area, "tool" | "reasoning" | "template") {
        return Err(Stop::fail(format!("unknown area `{area}`; known: tool, reasoning, template, api, sched")));
    }
    let object = |key: &str| {
        case.get(key).and_then(Value::as_object).ok_or_else(|| Stop::fail(format!("`{key}` must be an object")))
    };
    let (input, expected) = (object("input")?, object("expected")?);
    if input.contains_key("runs") && input.contains_key("request") {
        return constrained::run(input, expected, chain, plugins);
    }
    if expected.keys().all(|key| key == "observable" || is_remark(key)) && expected.contains_key("observable") {
        return Err(Stop::Skip("the expectation is prose: its test is written by hand".to_owned()));
    }
    if input.contains_key("template") {
        render::run(input, expected, plugins)
    } else {
        output::run(input, expected, chain, plugins)
    }
}

#[cfg(test)]
mod tests;
