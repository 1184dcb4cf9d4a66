//! The plugins inside the binary load, under every name they provide, and do something sensible.

use contract::output::OutputEvent;
use plugin_host::{Catalogue, Grants, HostConfig, Kind, PluginHost, PluginSource, TemplateModel};
use prometheus_client::registry::Registry;

use crate::rig::{line, stream};

/// What the server promises to have.
const PROMISED: &str = "deepseek_r1 fcfs hermes jinja priority qwen3 qwen3_coder think unknown-name qwen3_json qwen3_xml \
    llama3_json pythonic llama4_pythonic olmo3 lfm2 mistral deepseek_v3 deepseek_v31 deepseek_v32 glm45 glm47 kimi_k2 \
    minimax minimax_m2 gpt_oss granite phi4_mini_json gemma4 seed_oss declarative \
     fair deadline shortest-prefill-first stall-free";

/// Every plugin by its own name, and by those of its other names that bring settings.
fn names() -> Vec<(String, Kind)> {
    let manifests = Catalogue::bundled().manifests().expect("the bundled manifests are valid");
    let of = |m: plugin_host::Manifest| {
        let aliases = m.provides.into_iter().filter(|alias| !alias.settings.is_empty()).map(|alias| alias.name);
        std::iter::once(m.name).chain(aliases).map(move |name| (name, m.kind)).collect::<Vec<_>>()
    };
    manifests.into_iter().flat_map(of).collect()
}

#[test]
fn promised_names_are_there() {
    let manifests = Catalogue::bundled().manifests().expect("the bundled manifests are valid");
    let has =
        |name: &str| manifests.iter().any(|m| m.name == name || m.provides.iter().any(|alias| alias.name == name));
    let missing: Vec<&str> = PROMISED.split_whitespace().filter(|promised| !has(promised)).collect();
    assert_eq!(missing, ["unknown-name"]);
}

/// The schemas of the bundled manifests are ones this host understands: a wrong key is told apart from a wrong schema.
#[test]
fn schemas_are_understood() {
    let host = PluginHost::new(HostConfig::default(), &mut Registry::default()).expect("the host starts");
    for (name, kind) in names() {
        let (source, none, wrong) =
            (PluginSource::Bundled(name.clone()), Grants::default(), Some("{\"no such key\":1}"));
        let error = match kind {
            Kind::Output => host.load_stage(&source, &none, wrong).err(),
            Kind::Template => host.load_template(&source, &none, wrong, &TemplateModel::default()).err(),
            Kind::Scheduler => host.load_scheduler(&source, &none, wrong).err(),
        };
        let message = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(message.contains("no such key"), "{name}: {message}");
    }
}

/// Each is pinned by its digest, asks for nothing, and loads within the usual limits.
#[test]
fn all_load() {
    let config = HostConfig { require_digest: true, ..HostConfig::default() };
    let host = PluginHost::new(config, &mut Registry::default()).expect("the host starts");
    let model = TemplateModel {
        template_source: Some("{% for m in messages %}{{ m.content }}{% endfor %}".into()),
        ..TemplateModel::default()
    };
    let none = Grants::default();
    for (name, kind) in names() {
        let source = PluginSource::Bundled(name.clone());
        let failure = match kind {
            Kind::Output => match host.load_stage(&source, &none, None) {
                Ok(stage) => {
                    let events: Vec<OutputEvent> = stream(stage.as_ref(), &["Hello", " world"]).expect("text passes");
                    assert!(line(&events).contains("Hello world"), "{name}: {events:?}");
                    None
                }
                Err(e) => Some(e),
            },
            Kind::Template => host.load_template(&source, &none, None, &model).err(),
            Kind::Scheduler => host.load_scheduler(&source, &none, None).err(),
        };
        if name == "declarative" {
            let message = failure.map(|e| e.to_string()).unwrap_or_default();
            assert!(message.contains("must be described"), "a stage without a format: {message}");
            continue;
        }
        assert_eq!(failure, None, "{name}");
    }
}

/// A stage that rests is not called for text it would pass on, and is called again for what it waits for.
#[test]
fn a_resting_stage_is_left_alone() {
    let host = PluginHost::new(HostConfig::default(), &mut Registry::default()).expect("the host starts");
    let source = PluginSource::Bundled("hermes".into());
    let stage = host.load_stage(&source, &Grants::default(), None).expect("hermes loads");
    let calls = |texts: &[&str]| {
        let before = host.status()[0].calls;
        let out = stream(stage.as_ref(), texts).expect("text passes");
        (line(&out), host.status()[0].calls - before)
    };
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    // The first stream starts the store that all of them share.
    assert_eq!(calls(&["Hello"]).0, "Hello");
    let (_, awake) = calls(&["Hello"]);
    assert_eq!(calls(&["Hello", " there ", ", you\n", "."]), ("Hello there , you\n.".into(), awake));
    // The beginning of a marker wakes it.
    assert_eq!(calls(&["Hello", " there", call]), ("Hello there[0:f {}]".into(), awake + 1));
    // Inside a text of the arguments it rests again, until that ends or an escape is cut.
    let parts = [
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"",
        "a",
        "\": \"x",
        "y z",
        " <b>\\n",
        "\\",
        "n",
        "\"}}</tool_call>",
    ];
    assert_eq!(calls(&parts), ("[0:f {\"a\": \"xy z <b>\\n\\n\"}]".into(), awake + 5));
}
