//! One helper per feature: a host with one fixture in its catalogue, a request with a tool, a stream fed with texts.

use std::time::Duration;

use contract::PluginError;
use contract::output::{CallKind, EndReason, OutputEvent, OutputStage, StageRequest, Tool};
use plugin_host::{Capability, Catalogue, CatalogueEntry, Grants, HostConfig, PluginHost, PluginSource, PluginStatus};
use prometheus_client::registry::Registry;

use crate::fixtures;

pub struct Rig {
    pub host: PluginHost,
    pub registry: Registry,
    pub source: PluginSource,
}

/// Long enough for a busy machine, short enough to wait for in every hostile test.
pub const CONFIGURE_TIMEOUT: Duration = Duration::from_millis(300);

pub fn config() -> HostConfig {
    HostConfig { configure_timeout: CONFIGURE_TIMEOUT, ..HostConfig::default() }
}

/// The manifest of a fixture; `more` is TOML that follows the first keys.
pub fn manifest(name: &str, more: &str) -> String {
    let kind = match name {
        "template" | "scheduler" => name,
        _ => "output",
    };
    let own = if name == "endless-start" { "output" } else { name };
    format!(
        "name = \"hostile-{own}\"\nversion = \"0.1.0\"\nkind = \"{kind}\"\nwit = \"tokenloom:{kind}@0.1.0\"\n{more}"
    )
}

/// A host that knows one component, under its manifest's name.
pub fn rig_of(wasm: Vec<u8>, manifest: String, config: HostConfig) -> Rig {
    let name = manifest.split('"').nth(1).unwrap_or_default().to_string();
    let entry = CatalogueEntry::new(wasm, manifest);
    let mut registry = Registry::default();
    let config = HostConfig { catalogue: Catalogue::new(vec![entry]), ..config };
    let host = PluginHost::new(config, &mut registry).expect("the host starts");
    Rig { host, registry, source: PluginSource::Bundled(name) }
}

pub fn rig(fixture: &str, more: &str) -> Rig {
    rig_of(fixtures::bytes(fixture), manifest(fixture, more), config())
}

/// The settings that make a fixture misbehave.
pub fn faults(rules: &str) -> String {
    format!("{{\"faults\":\"{rules}\"}}")
}

/// Limits under which a loop ends soon, and a slow machine is not mistaken for one.
pub const QUICK: &str = "[limits]\ncall_ms = 500\n";

pub fn all_capabilities() -> Grants {
    Grants { capabilities: Capability::ALL.into(), ..Grants::default() }
}

impl Rig {
    pub fn stage(&self, rules: &str) -> std::sync::Arc<dyn OutputStage> {
        let stage = self.host.load_stage(&self.source, &Grants::default(), Some(&faults(rules)));
        stage.unwrap_or_else(|e| panic!("the stage loads with `{rules}`: {e}"))
    }

    pub fn status(&self) -> PluginStatus {
        self.host.status().pop().expect("one plugin is loaded")
    }
}

pub fn request() -> StageRequest {
    let tool = Tool { name: "f".into(), kind: CallKind::Json, schema_json: None, strict: false };
    StageRequest { tools: vec![tool], ..StageRequest::default() }
}

/// Feeds one text a call, finishes, and gives all that came out, in order.
pub fn stream(stage: &dyn OutputStage, texts: &[&str]) -> Result<Vec<OutputEvent>, PluginError> {
    let mut session = stage.open(&request())?;
    let mut out = Vec::new();
    for text in texts {
        out.extend(session.feed(vec![OutputEvent::content(*text)])?);
    }
    out.extend(session.finish(EndReason::Length)?);
    Ok(out)
}

/// Events as one line: text as it is, calls in brackets.
pub fn line(events: &[OutputEvent]) -> String {
    let word = |event: &OutputEvent| match event {
        OutputEvent::Text { text, .. } => text.clone(),
        OutputEvent::CallStart { index, name, .. } => format!("[{index}:{name} "),
        OutputEvent::CallArguments { fragment, .. } => fragment.clone(),
        OutputEvent::CallEnd { complete: true, .. } => "]".into(),
        OutputEvent::CallEnd { complete: false, .. } => "...]".into(),
        OutputEvent::Ext { key, value } => format!("({key}={value})"),
    };
    events.iter().map(word).collect()
}
