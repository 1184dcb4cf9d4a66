//! One `[[model]]`: a name over an engine, with its template and its chain of output stages.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use api::{ModelOptions, PromptRule, ServedModel};
use contract::template::ChatTemplate;
use plugin_host::TemplateModel;
use text::{TextModel, TextModelParts};

use super::engines::{ModelFiles, WiredEngine};
use super::exchange::ModelPlace;
use super::plugins::{Plugins, read_template};
use super::script::ScriptRule;
use super::{TEMPLATE_PLUGIN, generation};
use crate::choose::choose;
use crate::settings::ModelSettings;

/// A model that can be served, and what was decided about it.
pub struct WiredModel {
    pub served: ServedModel,
    /// The same in parts, for exchanges.
    pub place: ModelPlace,
    /// Which template, for people.
    pub template: String,
    /// The chain of output stages and who chose it, for people.
    pub stages: String,
    /// Where the sampling defaults came from.
    pub sampling_from: String,
    pub warnings: Vec<String>,
}

pub fn open(settings: &ModelSettings, engine: &WiredEngine, plugins: &Plugins) -> anyhow::Result<WiredModel> {
    let files = &engine.files;
    let (template, template_text) = template(settings.chat_template.as_deref(), files, plugins)?;
    let mut warnings = Vec::new();
    let chain = chain(settings, files, &mut warnings)?;
    let mut stages = Vec::with_capacity(chain.len());
    for word in &chain {
        stages.push(plugins.stage(word, &files.tokenizer).with_context(|| format!("output stage `{word}`"))?);
    }
    if template.is_none() {
        warnings
            .push("the model has no chat template: chat requests will be refused; give --chat-template".to_string());
    }
    let place = ModelPlace {
        name: settings.name.clone(),
        tokenizer: files.tokenizer.clone(),
        grammars: Arc::clone(&engine.grammars),
        files: TemplateModel { template_source: files.template.clone(), special_tokens: files.special_tokens.clone() },
        template: template.clone(),
        stages: stages.clone(),
    };
    let text = TextModel::new(TextModelParts { tokenizer: files.tokenizer.clone(), template, stages })?;
    let text = text.with_grammars(Arc::clone(&engine.grammars))?;
    warnings.extend(text.warnings().iter().cloned());
    let generation = generation::read(settings, files)?;
    let options = ModelOptions {
        max_model_len: settings.max_model_len,
        sampling: generation.sampling,
        end_tokens: generation.end_tokens,
        reasoning_field: settings.reasoning_field,
        template_kwargs: settings.template_kwargs.clone(),
        prompt_rule: files.script.clone().map(|script| Arc::new(ScriptRule(script)) as Arc<dyn PromptRule>),
    };
    let served = ServedModel {
        name: settings.name.clone(),
        root: engine.source.clone(),
        text: Arc::new(text),
        engine: engine.handle.clone(),
        options,
    };
    let stages = match (chain.as_slice(), settings.choose_output) {
        ([], _) => "none".to_string(),
        (chain, true) => format!("{} (chosen by the template)", chain.join(" -> ")),
        (chain, false) => chain.join(" -> "),
    };
    Ok(WiredModel { served, place, template: template_text, stages, sampling_from: generation.from, warnings })
}

/// The output stages that the operator names, else those that the template and the tokenizer speak for.
fn chain(settings: &ModelSettings, files: &ModelFiles, warnings: &mut Vec<String>) -> anyhow::Result<Vec<String>> {
    if !settings.choose_output {
        return Ok(settings.output.clone());
    }
    let source = match settings.chat_template.as_deref() {
        Some(file) if file.ends_with(".jinja") => Some(read_template(Path::new(file))?),
        _ => files.template.clone(),
    };
    let choice = choose(source.as_deref(), |text| files.tokenizer.added_token(text).is_some());
    warnings.extend(choice.doubt);
    Ok(choice.stages)
}

/// The template of a name: what the operator says, else the model's own source in the Jinja plugin.
fn template(
    asked: Option<&str>,
    files: &ModelFiles,
    plugins: &Plugins,
) -> anyhow::Result<(Option<Arc<dyn ChatTemplate>>, String)> {
    let model = |source: Option<String>| TemplateModel {
        template_source: source,
        special_tokens: files.special_tokens.clone(),
    };
    let (word, source, text) = match asked {
        None => match &files.template {
            None => return Ok((None, "none".into())),
            Some(source) => (TEMPLATE_PLUGIN, Some(source.clone()), format!("the model's own, in `{TEMPLATE_PLUGIN}`")),
        },
        Some(file) if file.ends_with(".jinja") => {
            let source = read_template(Path::new(file))?;
            (TEMPLATE_PLUGIN, Some(source), format!("{file}, in `{TEMPLATE_PLUGIN}`"))
        }
        Some(word) => (word, files.template.clone(), format!("`{word}`")),
    };
    let loaded = plugins.template(word, &files.tokenizer, &model(source));
    let loaded = loaded.with_context(|| format!("chat template {text}"))?;
    Ok((Some(loaded), text))
}
