//! A server in a box: the router over an engine that plays a script, with a small template and a small tool stage.

use std::sync::Arc;

use api::{ApiOptions, ApiState, Keys, Loaded, ModelOptions, NoPlugins, PromptRule, ServedModel, Store, router};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use backend::load::LoadOptions;
use backend_script::{Script, ScriptBackend};
use contract::output::{
    CallKind, Channel, Constraint, EndReason, OutputEvent, OutputStage, ReasoningSpan, Requirements, StageRequest,
    StageSession, ToolChoice,
};
use contract::template::{ChatTemplate, Rendered};
use contract::{PluginError, Severity, TokenId};
use engine::{EngineConfig, EngineParts, Handle};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use text::grammar::{Compiler, Limits, Metrics};
use text::{ByteVocabToken, TextModel, TextModelParts, Tokenizer};
use tower::ServiceExt;

/// What a test may change about the server.
#[derive(Default)]
pub struct Setup {
    pub options: ApiOptions,
    pub model: ModelOptions,
    pub keys: Keys,
    pub load: LoadOptions,
    /// In place of the small tool stage.
    pub stages: Option<Vec<Arc<dyn OutputStage>>>,
    /// Rendered behind the messages: what the template leaves open.
    pub turn_prefix: &'static str,
}

/// The small tool stage.
pub fn calls_stage() -> Vec<Arc<dyn OutputStage>> {
    vec![Arc::new(Calls(Requirements { tool_schemas: true, ..Requirements::default() }))]
}

pub struct TestServer {
    pub router: Router,
    pub state: ApiState,
    pub engine: Handle,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn error_code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn error_message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// A server whose only response is `response`.
pub fn server(response: Value) -> TestServer {
    serve(json!({"responses": [response]}), Setup::default())
}

pub fn serve(script: Value, setup: Setup) -> TestServer {
    let script = Arc::new(Script::from_json(&script.to_string()).expect("a valid script"));
    let (backend, _) = ScriptBackend::new(Arc::clone(&script), &setup.load);
    let mut registry = Registry::default();
    let parts = EngineParts { backend: Box::new(backend), policy: None, config: EngineConfig::new("scripted") };
    let engine = engine::start(parts, &mut registry).expect("the engine starts");
    let extra = script.vocabulary().into_iter().map(|(bytes, added)| ByteVocabToken { bytes, added }).collect();
    let parts = TextModelParts {
        tokenizer: Tokenizer::from_bytes_vocab(extra),
        template: Some(Arc::new(Plain { turn_prefix: setup.turn_prefix })),
        stages: setup.stages.unwrap_or_else(calls_stage),
    };
    let model = ServedModel {
        name: "scripted".into(),
        root: "script:test".into(),
        text: Arc::new(text_model(parts)),
        engine: engine.clone(),
        options: ModelOptions { prompt_rule: Some(Arc::new(Counted(script))), ..setup.model },
    };
    let store = Store::open(None, 1 << 20).expect("memory");
    let state = ApiState::new(setup.options, setup.keys, store);
    state.open(Loaded { models: vec![model], registry, plugins: Arc::new(NoPlugins) }).expect("one model");
    TestServer { router: router(state.clone()), state, engine }
}

fn text_model(parts: TextModelParts) -> TextModel {
    let vocabulary = parts.tokenizer.vocabulary();
    let grammars = Compiler::new(vocabulary, Limits::default(), Metrics::default()).expect("threads start");
    let model = TextModel::new(parts).expect("the text side loads");
    model.with_grammars(Arc::new(grammars)).expect("one stage gives a grammar")
}

impl TestServer {
    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a valid request");
        let response = self.router.clone().oneshot(request).await.expect("routers do not fail");
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.expect("bodies do not fail");
        let body = String::from_utf8(body.to_vec()).expect("answers are UTF-8");
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// The body of a request whose answer has begun; dropping it is a client that goes away.
    pub async fn open(&self, path: &str, body: &Value) -> Body {
        let request = Request::builder().method(Method::POST).uri(path).body(Body::from(body.to_string()));
        let request = request.expect("a valid request");
        self.router.clone().oneshot(request).await.expect("routers do not fail").into_body()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[], body.to_string()).await
    }

