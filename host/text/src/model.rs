//! One served model name, text side.

use std::sync::Arc;

use contract::output::OutputStage;
use contract::reasoning::ResolvedSpan;
use contract::template::{ChatTemplate, Rendered};

use crate::{ChatJob, OutputJob, OutputPipeline, Prepared, TextError, Tokenizer};

/// What a name is made of.
pub struct TextModelParts {
    pub tokenizer: Tokenizer,
    pub template: Option<Arc<dyn ChatTemplate>>,
    /// The chain, first stage first; empty: everything is content.
    pub stages: Vec<Arc<dyn OutputStage>>,
}

/// Shared by all requests of a name. Markers, spans and stop strings are resolved once, here.
pub struct TextModel {
    tokenizer: Tokenizer,
    template: Option<Arc<dyn ChatTemplate>>,
    stages: Vec<Arc<dyn OutputStage>>,
    spans: Vec<ResolvedSpan>,
    warnings: Vec<String>,
}

impl TextModel {
    pub fn new(parts: TextModelParts) -> Result<Self, TextError> {
        Ok(Self {
            tokenizer: parts.tokenizer,
            template: parts.template,
            stages: parts.stages,
            spans: Vec::new(),
            warnings: Vec::new(),
        })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn template(&self) -> Option<&Arc<dyn ChatTemplate>> {
        self.template.as_ref()
    }

    pub fn stages(&self) -> &[Arc<dyn OutputStage>] {
        &self.stages
    }

    pub fn spans(&self) -> &[ResolvedSpan] {
        &self.spans
    }

    /// What the operator should read at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Normalises and renders; no tokenizing.
    pub fn render_chat(&self, _job: &ChatJob) -> Result<Rendered, TextError> {
        Err(TextError::NoTemplate)
    }

    /// Normalises, renders and tokenizes.
    pub fn prepare_chat(&self, _job: &ChatJob) -> Result<Prepared, TextError> {
        Err(TextError::NoTemplate)
    }

    pub fn open_output(&self, _job: &OutputJob) -> Result<OutputPipeline, TextError> {
        Ok(OutputPipeline {})
    }
}
