use std::sync::Mutex;

use contract::output::{CallKind, EndReason, OutputEvent, Requirements, StageSession, Tool};
use contract::{PluginError, Severity};
use serde_json::Value;

use super::*;
use crate::ByteVocabToken;
use crate::test_stages::{TestStage, think};

/// A template from a function of the parsed request.
struct TestTemplate<F>(F);

impl<F: Fn(&Value) -> Result<Rendered, String> + Send + Sync> ChatTemplate for TestTemplate<F> {
    fn name(&self) -> &str {
        "test"
    }

    fn render(&self, request_json: &str) -> Result<Rendered, PluginError> {
        let request = serde_json::from_str(request_json).unwrap();
        (self.0)(&request).map_err(|e| PluginError::new("test", Severity::RejectRequest, "template-raised", e))
    }
}

fn tokenizer() -> Tokenizer {
    let added = |text: &str| ByteVocabToken { bytes: text.into(), added: true };
    Tokenizer::from_bytes_vocab(vec![added("<|im_end|>"), added("<think>"), added("</think>")])
}

fn model(
    template: impl Fn(&Value) -> Result<Rendered, String> + Send + Sync + 'static,
    stages: Vec<Arc<dyn OutputStage>>,
) -> TextModel {
    let template: Option<Arc<dyn ChatTemplate>> = Some(Arc::new(TestTemplate(template)));
    TextModel::new(TextModelParts { tokenizer: tokenizer(), template, stages }).unwrap()
}

fn plain(request: &Value) -> Result<Rendered, String> {
    let text = request["messages"][0]["content"].as_str().ok_or("content must be text")?;
    let stop = vec!["<|im_end|>".into(), "User:".into(), "User:".into()];
    Ok(Rendered { prompt: format!("{text}<|im_end|>"), stop, ..Rendered::default() })
}

fn job(content: Value) -> ChatJob {
    ChatJob { messages: vec![json!({"role": "user", "content": content})], ..ChatJob::default() }
}

/// Stop strings that are one added token become stop tokens, the others stay text.
#[test]
fn a_chat_becomes_prompt_tokens_and_stops() {
    let prepared = model(plain, vec![]).prepare_chat(&job(json!("hi"))).unwrap();
    assert_eq!(prepared.prompt, [104, 105, 257]);
    assert_eq!(prepared.stops, Stops { tokens: vec![257], strings: vec!["User:".into()] });
}

/// Case tmpl-07: the template's own message reaches the client as a request fault.
#[test]
fn a_template_failure_is_the_requests_fault() {
    let refuse = |request: &Value| match request["messages"][0]["content"].as_str() {
        Some("bad") => Err("roles must alternate".to_owned()),
        _ => plain(request),
    };
    let error = model(refuse, vec![]).prepare_chat(&job(json!("bad"))).unwrap_err();
    assert_eq!(error.to_string(), "chat template `test`: roles must alternate");
    assert!(error.is_request_fault());
}

#[test]
fn a_template_that_takes_only_parts_is_given_parts() {
    let parts = |request: &Value| {
        let text = request["messages"][0]["content"][0]["text"].as_str().ok_or("content must be parts")?;
        Ok(Rendered { prompt: text.to_owned(), ..Rendered::default() })
    };
    assert_eq!(model(parts, vec![]).render_chat(&job(json!("hi"))).unwrap().prompt, "hi");
}

#[test]
fn no_template_is_an_error_that_names_the_flag() {
    let model = TextModel::new(TextModelParts { tokenizer: tokenizer(), template: None, stages: vec![] }).unwrap();
    let error = model.prepare_chat(&job(json!("hi"))).unwrap_err();
    assert_eq!((&error, error.is_request_fault()), (&TextError::NoTemplate, true));
}

/// Start-up says so when thinking would arrive as content.
#[test]
fn a_template_that_opens_thinking_needs_a_reasoning_stage() {
    let opens = |request: &Value| Ok(Rendered { starts_in: Some(Channel::Reasoning), ..plain(request)? });
    assert_eq!(model(opens, vec![]).warnings().len(), 1);
    assert_eq!(model(opens, vec![think()]).warnings(), [""; 0]);
    assert_eq!(model(plain, vec![]).warnings(), [""; 0]);
}

#[test]
fn spans_resolve_to_tokens_or_bytes() {
    let token = ResolvedSpan { open: ResolvedMarker::Token(258), close: ResolvedMarker::Token(259) };
    assert_eq!(model(plain, vec![think()]).spans(), [token]);
    let tokenizer = Tokenizer::from_bytes_vocab(vec![]);
    let model = TextModel::new(TextModelParts { tokenizer, template: None, stages: vec![think()] }).unwrap();
    assert_eq!(model.spans()[0].open, ResolvedMarker::Bytes(b"<think>".to_vec()));
}

fn reasoning_tokens(starts_in: Option<Channel>, turn_prefix: &str) -> u32 {
    let model = model(plain, vec![think()]);
    let stage_request = StageRequest { starts_in, turn_prefix: turn_prefix.into(), ..StageRequest::default() };
    let mut pipeline = model.open_output(&OutputJob { stage_request, ..OutputJob::default() }).unwrap();
    pipeline.push(&[97, 98, 259, 99], vec![]).unwrap();
    pipeline.usage().reasoning_tokens
}

/// What the template says decides; without it, the end of the turn prefix.
#[test]
fn the_start_state_comes_from_the_prompt() {
    assert_eq!(reasoning_tokens(Some(Channel::Reasoning), ""), 2);
    assert_eq!(reasoning_tokens(Some(Channel::Content), "<think>"), 0);
    assert_eq!(reasoning_tokens(None, "<|im_start|>assistant\n<think>\n"), 2);
    assert_eq!(reasoning_tokens(None, "<think>\n\n</think>\n\n"), 0);
    assert_eq!(reasoning_tokens(None, ""), 0);
}

#[test]
fn a_stage_is_told_what_it_asked_for_and_no_more() {
    struct Pass;
    impl StageSession for Pass {
        fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
            Ok(events)
        }
        fn finish(&mut self, _reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
            Ok(vec![])
        }
    }
    let seen: Arc<Mutex<Vec<StageRequest>>> = Arc::default();
    let stage = |tool_schemas| {
        let seen = Arc::clone(&seen);
        let markers = vec!["</think>".into(), "<unknown>".into()];
        let requirements = Requirements { markers, tool_schemas, ..Requirements::default() };
        let open = move |request: &StageRequest| -> Box<dyn StageSession> {
            seen.lock().unwrap().push(request.clone());
            Box::new(Pass)
        };
        Arc::new(TestStage { name: "seen", requirements, open: Box::new(open) }) as Arc<dyn OutputStage>
    };
    let model = model(plain, vec![stage(false), stage(true)]);
    let tool = Tool { name: "f".into(), kind: CallKind::Json, schema_json: Some("{}".into()), strict: false };
    let turn_prefix = "é".repeat(TURN_PREFIX_BYTES_MAX);
    let stage_request = StageRequest { tools: vec![tool], turn_prefix, ..StageRequest::default() };
    model.open_output(&OutputJob { stage_request, ..OutputJob::default() }).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.iter().map(|s| s.tools[0].schema_json.is_some()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(seen[0].turn_prefix.len(), TURN_PREFIX_BYTES_MAX);
    let markers: Vec<_> = seen[0].markers.iter().map(|m| (m.text.as_str(), m.token)).collect();
    assert_eq!(markers, [("</think>", Some(259)), ("<unknown>", None)]);
}