    /// A plain chat answer to `hi` with these further fields; it must be a 200.
    pub async fn chat(&self, fields: Value) -> Value {
        let answer = self.post("/v1/chat/completions", &hi(fields)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// The same, streamed.
    pub async fn stream(&self, mut fields: Value) -> Stream {
        fields["stream"] = json!(true);
        let answer = self.post("/v1/chat/completions", &hi(fields)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        Stream::read(&answer)
    }
}

pub fn hi(mut fields: Value) -> Value {
    if fields.get("messages").is_none() {
        fields["messages"] = json!([{"role": "user", "content": "hi"}]);
    }
    fields
}

/// A whole event stream, with the framing rules checked.
pub struct Stream {
    pub chunks: Vec<Value>,
    pub error: Option<Value>,
    pub done: bool,
}

impl Stream {
    pub fn read(answer: &Answer) -> Self {
        assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
        let mut stream = Self { chunks: Vec::new(), error: None, done: false };
        assert!(answer.body.ends_with("\n\n"), "the last event is whole");
        for event in answer.body.trim_end_matches('\n').split("\n\n") {
            assert!(!stream.done && stream.error.is_none(), "an event after the end: {event}");
            if event == ": keep-alive" {
                continue;
            }
            let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("not a data event: {event}"));
            if data == "[DONE]" {
                stream.done = true;
                continue;
            }
            let value: Value = serde_json::from_str(data).expect("one JSON text per event");
            match value.get("error") {
                Some(error) => stream.error = Some(error.clone()),
                None => stream.chunks.push(value),
            }
        }
        for chunk in &stream.chunks {
            for key in ["id", "created", "model", "object"] {
                assert_eq!(chunk[key], stream.chunks[0][key], "{key} is the same in all chunks");
            }
        }
        stream
    }

    /// Chunks of one choice, as its choice objects.
    pub fn choice(&self, index: u64) -> Vec<&Value> {
        let choices = self.chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices is a list"));
        choices.filter(|choice| choice["index"] == index).collect()
    }

    pub fn text(&self, index: u64, field: &str) -> String {
        self.choice(index).iter().filter_map(|choice| choice["delta"][field].as_str()).collect()
    }

    /// The one finish reason of a choice, on its last chunk and without text.
    pub fn finish_reason(&self, index: u64) -> String {
        let choice = self.choice(index);
        let (last, rest) = choice.split_last().expect("a choice has chunks");
        assert!(rest.iter().all(|chunk| chunk["finish_reason"].is_null()), "one finish reason, at the end");
        assert_eq!(last["delta"], json!({}), "the finish reason comes without text");
        last["finish_reason"].as_str().expect("a finish reason").to_owned()
    }

    /// `usage` of the last chunk, which has no choices.
    pub fn usage(&self) -> &Value {
        let (last, rest) = self.chunks.split_last().expect("a stream has chunks");
        assert_eq!(last["choices"], json!([]));
        assert!(rest.iter().all(|chunk| chunk["choices"] != json!([])), "one chunk without choices");
        &last["usage"]
    }

    /// Calls by index: id, name, joined arguments; with the rules of the first and the later fragments checked.
    pub fn calls(&self, index: u64) -> Vec<(String, String, String)> {
        let mut calls: Vec<(String, String, String)> = Vec::new();
        for choice in self.choice(index) {
            let Some(list) = choice["delta"].get("tool_calls") else { continue };
            assert!(choice["delta"].get("content").is_none(), "no content beside calls");
            for part in list.as_array().expect("tool_calls is a list") {
                let at = usize::try_from(part["index"].as_u64().expect("an index")).expect("small");
                let arguments = part["function"]["arguments"].as_str().expect("arguments are a string");
                if at == calls.len() {
                    assert_eq!(part["type"], "function");
                    let text = |value: &Value| value.as_str().filter(|s| !s.is_empty()).expect("a name").to_owned();
                    calls.push((text(&part["id"]), text(&part["function"]["name"]), arguments.to_owned()));
                } else {
                    let keys: Vec<&str> = part.as_object().expect("an object").keys().map(String::as_str).collect();
                    assert_eq!(keys, ["index", "function"], "later fragments have no id, type or name");
                    assert!(part["function"].get("name").is_none());
                    calls[at].2.push_str(arguments);
                }
            }
        }
        calls
    }
}

/// The scripted model's own prompt lengths and refusals.
struct Counted(Arc<Script>);

impl PromptRule for Counted {
    fn check(&self, prompt: &[TokenId]) -> Result<Option<u32>, String> {
        if !self.0.matches(prompt) {
            return Err("no response of the script matches the prompt".into());
        }
        Ok(self.0.counted_prompt_tokens(prompt))
    }
}

/// `role: content` lines; a system message that says "refuse" fails, as templates may.
struct Plain {
    turn_prefix: &'static str,
}

impl ChatTemplate for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn render(&self, request_json: &str) -> Result<Rendered, PluginError> {
        let request: Value = serde_json::from_str(request_json).expect("the host sends JSON");
        let mut prompt = String::new();
        for message in request["messages"].as_array().expect("messages is a list") {
            if message["content"] == "refuse" {
                let message = "system messages are not supported";
                return Err(PluginError::new("plain", Severity::RejectRequest, "raised", message));
            }
            prompt += &format!("{}: {}{}\n", message["role"], message["content"], message["tool_calls"]);
        }
        let ext = match request["kwargs"].as_object().and_then(|kwargs| kwargs.keys().next()) {
            Some(name) => vec![("unread-kwargs".to_owned(), name.clone())],
            None => Vec::new(),
        };
        prompt += self.turn_prefix;
        Ok(Rendered { prompt, ext, turn_prefix: self.turn_prefix.to_owned(), ..Rendered::default() })
    }
}

/// Splits what stands before `</think>` off as reasoning, when the prompt or the text opened it.
pub struct Think(pub Requirements);

impl Think {
    pub fn stage(forced_close: &str) -> Arc<dyn OutputStage> {
        let markers = vec!["<think>".to_owned(), "</think>".to_owned()];
        let span = ReasoningSpan {
            open: markers[0].clone(),
            close: markers[1].clone(),
            forced_close: forced_close.to_owned(),
        };
        Arc::new(Self(Requirements { markers, reasoning: vec![span], ..Requirements::default() }))
    }
}

impl OutputStage for Think {
    fn name(&self) -> &str {
        "think"
    }

