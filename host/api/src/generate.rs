//! The sequences of one request: the engine's tokens through the output pipeline, as one stream of events.
//!
//! Plain and streamed answers consume the same events. Dropping the stream drops every generation in it, which aborts
//! them in the engine within a step: a client that goes away needs no other code.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use contract::TokenId;
use contract::generation::{FinishReason, GenerationError, Request, Tenant, TokenEvent};
use contract::sampling::TokenLogprobs;
use engine::{Generation, SubmitError};
use futures::stream::{self, Abortable, BoxStream, SelectAll, Stream, StreamExt};
use text::{ConstraintPlan, EndOfStream, OutputPipeline, OutputUsage, Piece};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::admission::Permit;
use crate::error::{ApiError, Code};
use crate::ids::choice_seed;
use crate::metrics::HttpMetrics;
use crate::prepare::{Job, text_error};
use crate::running::Place;
use crate::state::{ApiState, ServedModel};
use crate::wire::reply::{CompletionDetails, PromptDetails, StopReason, Usage};

/// What one sequence did. `index` is the choice's.
#[derive(Debug)]
pub enum Event {
    /// Its prompt is being computed.
    Started {
        index: u32,
        cached_tokens: u32,
    },
    /// Logprobs of the prompt's next tokens, from its second on.
    Prompt {
        index: u32,
        logprobs: Vec<TokenLogprobs>,
    },
    Piece {
        index: u32,
        piece: Piece,
    },
    /// The last event of a choice.
    Done {
        index: u32,
        end: End,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct End {
    pub finish_reason: &'static str,
    pub stop_reason: Option<StopReason>,
    pub usage: OutputUsage,
}

/// For whom, and how, a request is run.
pub struct Terms {
    pub id: Arc<str>,
    /// The `id` in the answer, by which the request may be aborted too.
    pub answer_id: Arc<str>,
    pub tenant: Tenant,
    pub namespace: u64,
    pub priority: i32,
    pub deadline: Option<Instant>,
    pub seed: u64,
    /// Choices per prompt.
    pub n: u32,
}

type Choices = SelectAll<BoxStream<'static, Result<Event, ApiError>>>;

/// All sequences of a request. Ends after the last choice, or with the first error.
pub struct Events {
    /// `None` after an abort or a failure.
    choices: Option<Abortable<Choices>>,
    tally: Tally,
    open: usize,
    metrics: HttpMetrics,
    _permit: Permit,
    _place: Place,
}

impl Events {
    /// Submits `n` sequences per job; choice indices run over the jobs in order.
    pub fn start(
        state: &ApiState,
        model: &ServedModel,
        jobs: Vec<Job>,
        terms: &Terms,
        permit: Permit,
    ) -> Result<Self, ApiError> {
        let mut choices = Choices::new();
        let tally = Tally::new(&jobs, terms.n);
        let mut index = 0;
        for job in &jobs {
            let group = state.0.ids.number();
            for copy in 0..terms.n {
                let pipeline = apart(model.text.is_suspect(), || model.text.open_output(&job.output));
                let pipeline = pipeline.map_err(|e| text_error(&e))?;
                let request = request(job, terms, group, copy);
                let generation = model.engine.submit(request).map_err(submit_error)?;
                let choice = Choice {
                    index,
                    generation: Some(generation),
                    pipeline,
                    own_stop_tokens: job.own_stop_tokens.clone(),
                    silent: job.max_new_tokens == 0,
                };
                choices.push(choice.events().boxed());
                index += 1;
            }
        }
        let open = choices.len();
        let (choices, handle) = stream::abortable(choices);
        let place = state.0.running.enter([&terms.id, &terms.answer_id], &terms.tenant.name, handle);
        let metrics = state.0.metrics.clone();
        Ok(Self { choices: Some(choices), open, tally, metrics, _permit: permit, _place: place })
    }

    /// Totals of what has come so far.
    pub fn usage(&self) -> Usage {
        self.tally.usage()
    }
}

fn request(job: &Job, terms: &Terms, group: u64, copy: u32) -> Request {
    Request {
        id: Arc::clone(&terms.id),
        prompt: Arc::clone(&job.prompt),
        sampling: job.sampling.clone(),
        seed: choice_seed(terms.seed, copy),
        // The engine always samples behind a prompt.
        max_new_tokens: job.max_new_tokens.max(1),
        priority: terms.priority,
        tenant: terms.tenant.clone(),
        deadline: terms.deadline,
        namespace: terms.namespace,
        group,
        constraint: job.constraint.as_ref().map(ConstraintPlan::open),
        prompt_logprobs: job.prompt_logprobs.filter(|_| copy == 0 || job.every_choice_scores),
    }
}

impl Stream for Events {
    type Item = Result<Event, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(choices) = self.choices.as_mut() else { return Poll::Ready(None) };
        let mut item = std::task::ready!(choices.poll_next_unpin(context));
        if item.is_none() && choices.is_aborted() && self.open > 0 {
            item = Some(Err(ApiError::new(Code::RequestAborted, "the request was aborted through POST /abort")));
        }
        match &item {
            Some(Ok(event)) => {
                self.tally.take(event);
                if matches!(event, Event::Done { .. }) {
                    self.open -= 1;
                }
            }
            // One failed choice fails the request: the others stop at once.
            Some(Err(_)) => {
                self.choices = None;
                self.open = 0;
            }
            None => {}
        }
        Poll::Ready(item)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.open > 0 {
            self.metrics.disconnected();
        }
    }
}

/// One sequence on its way.
struct Choice {
    index: u32,
    /// Dropped at the end or at a stop string.
    generation: Option<Generation>,
    pipeline: OutputPipeline,
    own_stop_tokens: Vec<TokenId>,
    /// Ends with its prompt.
    silent: bool,
}

impl Choice {
    fn events(self) -> impl Stream<Item = Result<Event, ApiError>> {
        stream::unfold((self, VecDeque::new()), |(mut choice, mut ready)| async move {
            while ready.is_empty() {
                let event = choice.generation.as_mut()?.next().await?;
                if let Err(error) = choice.take(event, &mut ready) {
                    choice.generation = None;
                    ready.push_back(Err(error));
                }
            }
            ready.pop_front().map(|item| (item, (choice, ready)))
        })
    }

