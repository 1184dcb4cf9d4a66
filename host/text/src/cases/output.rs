//! Output cases: recorded model output, in every cutting asked for, through the real pipeline.

use std::sync::Arc;

use contract::TokenId;
use contract::output::{OutputStage, StageRequest, ToolChoice};
use serde_json::{Map, Value};

use super::checks::{self, Check};
use super::{CasePlugins, Chain, Stop, walk};
use crate::conform::without_failures;
use crate::{ByteVocabToken, Delta, EndOfStream, OutputJob, Piece, TextModel, TextModelParts, Tokenizer, prepare};

/// How the recorded output is cut into engine steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cutting {
    AsRecorded,
    /// So many characters (or added tokens) a step.
    Units(usize),
    Whole,
}

impl std::fmt::Display for Cutting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AsRecorded => write!(f, "as recorded"),
            Self::Units(n) => write!(f, "{n} characters a step"),
            Self::Whole => write!(f, "in one step"),
        }
    }
}

/// A tool call as a client puts it together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub index: u32,
    pub id: String,
    pub name: String,
    pub arguments: String,
    pub complete: bool,
}

/// The folded answer of one run, and the deltas of each step for checks on how it was streamed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Content between calls, in order; a plain answer is their concatenation.
    pub content: Vec<String>,
    pub reasoning: String,
    pub calls: Vec<Call>,
    pub finish_reason: String,
    /// Stages that were cut out.
    pub violations: u32,
    pub steps: Vec<Vec<Delta>>,
}

impl Answer {
    pub(super) fn new() -> Self {
        Self { content: vec![String::new()], ..Self::default() }
    }

    pub fn content(&self) -> String {
        self.content.concat()
    }

    pub(super) fn add(&mut self, piece: Piece) {
        for delta in &piece.deltas {
            match delta {
                Delta::Content(text) => {
                    if let Some(last) = self.content.last_mut() {
                        last.push_str(text);
                    }
                }
                Delta::Reasoning(text) => self.reasoning.push_str(text),
                Delta::CallStart { index, id, name } => {
                    self.content.push(String::new());
                    let (index, id, name) = (*index, id.clone(), name.clone());
                    self.calls.push(Call { index, id, name, arguments: String::new(), complete: false });
                }
                Delta::CallArguments { index, fragment } => {
                    if let Some(call) = self.calls.iter_mut().find(|call| call.index == *index) {
                        call.arguments.push_str(fragment);
                    }
                }
                Delta::CallEnd { index, complete } => {
                    if let Some(call) = self.calls.iter_mut().find(|call| call.index == *index) {
                        call.complete = *complete;
                    }
                }
            }
        }
        self.steps.push(piece.deltas);
    }
}

/// One character, or one added token, of the recorded output.
#[derive(Clone, Debug)]
struct Unit {
    text: String,
    special: bool,
}

struct Recorded {
    /// The steps as recorded, each a list of units.
    steps: Vec<Vec<Unit>>,
    end: EndOfStream,
    request: StageRequest,
}

pub(super) fn run(
    input: &Map<String, Value>,
    expected: &Map<String, Value>,
    chain: &Chain,
    plugins: &mut dyn CasePlugins,
) -> Result<(), Stop> {
    let checks = Check::of(expected)?;
    let stages = stages(input, chain, plugins)?;
    let recorded = recorded(input)?;
    let model = model(&recorded, stages)?;
    let markers: Vec<String> = model
        .stages()
        .iter()
        .flat_map(|stage| {
            let needs = stage.requirements();
            let spans = needs.reasoning.iter().flat_map(|span| [span.open.clone(), span.close.clone()]);
            needs.markers.iter().cloned().chain(spans).collect::<Vec<_>>()
        })
        .collect();
    let whole: String = recorded.steps.iter().flatten().map(|unit| unit.text.as_str()).collect();
    let mut first: Option<Answer> = None;
    for cutting in checks::cuttings(&checks) {
        let at = |stop: Stop| match stop {
            Stop::Fail(reason) => Stop::Fail(format!("{cutting}: {reason}")),
            skip @ Stop::Skip(_) => skip,
        };
        let stages: Vec<&dyn OutputStage> = model.stages().iter().map(AsRef::as_ref).collect();
        let answer = without_failures(&stages, || answer(&model, &recorded, cutting)).map_err(at)?;
        let answer = answer.map_err(|failure| at(Stop::Fail(failure)))?;
        let recorded_steps = recorded.steps.len();
        let context =
            checks::Context { expected, checks: &checks, markers: &markers, fed: &whole, cutting, recorded_steps };
        checks::compare(&answer, &context).map_err(at)?;
        match &first {
            None => first = Some(answer),
            Some(first) => checks::same(first, &answer).map_err(at)?,
        }
    }
    Ok(())
}

fn stages(
    input: &Map<String, Value>,
    chain: &Chain,
    plugins: &mut dyn CasePlugins,
) -> Result<Vec<Arc<dyn OutputStage>>, Stop> {
    let named: Vec<&str> = ["parser", "tool_parser"].iter().filter_map(|key| input.get(*key)?.as_str()).collect();
    match chain {
        Chain::None => Err(Stop::Skip("no output stage is under test".to_owned())),
        Chain::Given { stages, provides } => match named.iter().find(|name| !provides.iter().any(|p| p == *name)) {
            Some(name) => Err(Stop::Skip(format!("the given stages do not provide `{name}`"))),
            None => Ok(stages.clone()),
        },
        Chain::FromCase => {
            let mut stages = Vec::new();
            // Two equal names mean one stage that does both.
            for (i, name) in named.iter().enumerate().filter(|(i, name)| !named[..*i].contains(name)) {
                let stage = plugins.stage(name).map_err(|e| Stop::fail(format!("stage {i} `{name}`: {e}")))?;
                stages.push(stage.ok_or_else(|| Stop::Skip(format!("there is no output stage `{name}`")))?);
            }
            Ok(stages)
        }
    }
}

