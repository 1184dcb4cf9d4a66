//! Runs the bundled stages natively: chains by name, streams cut in any way, and what came out as one value.
//!
//! The shared cases, the property tests and the fuzz entry points use the same few functions. Nothing here is part of
//! a component.

use tokenloom_sdk::output::{
    CallArguments, CallKind, Channel, Constraint, EndReason, Event, Marker, Request, Rest, RestKind, Session, Stage,
    Text, Tool, ToolChoice,
};

pub mod render;

/// The bundled stages by every name that parsers go by, with the settings that the name stands for.
macro_rules! stages {
    ($($name:literal => $stage:ty, $settings:literal;)*) => {
        pub const STAGES: &[&str] = &[$($name),*];

        fn open_one(name: &str, setup: &Setup) -> Option<Box<dyn Session>> {
            match name {
                $($name => session::<$stage>($settings, setup),)*
                _ => None,
            }
        }

        /// The markers of a stage, empty for one that is not bundled.
        pub fn markers(name: &str) -> Vec<String> {
            match name {
                $($name => <$stage>::configure($settings).map(|stage| stage.requires().markers).unwrap_or_default(),)*
                _ => Vec::new(),
            }
        }

        /// The grammar that a stage asks for, as the host would get it.
        pub fn grammar(name: &str, request: &Request) -> Option<Constraint> {
            match name {
                $($name => <$stage>::configure($settings).ok()?.constrain(request).ok()?,)*
                _ => None,
            }
        }
    };
}

stages! {
    "hermes" => hermes::Hermes, "{}";
    "qwen3_json" => hermes::Hermes, "{}";
    "qwen3_coder" => qwen3_coder::Qwen3Coder, "{}";
    "qwen3_xml" => qwen3_coder::Qwen3Coder, "{}";
    "llama3_json" => llama3_json::Llama3Json, "{}";
    "llama4_json" => llama3_json::Llama3Json, "{}";
    "pythonic" => pythonic::Pythonic, "{}";
    "llama4_pythonic" => pythonic::Pythonic, "{}";
    "olmo3" => pythonic::Pythonic, "{}";
    "lfm2" => pythonic::Pythonic, "{}";
    "mistral" => mistral::Mistral, "{}";
    "deepseek_v3" => deepseek_v3::DeepseekV3, "{}";
    "deepseek_v31" => deepseek_v3::DeepseekV3, "{\"version\": \"v31\"}";
    "deepseek_v32" => deepseek_v32::DeepseekV32, "{}";
    "glm45" => glm45::Glm45, "{}";
    "glm47" => glm45::Glm45, "{}";
    "kimi_k2" => kimi_k2::KimiK2, "{}";
    "minimax_m2" => minimax_m2::MinimaxM2, "{}";
    "gpt_oss" => gpt_oss::GptOss, "{}";
    "granite" => granite::Granite, "{}";
    "phi4_mini_json" => phi4_mini_json::Phi4MiniJson, "{}";
    "gemma4" => gemma4::Gemma4, "{}";
    "seed_oss" => seed_oss::SeedOss, "{}";
    "qwen3" => think::Think, "{}";
    "deepseek_r1" => think::Think, "{\"assume_open\": true}";
    "minimax" => think::Think, "{\"assume_open\": true}";
}

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
    /// The one that the model wrote.
    pub id: Option<String>,
    pub name: String,
    pub arguments: String,
    /// `None`: it never ended.
    pub complete: Option<bool>,
}

/// A chain of stages. `None`: a name is not bundled.
pub fn open(names: &[&str], setup: &Setup) -> Option<Vec<Box<dyn Session>>> {
    names.iter().map(|name| open_one(name, setup)).collect()
}

/// A stage that is described by settings.
pub fn open_described(settings: &str, setup: &Setup) -> Result<Vec<Box<dyn Session>>, String> {
    declarative::Declarative::configure(settings).map_err(|error| error.message)?;
    session::<declarative::Declarative>(settings, setup).map(|session| vec![session]).ok_or_else(|| "no stage".into())
}

fn session<S: Stage>(settings: &str, setup: &Setup) -> Option<Box<dyn Session>> {
    let stage = S::configure(settings).ok()?;
    let token = |text: &str| setup.added.iter().find(|(added, _)| added == text).map(|(_, id)| *id);
    let markers = stage.requires().markers.into_iter().map(|text| Marker { token: token(&text), text }).collect();
    Some(Box::new(stage.open(Request { markers, ..request(setup, ToolChoice::Auto) })))
}

/// What a stage is told, without its markers.
pub fn request(setup: &Setup, tool_choice: ToolChoice) -> Request {
    let tool = |(name, schema): &(String, String)| Tool {
        name: name.clone(),
        kind: CallKind::Json,
        schema_json: Some(schema.clone()),
        strict: false,
    };
    Request {
        tools: setup.tools.iter().map(tool).collect(),
        tool_choice,
        parallel_calls: true,
        starts_in: None,
        turn_prefix: setup.turn_prefix.clone(),
        markers: Vec::new(),
        ext: Vec::new(),
    }
}

/// A piece of a stream: text, or an added token.
pub type Piece = (String, Option<u32>);