    fn take(&mut self, event: TokenEvent, ready: &mut VecDeque<Result<Event, ApiError>>) -> Result<(), ApiError> {
        let index = self.index;
        match event {
            TokenEvent::Started { cached_tokens, .. } => ready.push_back(Ok(Event::Started { index, cached_tokens })),
            TokenEvent::Prompt { logprobs } => ready.push_back(Ok(Event::Prompt { index, logprobs })),
            TokenEvent::Tokens { .. } if self.silent => self.end(EndOfStream::Length, None, ready)?,
            TokenEvent::Tokens { tokens, logprobs } => {
                let pipeline = &mut self.pipeline;
                let piece = apart(pipeline.is_suspect(), || pipeline.push(&tokens, logprobs));
                let mut piece = piece.map_err(|e| text_error(&e))?;
                let (stopped, enough) = (piece.stopped.take(), piece.enough);
                ready.push_back(Ok(Event::Piece { index, piece }));
                if stopped.is_some() || enough {
                    self.end(EndOfStream::Cancelled, stopped.map(StopReason::Text), ready)?;
                }
            }
            TokenEvent::Finished { reason: FinishReason::Stop { token }, .. } => {
                let reason = self.own_stop_tokens.contains(&token).then_some(StopReason::Token(token));
                self.end(EndOfStream::StopToken(token), reason, ready)?;
            }
            TokenEvent::Finished { reason: FinishReason::Length, .. } => self.end(EndOfStream::Length, None, ready)?,
            TokenEvent::Failed(error) => return Err(generation_error(error)),
        }
        Ok(())
    }

