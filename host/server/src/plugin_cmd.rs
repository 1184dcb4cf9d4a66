//! `tokenloom plugin list | inspect | test | replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use contract::output::OutputStage;
use contract::template::ChatTemplate;
use plugin_host::trace::{self, Difference};
use plugin_host::{
    Capability, Catalogue, Grants, HostConfig, Inspection, Kind, Manifest, PluginHost, PluginLoadError, PluginSource,
    TemplateModel,
};
use prometheus_client::registry::Registry;
use serde_json::json;
use text::cases::{CasePlugins, Chain, run_jsonl};
pub use text::cases::{CaseResult, Outcome, Summary};

use crate::cli::PluginCommand;
use crate::wire::{TEMPLATE_PLUGIN, bundled};

/// Cases are short texts; thousands of them fit.
const CASES_BYTES_MAX: u64 = 64 << 20;
/// The case file of a plugin's own folder.
const OWN_CASES: &str = "cases.jsonl";

pub fn run(command: &PluginCommand) -> anyhow::Result<ExitCode> {
    match command {
        PluginCommand::List => list(),
        PluginCommand::Inspect { plugin } => inspect(plugin),
        PluginCommand::Test { plugins, cases, json } => test(plugins, cases.as_deref(), *json),
        PluginCommand::Replay { trace, scheduler, settings } => {
            replay(trace, scheduler.as_deref(), settings.as_deref())
        }
    }
}

fn host() -> anyhow::Result<PluginHost> {
    let config = HostConfig { cache_dir: crate::env::plugin_cache_default(), ..HostConfig::default() };
    Ok(PluginHost::new(config, &mut Registry::default())?)
}

fn list() -> anyhow::Result<ExitCode> {
    for manifest in Catalogue::bundled().manifests()? {
        println!("{}", list_line(&manifest));
    }
    Ok(ExitCode::SUCCESS)
}

fn list_line(manifest: &Manifest) -> String {
    let provides = match manifest.provides.as_slice() {
        [] => String::new(),
        some => format!(" provides {}", some.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ")),
    };
    let summary = manifest.summary.as_ref().map_or_else(String::new, |summary| format!(": {summary}"));
    let Manifest { name, version, kind, .. } = manifest;
    format!("{name} {version} ({kind}){provides}{summary}")
}

fn inspect(word: &str) -> anyhow::Result<ExitCode> {
    let inspection = host()?.inspect(&PluginSource::parse(word))?;
    print!("{}", inspection_text(&inspection));
    Ok(ExitCode::SUCCESS)
}

fn inspection_text(found: &Inspection) -> String {
    let list = |words: Vec<String>| if words.is_empty() { "none".to_string() } else { words.join(", ") };
    let capabilities = |all: &[Capability]| list(all.iter().map(|c| c.as_str().to_string()).collect());
    let (version, pinned) = match &found.manifest {
        Some(manifest) => (manifest.version.as_str(), manifest.sha256.is_some()),
        None => ("no manifest", false),
    };
    let mut lines = vec![
        format!("name          {} ({version})", found.name),
        format!("kind          {}", found.kind.map_or_else(|| "none of this server's".into(), |kind| kind.to_string())),
        format!("wit           {}", found.wit.as_deref().unwrap_or("none")),
        format!("size          {} bytes", found.size_bytes),
        format!("sha256        {}", found.digest),
        format!("exports       {}", list(found.exports.clone())),
        format!("imports       {}", list(found.imports.clone())),
        format!(
            "capabilities  asked {}; needed {}",
            capabilities(&found.capabilities_asked),
            capabilities(&found.capabilities_needed)
        ),
    ];
    if !found.imports_unknown.is_empty() {
        lines.push(format!("refused       imports that nobody can grant: {}", list(found.imports_unknown.clone())));
    }
    if !pinned {
        lines.push(format!("to pin it     sha256 = \"{}\"", found.digest));
    }
    lines.join("\n") + "\n"
}

/// Differences that are shown; a policy that changed differs in most lines.
const DIFFERENCES_SHOWN: usize = 5;

fn replay(path: &Path, scheduler: Option<&str>, settings: Option<&str>) -> anyhow::Result<ExitCode> {
    let recorded = trace::traced_policy(path)?;
    let word = scheduler.unwrap_or(&recorded);
    let mut policy = host()?.load_scheduler(&PluginSource::parse(word), &Grants::default(), settings)?;
    let found = trace::replay(path, policy.as_mut())?;
    for difference in found.differences.iter().take(DIFFERENCES_SHOWN) {
        let Difference { line, step, recorded, replayed } = difference;
        println!("DIFFERS line {line}, step {step}\n  recorded {recorded}\n  replayed {replayed}");
    }
    let (calls, different) = (found.calls, found.differences.len());
    println!("{} equal, {different} different of {calls} calls on `{word}`", calls - different);
    Ok(if different == 0 && calls > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Which plugins are under test, and on which cases.
struct Plan {
    chain: Chain,
    template: Option<String>,
    cases: PathBuf,
}

fn test(words: &[String], cases: Option<&Path>, json: bool) -> anyhow::Result<ExitCode> {
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
    let mut plugins = TestPlugins { host: &host, template: plan.template };
    Ok(run_jsonl(&text, &plan.chain, &mut plugins))
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

fn read_cases(path: &Path) -> anyhow::Result<String> {
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
        ([], _) => Ok(Plan { chain: Chain::FromCase, template: Some(TEMPLATE_PLUGIN.into()), cases: given(cases)? }),
        ([_], Some(folder)) => {
            let component = component_of(folder)?.display().to_string();
            let own = folder.join(OWN_CASES);
            plan_of(&[component], cases.map_or(own, Path::to_path_buf), host)
        }
        (_, Some(folder)) => bail!("{} is a plugin's folder and must stand alone", folder.display()),
        (words, None) => plan_of(words, given(cases)?, host),
    }
}

/// The one component of a plugin's folder.
fn component_of(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wasm") {
            found.push(path);
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!("{} holds no component (.wasm); build the plugin first", folder.display()),
        many => bail!("{} holds {} components; name the one to test", folder.display(), many.len()),
    }
}

/// Stages that form one chain, or one template plugin.
fn plan_of(words: &[String], cases: PathBuf, host: &PluginHost) -> anyhow::Result<Plan> {
    if let [word] = words
        && kind_of(word, host)? == Some(Kind::Template)
    {
        return Ok(Plan { chain: Chain::None, template: Some(word.clone()), cases });
    }
    let (mut stages, mut provides) = (Vec::new(), Vec::new());
    for word in words {
        let stage = host.load_stage(&PluginSource::parse(word), &Grants::default(), None);
        stages.push(stage.with_context(|| format!("output stage `{word}`"))?);
        provides.extend(provided_by(word, host)?);
    }
    Ok(Plan { chain: Chain::Given { stages, provides }, template: None, cases })
}

fn kind_of(word: &str, host: &PluginHost) -> anyhow::Result<Option<Kind>> {
    match PluginSource::parse(word) {
        PluginSource::Bundled(name) => Ok(bundled(&name).map(|manifest| manifest.kind)),
        source => Ok(host.inspect(&source)?.kind),
    }
}

/// The parser names a stage stands for: an alias for itself, a plugin for its name and the aliases that do not change
/// its settings.
fn provided_by(word: &str, host: &PluginHost) -> anyhow::Result<Vec<String>> {
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
