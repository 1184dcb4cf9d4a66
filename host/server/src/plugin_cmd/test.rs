//! `plugin test`: cases through plugins, loaded as a server loads them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use contract::output::OutputStage;
use contract::template::ChatTemplate;
use plugin_host::{Grants, Kind, PluginHost, PluginLoadError, PluginSource, TemplateModel};
use serde_json::json;
use text::cases::{CasePlugins, CaseResult, Chain, Outcome, Summary, run_jsonl};
use text::conform;

use super::{host, schedule};
use crate::wire::{TEMPLATE_PLUGIN, bundled};

/// Cases are short texts; thousands of them fit.
const CASES_BYTES_MAX: u64 = 64 << 20;
/// The case file of a plugin's own folder.
const OWN_CASES: &str = "cases.jsonl";

/// Which plugins are under test, and on which cases.
struct Plan {
    chain: Chain,
    template: Option<String>,
    scheduler: Option<String>,
    cases: PathBuf,
    /// An author's folder is also held against the host's conformance set.
    conform: bool,
}

pub(super) fn test(words: &[String], cases: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
    let results = results(words, cases)?;
    for result in &results {
        println!("{}", if json { json_line(result) } else { text_line(result) });
    }
    let summary = Summary::of(&results);
    println!("{summary}");
    Ok(if summary.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a case file through plugins; what `plugin test` prints.
pub fn results(words: &[String], cases: Option<&Path>) -> anyhow::Result<Vec<CaseResult>> {
    let host = host()?;
    let plan = plan(words, cases, &host)?;
    let text = read_cases(&plan.cases)?;
    if let Some(word) = &plan.scheduler {
        let source = PluginSource::parse(word);
        let load = || host.load_scheduler(&source, &Grants::default(), None).map_err(|e| e.to_string());
        let mut results = schedule::run_jsonl(&text, load);
        if plan.conform {
            results.extend(super::conform::scheduler(&load));
        }
        return Ok(results);
    }
    let conformance = if plan.conform { conformance(&plan, &host)? } else { Vec::new() };
    let mut plugins = TestPlugins { host: &host, template: plan.template };
    let mut results = run_jsonl(&text, &plan.chain, &mut plugins);
    results.extend(conformance);
    Ok(results)
}

/// The host's conformance set on one stage or template.
fn conformance(plan: &Plan, host: &PluginHost) -> anyhow::Result<Vec<CaseResult>> {
    if let Chain::Given { stages, .. } = &plan.chain {
        return Ok(stages.iter().flat_map(|stage| conform::stage(stage.as_ref())).collect());
    }
    let Some(word) = &plan.template else { return Ok(Vec::new()) };
    let template =
        host.load_template(&PluginSource::parse(word), &Grants::default(), None, &TemplateModel::default())?;
    Ok(conform::template(template.as_ref()))
}

fn text_line(result: &CaseResult) -> String {
    let CaseResult { id, title, outcome } = result;
    match outcome {
        Outcome::Passed => format!("ok      {id}: {title}"),
        Outcome::Failed(why) => format!("FAILED  {id}: {title}\n        {}", why.replace('\n', "\n        ")),
        Outcome::Skipped(why) => format!("skipped {id}: {why}"),
    }
}

fn json_line(result: &CaseResult) -> String {
    let (outcome, reason) = match &result.outcome {
        Outcome::Passed => ("passed", None),
        Outcome::Failed(why) => ("failed", Some(why)),
        Outcome::Skipped(why) => ("skipped", Some(why)),
    };
    json!({"id": result.id, "title": result.title, "outcome": outcome, "reason": reason}).to_string()
}

pub(super) fn read_cases(path: &Path) -> anyhow::Result<String> {
    let read = || -> anyhow::Result<String> {
        let size = std::fs::metadata(path)?.len();
        ensure!(size <= CASES_BYTES_MAX, "{size} bytes, the limit is {CASES_BYTES_MAX}");
        Ok(std::fs::read_to_string(path)?)
    };
    read().with_context(|| format!("case file {}", path.display()))
}

fn plan(words: &[String], cases: Option<&Path>, host: &PluginHost) -> anyhow::Result<Plan> {
    let folder = words.iter().map(Path::new).find(|path| path.is_dir());
    let given = |cases: Option<&Path>| cases.map(Path::to_path_buf).context("--cases FILE.jsonl is missing");
    match (words, folder) {
        ([], _) => {
            let template = Some(TEMPLATE_PLUGIN.into());
            Ok(Plan { chain: Chain::FromCase, template, scheduler: None, cases: given(cases)?, conform: false })
        }
        ([_], Some(folder)) => {
            let component = component_of(folder)?.display().to_string();
            let own = folder.join(OWN_CASES);
            let plan = plan_of(&[component], cases.map_or(own, Path::to_path_buf), host)?;
            Ok(Plan { conform: true, ..plan })
        }
        (_, Some(folder)) => bail!("{} is a plugin's folder and must stand alone", folder.display()),
        (words, None) => plan_of(words, given(cases)?, host),
    }
}

/// The one component of a plugin's folder.
pub(super) fn component_of(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wasm") {
            found.push(path);
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "{0} holds no component (.wasm); build the plugin first: tokenloom plugin build {0}",
            folder.display()
        ),
        many => bail!("{} holds {} components; name the one to test", folder.display(), many.len()),
    }
}

