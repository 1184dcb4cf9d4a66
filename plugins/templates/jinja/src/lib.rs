//! Chat templates in Jinja, rendered as transformers renders them.
//!
//! A model's template is untrusted code from a downloaded file; here it can do nothing but make text. `source` rewrites
//! the few things that minijinja cannot be taught from outside, `engine` sets it up, `python` prints values, `turn`
//! finds where the assistant's turn begins. The crate knows no model: what it needs is in the template's own text.

mod clock;
mod engine;
mod python;
mod source;
mod turn;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use minijinja::value::Serde;
use minijinja::{Environment, Error, Value};
use serde_json::Value as Json;
use tokenloom_sdk::template::{ModelInfo, Rendered, Setting, Template};
use tokenloom_sdk::{PluginError, disable, reject};

/// The template of a model that brings none.
const CHATML: &str = include_str!("chatml.jinja");

/// Longer than any template in use by a factor of ten.
const TEMPLATE_BYTES_MAX: usize = 1024 * 1024;

/// No context window holds more text; a template that writes on is broken.
const PROMPT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What `apply_chat_template` passes by itself: no template is told off for not reading these.
const STANDARD: [&str; 5] = ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"];

#[derive(Clone, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// `chatml`: use that template whatever the model brings.
    template: Option<Bundled>,
    /// The template's own text, in place of the model's.
    source: Option<String>,
    /// Markers that open and close reasoning, to see which channel a prompt leaves open.
    reasoning: Vec<(String, String)>,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Bundled {
    Chatml,
}

impl Default for Settings {
    fn default() -> Self {
        let pair = |open: &str, close: &str| (open.to_string(), close.to_string());
        let reasoning = vec![
            pair("<think>", "</think>"),
            pair("<seed:think>", "</seed:think>"),
            pair("<mm:think>", "</mm:think>"),
            pair("[THINK]", "[/THINK]"),
        ];
        Self { template: None, source: None, reasoning }
    }
}

pub struct Jinja {
    settings: Settings,
    loaded: Option<Loaded>,
}

struct Loaded {
    env: Environment<'static>,
    now: engine::Now,
    /// Names the template reads and does not set itself.
    reads: HashSet<String>,
    special_tokens: Vec<Setting>,
    /// The model had no template.
    fell_back: bool,
}

impl Template for Jinja {
    fn configure(settings_json: &str) -> Result<Self, PluginError> {
        let settings: Settings = tokenloom_sdk::parse_settings(settings_json)?;
        if settings.template.is_some() && settings.source.is_some() {
            return Err(disable("invalid-settings", "settings: `template` and `source` exclude each other"));
        }
        Ok(Self { settings, loaded: None })
    }

    fn load(&mut self, model: ModelInfo) -> Result<(), PluginError> {
        let own = self.settings.source.clone().or(match self.settings.template {
            Some(Bundled::Chatml) => Some(CHATML.into()),
            None => model.template_source,
        });
        let fell_back = own.is_none();
        let source = own.unwrap_or_else(|| CHATML.into());
        if source.len() > TEMPLATE_BYTES_MAX {
            let message = format!("the template has {} bytes, at most {TEMPLATE_BYTES_MAX} are read", source.len());
            return Err(disable("template-too-long", message));
        }
        let now: engine::Now = Arc::new(Mutex::new(None));
        let syntax = |error: Error| disable("template-syntax", error.to_string());
        let env = engine::environment(&source, now.clone()).map_err(syntax)?;
        let reads = env.get_template(engine::NAME).map_err(syntax)?.undeclared_variables(false);
        self.loaded = Some(Loaded { env, now, reads, special_tokens: model.special_tokens, fell_back });
        Ok(())
    }

