//! The native bench of a chat template: the requests that the component was timed on, on the same crate without a sandbox.

mod common;

use common::{Times, list, text, work};
use plugin::PLUGIN as Plugin;
use serde_json::Value;
use tokenloom_sdk::template::{ModelInfo, Setting, Template};

fn main() {
    let (work, rounds) = work();
    let mut times = Times::default();
    for load in list(&work["loads"]) {
        let mut template = Plugin::configure(&text(&work["settings"])).expect("the settings are the component's");
        let setting = |pair: &Value| Setting { key: text(&pair[0]), value: text(&pair[1]) };
        let model = ModelInfo {
            template_source: load["source"].as_str().map(str::to_owned),
            special_tokens: list(&load["special_tokens"]).iter().map(setting).collect(),
            ext: Vec::new(),
        };
        if times.time("load", || template.load(model)).is_err() {
            continue;
        }
        for _ in 0..rounds {
            for request in list(&load["requests"]) {
                let request = text(request);
                let _ = times.time("render", || template.render(&request));
            }
        }
    }
    times.print();
}
