//! Runs recorded failure cases through the real pipeline.
//!
//! A case file has one JSON object per line. Areas `tool` and `reasoning` feed model output through a chain of stages,
//! `template` renders messages; `api` and `sched` cases are prose and are skipped.

use std::sync::Arc;

use contract::output::OutputStage;
use contract::template::ChatTemplate;

/// Where the runner gets plugins from.
pub trait CasePlugins {
    /// The stage of that parser name; `None`: no such stage, the case is skipped.
    fn stage(&mut self, name: &str) -> Result<Option<Arc<dyn OutputStage>>, String>;
    /// A template plugin loaded with this Jinja source and these special tokens (`bos_token`, `eos_token`);
    /// `None`: no template plugin is under test, the case is skipped.
    fn template(
        &mut self,
        source: &str,
        special_tokens: &[(String, String)],
    ) -> Result<Option<Arc<dyn ChatTemplate>>, String>;
}

/// Which stages a case runs through.
pub enum Chain {
    /// `input.parser`, then `input.tool_parser`, looked up by name.
    FromCase,
    /// These stages, whatever the case names; `provides`: a case that names another parser is skipped.
    Given { stages: Vec<Arc<dyn OutputStage>>, provides: Vec<String> },
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

/// Runs every line of a case file. A line that is no case is a failed result, not an error.
pub fn run_jsonl(_text: &str, _chain: &Chain, _plugins: &mut dyn CasePlugins) -> Vec<CaseResult> {
    Vec::new()
}
