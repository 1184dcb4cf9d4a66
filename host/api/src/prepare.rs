//! A checked request to what the engine and the output pipeline are given: prompt tokens, limits, sampling.
//!
//! Templates and tokenizers take milliseconds of pure computing, so all of this runs on the blocking pool.

use std::sync::Arc;

use contract::TokenId;
use contract::output::StageRequest;
use contract::sampling::SamplingParams;
use text::grammar::GrammarError;
use text::{ChatJob, ConstraintJob, ConstraintPlan, OutputJob, Prepared, TextError};

use crate::clock;
use crate::error::{ApiError, Code};
use crate::state::{SamplingDefaults, ServedModel};
use crate::wire::chat::ChatPrompt;
use crate::wire::common::{Common, Ends, Wishes};
use crate::wire::completion::{CompletionRequest, Prompt};

/// Below this, dividing by the temperature overflows; the answer is the greedy one anyway.
const TEMPERATURE_MIN: f32 = 1e-5;

/// One prompt, ready for `n` sequences.
#[derive(Clone)]
pub struct Job {
    pub prompt: Arc<[TokenId]>,
    /// The length to report; for a scripted model the script's.
    pub prompt_tokens: u32,
    /// 0: the prompt is read, and nothing is said.
    pub max_new_tokens: u32,
    pub sampling: SamplingParams,
    pub output: OutputJob,
    /// Which of the stop tokens are the client's own: only those are told back as `stop_reason`.
    pub own_stop_tokens: Vec<TokenId>,
    /// What each sequence is held to.
    pub constraint: Option<ConstraintPlan>,
    /// Alternatives per token of the prompt, where its logprobs are wanted.
    pub prompt_logprobs: Option<u8>,
    /// Every choice shows them, and not only the first.
    pub every_choice_scores: bool,
    /// What of the constraint has no effect.
    pub warnings: Vec<String>,
}

/// Runs `work` on the blocking pool; a panic in it is an internal error of this request alone.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "preparing a request failed");
            Err(ApiError::new(Code::Internal, "preparing the request failed inside the server"))
        }
    }
}

pub fn chat_job(model: &ServedModel, prompt: &ChatPrompt, now: String) -> ChatJob {
    let mut kwargs = model.options.template_kwargs.clone();
    kwargs.extend(prompt.kwargs.clone());
    ChatJob {
        messages: prompt.messages.clone(),
        tools: prompt.tools.clone(),
        documents: prompt.documents.clone(),
        tool_choice: prompt.tool_choice.clone(),
        parallel_calls: prompt.parallel_calls,
        add_generation_prompt: prompt.add_generation_prompt,
        continue_final_message: prompt.continue_final_message,
        kwargs,
        now,
    }
}

/// Renders, tokenizes and checks a chat request on the blocking pool; what the template did not read comes last.
pub async fn chat(
    model: &Arc<ServedModel>,
    common: Common,
    prompt: ChatPrompt,
    created: u64,
) -> Result<(Common, Job, Vec<String>), ApiError> {
    let on = Arc::clone(model);
    blocking(move || {
        let (job, unread) = chat_here(&on, &common, &prompt, clock::rfc3339(created))?;
        Ok((common, job, unread))
    })
    .await
}

fn chat_here(
    model: &ServedModel,
    common: &Common,
    prompt: &ChatPrompt,
    now: String,
) -> Result<(Job, Vec<String>), ApiError> {
    let prepared = model.text.prepare_chat(&chat_job(model, prompt, now)).map_err(|e| text_error(&e))?;
    let Prepared { prompt: tokens, rendered, stops, mut warnings } = prepared;
    let mut job = job(model, common, tokens, "messages")?;
    // `ignore_eos` asks for a fixed length: the ends that the format implies go with the end tokens.
    if !common.ends.ignore_eos {
        add_missing(&mut job.sampling.stop_tokens, stops.tokens);
        add_missing(&mut job.output.stop, stops.strings);
    }
    job.output.stop_tokens = job.sampling.stop_tokens.clone();
    job.output.stage_request = StageRequest {
        tools: text::prepare::stage_tools(&prompt.tools).map_err(|e| text_error(&e))?,
        tool_choice: prompt.tool_choice.clone(),
        parallel_calls: prompt.parallel_calls,
        starts_in: rendered.starts_in,
        turn_prefix: rendered.turn_prefix,
        markers: Vec::new(),
    };
    job.output.thinking_tokens_max = prompt.thinking.tokens_max;
    job.output.hide_reasoning = prompt.thinking.hidden;
    job.output.one_call = !prompt.parallel_calls;
    constrain(model, common, prompt.allowed_is_required, &mut job)?;
    warnings.append(&mut job.warnings);
    Ok((job, warnings))
}