    fn render(&mut self, request_json: &str) -> Result<Rendered, PluginError> {
        let loaded = self.loaded.as_ref().ok_or_else(|| disable("not-loaded", "`load` was not called"))?;
        let request: Request =
            serde_json::from_str(request_json).map_err(|e| reject("invalid-request", format!("request: {e}")))?;
        if let Ok(mut now) = loaded.now.lock() {
            *now = request.now.as_deref().and_then(clock::Moment::parse);
        }
        let mut prompt = loaded.render(&request, request.messages.len(), request.add_generation_prompt)?;
        if request.continue_final_message {
            let text = request.final_text().ok_or_else(|| {
                reject("invalid-request", "continue_final_message is set but the last message has no text")
            })?;
            let cut = turn::cut_after_final(&prompt, text).map_err(|e| reject("template-failed", e))?;
            prompt.truncate(cut.len());
        }
        let turn_prefix = loaded.turn_prefix(&request, &prompt).to_string();
        let starts_in = turn::starts_in(&turn_prefix, &self.settings.reasoning);
        let ext = loaded.notes(&request);
        Ok(Rendered { prompt, turn_prefix, starts_in, stop: Vec::new(), ext })
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    messages: Vec<Json>,
    #[serde(default)]
    tools: Json,
    #[serde(default)]
    documents: Json,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    kwargs: serde_json::Map<String, Json>,
    #[serde(default)]
    now: Option<String>,
}

impl Request {
    /// Text of the last message, or the last text part of it.
    fn final_text(&self) -> Option<&str> {
        match self.messages.last()?.get("content")? {
            Json::String(text) => Some(text),
            Json::Array(parts) => parts.iter().rev().find_map(|part| part.get("text")?.as_str()),
            _ => None,
        }
    }

    /// How many messages there are up to the last one that is not the assistant's.
    fn asked(&self) -> usize {
        let assistant = |message: &Json| message.get("role").and_then(Json::as_str) == Some("assistant");
        self.messages.iter().rposition(|message| !assistant(message)).map_or(0, |at| at + 1)
    }
}

impl Loaded {
    /// The first `messages` of the request as text.
    fn render(&self, request: &Request, messages: usize, add_generation_prompt: bool) -> Result<String, PluginError> {
        let mut context = BTreeMap::new();
        let mut set = |name: &str, value: Value| context.insert(name.to_string(), value);
        for token in &self.special_tokens {
            set(&token.key, Value::from(token.value.as_str()));
        }
        set("messages", Value::from(Serde(&request.messages[..messages])));
        set("tools", Value::from(Serde(&request.tools)));
        set("documents", Value::from(Serde(&request.documents)));
        set("add_generation_prompt", Value::from(add_generation_prompt));
        set("continue_final_message", Value::from(request.continue_final_message));
        for (name, value) in &request.kwargs {
            set(name, Value::from(Serde(value)));
        }
        if !add_generation_prompt {
            set("add_generation_prompt", Value::from(false));
        }
        let template = self.env.get_template(engine::NAME).map_err(|e| reject("template-failed", e.to_string()))?;
        let prompt = template.render(Value::from(context)).map_err(|error| match engine::raised(&error) {
            Some(message) => reject("template-raised", message),
            None => reject("template-failed", describe(&error)),
        })?;
        if prompt.len() > PROMPT_BYTES_MAX {
            let message = format!("the prompt has {} bytes, at most {PROMPT_BYTES_MAX} are allowed", prompt.len());
            return Err(reject("prompt-too-long", message));
        }
        Ok(prompt)
    }

    /// Renders once more without the assistant's turn; what the prompt has beyond that is the turn.
    fn turn_prefix<'a>(&self, request: &Request, prompt: &'a str) -> &'a str {
        // A template may refuse to end there; then the whole prompt is looked at, and its end decides.
        let before = self.render(request, request.asked(), false).unwrap_or_default();
        turn::prefix(prompt, &before)
    }

    fn notes(&self, request: &Request) -> Vec<Setting> {
        let mut ext = Vec::new();
        let unread: Vec<&str> = request.kwargs.keys().map(String::as_str).filter(|name| !self.knows(name)).collect();
        if !unread.is_empty() {
            ext.push(Setting { key: "unread-kwargs".into(), value: unread.join(",") });
        }
        if self.fell_back {
            ext.push(Setting { key: "default-template".into(), value: "chatml".into() });
        }
        ext
    }

    fn knows(&self, name: &str) -> bool {
        self.reads.contains(name) || STANDARD.contains(&name)
    }
}

/// The engine's message with the causes behind it and the line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

tokenloom_sdk::export_template!(Jinja);
