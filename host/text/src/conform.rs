//! What every output stage and every template must do, whatever its format: the host's conformance set.
//!
//! A plugin that breaks one of these would break streams of clients, so a server asks before it serves a new one, and
//! `tokenloom plugin test` asks an author's. The texts are hostile on purpose: halves of the stage's own markers, JSON that
//! breaks off, deep nesting, digits without end.

use contract::Failures;
use contract::output::CallKind;
use contract::output::{Channel, EndReason, Marker, OutputEvent, OutputStage, StageRequest, Tool, ToolChoice};
use contract::template::ChatTemplate;
use serde_json::json;

use crate::cases::{CaseResult, Outcome};

/// Characters of one engine step; 0: everything at once.
const CUTTINGS: [usize; 5] = [1, 2, 3, 7, 0];

/// Text without any markup: all of it must arrive, in order.
const PLAIN: [&str; 4] = [
    "Hello, world.",
    "Eins, zwei; drei: vier! \"fünf\" und (sechs) — größer als nichts.",
    "日本語の文章です。🙂🙃 e\u{301} कि",
    "a\nb\n\nc\td",
];

/// Text that looks like markup of many formats and is none of any.
const HOSTILE: [&str; 9] = [
    "{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"\\u00e9\\\"}\"}",
    "<tool_call>{\"name\": \"f\"<tool_call></tool_call></tool_call>",
    "<think>a<think>b</think>c</think>d",
    "[[[[{{{{((((<<<<|||| ]]]]}}}}))))>>>>",
    "<|channel|>analysis<|message|>x<|end|><|start|>assistant",
    "!f {\"a\": 1}\n!f {\"a\":\n!\n",
    "00000000000000000000000000000000000000000000000001",
    "\u{0}\u{1}\u{7f}\u{202e}\r\n\r\n",
    "[f(a=1), g(b='\\'', c=[1, 2, {'d': None}])]",
];

/// What a client would see, pieces of one kind joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Text(Channel, String),
    Call { name: String, arguments: String, complete: bool },
}

/// Joins a stream's events to what a client sees of them.
pub fn fold(events: impl IntoIterator<Item = OutputEvent>) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    for event in events {
        match event {
            OutputEvent::Text { text, .. } if text.is_empty() => {}
            OutputEvent::Text { channel, text, .. } => match seen.last_mut() {
                Some(Seen::Text(last, joined)) if *last == channel => joined.push_str(&text),
                _ => seen.push(Seen::Text(channel, text)),
            },
            OutputEvent::CallStart { name, .. } => {
                seen.push(Seen::Call { name, arguments: String::new(), complete: false });
            }
            OutputEvent::CallArguments { fragment, .. } => {
                if let Some(Seen::Call { arguments, .. }) = seen.last_mut() {
                    arguments.push_str(&fragment);
                }
            }
            OutputEvent::CallEnd { complete: done, .. } => {
                if let Some(Seen::Call { complete, .. }) = seen.last_mut() {
                    *complete = done;
                }
            }
            OutputEvent::Ext { .. } => {}
        }
    }
    seen
}

/// The set for an output stage.
pub fn stage(stage: &dyn OutputStage) -> Vec<CaseResult> {
    let needs = stage.requirements();
    let spans = needs.reasoning.iter().flat_map(|span| [span.open.as_str(), span.close.as_str()]);
    let markers: Vec<&str> = needs.markers.iter().map(String::as_str).chain(spans).collect();
    // Every marker cut off after every character, behind some text.
    let prefixes: Vec<String> = markers
        .iter()
        .flat_map(|marker| marker.char_indices().skip(1).map(move |(at, _)| format!("so {}", &marker[..at])))
        .collect();
    let shuffled: Vec<String> =
        markers.iter().flat_map(|a| markers.iter().take(8).map(move |b| format!("x{a}{{\"y{b}z"))).take(64).collect();
    vec![
        result("conformance-plain", "Plain text arrives whole, however it is cut", plain(stage)),
        result("conformance-hostile", "Text that looks like markup is read the same however it is cut", {
            HOSTILE.iter().try_for_each(|text| same(stage, text).map(drop))
        }),
        result("conformance-halves", "Half a marker at the end is given back", {
            prefixes.iter().try_for_each(|text| given_back(stage, text))
        }),
        result("conformance-markers", "Markers in any order neither fail nor depend on the cutting", {
            shuffled.iter().try_for_each(|text| same(stage, text).map(drop))
        }),
        result("conformance-ends", "A stream may end in every way, at once too", ends(stage)),
    ]
}