fn recorded(input: &Map<String, Value>) -> Result<Recorded, Stop> {
    let plain = |text: &str| -> Vec<Unit> { text.chars().map(|c| Unit { text: c.into(), special: false }).collect() };
    let list = |key: &str| input.get(key).and_then(Value::as_array);
    let wrong = |what: &str| Stop::fail(format!("`input` must have {what}"));
    let steps = if let Some(deltas) = list("deltas") {
        let step = |delta: &Value| delta.as_str().map(plain).ok_or_else(|| wrong("`deltas` of strings"));
        deltas.iter().map(step).collect::<Result<_, _>>()?
    } else if let Some(tokens) = list("deltas_tokens") {
        let step = |token: &Value| {
            let text = token.get("text")?.as_str()?;
            let special = token.get("special")?.as_bool()?;
            Some(if special { vec![Unit { text: text.to_owned(), special }] } else { plain(text) })
        };
        let steps: Option<_> = tokens.iter().map(step).collect();
        steps.ok_or_else(|| wrong("`deltas_tokens` of `text` and `special`"))?
    } else {
        return Err(wrong("`deltas`, `deltas_tokens` or `template`"));
    };
    let end = match input.get("engine_finish_reason").and_then(Value::as_str) {
        Some("stop") => EndOfStream::StopToken(END),
        Some("length") => EndOfStream::Length,
        _ => return Err(wrong("`engine_finish_reason`: stop or length")),
    };
    let tools = list("tools").map(Vec::as_slice).unwrap_or_default();
    let request = StageRequest {
        tools: prepare::stage_tools(tools).map_err(|e| Stop::fail(e.to_string()))?,
        tool_choice: tool_choice(input.get("tool_choice"))?,
        parallel_calls: true,
        turn_prefix: input.get("prompt_ends_with").and_then(Value::as_str).unwrap_or_default().to_owned(),
        ..StageRequest::default()
    };
    Ok(Recorded { steps, end, request })
}

/// The end token of the byte vocabulary.
const END: TokenId = 256;

fn tool_choice(choice: Option<&Value>) -> Result<ToolChoice, Stop> {
    match choice {
        None => Ok(ToolChoice::Auto),
        Some(choice) => match (choice.as_str(), choice.pointer("/function/name").and_then(Value::as_str)) {
            (Some("auto"), _) => Ok(ToolChoice::Auto),
            (Some("none"), _) => Ok(ToolChoice::None),
            (Some("required"), _) => Ok(ToolChoice::Required),
            (None, Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
            _ => Err(Stop::fail(format!("`input.tool_choice` is {choice}; auto, none, required or a function"))),
        },
    }
}

/// A byte vocabulary whose added tokens are the special texts of the case, so that exactly these markers resolve.
fn model(recorded: &Recorded, stages: Vec<Arc<dyn OutputStage>>) -> Result<TextModel, Stop> {
    let mut extra: Vec<ByteVocabToken> = Vec::new();
    for unit in recorded.steps.iter().flatten().filter(|unit| unit.special) {
        let token = ByteVocabToken { bytes: unit.text.clone().into_bytes(), added: true };
        if !extra.contains(&token) {
            extra.push(token);
        }
    }
    let tokenizer = Tokenizer::from_bytes_vocab(extra);
    TextModel::new(TextModelParts { tokenizer, template: None, stages }).map_err(|e| Stop::fail(e.to_string()))
}

fn answer(model: &TextModel, recorded: &Recorded, cutting: Cutting) -> Result<Answer, Stop> {
    let job = OutputJob {
        stage_request: recorded.request.clone(),
        stop_tokens: vec![END],
        skip_special_tokens: true,
        ..OutputJob::default()
    };
    let steps = cut(&recorded.steps, cutting).into_iter().map(|step| tokens(model.tokenizer(), &step));
    let stop = match recorded.end {
        EndOfStream::StopToken(token) => Some(vec![token]),
        _ => None,
    };
    let answer = walk::answer(model, &job, steps.chain(stop), recorded.end).map_err(|e| Stop::fail(e.to_string()))?;
    match answer.violations {
        0 => Ok(answer),
        n => Err(Stop::fail(format!("{n} stages broke the event rules and were cut out"))),
    }
}

fn cut(steps: &[Vec<Unit>], cutting: Cutting) -> Vec<Vec<Unit>> {
    let all = || steps.iter().flatten().cloned().collect::<Vec<_>>();
    match cutting {
        Cutting::AsRecorded => steps.to_vec(),
        Cutting::Whole => vec![all()],
        Cutting::Units(n) => all().chunks(n.max(1)).map(<[Unit]>::to_vec).collect(),
    }
}

fn tokens(tokenizer: &Tokenizer, step: &[Unit]) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    for unit in step {
        match tokenizer.added_token(&unit.text).filter(|_| unit.special) {
            Some(token) => tokens.push(token),
            None => tokens.extend(unit.text.bytes().map(TokenId::from)),
        }
    }
    tokens
}