/// Holds a job to the form that was asked for.
fn constrain(model: &ServedModel, common: &Common, allowed_is_required: bool, job: &mut Job) -> Result<(), ApiError> {
    let constraint = ConstraintJob {
        structure: common.structure.clone(),
        stage_request: job.output.stage_request.clone(),
        allowed_is_required,
        raw: job.output.raw,
        thinking_tokens_max: job.output.thinking_tokens_max,
        // A text that is complete must end, also where the client ignores ends.
        ends: match job.sampling.stop_tokens.as_slice() {
            [] => model_ends(model),
            own => own.to_vec(),
        },
        min_tokens: job.sampling.min_tokens,
    };
    let plan = model.text.constrain(&constraint, &mut job.warnings).map_err(|e| text_error(&e))?;
    let Some(plan) = plan else { return Ok(()) };
    if plan.has_grammar() {
        // The grammar keeps the least length: where it allows nothing but the end, the end must be possible.
        job.sampling.min_tokens = 0;
    }
    job.constraint = Some(plan);
    Ok(())
}

/// Tokenizes and checks one prompt of a text completion.
pub fn completion(model: &ServedModel, request: &CompletionRequest, prompt: &Prompt) -> Result<Job, ApiError> {
    let add_special = request.add_special_tokens;
    let tokens = match prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Text(text) => model.text.tokenizer().encode(text, add_special).map_err(|e| text_error(&e))?,
    };
    let mut job = job(model, &request.common, tokens, "prompt")?;
    job.output.raw = true;
    job.prompt_logprobs = request.prompt_logprobs();
    job.every_choice_scores = true;
    constrain(model, &request.common, false, &mut job)?;
    Ok(job)
}

fn job(model: &ServedModel, common: &Common, prompt: Vec<TokenId>, field: &str) -> Result<Job, ApiError> {
    let vocab = model.engine.limits().vocab;
    check_vocabulary(field, &prompt, vocab)?;
    check_vocabulary("stop_token_ids", &common.ends.stop_tokens, vocab)?;
    let biased: Vec<TokenId> = common.wishes.logit_bias.iter().map(|&(token, _)| token).collect();
    check_vocabulary("logit_bias", &biased, vocab)?;
    if prompt.is_empty() {
        return Err(ApiError::invalid(field, "gives an empty prompt; at least one token is needed"));
    }
    let prompt_tokens = match &model.options.prompt_rule {
        None => None,
        Some(rule) => rule.check(&prompt).map_err(|why| ApiError::field(Code::NoScriptedResponse, field, why))?,
    };
    let real = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    let prompt_tokens = prompt_tokens.unwrap_or(real);
    // The engine's own context still bounds the real sequence.
    let room = model.engine.limits().context_len.saturating_sub(real);
    let max_new_tokens = max_new_tokens(model.context_len(), prompt_tokens, &common.ends, field)?.min(room.max(1));
    let sampling = sampling(&model.options.sampling, &common.wishes, &common.ends, end_tokens(model, &common.ends));
    let output = OutputJob {
        stop: common.ends.stop.clone(),
        stop_tokens: sampling.stop_tokens.clone(),
        include_stop_str: common.ends.include_stop_str,
        skip_special_tokens: common.ends.skip_special_tokens,
        min_tokens: common.ends.min_tokens,
        ..OutputJob::default()
    };
    let own_stop_tokens = common.ends.stop_tokens.clone();
    Ok(Job {
        prompt: prompt.into(),
        prompt_tokens,
        max_new_tokens,
        sampling,
        output,
        own_stop_tokens,
        constraint: None,
        prompt_logprobs: common.prompt_logprobs,
        every_choice_scores: false,
        warnings: Vec::new(),
    })
}

/// How many tokens may be generated: absent means all that is left, and a number that does not fit is an error, so that
/// no answer is cut where the client did not expect it.
fn max_new_tokens(context_len: u32, prompt_tokens: u32, ends: &Ends, field: &str) -> Result<u32, ApiError> {
    let exceeded = |field: &str, rest: String| {
        let message = format!("This model's maximum context length is {context_len} tokens. However, {rest}.");
        let mut error = ApiError::new(Code::ContextLengthExceeded, message);
        error.param = Some(field.to_owned());
        error
    };
    let room = context_len.saturating_sub(prompt_tokens);
    if room == 0 {
        let rest = format!(
            "your {field} resulted in {prompt_tokens} tokens, which leaves no room for an answer. Shorten the {field}"
        );
        return Err(exceeded(field, rest));
    }
    let asked = ends
        .max_tokens
        .map(|n| (ends.max_tokens_field, n))
        .or((ends.min_tokens > room).then_some(("min_tokens", ends.min_tokens)));
    match asked {
        Some((name, wanted)) if wanted > room => {
            let sum = u64::from(prompt_tokens) + u64::from(wanted);
            let rest = format!(
                "you requested {sum} tokens ({prompt_tokens} in the {field}, {wanted} in {name}). Shorten the {field} or lower {name} to at most {room}"
            );
            Err(exceeded(name, rest))
        }
        Some((_, wanted)) => Ok(wanted),
        None => Ok(room),
    }
}

fn end_tokens(model: &ServedModel, ends: &Ends) -> Vec<TokenId> {
    if ends.ignore_eos { Vec::new() } else { model_ends(model) }
}

