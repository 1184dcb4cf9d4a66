//! Cases of a constrained answer: `request` asks for a schema, and each of `runs` begins behind another prompt. A model
//! without any sense answers, so that only the grammar can make its answer right.
//!
//! Such a case says what is `observable` in prose; this is what it is read as: thinking is free, the answer is bound from
//! its first token on, and neither is found in the other's place.

use std::sync::Arc;

use contract::TokenId;
use contract::output::{OutputStage, StageRequest};
use grammar::{Compiler, Limits, Metrics, Source, Strictness};
use serde_json::{Map, Value};

use super::walk::{Random, Walk, answer, fits};
use super::{CasePlugins, Chain, Stop};
use crate::{ByteVocabToken, ConstraintJob, EndOfStream, OutputJob, Structure, TextModel, TextModelParts, Tokenizer};

/// The reader of thoughts that cases of this kind mean.
const PARSER: &str = "qwen3";
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
/// What no schema allows as an answer.
const THOUGHT: &str = "Let me see: {\"n\": 1}, or \"two\"?";
const END: TokenId = 256;
/// Texts for each prompt.
const SEEDS: u64 = 20;

pub(super) fn run(
    input: &Map<String, Value>,
    expected: &Map<String, Value>,
    chain: &Chain,
    plugins: &mut dyn CasePlugins,
) -> Result<(), Stop> {
    let known = |key: &str| key == "observable" || super::is_remark(key);
    if let Some(key) = expected.keys().find(|key| !known(key)) {
        return Err(Stop::fail(format!("`expected.{key}` is not verified by this runner")));
    }
    let schema = input["request"].pointer("/response_format/json_schema/schema");
    let schema = schema.ok_or_else(|| Stop::fail("`input.request` must ask for a json_schema"))?;
    let model = model(chain, plugins)?;
    let prompt = |run: &Value| run.get("prompt_ends_with").and_then(Value::as_str).map(str::to_owned);
    let prompts: Option<Vec<String>> = input["runs"].as_array().and_then(|runs| runs.iter().map(prompt).collect());
    let prompts = prompts.ok_or_else(|| Stop::fail("each of `input.runs` must have `prompt_ends_with`"))?;
    for prompt in &prompts {
        for seed in 0..SEEDS {
            once(&model, schema, prompt, seed)
                .map_err(|why| Stop::fail(format!("behind {prompt:?}, seed {seed}: {why}")))?;
        }
    }
    Ok(())
}

fn model(chain: &Chain, plugins: &mut dyn CasePlugins) -> Result<TextModel, Stop> {
    let stages: Vec<Arc<dyn OutputStage>> = match chain {
        Chain::None => return Err(Stop::Skip("no output stage is under test".to_owned())),
        Chain::Given { provides, .. } if !provides.iter().any(|name| name == PARSER) => {
            return Err(Stop::Skip(format!("the given stages do not provide `{PARSER}`")));
        }
        Chain::Given { stages, .. } => stages.clone(),
        Chain::FromCase => {
            let stage = plugins.stage(PARSER).map_err(|e| Stop::fail(format!("`{PARSER}`: {e}")))?;
            vec![stage.ok_or_else(|| Stop::Skip(format!("there is no output stage `{PARSER}`")))?]
        }
    };
    let added = |text: &str| ByteVocabToken { bytes: text.into(), added: true };
    let tokenizer = Tokenizer::from_bytes_vocab(vec![added(OPEN), added(CLOSE)]);
    let failed = |e: &dyn std::fmt::Display| Stop::fail(e.to_string());
    let grammars =
        Compiler::new(tokenizer.vocabulary(), Limits::default(), Metrics::default()).map_err(|e| failed(&e))?;
    let model = TextModel::new(TextModelParts { tokenizer, template: None, stages }).map_err(|e| failed(&e))?;
    model.with_grammars(Arc::new(grammars)).map_err(|e| failed(&e))
}

fn once(model: &TextModel, schema: &Value, prompt: &str, seed: u64) -> Result<(), String> {
    let stage_request = StageRequest { turn_prefix: prompt.to_owned(), ..StageRequest::default() };
    let source = Source::JsonSchema { schema: schema.clone(), strictness: Strictness::Strict };
    let structure = Structure { source, param: "response_format".to_owned() };
    let job = ConstraintJob {
        structure: Some(structure),
        stage_request: stage_request.clone(),
        ends: vec![END],
        ..ConstraintJob::default()
    };
    let plan = model.constrain(&job, &mut Vec::new()).map_err(|e| e.to_string())?;
    let tokenizer = model.tokenizer();
    let mut walk = Walk::new(&plan.ok_or("nothing is enforced")?, tokenizer.vocab_size(), END);
    let thinks = prompt.rfind(OPEN) > prompt.rfind(CLOSE);
    if thinks {
        for byte in THOUGHT.bytes() {
            if walk.is_bound() {
                return Err(format!("thoughts are bound after {} bytes", walk.tokens.len()));
            }
            walk.say(&[byte.into()])?;
        }
        walk.say(&tokenizer.added_token(CLOSE).map_or_else(Vec::new, |close| vec![close]))?;
    }
    if !walk.is_bound() || walk.allows(b'L'.into())? {
        return Err("the answer's first token is free".to_owned());
    }
    if !walk.wander(&mut Random(seed))? {
        return Err("the answer does not end".to_owned());
    }
    let job = OutputJob { stage_request, stop_tokens: vec![END], skip_special_tokens: true, ..OutputJob::default() };
    let steps = walk.tokens.iter().map(|&token| vec![token]);
    let said = answer(model, &job, steps, EndOfStream::StopToken(END)).map_err(|e| e.to_string())?;
    let thought = if thinks { THOUGHT } else { "" };
    if said.reasoning.trim() != thought {
        return Err(format!("the reasoning is {:?}, expected {thought:?}", said.reasoning));
    }
    let content: Value = serde_json::from_str(&said.content())
        .map_err(|e| format!("the content {:?} is no JSON: {e}", said.content()))?;
    fits(schema, &content)
}
