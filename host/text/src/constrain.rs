//! Which grammar an answer is held to: structured output, calls that must come, and the thinking budget.
//!
//! | tools | `tool_choice` | structure | the grammar |
//! |---|---|---|---|
//! | none | any | asked for | the structure |
//! | some | `none` | asked for | the structure |
//! | some | `auto`, allowed | none | for strict and for allowed tools: free text, the stage's calls, or both |
//! | some | `auto`, allowed | asked for | the stage's calls, or the structure as content |
//! | some | required, named | none | the stage's |
//! | some | required, named | asked for | none: the request is refused |

use std::sync::Arc;

use contract::TokenId;
use contract::constraint::TokenConstraint;
use contract::output::{CallKind, StageRequest, StartAt, Tool, ToolChoice};
use contract::reasoning::{ReasoningTracker, ResolvedMarker, ResolvedSpan};
use grammar::{Compiled, GrammarError, Source, Start, StreamParts, Strictness, schema};
use serde_json::{Value, json};

use crate::{TextError, TextModel};

/// A form that the content of an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    pub source: Source,
    /// The field of the request that asks for it, for errors: `response_format.json_schema.schema`.
    pub param: String,
}

/// What of a request decides its grammar.
#[derive(Clone, Debug, Default)]
pub struct ConstraintJob {
    pub structure: Option<Structure>,
    /// Tools, choice, start state; as for the output.
    pub stage_request: StageRequest,
    /// At least one call of the allowed tools must come (`allowed_tools` with mode `required`).
    pub allowed_is_required: bool,
    /// No chat template and no stages.
    pub raw: bool,
    pub thinking_tokens_max: Option<u32>,
    /// Tokens that end the answer.
    pub ends: Vec<TokenId>,
    pub min_tokens: u32,
}

/// A request's constraint, from which each of its streams opens its own.
#[derive(Clone)]
pub struct ConstraintPlan {
    parts: StreamParts,
}

impl ConstraintPlan {
    /// A new stream's constraint.
    pub fn open(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.parts.open())
    }

    /// Whether a grammar is enforced, and not only a budget. It then keeps the least length as well.
    pub fn has_grammar(&self) -> bool {
        self.parts.grammar.is_some()
    }
}

