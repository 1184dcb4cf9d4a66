//! One served model name, text side.

use std::collections::HashSet;
use std::sync::Arc;

use contract::TokenId;
use contract::output::{Channel, Marker, OutputStage, ReasoningSpan, StageRequest, TURN_PREFIX_BYTES_MAX};
use contract::reasoning::{ReasoningTracker, ResolvedMarker, ResolvedSpan, ThinkingBudget};
use contract::template::{ChatTemplate, Rendered};
use serde_json::json;

use crate::normalise::ContentForm;
use crate::pipeline::PipelineParts;
use crate::{ChatJob, OutputJob, OutputPipeline, Prepared, Stops, TextError, Tokenizer, constrain, prepare};

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
    /// The markers of each stage, resolved.
    markers: Vec<Vec<Marker>>,
    /// With the texts of open and close, which the turn prefix is read for.
    spans: Vec<(ResolvedSpan, String, String)>,
    /// Per span, what is written in the model's place when the thinking budget is spent.
    forced_closes: Arc<[Vec<TokenId>]>,
    /// Shared by the names over one engine; without it no output can be constrained.
    grammars: Option<Arc<grammar::Compiler>>,
    stage_stops: Stops,
    form: ContentForm,
    warnings: Vec<String>,
}

impl TextModel {
    /// Renders a small probe request to learn what content the template takes and whether it opens reasoning.
    pub fn new(parts: TextModelParts) -> Result<Self, TextError> {
        let TextModelParts { tokenizer, template, stages } = parts;
        let requirements: Vec<_> = stages.iter().map(|stage| stage.requirements()).collect();
        let marker = |text: &String| Marker { text: text.clone(), token: tokenizer.added_token(text) };
        let markers = requirements.iter().map(|r| r.markers.iter().map(marker).collect()).collect();
        let mut spans = Vec::new();
        let mut forced_closes = Vec::new();
        for (stage, span) in stages.iter().zip(&requirements).flat_map(|(s, r)| r.reasoning.iter().map(move |x| (s, x)))
        {
            if span.open.is_empty() || span.close.is_empty() {
                let message = format!("output stage `{}` declares a reasoning span with an empty marker", stage.name());
                return Err(TextError::Setup(message));
            }
            let resolved =
                ResolvedSpan { open: resolve(&tokenizer, &span.open), close: resolve(&tokenizer, &span.close) };
            forced_closes.push(forced_close(&tokenizer, span)?);
            spans.push((resolved, span.open.clone(), span.close.clone()));
        }
        let mut stage_stops = Stops::default();
        stage_stops.add(&tokenizer, requirements.iter().flat_map(|r| &r.stop));
        let probe = template.as_deref().map_or_else(Probe::default, probe);
        let mut warnings = Vec::new();
        if probe.opens_reasoning && spans.is_empty() {
            warnings.push(
                "the chat template opens a block of reasoning, but no output stage reads reasoning: it will arrive as \
                 content; pass --reasoning-parser to split it off"
                    .to_owned(),
            );
        }
        let forced_closes = forced_closes.into();
        let form = probe.form;
        Ok(Self {
            tokenizer,
            template,
            stages,
            markers,
            spans,
            forced_closes,
            grammars: None,
            stage_stops,
            form,
            warnings,
        })
    }

    /// The same model, whose output can be held to grammars over its vocabulary. Two stages that both give a grammar
    /// are refused: a request has one.
    pub fn with_grammars(mut self, grammars: Arc<grammar::Compiler>) -> Result<Self, TextError> {
        let probe = constrain::probe();
        let gives = |(stage, markers): (&Arc<dyn OutputStage>, &Vec<Marker>)| {
            let request = stage_request(&probe, stage.as_ref(), markers);
            matches!(stage.constrain(&request), Ok(Some(_))).then(|| stage.name().to_owned())
        };
        let givers: Vec<String> = self.stages.iter().zip(&self.markers).filter_map(gives).collect();
        if let [first, second, ..] = givers.as_slice() {
            let message =
                format!("output stages `{first}` and `{second}` both give a grammar for calls; leave one out");
            return Err(TextError::Setup(message));
        }
        self.grammars = Some(grammars);
        Ok(self)
    }