/// The set for a template.
pub fn template(template: &dyn ChatTemplate) -> Vec<CaseResult> {
    let render = |messages: serde_json::Value| {
        let request = json!({
            "messages": messages, "tools": null, "documents": null, "add_generation_prompt": true,
            "continue_final_message": false, "kwargs": {}, "now": "2025-01-01T00:00:00+00:00",
        });
        template.render(&request.to_string())
    };
    let once = |texts: &[&str]| {
        texts.iter().try_for_each(|text| {
            let messages = || json!([{"role": "user", "content": text}]);
            let (first, second) = (render(messages()), render(messages()));
            match (first, second) {
                (Ok(first), Ok(second)) if first != second => Err(format!("{text:?} is rendered in two ways")),
                (Ok(first), Ok(_)) if !first.prompt.contains(text.trim()) => {
                    Err(format!("{text:?} is not in the prompt"))
                }
                (Ok(_), Ok(_)) => Ok(()),
                (Err(e), _) | (_, Err(e)) => Err(format!("{text:?}: {e}")),
            }
        })
    };
    let empty = match render(json!([])) {
        Ok(_) => Ok(()),
        Err(e) if e.severity == contract::Severity::RejectRequest => Ok(()),
        Err(e) => Err(format!("no messages at all: {e}")),
    };
    vec![
        result("conformance-pure", "A user's text is in the prompt, and every time the same", once(&PLAIN[..3])),
        result("conformance-empty", "A request it cannot render is an error of the request", empty),
    ]
}

fn result(id: &str, title: &str, outcome: Result<(), String>) -> CaseResult {
    let outcome = match outcome {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    };
    CaseResult { id: id.into(), title: title.into(), outcome }
}

fn plain(stage: &dyn OutputStage) -> Result<(), String> {
    for text in PLAIN {
        let joined: String = same(stage, text)?
            .into_iter()
            .map(|seen| match seen {
                Seen::Text(_, text) => text,
                Seen::Call { name, .. } => format!("(a call of {name})"),
            })
            .collect();
        if joined != text {
            return Err(format!("{text:?} came out as {joined:?}"));
        }
    }
    Ok(())
}

/// White space around what a stage reads may go; characters may not.
fn given_back(stage: &dyn OutputStage, text: &str) -> Result<(), String> {
    let seen = same(stage, text)?;
    let joined: String = seen
        .iter()
        .map(|seen| match seen {
            Seen::Text(_, text) => text.as_str(),
            Seen::Call { arguments, .. } => arguments,
        })
        .collect();
    let missing =
        text.chars().filter(|c| !c.is_whitespace()).count() > joined.chars().filter(|c| !c.is_whitespace()).count();
    if missing { Err(format!("of {text:?} only {joined:?} came out")) } else { Ok(()) }
}

/// What comes of a text in every cutting, if that is one thing.
fn same(stage: &dyn OutputStage, text: &str) -> Result<Vec<Seen>, String> {
    let mut first: Option<Vec<Seen>> = None;
    for size in CUTTINGS {
        let seen = run(stage, text, size, EndReason::Length)?;
        match &first {
            Some(first) if *first != seen => {
                return Err(format!(
                    "{text:?} cut into pieces of {size}:\n  got      {seen:?}\n  pieces of {} gave {first:?}",
                    CUTTINGS[0]
                ));
            }
            Some(_) => {}
            None => first = Some(seen),
        }
    }
    Ok(first.unwrap_or_default())
}

fn ends(stage: &dyn OutputStage) -> Result<(), String> {
    let reasons = [
        EndReason::StopToken(2),
        EndReason::StopString("stop".into()),
        EndReason::Length,
        EndReason::Cancelled,
        EndReason::Error,
    ];
    for reason in reasons {
        for text in ["", "some text {\"a\""] {
            run(stage, text, 3, reason.clone()).map_err(|why| format!("{reason:?}: {why}"))?;
        }
    }
    Ok(())
}