/// The request that stages are asked about at load: a call of one tool must come.
pub(crate) fn probe() -> StageRequest {
    let tool = Tool {
        name: "probe".into(),
        kind: CallKind::Json,
        schema_json: Some(r#"{"type":"object"}"#.into()),
        strict: true,
    };
    StageRequest { tools: vec![tool], tool_choice: ToolChoice::Required, ..StageRequest::default() }
}

/// A stage's grammar.
struct Calls {
    lark: String,
    start: StartAt,
}

impl TextModel {
    /// The constraint of a request; `None` when there is nothing to enforce. What of the request has no effect is added
    /// to `warnings`. Compiles, so not for an async task.
    pub fn constrain(
        &self,
        job: &ConstraintJob,
        warnings: &mut Vec<String>,
    ) -> Result<Option<ConstraintPlan>, TextError> {
        let bound = self.bind(job, warnings)?;
        if bound.is_none() && (job.thinking_tokens_max.is_none() || self.spans().is_empty()) {
            return Ok(None);
        }
        let grammars = self.compiler()?;
        let (grammar, start) = bound.map_or((None, StartAt::AfterReasoning), |(grammar, start)| (Some(grammar), start));
        if let Some(grammar) = &grammar {
            warnings.extend_from_slice(grammar.warnings());
        }
        let start = match start {
            StartAt::FirstToken => Start::FirstToken,
            StartAt::AfterReasoning => {
                Start::AfterReasoning { may_open: !job.raw && self.may_reason(&job.stage_request) }
            }
        };
        let tracker = match job.raw {
            true => ReasoningTracker::new(Vec::new(), false),
            false => self.tracker(&job.stage_request, job.thinking_tokens_max),
        };
        let openings: Vec<ResolvedMarker> = self.spans().into_iter().map(|span: ResolvedSpan| span.open).collect();
        let parts = StreamParts {
            vocabulary: Arc::clone(grammars.vocabulary()),
            min_tokens: if grammar.is_some() { job.min_tokens } else { 0 },
            grammar,
            start,
            tracker,
            openings,
            ends: job.ends.clone().into(),
        };
        Ok(Some(ConstraintPlan { parts }))
    }

    fn compiler(&self) -> Result<&Arc<grammar::Compiler>, TextError> {
        self.grammars().ok_or_else(|| TextError::Setup("this model was loaded without grammars".into()))
    }

    fn bind(&self, job: &ConstraintJob, warnings: &mut Vec<String>) -> Result<Option<(Compiled, StartAt)>, TextError> {
        let request = &job.stage_request;
        let has_calls = !job.raw && !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        let must_call =
            matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) || job.allowed_is_required;
        let structure = match (&job.structure, has_calls) {
            (None, false) => return Ok(None),
            (None, true) if must_call => return self.bind_required(request, warnings),
            (None, true) => return self.bind_free(request, warnings),
            (Some(structure), _) => structure,
        };
        if !has_calls {
            let compiled = self.compile(&structure.source, &structure.param)?;
            return Ok(Some((compiled, StartAt::AfterReasoning)));
        }
        if must_call {
            let message =
                "cannot be combined with a tool_choice that requires a call: calls have their format's own grammar";
            return Err(refused(&structure.param, message));
        }
        self.with_tools(&required(request), warnings, |model, request| {
            let message = "needs output stages that give a grammar for calls while tools may be called; send \"tool_choice\": \"none\"";
            let calls = model.calls(request)?.ok_or_else(|| refused(&structure.param, message))?;
            let source = Source::CallsOr { calls: calls.lark, content: Box::new(structure.source.clone()) };
            Ok(Some((model.compile(&source, &structure.param)?, calls.start)))
        })
    }

    /// A call must come.
    fn bind_required(
        &self,
        request: &StageRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Option<(Compiled, StartAt)>, TextError> {
        let asked = match request.tool_choice {
            ToolChoice::Allowed(_) => required(request),
            _ => request.clone(),
        };
        self.with_tools(&asked, warnings, |model, request| {
            let message = "cannot require a call: no output stage of this model gives a grammar for its calls";
            let calls = model.calls(request)?.ok_or_else(|| refused("tool_choice", message))?;
            Ok(Some((model.compile(&Source::Lark(calls.lark), "tools")?, calls.start)))
        })
    }

    /// The model decides, but a call that comes must keep to its schema, or be of an allowed tool. A stage may have a
    /// grammar for that; else the one of its calls is enforced from their marker on, if that is a token.
    fn bind_free(
        &self,
        request: &StageRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Option<(Compiled, StartAt)>, TextError> {
        let is_allowed = matches!(request.tool_choice, ToolChoice::Allowed(_));
        if !is_allowed && !request.tools.iter().any(|tool| tool.strict) {
            return Ok(None);
        }
        let asked = StageRequest { tool_choice: ToolChoice::Auto, ..allowed_only(request) };
        let bound = self.with_tools(&asked, warnings, |model, request| {
            let (source, start) = match model.calls(request)? {
                Some(own) => (Source::Lark(own.lark), own.start),
                None => match model.calls(&required(request))? {
                    Some(calls) if calls.lark.contains("<[") => {
                        (Source::TextOrCalls { calls: calls.lark }, calls.start)
                    }
                    _ => return Ok(None),
                },
            };
            Ok(Some((model.compile(&source, "tools")?, start)))
        })?;
        if bound.is_none() {
            warnings.push(
                "strict tools and allowed_tools are not enforced: this model's output stages give no grammar for it"
                    .into(),
            );
        }
        Ok(bound)
    }

    /// Builds a grammar of tools. When it does not compile, the tools whose schemas are at fault are found: a strict
    /// one is the client's mistake, another one's arguments become any object.
    fn with_tools<T>(
        &self,
        request: &StageRequest,
        warnings: &mut Vec<String>,
        build: impl Fn(&Self, &StageRequest) -> Result<T, TextError>,
    ) -> Result<T, TextError> {
        let mut request = request.clone();
        for (index, tool) in request.tools.iter_mut().enumerate() {
            check_tool(index, tool, warnings)?;
        }
        let built = build(self, &request);
        let Err(TextError::Grammar { error, .. }) = &built else { return built };
        if !error.is_request_fault() {
            return built;
        }
        let mut relaxed = false;
        for (index, tool) in request.tools.iter_mut().enumerate() {
            let Some(error) = self.tool_fault(tool) else { continue };
            if tool.strict {
                return Err(TextError::Grammar { param: tool_param(index), error });
            }
            relax(index, tool, &error, warnings);
            relaxed = true;
        }
        if relaxed { build(self, &request) } else { built }
    }

    fn calls(&self, request: &StageRequest) -> Result<Option<Calls>, TextError> {
        for (stage, request) in self.stage_requests(request) {
            let Some(constraint) = stage.constrain(&request).map_err(TextError::from_stage)? else { continue };
            if constraint.language != "lark" {
                let message = format!("gives a grammar in `{}`; only `lark` is read", constraint.language);
                return Err(TextError::Setup(format!("output stage `{}` {message}", stage.name())));
            }
            return Ok(Some(Calls { lark: constraint.grammar, start: constraint.start }));
        }
        Ok(None)
    }

    /// Why a tool's schema does not compile on its own.
    fn tool_fault(&self, tool: &Tool) -> Option<GrammarError> {
        let schema = serde_json::from_str(tool.schema_json.as_deref()?).ok()?;
        let source = Source::JsonSchema { schema, strictness: Strictness::Strict };
        self.grammars()?.compile(&source).err()
    }

    fn compile(&self, source: &Source, param: &str) -> Result<Compiled, TextError> {
        let compiled = self.compiler()?.compile(source);
        compiled.map_err(|error| TextError::Grammar { param: param.to_owned(), error })
    }
}

fn refused(param: &str, message: &str) -> TextError {
    TextError::BadRequest { param: param.to_owned(), message: message.to_owned() }
}

/// The request in which one of the allowed tools must be called.
fn required(request: &StageRequest) -> StageRequest {
    StageRequest { tool_choice: ToolChoice::Required, ..allowed_only(request) }
}

/// The request with no other tools than the allowed ones.
fn allowed_only(request: &StageRequest) -> StageRequest {
    let mut request = request.clone();
    if let ToolChoice::Allowed(names) = &request.tool_choice {
        request.tools.retain(|tool| names.contains(&tool.name));
    }
    request
}

fn tool_param(index: usize) -> String {
    format!("tools[{index}].function.parameters")
}

/// Puts the schema that is enforced in place of the client's. Arguments are an object, whatever a schema says.
fn check_tool(index: usize, tool: &mut Tool, warnings: &mut Vec<String>) -> Result<(), TextError> {
    let text = tool.schema_json.as_deref().unwrap_or("{}");
    let mut written: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
    if let Some(map) = written.as_object_mut() {
        map.entry("type").or_insert_with(|| "object".into());
    }
    let strictness = if tool.strict { Strictness::Strict } else { Strictness::Lenient };
    match schema::check(&written, strictness) {
        Ok(checked) => {
            warnings.extend(checked.warnings.iter().map(|warning| format!("{}: {warning}", tool_param(index))));
            tool.schema_json = Some(checked.for_stages().into());
        }
        Err(error) if tool.strict => return Err(TextError::Grammar { param: tool_param(index), error }),
        Err(error) => relax(index, tool, &error, warnings),
    }
    Ok(())
}

fn relax(index: usize, tool: &mut Tool, error: &GrammarError, warnings: &mut Vec<String>) {
    warnings.push(format!("{} is not enforced: {error}", tool_param(index)));
    let any = schema::Checked { schema: json!({"type": "object"}), warnings: Vec::new() };
    tool.schema_json = Some(any.for_stages().into());
}

#[cfg(test)]
mod tests;