    pub(crate) fn grammars(&self) -> Option<&Arc<grammar::Compiler>> {
        self.grammars.as_ref()
    }

    /// The stages, each with the request as it is told.
    pub(crate) fn stage_requests(
        &self,
        request: &StageRequest,
    ) -> impl Iterator<Item = (&dyn OutputStage, StageRequest)> {
        let stages = self.stages.iter().zip(&self.markers);
        stages.map(move |(stage, markers)| (stage.as_ref(), stage_request(request, stage.as_ref(), markers)))
    }

    /// Follows the reasoning of one stream.
    pub(crate) fn tracker(&self, request: &StageRequest, tokens_max: Option<u32>) -> ReasoningTracker {
        let budget =
            tokens_max.map(|tokens_max| ThinkingBudget { tokens_max, closes: Arc::clone(&self.forced_closes) });
        ReasoningTracker::new(self.spans(), self.starts_in_reasoning(request)).with_budget(budget)
    }

    /// Whether the model may still begin to reason: the template did not close a block that nobody wrote in.
    pub(crate) fn may_reason(&self, request: &StageRequest) -> bool {
        let closed = |(_, open, close): &(ResolvedSpan, String, String)| {
            let last = request.turn_prefix.rfind(close.as_str());
            last.is_some() && last > request.turn_prefix.rfind(open.as_str())
        };
        request.starts_in != Some(Channel::Content) && !self.spans.is_empty() && !self.spans.iter().any(closed)
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

    /// The reasoning spans of all stages, resolved against the tokenizer.
    pub fn spans(&self) -> Vec<ResolvedSpan> {
        self.spans.iter().map(|(span, ..)| span.clone()).collect()
    }

    /// What the operator should read at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Normalises and renders; no tokenizing.
    pub fn render_chat(&self, job: &ChatJob) -> Result<Rendered, TextError> {
        let template = self.template.as_deref().ok_or(TextError::NoTemplate)?;
        prepare::render(template, job, self.form)
    }

    /// Normalises, renders and tokenizes. The template writes the begin token itself if the model wants one.
    pub fn prepare_chat(&self, job: &ChatJob) -> Result<Prepared, TextError> {
        let rendered = self.render_chat(job)?;
        let prompt = self.tokenizer.encode(&rendered.prompt, false)?;
        let mut stops = self.stage_stops.clone();
        stops.add(&self.tokenizer, &rendered.stop);
        let warnings = prepare::warnings(&rendered);
        Ok(Prepared { prompt, rendered, stops, warnings })
    }

    /// Opening a stream may take until a plugin's deadline; see [`OutputPipeline::is_suspect`].
    pub fn is_suspect(&self) -> bool {
        self.stages.iter().any(|stage| stage.is_suspect())
    }

    /// Opens one stream's way out. Called once per choice.
    pub fn open_output(&self, job: &OutputJob) -> Result<OutputPipeline, TextError> {
        let mut job = job.clone();
        cut_left(&mut job.stage_request.turn_prefix);
        let mut sessions = Vec::new();
        let mut marker_tokens: HashSet<TokenId> = HashSet::new();
        if !job.raw {
            for (stage, markers) in self.stages.iter().zip(&self.markers) {
                let request = stage_request(&job.stage_request, stage.as_ref(), markers);
                sessions.push((stage.name().to_owned(), stage.open(&request).map_err(TextError::from_stage)?));
                marker_tokens.extend(markers.iter().filter_map(|marker| marker.token));
            }
        }
        let tracker = match job.raw {
            true => ReasoningTracker::new(self.spans(), false),
            false => self.tracker(&job.stage_request, job.thinking_tokens_max),
        };
        let close = |(span, _, text): &(ResolvedSpan, String, String)| Marker {
            text: text.clone(),
            token: match span.close {
                ResolvedMarker::Token(token) => Some(token),
                ResolvedMarker::Bytes(_) => None,
            },
        };
        let closes = self.spans.iter().map(close).collect();
        let tokenizer = self.tokenizer.clone();
        let is_token = |marker: &ResolvedMarker| matches!(marker, ResolvedMarker::Token(_));
        let spans_are_exact =
            !job.raw && self.spans.iter().all(|(span, ..)| is_token(&span.open) && is_token(&span.close));
        Ok(OutputPipeline::new(PipelineParts {
            tokenizer,
            sessions,
            markers: marker_tokens,
            tracker,
            spans_are_exact,
            closes,
            job,
        }))
    }

    /// What the template says, else whether the turn prefix opens the first span after closing it last.
    fn starts_in_reasoning(&self, request: &StageRequest) -> bool {
        match (&request.starts_in, self.spans.first()) {
            (_, None) => false,
            (Some(channel), _) => *channel == Channel::Reasoning,
            (None, Some((_, open, close))) => {
                let opened = request.turn_prefix.rfind(open.as_str());
                opened.is_some() && opened > request.turn_prefix.rfind(close.as_str())
            }
        }
    }
}

impl Stops {
    fn add<'a>(&mut self, tokenizer: &Tokenizer, stops: impl IntoIterator<Item = &'a String>) {
        for stop in stops.into_iter().filter(|stop| !stop.is_empty()) {
            match tokenizer.added_token(stop) {
                Some(token) if !self.tokens.contains(&token) => self.tokens.push(token),
                None if !self.strings.contains(stop) => self.strings.push(stop.clone()),
                Some(_) | None => {}
            }
        }
    }
}

