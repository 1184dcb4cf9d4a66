//! Templates that misbehave: the request is refused in the template's words, the next one renders.

use contract::template::ChatTemplate;
use contract::{PluginError, Severity};
use plugin_host::{Grants, TemplateModel};

use crate::rig::{QUICK, Rig, faults, rig};

fn load(rig: &Rig, rules: &str) -> std::sync::Arc<dyn ChatTemplate> {
    let model = TemplateModel { template_source: Some("{{ messages }}".into()), ..TemplateModel::default() };
    let template = rig.host.load_template(&rig.source, &Grants::default(), Some(&faults(rules)), &model);
    template.unwrap_or_else(|e| panic!("it loads with `{rules}`: {e}"))
}

#[test]
fn rendered() {
    let rig = rig("template", "");
    let template = load(&rig, "");
    let rendered = template.render("{\"messages\":[]}").expect("it renders");
    assert_eq!((rendered.prompt.as_str(), rendered.turn_prefix.as_str()), ("{\"messages\":[]}", "assistant:"));
    assert_eq!(rendered.stop, ["<end>"]);
    assert_eq!(rendered.ext, [("unread-kwargs".to_string(), "a,b".to_string())]);
    assert_eq!(rig.status().calls, 5, "instantiate, configure, load, describe, render");
}

#[test]
fn failures_reject_the_request() {
    for (fault, code) in [
        ("loop", "plugin-late"),
        ("trap", "plugin-trap"),
        ("memory", "plugin-memory"),
        ("recurse", "plugin-stack"),
        ("huge", "plugin-output"),
        ("many", "plugin-output"),
        ("error", "told-to"),
    ] {
        let rig = rig("template", QUICK);
        let template = load(&rig, &format!("render={fault}"));
        let error = template.render("{}").expect_err("it fails");
        assert_eq!((error.code.as_str(), error.severity), (code, Severity::RejectRequest), "{fault}: {error}");
        let PluginError { message, .. } = template.render("{}").expect_err("it fails again, with an error again");
        assert!(message.len() <= 512 && !message.chars().any(char::is_control));
    }
}

/// A failure in a store that served before is tried again in a fresh one.
#[test]
fn a_fresh_store_mends() {
    let rig = rig("template", "");
    let template = load(&rig, "render=trap@2");
    for _ in 0..10 {
        assert!(template.render("{}").is_ok());
    }
    let status = rig.status();
    assert!(status.replays > 0 && status.fallbacks == 0, "{status:?}");
}

#[test]
fn threads_render_at_once() {
    let rig = rig("template", "");
    let template = load(&rig, "");
    std::thread::scope(|scope| {
        for i in 0..8 {
            let template = &template;
            scope.spawn(move || {
                let request = format!("{{\"n\":{i}}}");
                for _ in 0..300 {
                    assert_eq!(template.render(&request).map(|r| r.prompt), Ok(request.clone()));
                }
            });
        }
    });
}