/// Stages that form one chain, or one template plugin.
fn plan_of(words: &[String], cases: PathBuf, host: &PluginHost) -> anyhow::Result<Plan> {
    if let [word] = words {
        match kind_of(word, host)? {
            Some(Kind::Template) => {
                let template = Some(word.clone());
                return Ok(Plan { chain: Chain::None, template, scheduler: None, cases, conform: false });
            }
            Some(Kind::Scheduler) => {
                let scheduler = Some(word.clone());
                return Ok(Plan { chain: Chain::None, template: None, scheduler, cases, conform: false });
            }
            Some(Kind::Output) | None => {}
        }
    }
    let (mut stages, mut provides) = (Vec::new(), Vec::new());
    for word in words {
        let stage = host.load_stage(&PluginSource::parse(word), &Grants::default(), None);
        stages.push(stage.with_context(|| format!("output stage `{word}`"))?);
        provides.extend(provided_by(word, host)?);
    }
    Ok(Plan { chain: Chain::Given { stages, provides }, template: None, scheduler: None, cases, conform: false })
}

pub(super) fn kind_of(word: &str, host: &PluginHost) -> anyhow::Result<Option<Kind>> {
    match PluginSource::parse(word) {
        PluginSource::Bundled(name) => Ok(bundled(&name).map(|manifest| manifest.kind)),
        source => Ok(host.inspect(&source)?.kind),
    }
}

/// The parser names a stage stands for: an alias for itself, a plugin for its name and the aliases that do not change
/// its settings.
pub(super) fn provided_by(word: &str, host: &PluginHost) -> anyhow::Result<Vec<String>> {
    let (name, manifest) = match PluginSource::parse(word) {
        PluginSource::Bundled(name) => (name.clone(), bundled(&name)),
        source => {
            let inspection = host.inspect(&source)?;
            let name = inspection.manifest.as_ref().map_or(inspection.name, |manifest| manifest.name.clone());
            (name, inspection.manifest)
        }
    };
    let own = manifest.filter(|manifest| manifest.name == name);
    let aliases = own.into_iter().flat_map(|manifest| manifest.provides);
    let aliases = aliases.filter(|alias| alias.settings.is_empty()).map(|alias| alias.name);
    Ok(std::iter::once(name).chain(aliases).collect())
}

/// Plugins for the case runner, loaded as a server loads them, without any grant.
struct TestPlugins<'a> {
    host: &'a PluginHost,
    template: Option<String>,
}

impl CasePlugins for TestPlugins<'_> {
    fn stage(&mut self, name: &str) -> Result<Option<Arc<dyn OutputStage>>, String> {
        match self.host.load_stage(&PluginSource::Bundled(name.to_string()), &Grants::default(), None) {
            Ok(stage) => Ok(Some(stage)),
            Err(PluginLoadError::UnknownName { .. } | PluginLoadError::WrongKind { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn template(
        &mut self,
        source: &str,
        special_tokens: &[(String, String)],
    ) -> Result<Option<Arc<dyn ChatTemplate>>, String> {
        let Some(word) = &self.template else { return Ok(None) };
        let model =
            TemplateModel { template_source: Some(source.to_string()), special_tokens: special_tokens.to_vec() };
        let loaded = self.host.load_template(&PluginSource::parse(word), &Grants::default(), None, &model);
        loaded.map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(id: &str, outcome: Outcome) -> CaseResult {
        CaseResult { id: id.into(), title: "t".into(), outcome }
    }

    #[test]
    fn lines_name_the_case_and_the_reason() {
        let failed = result("h-1", Outcome::Failed("wanted a\ngot b".into()));
        assert_eq!(text_line(&failed), "FAILED  h-1: t\n        wanted a\n        got b");
        let expected = r#"{"id":"h-1","title":"t","outcome":"failed","reason":"wanted a\ngot b"}"#;
        assert_eq!(json_line(&failed), expected);
    }

    #[test]
    fn a_folder_needs_one_component() {
        let folder = tempfile::tempdir().unwrap();
        assert!(component_of(folder.path()).unwrap_err().to_string().contains("build the plugin first"));
        std::fs::write(folder.path().join("a.wasm"), "").unwrap();
        assert_eq!(component_of(folder.path()).unwrap(), folder.path().join("a.wasm"));
        std::fs::write(folder.path().join("b.wasm"), "").unwrap();
        assert!(component_of(folder.path()).unwrap_err().to_string().contains("2 components"));
    }
}