fn resolve(tokenizer: &Tokenizer, marker: &str) -> ResolvedMarker {
    tokenizer
        .added_token(marker)
        .map_or_else(|| ResolvedMarker::Bytes(marker.as_bytes().to_vec()), ResolvedMarker::Token)
}

/// The tokens of a span's forced close. One that does not close the span would be forced for ever.
fn forced_close(tokenizer: &Tokenizer, span: &ReasoningSpan) -> Result<Vec<TokenId>, TextError> {
    let text = if span.forced_close.contains(&span.close) { &span.forced_close } else { &span.close };
    let mut tokens = tokenizer.encode(text, false)?;
    if let Some(close) = tokenizer.added_token(&span.close).filter(|close| !tokens.contains(close)) {
        tokens.push(close);
    }
    Ok(tokens)
}

/// Schemas are copied into a plugin's memory only when it asks for them.
fn stage_request(request: &StageRequest, stage: &dyn OutputStage, markers: &[Marker]) -> StageRequest {
    let mut request = request.clone();
    request.markers = markers.to_vec();
    if !stage.requirements().tool_schemas {
        request.tools.iter_mut().for_each(|tool| tool.schema_json = None);
    }
    request
}

/// Keeps the end, which decides the start state.
fn cut_left(text: &mut String) {
    if text.len() > TURN_PREFIX_BYTES_MAX {
        let from = text.ceil_char_boundary(text.len() - TURN_PREFIX_BYTES_MAX);
        text.drain(..from);
    }
}

#[derive(Default)]
struct Probe {
    form: ContentForm,
    opens_reasoning: bool,
}

/// A template may refuse the probe for reasons of its own; then the defaults stand.
fn probe(template: &dyn ChatTemplate) -> Probe {
    const WORD: &str = "probe-7f3a";
    let job = ChatJob {
        messages: vec![json!({"role": "user", "content": WORD})],
        add_generation_prompt: true,
        now: "2000-01-01T00:00:00+00:00".to_owned(),
        ..ChatJob::default()
    };
    let render = |form| prepare::render(template, &job, form).ok().filter(|rendered| rendered.prompt.contains(WORD));
    let (form, rendered) = match render(ContentForm::Text) {
        Some(rendered) => (ContentForm::Text, Some(rendered)),
        None => match render(ContentForm::Parts) {
            Some(rendered) => (ContentForm::Parts, Some(rendered)),
            None => (ContentForm::Text, None),
        },
    };
    Probe { form, opens_reasoning: rendered.is_some_and(|r| r.starts_in == Some(Channel::Reasoning)) }
}

#[cfg(test)]
mod tests;
