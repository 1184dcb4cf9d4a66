use contract::PluginError;
use contract::output::{Constraint, OutputStage, Requirements, StageSession};
use grammar::{Compiler, Limits, Metrics};

use super::*;
use crate::test_stages::think;
use crate::{ByteVocabToken, TextModelParts, Tokenizer};

/// A stage whose calls are the tool's name and its arguments; it gives its grammar where it must, or where a tool is
/// strict.
struct Calls(Requirements);

fn calls() -> Arc<dyn OutputStage> {
    Arc::new(Calls(Requirements { tool_schemas: true, ..Requirements::default() }))
}

impl OutputStage for Calls {
    fn name(&self) -> &str {
        "calls"
    }

    fn requirements(&self) -> &Requirements {
        &self.0
    }

    fn constrain(&self, request: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        let must_call = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if !must_call && !request.tools.iter().any(|tool| tool.strict) {
            return Ok(None);
        }
        let option = |tool: &Tool| {
            format!("\"{}\" %json {}", tool.name, tool.schema_json.as_deref().expect("schemas were asked for"))
        };
        let options: Vec<String> = request.tools.iter().map(option).collect();
        let free = if must_call { "" } else { " | /free.*/" };
        let grammar = format!("start: call{free}\ncall: {}", options.join(" | "));
        Ok(Some(Constraint { start: StartAt::AfterReasoning, language: "lark".into(), grammar }))
    }

    fn open(&self, _: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        unreachable!("these tests open no output")
    }
}

/// As [`Calls`], but each call begins with a token, and there is a grammar only where one must come.
struct OnlyRequired(Requirements);

impl OutputStage for OnlyRequired {
    fn name(&self) -> &str {
        "only-required"
    }

    fn requirements(&self) -> &Requirements {
        &self.0
    }

    fn constrain(&self, request: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        if request.tool_choice != ToolChoice::Required {
            return Ok(None);
        }
        let Some(tool) = request.tools.first() else { return Ok(None) };
        let schema = tool.schema_json.as_deref().unwrap_or("{}");
        let grammar = format!("start: <[257]> \"{}\" %json {schema}", tool.name);
        Ok(Some(Constraint { start: StartAt::AfterReasoning, language: "lark".into(), grammar }))
    }

    fn open(&self, _: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        unreachable!("these tests open no output")
    }
}

fn model(stages: Vec<Arc<dyn OutputStage>>) -> TextModel {
    let added = |text: &str| ByteVocabToken { bytes: text.into(), added: true };
    let tokenizer = Tokenizer::from_bytes_vocab(vec![added("<think>"), added("</think>")]);
    let grammars = Compiler::new(tokenizer.vocabulary(), Limits::default(), Metrics::default()).unwrap();
    let model = TextModel::new(TextModelParts { tokenizer, template: None, stages }).unwrap();
    model.with_grammars(Arc::new(grammars)).unwrap()
}

fn tool(name: &str, strict: bool, schema: Value) -> Tool {
    Tool { name: name.into(), kind: CallKind::Json, schema_json: Some(schema.to_string().into()), strict }
}

fn structure() -> Option<Structure> {
    Some(Structure { source: Source::Regex("[0-9]+".into()), param: "guided_regex".into() })
}

fn job(tools: Vec<Tool>, tool_choice: ToolChoice) -> ConstraintJob {
    let stage_request = StageRequest { tools, tool_choice, parallel_calls: true, ..StageRequest::default() };
    ConstraintJob { stage_request, ends: vec![256], ..ConstraintJob::default() }
}