/// A stage as the host calls it: not at all while it rests and the text is none it waits for.
struct Rested {
    session: Box<dyn Session>,
    rest: Option<Rest>,
    /// The call that the stage has open.
    call: u32,
}

impl Rested {
    fn feed(&mut self, events: Vec<Event>) -> Result<Vec<Event>, String> {
        if let Some(rest) = &self.rest
            && let Some(passed) = events.iter().map(|event| passed(event, rest, self.call)).collect()
        {
            return Ok(passed);
        }
        let mut events = self.session.feed(events).map_err(|error| error.message)?;
        self.rest = Rest::take(&mut events);
        let starts = events.iter().rev().find_map(|event| match event {
            Event::CallStart(start) => Some(start.index),
            _ => None,
        });
        self.call = starts.unwrap_or(self.call);
        Ok(events)
    }
}

/// What a resting stage makes of an event; `None` where it has to be asked.
fn passed(event: &Event, rest: &Rest, call: u32) -> Option<Event> {
    let Event::Text(Text { channel, text, token: None }) = event else { return None };
    let from = if rest.kind == RestKind::Reasoning { Channel::Reasoning } else { Channel::Content };
    if *channel != from || text.is_empty() || text.contains(|c| rest.until.contains(c)) {
        return None;
    }
    let arguments = |fragment: &str| Event::CallArguments(CallArguments { index: call, fragment: fragment.into() });
    let relabelled = |channel| Event::Text(Text { channel, text: text.clone(), token: None });
    match rest.kind {
        RestKind::Content => Some(relabelled(Channel::Content)),
        RestKind::Reasoning | RestKind::ContentToReasoning => Some(relabelled(Channel::Reasoning)),
        RestKind::ContentToJson => {
            serde_json::from_str::<String>(&format!("\"{text}\"")).is_ok().then(|| arguments(text))
        }
        RestKind::ContentToText => {
            let quoted = serde_json::to_string(text).ok()?;
            Some(arguments(&quoted[1..quoted.len() - 1]))
        }
    }
}

/// Feeds a chain one piece per step, as the host does. An error names the rule that the events broke.
pub fn run(chain: Vec<Box<dyn Session>>, pieces: &[Piece]) -> Result<Answer, String> {
    run_until(chain, pieces, &EndReason::StopToken(0))
}

/// The same, for a stream that ends in a particular way.
pub fn run_until(chain: Vec<Box<dyn Session>>, pieces: &[Piece], end: &EndReason) -> Result<Answer, String> {
    let mut chain: Vec<Rested> = chain.into_iter().map(|session| Rested { session, rest: None, call: 0 }).collect();
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
        let mut events = chain[at].session.finish(end.clone()).map_err(|error| error.message)?;
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
                    self.calls.push(Call { id: start.id, name: start.name, ..Call::default() });
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

/// Text with every occurrence of `markers` as a token of its own, numbered from 100, and the rest cut by `size`.
pub fn with_tokens(text: &str, markers: &[String], size: usize) -> (Vec<(String, u32)>, Vec<Piece>) {
    let added: Vec<(String, u32)> = markers.iter().cloned().zip(100..).collect();
    let (mut pieces, mut rest) = (Vec::new(), text);
    loop {
        let found = |(marker, id): &(String, u32)| Some((rest.find(marker.as_str())?, usize::MAX - marker.len(), *id));
        // The first marker, and the longest of those that begin there.
        let Some((at, from_longest, id)) = added.iter().filter_map(found).min() else { break };
        let end = at + (usize::MAX - from_longest);
        pieces.extend(cut(&rest[..at], size));
        pieces.push((rest[at..end].to_string(), Some(id)));
        rest = &rest[end..];
    }
    pieces.extend(cut(rest, size));
    pieces.retain(|(text, _)| !text.is_empty());
    (added, pieces)
}

/// For a fuzzer: the first byte chooses the stage, the next two the cutting and the prompt's end, the rest is what the
/// model says. Panics when a rule is broken or the cutting changes the answer, as a fuzzer wants it.
pub fn fuzz(data: &[u8]) {
    let Some((&[stage, size, start], text)) = data.split_first_chunk::<3>() else { return };
    let name = STAGES[usize::from(stage) % STAGES.len()];
    // A stage that only reads calls also runs behind one that finds reasoning.
    let chains: [&[&str]; 2] = [&[name], &["qwen3", name]];
    let prefixes = ["", "<think>\n", "<think>\n\n</think>\n\n", "<|start|>assistant"];
    let schema = "{\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}}}";
    let setup = Setup {
        tools: vec![("f".into(), schema.into())],
        turn_prefix: prefixes[usize::from(start) % prefixes.len()].into(),
        added: Vec::new(),
    };
    let text = String::from_utf8_lossy(text);
    for names in chains {
        let whole = open(names, &setup).map(|chain| run(chain, &cut(&text, 0)));
        let parts = open(names, &setup).map(|chain| run(chain, &cut(&text, size as usize)));
        match (whole, parts) {
            (Some(Ok(mut whole)), Some(Ok(mut parts))) => {
                (whole.early_arguments, parts.early_arguments) = (0, 0);
                assert_eq!(whole, parts, "cutting changed the answer of {names:?}");
            }
            (whole, parts) => panic!("{names:?}: {whole:?} {parts:?}"),
        }
    }
}