fn run(stage: &dyn OutputStage, text: &str, size: usize, reason: EndReason) -> Result<Vec<Seen>, String> {
    let seen = without_failures(&[stage], || once(stage, text, size, reason.clone()))?;
    seen.map_err(|failure| format!("{text:?} in pieces of {size}: {failure}"))
}

/// A call that fails is a fault although a replay or a fallback may have made the answer right. One may be late on a machine
/// that has other things to do, so it is the second time in a row that counts; the inner error says which call it was.
pub(crate) fn without_failures<T, E>(
    stages: &[&dyn OutputStage],
    run: impl Fn() -> Result<T, E>,
) -> Result<Result<T, String>, E> {
    let failures = || -> Vec<Failures> { stages.iter().map(|stage| stage.failures()).collect() };
    let attempt = || -> Result<(T, Option<String>), E> {
        let before = failures();
        let answer = run()?;
        Ok((answer, failures().into_iter().zip(&before).find_map(|(now, before)| now.since(before))))
    };
    let (answer, failure) = match attempt()? {
        (_, Some(_)) => attempt()?,
        passed => passed,
    };
    Ok(failure.map_or(Ok(answer), Err))
}

fn once(stage: &dyn OutputStage, text: &str, size: usize, reason: EndReason) -> Result<Vec<Seen>, String> {
    let at = |e: contract::PluginError| format!("{text:?} in pieces of {size}: {e}");
    let tool = Tool {
        name: "f".into(),
        kind: CallKind::Json,
        schema_json: Some("{\"type\":\"object\"}".into()),
        strict: false,
    };
    let marker = |text: &String| Marker { text: text.clone(), token: None };
    let request = StageRequest {
        tools: vec![tool],
        tool_choice: ToolChoice::Auto,
        parallel_calls: true,
        markers: stage.requirements().markers.iter().map(marker).collect(),
        ..StageRequest::default()
    };
    let mut session = stage.open(&request).map_err(at)?;
    let chars: Vec<char> = text.chars().collect();
    let mut events = Vec::new();
    for piece in chars.chunks(if size == 0 { chars.len().max(1) } else { size }) {
        events.extend(session.feed(vec![OutputEvent::content(piece.iter().collect::<String>())]).map_err(at)?);
    }
    events.extend(session.finish(reason).map_err(at)?);
    Ok(fold(events))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_stages::TestStage;
    use contract::PluginError;
    use contract::output::{Requirements, StageSession};

    struct Each(fn(&str) -> String);

    impl StageSession for Each {
        fn feed(&mut self, events: Vec<OutputEvent>) -> Result<Vec<OutputEvent>, PluginError> {
            let change = |event| match event {
                OutputEvent::Text { text, .. } => OutputEvent::content((self.0)(&text)),
                other => other,
            };
            Ok(events.into_iter().map(change).collect())
        }

        fn finish(&mut self, _reason: EndReason) -> Result<Vec<OutputEvent>, PluginError> {
            Ok(Vec::new())
        }
    }

    /// The ids of the checks that a stage which changes each piece of text in this way fails.
    fn failed(change: fn(&str) -> String) -> Vec<String> {
        let open = move |_: &StageRequest| -> Box<dyn StageSession> { Box::new(Each(change)) };
        let requirements = Requirements { markers: vec!["<mark>".into()], ..Requirements::default() };
        let stage_of = TestStage { name: "each", requirements, open: Box::new(open) };
        let results = stage(&stage_of);
        results.into_iter().filter(|r| r.outcome != Outcome::Passed).map(|r| r.id).collect()
    }

    /// A stage that passes text on is fine; one that swallows or doubles text, or looks at the pieces, is found out.
    #[test]
    fn faults_are_found() {
        assert_eq!(failed(str::to_owned), Vec::<String>::new());
        assert!(failed(|text| text.replace('<', "")).contains(&"conformance-halves".to_owned()));
        assert!(failed(|text| text.repeat(2)).contains(&"conformance-plain".to_owned()));
        assert!(failed(|text| format!("{text}.")).contains(&"conformance-hostile".to_owned()));
    }
}