/// Where the constraint of a job refuses a text: `|` behind what it lets through. `free`: there is none.
fn goes(model: &TextModel, job: &ConstraintJob, text: &str) -> String {
    let Some(plan) = model.constrain(job, &mut Vec::new()).unwrap() else { return "free".into() };
    let mut stream = plan.open();
    let mut mask = vec![0u32; model.tokenizer().vocab_size().div_ceil(32)];
    let mut said = String::new();
    for token in model.tokenizer().encode(text, false).unwrap() {
        mask.fill(u32::MAX);
        if stream.is_active() {
            stream.fill_mask(&mut mask).unwrap();
        }
        if mask[token as usize / 32] >> (token % 32) & 1 == 0 {
            return said + "|";
        }
        stream.accept(token).unwrap();
        said += &model.tokenizer().decode(&[token], false);
    }
    said
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// The table at the head of the module, row by row.
#[test]
fn the_table() {
    let model = model(vec![calls()]);
    let tools = || vec![tool("f", false, any_object())];
    let check = |job: ConstraintJob, text: &str, expected: &str| assert_eq!(goes(&model, &job, text), expected);
    let with = |mut job: ConstraintJob| {
        job.structure = structure();
        job
    };
    check(with(job(vec![], ToolChoice::Auto)), "12x", "12|");
    check(with(job(tools(), ToolChoice::None)), "f{}", "|");
    check(job(tools(), ToolChoice::Auto), "anything", "free");
    check(job(vec![tool("f", true, any_object())], ToolChoice::Auto), "f{}", "f{}");
    check(job(vec![tool("f", true, any_object())], ToolChoice::Auto), "free text", "free text");
    check(with(job(tools(), ToolChoice::Auto)), "12", "12");
    check(with(job(tools(), ToolChoice::Auto)), "f{}", "f{}");
    check(with(job(tools(), ToolChoice::Auto)), "text", "|");
    check(job(tools(), ToolChoice::Required), "f{}<|end|>", "f{}<|end|>");
    check(job(tools(), ToolChoice::Named("f".into())), "12", "|");
    let refused = model.constrain(&with(job(tools(), ToolChoice::Required)), &mut Vec::new()).err().unwrap();
    assert_eq!((refused.param(), refused.is_request_fault()), (Some("guided_regex"), true));
    // Allowed tools of which one must be called, and no others.
    let both = vec![tool("f", false, any_object()), tool("g", false, any_object())];
    let mut allowed = job(both, ToolChoice::Allowed(vec!["g".into()]));
    allowed.allowed_is_required = true;
    assert_eq!((goes(&model, &allowed, "g{}"), goes(&model, &allowed, "f{}")), ("g{}".into(), "|".into()));
}

/// A stage that only knows calls which must come: beside free text they are held from their token on.
#[test]
fn strict_calls_beside_free_text() {
    let model = model(vec![Arc::new(OnlyRequired(Requirements { tool_schemas: true, ..Requirements::default() }))]);
    let strict = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let job = job(vec![tool("f", true, strict)], ToolChoice::Auto);
    assert_eq!(goes(&model, &job, "text <think>f{\"a\":1}"), "text <think>f{\"a\":1}");
    assert_eq!(goes(&model, &job, "text <think>f{\"b\""), "text <think>f{\"|");
}

/// Without a stage that gives a grammar a call cannot be required, and strict tools are a warning.
#[test]
fn models_without_a_grammar_for_calls() {
    let model = model(vec![think()]);
    let mut warnings = Vec::new();
    let required = job(vec![tool("f", false, any_object())], ToolChoice::Required);
    let error = model.constrain(&required, &mut warnings).err().unwrap();
    assert_eq!((error.param(), error.is_request_fault()), (Some("tool_choice"), true));
    let strict = job(vec![tool("f", true, any_object())], ToolChoice::Auto);
    assert!(model.constrain(&strict, &mut warnings).unwrap().is_none());
    assert!(warnings.len() == 1 && warnings[0].starts_with("strict tools and allowed_tools are not enforced"));
}

/// A strict tool's schema is enforced or refused with its place; another one's is enforced as far as it can be.
#[test]
fn schemas_of_tools() {
    let model = model(vec![calls()]);
    let unique =
        || json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}, "required": ["a"]});
    let error =
        model.constrain(&job(vec![tool("f", true, unique())], ToolChoice::Required), &mut Vec::new()).err().unwrap();
    assert!(error.to_string().contains("at `/properties/a`, keyword `uniqueItems`"), "{error}");
    assert_eq!(error.param(), Some("tools[0].function.parameters"));
    let lenient = job(vec![tool("f", false, unique())], ToolChoice::Required);
    assert_eq!(goes(&model, &lenient, "f{\"b\""), "f{\"|");
    let mut warnings = Vec::new();
    assert!(model.constrain(&lenient, &mut warnings).unwrap().is_some());
    assert_eq!(
        warnings,
        ["tools[0].function.parameters: schema keyword `uniqueItems` cannot be enforced and has no effect"]
    );
    // What only the library refuses: found among the tools, refused when strict, else any object.
    let look =
        || json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]});
    let tools = |strict: bool| vec![tool("g", false, any_object()), tool("f", strict, look())];
    let error = model.constrain(&job(tools(true), ToolChoice::Required), &mut Vec::new()).err().unwrap();
    assert_eq!(error.param(), Some("tools[1].function.parameters"));
    assert!(error.to_string().contains("at `/properties/a`, keyword `pattern`"), "{error}");
    let relaxed = job(tools(false), ToolChoice::Required);
    assert_eq!(goes(&model, &relaxed, "f{\"b\":1}"), "f{\"b\":1}");
    // What is no schema at all is an object as well.
    let malformed = job(vec![tool("f", false, json!({"type": "dict"}))], ToolChoice::Required);
    assert_eq!(goes(&model, &malformed, "f{}"), "f{}");
}

/// The budget alone is a constraint where the model has reasoning, and none where it has not.
#[test]
fn budgets() {
    let mut job = job(vec![], ToolChoice::Auto);
    job.stage_request.turn_prefix = "<think>".into();
    job.thinking_tokens_max = Some(1);
    let thinks = model(vec![think()]);
    assert_eq!(goes(&thinks, &job, "ab"), "a|");
    assert_eq!(goes(&thinks, &job, "a</think>ab"), "a</think>ab");
    assert_eq!(goes(&model(vec![]), &job, "ab"), "free");
}

#[test]
fn two_grammars_are_one_too_many() {
    let tokenizer = Tokenizer::from_bytes_vocab(Vec::new());
    let grammars = Arc::new(Compiler::new(tokenizer.vocabulary(), Limits::default(), Metrics::default()).unwrap());
    let model = TextModel::new(TextModelParts { tokenizer, template: None, stages: vec![calls(), calls()] }).unwrap();
    let error = model.with_grammars(grammars).err().unwrap().to_string();
    assert!(error.contains("`calls` and `calls` both give a grammar"), "{error}");
}