    fn requirements(&self) -> &Requirements {
        &self.0
    }

    fn constrain(&self, _: &StageRequest) -> Result<Option<Constraint>, PluginError> {
        Ok(None)
    }

    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        let markers = request.markers.iter().map(|marker| marker.token).collect();
        Ok(Box::new(ThinkSession { markers, inside: request.turn_prefix.ends_with("<think>"), trim: false }))
    }
}

/// Markers are tokens in these scripts.
struct ThinkSession {
    markers: Vec<Option<TokenId>>,
    inside: bool,
    /// White space between the reasoning and the answer is nobody's.
    trim: bool,
}

impl StageSession for ThinkSession {
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        let mut out = Vec::new();
        for event in events {
            match event {
                OutputEvent::Text { token: Some(token), .. } if Some(&Some(token)) == self.markers.first() => {
                    self.inside = true;
                }
                OutputEvent::Text { token: Some(token), .. } if Some(&Some(token)) == self.markers.get(1) => {
                    (self.inside, self.trim) = (false, true);
                }
                OutputEvent::Text { text, token, .. } if self.inside => {
                    out.push(OutputEvent::Text { channel: Channel::Reasoning, text, token });
                }
                OutputEvent::Text { text, token, channel } if self.trim => {
                    let text = text.trim_start().to_owned();
                    self.trim = text.is_empty();
                    out.push(OutputEvent::Text { channel, text, token });
                }
                other => out.push(other),
            }
        }
        Ok(out)
    }

    fn finish(&mut self, _: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        Ok(Vec::new())
    }
}