    fn end(
        &mut self,
        end: EndOfStream,
        stop_reason: Option<StopReason>,
        ready: &mut VecDeque<Result<Event, ApiError>>,
    ) -> Result<(), ApiError> {
        self.generation = None;
        let index = self.index;
        let pipeline = &mut self.pipeline;
        let piece = apart(pipeline.is_suspect(), || pipeline.finish(end)).map_err(|e| text_error(&e))?;
        // A stop string may only be complete once the held text is flushed.
        let stop_reason = piece.stopped.clone().map(StopReason::Text).or(stop_reason);
        ready.push_back(Ok(Event::Piece { index, piece }));
        let (finish_reason, usage) = (self.pipeline.finish_reason(), self.pipeline.usage());
        ready.push_back(Ok(Event::Done { index, end: End { finish_reason, stop_reason, usage } }));
        Ok(())
    }
}

/// Makes a call that may take until a plugin's deadline where no other stream waits for this thread. Other calls take a
/// microsecond, and stay where they are.
fn apart<T>(suspect: bool, call: impl FnOnce() -> T) -> T {
    let threads = || Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if suspect && threads() { tokio::task::block_in_place(call) } else { call() }
}

/// Counts over all choices. A prompt counts once, however many choices it has.
struct Tally {
    prompt_tokens: u32,
    /// Tokens of each prompt that the prefix cache held, as its first choice found it.
    cached: Vec<Option<u32>>,
    n: u32,
    /// Per choice; replaced by the exact numbers at its end.
    completion: Vec<(u32, u32)>,
}

impl Tally {
    fn new(jobs: &[Job], n: u32) -> Self {
        Self {
            prompt_tokens: jobs.iter().fold(0, |sum, job| sum.saturating_add(job.prompt_tokens)),
            cached: vec![None; jobs.len()],
            n,
            completion: vec![(0, 0); jobs.len() * n as usize],
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Started { index, cached_tokens } => {
                let place = self.cached.get_mut((index / self.n) as usize);
                if let Some(place) = place.filter(|place| place.is_none()) {
                    *place = Some(*cached_tokens);
                }
            }
            Event::Prompt { .. } => {}
            Event::Piece { index, piece } => {
                if let Some((tokens, _)) = self.completion.get_mut(*index as usize) {
                    *tokens += u32::try_from(piece.token_ids.len()).unwrap_or(u32::MAX);
                }
            }
            Event::Done { index, end } => {
                if let Some(place) = self.completion.get_mut(*index as usize) {
                    *place = (end.usage.completion_tokens, end.usage.reasoning_tokens);
                }
            }
        }
    }

    fn usage(&self) -> Usage {
        let completion_tokens = self.completion.iter().fold(0_u32, |sum, (tokens, _)| sum.saturating_add(*tokens));
        let reasoning_tokens = self.completion.iter().fold(0_u32, |sum, (_, tokens)| sum.saturating_add(*tokens));
        let cached = self.cached.iter().flatten().fold(0_u32, |sum, tokens| sum.saturating_add(*tokens));
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            total_tokens: self.prompt_tokens.saturating_add(completion_tokens),
            // A scripted prompt length may be below what the cache really held.
            prompt_tokens_details: PromptDetails { cached_tokens: cached.min(self.prompt_tokens) },
            completion_tokens_details: CompletionDetails { reasoning_tokens },
        }
    }
}

pub fn submit_error(error: SubmitError) -> ApiError {
    let message = error.to_string();
    match error {
        SubmitError::QueueFull { retry_after_s, .. } => {
            ApiError::new(Code::QueueFull, message).retry_after_s(retry_after_s)
        }
        SubmitError::TooLong { prompt_tokens, context_len } => ApiError::new(
            Code::ContextLengthExceeded,
            format!(
                "This model's maximum context length is {context_len} tokens. However, your prompt has {prompt_tokens} tokens."
            ),
        ),
        SubmitError::NeverFits { .. } => ApiError::new(Code::ContextLengthExceeded, message),
        SubmitError::NoPooling => ApiError::new(Code::UnsupportedField, message),
        SubmitError::NoPromptLogprobs => ApiError::new(Code::UnsupportedField, message),
        SubmitError::Invalid(_) => ApiError::new(Code::InvalidValue, message),
        SubmitError::Stopped(_) => ApiError::new(Code::ShuttingDown, message),
    }
}

pub fn generation_error(error: GenerationError) -> ApiError {
    let message = error.to_string();
    match error {
        GenerationError::Refused { code, retry_after_ms } => {
            let mut refused = ApiError::new(Code::Refused, message).retry_after_s(retry_after_ms.div_ceil(1000));
            refused.own_code = Some(crate::error::quoted(&code)).filter(|code| !code.is_empty());
            refused
        }
        GenerationError::Engine(_) => ApiError::new(Code::EngineFailed, message),
        GenerationError::Aborted(_) => ApiError::new(Code::EngineAborted, message),
        GenerationError::Grammar(_) => ApiError::new(Code::GrammarFailed, message),
        GenerationError::ScriptViolatesGrammar { .. } => ApiError::new(Code::ScriptViolatesGrammar, message),
        GenerationError::Shutdown => ApiError::new(Code::ShuttingDown, message),
    }
}
