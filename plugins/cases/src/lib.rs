//! Runs the bundled stages natively: chains by name, streams cut in any way, and what came out as one value.
//!
//! The shared cases, the property tests and the fuzz entry points use the same few functions. Nothing here is part of
//! a component.

use tokenloom_sdk::output::{
    CallKind, Channel, EndReason, Event, Marker, RESTS, Request, Session, Stage, Text, Tool, ToolChoice,
};

/// The bundled stages that are named by parsers of the cases.
pub const STAGES: [&str; 6] = ["hermes", "qwen3_json", "qwen3", "deepseek_r1", "qwen3_coder", "qwen3_xml"];

/// What one stream is told.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Name and JSON schema.
    pub tools: Vec<(String, String)>,
    pub turn_prefix: String,
    /// Texts that are tokens of the tokenizer, with their ids.
    pub added: Vec<(String, u32)>,
}

/// What a chain made of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<Call>,
    /// Bytes of arguments that had been sent before the last feed.
    pub early_arguments: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    pub arguments: String,
    /// `None`: it never ended.
    pub complete: Option<bool>,
}

/// A chain of stages. `None`: a name is not bundled.
pub fn open(names: &[&str], setup: &Setup) -> Option<Vec<Box<dyn Session>>> {
    names.iter().map(|name| open_one(name, setup)).collect()
}

fn open_one(name: &str, setup: &Setup) -> Option<Box<dyn Session>> {
    match name {
        "hermes" | "qwen3_json" => session::<hermes::Hermes>("{}", setup),
        "qwen3" => session::<think::Think>("{}", setup),
        "deepseek_r1" => session::<think::Think>("{\"assume_open\": true}", setup),
        "qwen3_coder" | "qwen3_xml" => session::<qwen3_coder::Qwen3Coder>("{}", setup),
        _ => None,
    }
}

fn session<S: Stage>(settings: &str, setup: &Setup) -> Option<Box<dyn Session>> {
    let stage = S::configure(settings).ok()?;
    let token = |text: &str| setup.added.iter().find(|(added, _)| added == text).map(|(_, id)| *id);
    let markers = stage.requires().markers.into_iter().map(|text| Marker { token: token(&text), text }).collect();
    let tool = |(name, schema): &(String, String)| Tool {
        name: name.clone(),
        kind: CallKind::Json,
        schema_json: Some(schema.clone()),
        strict: false,
    };
    let request = Request {
        tools: setup.tools.iter().map(tool).collect(),
        tool_choice: ToolChoice::Auto,
        parallel_calls: true,
        starts_in: None,
        turn_prefix: setup.turn_prefix.clone(),
        markers,
        ext: Vec::new(),
    };
    Some(Box::new(stage.open(request)))
}

/// A piece of a stream: text, or an added token.
pub type Piece = (String, Option<u32>);

/// A stage as the host calls it: not at all while it rests and the text is none it waits for.
struct Rested {
    session: Box<dyn Session>,
    until: Option<String>,
}

impl Rested {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, String> {
        if self.until.as_ref().is_some_and(|until| events.iter().all(|event| passes(event, until))) {
            return Ok(events);
        }
        let mut events = self.session.feed(events).map_err(|error| error.message)?;
        self.until =
            events.pop_if(|event| matches!(event, Event::Ext(it) if it.key == RESTS)).and_then(|event| match event {
                Event::Ext(setting) => Some(setting.value),
                _ => None,
            });
        Ok(events)
    }
}

fn passes(event: &Event, until: &str) -> bool {
    let Event::Text(Text { channel: Channel::Content, text, token: None }) = event else { return false };
    let ends_right = until.is_empty() || !text.ends_with(char::is_whitespace);
    !text.is_empty() && ends_right && !text.contains(|c| until.contains(c))
}

/// Feeds a chain one piece per step, as the host does. An error names the rule that the events broke.
pub fn run(chain: Vec<Box<dyn Session>>, pieces: &[Piece]) -> Result<Answer, String> {
    let mut chain: Vec<Rested> = chain.into_iter().map(|session| Rested { session, until: None }).collect();
    let mut answer = Answer::default();
    for (text, token) in pieces {
        let text = Text { channel: Channel::Content, text: text.clone(), token: *token };
        let mut events = vec![Event::Text(text)];
        for stage in &mut chain {
            events = stage.feed(events)?;
        }
        answer.early_arguments = answer.calls.iter().map(|call| call.arguments.len()).sum();
        answer.take(events)?;
    }
    for at in 0..chain.len() {
        let mut events = chain[at].session.finish(EndReason::StopToken(0)).map_err(|error| error.message)?;
        for stage in &mut chain[at + 1..] {
            events = stage.feed(events)?;
        }
        answer.take(events)?;
    }
    match answer.calls.iter().any(|call| call.complete.is_none()) {
        true => Err("a call never ended".into()),
        false => Ok(answer),
    }
}

impl Answer {
    fn take(&mut self, events: Vec<Event>) -> Result<(), String> {
        for event in events {
            match event {
                Event::Text(text) if text.channel == Channel::Reasoning => self.reasoning.push_str(&text.text),
                Event::Text(text) => self.content.push_str(&text.text),
                Event::CallStart(start) => {
                    if start.index as usize != self.calls.len() || self.calls.iter().any(|c| c.complete.is_none()) {
                        return Err(format!("call {} starts out of order", start.index));
                    }
                    self.calls.push(Call { name: start.name, ..Call::default() });
                }
                Event::CallArguments(arguments) => {
                    self.open_call(arguments.index)?.arguments.push_str(&arguments.fragment);
                }
                Event::CallEnd(end) => self.open_call(end.index)?.complete = Some(end.complete),
                Event::Ext(_) => return Err("an unknown event".into()),
            }
        }
        Ok(())
    }

    fn open_call(&mut self, index: u32) -> Result<&mut Call, String> {
        let call = self.calls.get_mut(index as usize).filter(|call| call.complete.is_none());
        call.ok_or_else(|| format!("call {index} is not open"))
    }
}

/// Cuts text into pieces of `size` characters; 0 leaves it whole.
pub fn cut(text: &str, size: usize) -> Vec<Piece> {
    if size == 0 {
        return vec![(text.to_string(), None)];
    }
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).map(|part| (part.iter().collect(), None)).collect()
}

/// For a fuzzer: the first two bytes choose the cutting and the prompt's end, the rest is what the model says. Panics
/// when a rule is broken or the cutting changes the answer, as a fuzzer wants it.
pub fn fuzz(names: &[&str], data: &[u8]) {
    let Some((&[size, start], text)) = data.split_first_chunk::<2>() else { return };
    let prefixes = ["", "<think>\n", "<think>\n\n</think>\n\n"];
    let schema = "{\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}}}";
    let setup = Setup {
        tools: vec![("f".into(), schema.into())],
        turn_prefix: prefixes[start as usize % prefixes.len()].into(),
        added: Vec::new(),
    };
    let text = String::from_utf8_lossy(text);
    let whole = open(names, &setup).map(|chain| run(chain, &cut(&text, 0)));
    let parts = open(names, &setup).map(|chain| run(chain, &cut(&text, size as usize)));
    match (whole, parts) {
        (Some(Ok(mut whole)), Some(Ok(mut parts))) => {
            (whole.early_arguments, parts.early_arguments) = (0, 0);
            assert_eq!(whole, parts, "cutting changed the answer");
        }
        (whole, parts) => panic!("{whole:?} {parts:?}"),
    }
}