/// Turns `<tool_call>{"name": …, "arguments": {…}}</tool_call>` into a call whose arguments come in two fragments;
/// the second one comes with the next step.
struct Calls(Requirements);

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
        let allowed = |name: &str| match &request.tool_choice {
            ToolChoice::Named(only) => name == only,
            ToolChoice::Allowed(names) => names.iter().any(|allowed| allowed == name),
            _ => true,
        };
        let body = |tool: &contract::output::Tool| {
            let head = json!(format!("{{\"name\": \"{}\", \"arguments\": ", tool.name));
            format!("{head} %json {} \"}}\"", tool.schema_json.as_deref().unwrap_or("{}"))
        };
        let bodies: Vec<String> = request.tools.iter().filter(|tool| allowed(&tool.name)).map(body).collect();
        let call = format!("rest: \"\\n\" body \"\\n</tool_call>\"\nbody: {}\n", bodies.join(" | "));
        let start = match (must_call, request.parallel_calls) {
            (true, true) => "start: \"<tool_call>\" rest (\"\\n<tool_call>\" rest)*\n".to_owned(),
            (true, false) => "start: \"<tool_call>\" rest\n".to_owned(),
            (false, _) => "start: (before rest)* TAIL\nbefore[suffix=\"<tool_call>\"]: /(?s:.*)/\nTAIL: ~/(?s:.*)<tool_call>(?s:.*)/\n".to_owned(),
        };
        let (language, start_at) = ("lark".to_owned(), contract::output::StartAt::AfterReasoning);
        Ok(Some(Constraint { start: start_at, language, grammar: start + &call }))
    }

    fn open(&self, request: &StageRequest) -> Result<Box<dyn StageSession>, PluginError> {
        let active = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        Ok(Box::new(CallsSession { active, held: String::new(), later: Vec::new(), calls: 0 }))
    }
}

struct CallsSession {
    active: bool,
    held: String,
    /// The rest of the last call.
    later: Vec<OutputEvent>,
    calls: u32,
}

impl StageSession for CallsSession {
    fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
        if !self.active {
            return Ok(events);
        }
        for event in events {
            if let OutputEvent::Text { text, .. } = event {
                self.held += &text;
            }
        }
        let mut out = std::mem::take(&mut self.later);
        while let Some((before, rest)) = self.held.split_once("<tool_call>") {
            let Some((call, rest)) = rest.split_once("</tool_call>") else { return Ok(out) };
            if !before.trim().is_empty() {
                out.push(OutputEvent::content(before));
            }
            let call: Value = serde_json::from_str(call).expect("scripts hold valid calls");
            let (index, arguments) = (self.calls, call["arguments"].to_string());
            let name = call["name"].as_str().expect("a name").to_owned();
            out.append(&mut self.later);
            out.push(OutputEvent::CallStart { index, id: None, name, kind: CallKind::Json });
            let (head, tail) = arguments.split_at(arguments.len() / 2);
            out.push(OutputEvent::CallArguments { index, fragment: head.to_owned() });
            self.later.push(OutputEvent::CallArguments { index, fragment: tail.to_owned() });
            self.later.push(OutputEvent::CallEnd { index, complete: true });
            self.calls += 1;
            self.held = rest.to_owned();
        }
        if !"<tool_call>".starts_with(self.held.trim_start()) {
            out.push(OutputEvent::content(std::mem::take(&mut self.held)));
        }
        Ok(out)
    }

    fn finish(&mut self, _: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
        let mut out = std::mem::take(&mut self.later);
        let rest = std::mem::take(&mut self.held);
        if !rest.trim().is_empty() {
            out.push(OutputEvent::content(rest));
        }
        Ok(out)
    }
}