fn model_ends(model: &ServedModel) -> Vec<TokenId> {
    match model.options.end_tokens.as_slice() {
        [] => model.text.tokenizer().eos().to_vec(),
        own => own.to_vec(),
    }
}

fn sampling(defaults: &SamplingDefaults, wishes: &Wishes, ends: &Ends, end_tokens: Vec<TokenId>) -> SamplingParams {
    let mut stop_tokens = end_tokens;
    add_missing(&mut stop_tokens, ends.stop_tokens.clone());
    let temperature = wishes.temperature.unwrap_or(defaults.temperature);
    SamplingParams {
        temperature: if temperature < TEMPERATURE_MIN { 0.0 } else { temperature },
        top_k: wishes.top_k.unwrap_or(defaults.top_k),
        // A share of nothing still has its first token.
        top_p: wishes.top_p.unwrap_or(defaults.top_p).max(f32::MIN_POSITIVE),
        min_p: wishes.min_p.unwrap_or(defaults.min_p),
        presence_penalty: wishes.presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: wishes.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        repetition_penalty: wishes.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        logit_bias: wishes.logit_bias.clone(),
        min_tokens: ends.min_tokens,
        stop_tokens,
        logprobs: wishes.logprobs,
    }
}

fn add_missing<T: PartialEq>(list: &mut Vec<T>, more: Vec<T>) {
    for entry in more {
        if !list.contains(&entry) {
            list.push(entry);
        }
    }
}

pub fn check_vocabulary(field: &str, tokens: &[TokenId], vocab: u32) -> Result<(), ApiError> {
    match tokens.iter().position(|&token| token >= vocab) {
        None => Ok(()),
        Some(position) => {
            let token = tokens[position];
            let message = format!("token {token} at position {position} is not below the vocabulary size {vocab}");
            Err(ApiError::invalid(field, message))
        }
    }
}

/// A failure of the text side: the request's fault is a 400 with the template's own words, never a 500.
pub fn text_error(error: &TextError) -> ApiError {
    let code = match error {
        TextError::Template { .. } => Code::TemplateFailed,
        TextError::NoTemplate => Code::UnsupportedField,
        TextError::Grammar { error, .. } => grammar_code(error),
        TextError::Stage { .. } if !error.is_request_fault() => Code::OutputStageFailed,
        _ if error.is_request_fault() => Code::InvalidValue,
        _ => Code::Internal,
    };
    let mut answer = ApiError::new(code, error.to_string());
    answer.param = error.param().map(str::to_owned);
    if code == Code::QueueFull { answer.retry_after_s(1) } else { answer }
}

fn grammar_code(error: &GrammarError) -> Code {
    match error {
        GrammarError::Schema { .. } => Code::InvalidSchema,
        GrammarError::Grammar(_) | GrammarError::TooLarge { .. } | GrammarError::TooSlow { .. } => Code::InvalidGrammar,
        GrammarError::Busy { .. } => Code::QueueFull,
        GrammarError::Internal(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(max_tokens: Option<u32>, min_tokens: u32) -> Ends {
        Ends {
            max_tokens,
            max_tokens_field: "max_tokens",
            min_tokens,
            ignore_eos: false,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            include_stop_str: false,
            skip_special_tokens: true,
        }
    }

    /// Absent: all that is left. Explicit and too large: an error with every number.
    #[test]
    fn the_max_tokens_rule() {
        assert_eq!(max_new_tokens(2048, 8, &ends(None, 0), "messages"), Ok(2040));
        assert_eq!(max_new_tokens(2048, 8, &ends(Some(2040), 0), "messages"), Ok(2040));
        assert_eq!(max_new_tokens(2048, 2047, &ends(None, 0), "messages"), Ok(1));
        let texts = [
            (8, Some(2045), 0, "(8 in the messages, 2045 in max_tokens)"),
            (8, None, 2041, "(8 in the messages, 2041 in min_tokens)"),
            (2048, None, 0, "your messages resulted in 2048 tokens"),
            (3000, Some(1), 0, "your messages resulted in 3000 tokens"),
        ];
        for (prompt, max, min, part) in texts {
            let error = max_new_tokens(2048, prompt, &ends(max, min), "messages").expect_err(part);
            assert_eq!((error.code, error.status().as_u16()), (Code::ContextLengthExceeded, 400));
            assert!(error.message.contains("maximum context length is 2048 tokens"), "{}", error.message);
            assert!(error.message.contains(part), "{}", error.message);
        }
    }

    #[test]
    fn wishes_go_before_defaults() {
        let defaults = SamplingDefaults { temperature: 0.6, top_p: 0.9, ..SamplingDefaults::default() };
        let wishes = Wishes { temperature: Some(1e-30), ..Wishes::default() };
        let params = sampling(&defaults, &wishes, &ends(None, 0), vec![2]);
        assert_eq!((params.temperature, params.top_p, params.stop_tokens), (0.0, 0.9, vec![2]));
    }
}
