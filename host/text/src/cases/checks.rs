//! What an answer is held to: the expected values and the named checks.

use serde_json::{Map, Value};

use super::output::{Answer, Call, Cutting};
use super::{Stop, is_remark};
use crate::Delta;

/// A named check of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Check {
    ChunkInvariant,
    Rechunk(Vec<Cutting>),
    StreamEqualsNonstream,
    ArgsValidJson,
    NameAndIdOnce,
    NoMarkerLeak,
    ArgsLiteralUtf8,
    NoWhitespaceOnlyContentDelta,
    IncrementalArgs,
    NoTextLoss,
}

impl Check {
    /// All checks of a case; an unknown one, or an expected key that nothing verifies, fails the case.
    pub(super) fn of(expected: &Map<String, Value>) -> Result<Vec<Self>, Stop> {
        const VERIFIED: [&str; 7] =
            ["content", "reasoning", "tool_calls", "finish_reason", "checks", "content_compare", "arguments_raw"];
        if let Some(key) = expected.keys().find(|key| !VERIFIED.contains(&key.as_str()) && !is_remark(key)) {
            return Err(Stop::fail(format!("`expected.{key}` is not verified by this runner")));
        }
        let checks = expected.get("checks").and_then(Value::as_array);
        checks.into_iter().flatten().map(Self::named).collect()
    }

    fn named(check: &Value) -> Result<Self, Stop> {
        let text = check.as_str().unwrap_or_default();
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        Ok(match name.trim() {
            "chunk_invariant" => Self::ChunkInvariant,
            "rechunk" => Self::Rechunk(sizes(rest)?),
            "stream_equals_nonstream" => Self::StreamEqualsNonstream,
            "args_valid_json" => Self::ArgsValidJson,
            "name_and_id_once" => Self::NameAndIdOnce,
            "no_marker_leak" => Self::NoMarkerLeak,
            "args_literal_utf8" => Self::ArgsLiteralUtf8,
            "no_whitespace_only_content_delta" => Self::NoWhitespaceOnlyContentDelta,
            "incremental_args" => Self::IncrementalArgs,
            "no_text_loss" => Self::NoTextLoss,
            _ => return Err(Stop::fail(format!("unknown check {check}"))),
        })
    }
}

/// `1,2,whole`.
fn sizes(list: &str) -> Result<Vec<Cutting>, Stop> {
    let size = |item: &str| match item.trim() {
        "whole" => Ok(Cutting::Whole),
        item => match item.parse() {
            Ok(n) if n > 0 => Ok(Cutting::Units(n)),
            _ => Err(Stop::fail(format!("rechunk: `{item}` is neither a size nor `whole`"))),
        },
    };
    list.split(',').map(size).collect()
}

/// Every cutting the checks ask for, the recorded one first.
pub(super) fn cuttings(checks: &[Check]) -> Vec<Cutting> {
    let mut cuttings = vec![Cutting::AsRecorded];
    for check in checks {
        let more = match check {
            Check::ChunkInvariant => [1, 2, 3, 5, 8].map(Cutting::Units).into_iter().chain([Cutting::Whole]).collect(),
            Check::Rechunk(sizes) => sizes.clone(),
            Check::StreamEqualsNonstream => vec![Cutting::Whole],
            _ => Vec::new(),
        };
        for cutting in more {
            if !cuttings.contains(&cutting) {
                cuttings.push(cutting);
            }
        }
    }
    cuttings
}

pub(super) struct Context<'a> {
    pub expected: &'a Map<String, Value>,
    pub checks: &'a [Check],
    /// Every marker that a stage of the chain declares.
    pub markers: &'a [String],
    /// The whole recorded text.
    pub fed: &'a str,
    pub cutting: Cutting,
    pub recorded_steps: usize,
}

pub(super) fn compare(answer: &Answer, context: &Context<'_>) -> Result<(), Stop> {
    let compare = Compare::of(context.expected)?;
    compare.content(context.expected.get("content"), answer)?;
    compare.text("reasoning", context.expected.get("reasoning"), &answer.reasoning)?;
    if let Some(expected) = context.expected.get("finish_reason")
        && expected != &answer.finish_reason
    {
        return Err(Stop::fail(format!("finish_reason: expected {expected}, got {:?}", answer.finish_reason)));
    }
    calls(context.expected, &answer.calls)?;
    context.checks.iter().try_for_each(|check| named(check, answer, context))
}

/// The same text cut in another way must give the same answer.
pub(super) fn same(first: &Answer, other: &Answer) -> Result<(), Stop> {
    let shape = |answer: &Answer| {
        let calls: Vec<_> = answer.calls.iter().map(|c| (c.index, &c.name, &c.arguments, c.complete)).collect();
        format!(
            "content {:?}, reasoning {:?}, calls {calls:?}, finish_reason {}",
            answer.content(),
            answer.reasoning,
            answer.finish_reason
        )
    };
    let (first, other) = (shape(first), shape(other));
    if first != other {
        return Err(Stop::fail(format!(
            "the cutting changed the answer:\n  as recorded {first}\n  now         {other}"
        )));
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Compare {
    Trim,
    Exact,
    CollapseWhiteSpace,
}

impl Compare {
    fn of(expected: &Map<String, Value>) -> Result<Self, Stop> {
        match expected.get("content_compare").map(|mode| mode.as_str()) {
            None | Some(Some("trim")) => Ok(Self::Trim),
            Some(Some("exact")) => Ok(Self::Exact),
            Some(Some("collapse_ws")) => Ok(Self::CollapseWhiteSpace),
            Some(_) => Err(Stop::fail("content_compare must be trim, exact or collapse_ws")),
        }
    }

    fn form(self, text: &str) -> String {
        match self {
            Self::Trim => text.trim().to_owned(),
            Self::Exact => text.to_owned(),
            Self::CollapseWhiteSpace => text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    /// Null, absent and empty are equal.
    fn text(self, key: &str, expected: Option<&Value>, got: &str) -> Result<(), Stop> {
        let wanted = wanted(key, expected)?;
        if self.form(wanted) == self.form(got) {
            return Ok(());
        }
        Err(Stop::fail(format!("{key}:\n  expected {wanted:?}\n  got      {got:?}")))
    }

    /// With `trim`, white space next to tool blocks does not count either.
    fn content(self, expected: Option<&Value>, answer: &Answer) -> Result<(), Stop> {
        let joined = self.text("content", expected, &answer.content());
        let trimmed: String = answer.content.iter().map(|text| text.trim()).collect();
        match self {
            Self::Trim if wanted("content", expected)?.trim() == trimmed => Ok(()),
            _ => joined,
        }
    }
}

fn wanted<'a>(key: &str, expected: Option<&'a Value>) -> Result<&'a str, Stop> {
    match expected {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Stop::fail(format!("`expected.{key}` must be a string or null"))),
    }
}

fn calls(expected: &Map<String, Value>, got: &[Call]) -> Result<(), Stop> {
    let wanted = expected.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if wanted.len() != got.len() {
        return Err(Stop::fail(format!("tool_calls: expected {}, got {}: {got:?}", wanted.len(), got.len())));
    }
    for (n, (wanted, got)) in wanted.iter().zip(got).enumerate() {
        let wanted = wanted.as_object().ok_or_else(|| Stop::fail(format!("tool_calls[{n}] must be an object")))?;
        for (key, value) in wanted {
            call_key(key, value, got).map_err(|reason| Stop::fail(format!("tool_calls[{n}].{key}: {reason}")))?;
        }
    }
    if let Some(raw) = expected.get("arguments_raw").and_then(Value::as_array) {
        let got: Vec<&str> = got.iter().map(|call| call.arguments.as_str()).collect();
        if !raw.iter().map(Value::as_str).eq(got.iter().map(|text| Some(*text))) {
            return Err(Stop::fail(format!("arguments_raw: expected {raw:?}, got {got:?}")));
        }
    }
    Ok(())
}

fn call_key(key: &str, value: &Value, got: &Call) -> Result<(), String> {
    let (met, found) = match key {
        "index" => (value == got.index, got.index.to_string()),
        "name" => (value == &got.name, got.name.clone()),
        "id" => (value == &got.id, got.id.clone()),
        // Texts of two values are equal exactly when the values are, key order included.
        "arguments" => {
            let parsed = serde_json::from_str::<Value>(&got.arguments).map(|parsed| parsed.to_string());
            (parsed.ok() == Some(value.to_string()), got.arguments.clone())
        }
        "arguments_raw" => (value == &got.arguments, got.arguments.clone()),
        "arguments_raw_prefix_of" => {
            (value.as_str().is_some_and(|whole| whole.starts_with(&got.arguments)), got.arguments.clone())
        }
        _ => return Err("is not verified by this runner".to_owned()),
    };
    if met { Ok(()) } else { Err(format!("expected {value}, got {found}")) }
}

fn named(check: &Check, answer: &Answer, context: &Context<'_>) -> Result<(), Stop> {
    let failed = |reason: String| Err(Stop::Fail(reason));
    let deltas = || answer.steps.iter().flatten();
    match check {
        // These ask for cuttings; `same` compares them.
        Check::ChunkInvariant | Check::Rechunk(_) | Check::StreamEqualsNonstream => Ok(()),
        Check::ArgsValidJson => match answer.calls.iter().find(|call| !is_object(&call.arguments) || !call.complete) {
            Some(call) => failed(format!("args_valid_json: {:?} of call {}", call.arguments, call.index)),
            None => Ok(()),
        },
        Check::NameAndIdOnce => name_and_id_once(answer),
        Check::NoMarkerLeak => no_marker_leak(answer, context),
        Check::ArgsLiteralUtf8 => match answer.calls.iter().find_map(|call| escaped_printable(&call.arguments)) {
            Some(escape) => failed(format!("args_literal_utf8: {escape} stands for a printable character")),
            None => Ok(()),
        },
        Check::NoWhitespaceOnlyContentDelta => {
            match deltas().find(|d| matches!(d, Delta::Content(text) if text.trim().is_empty())) {
                Some(delta) => failed(format!("no_whitespace_only_content_delta: {delta:?}")),
                None => Ok(()),
            }
        }
        Check::IncrementalArgs => incremental_args(answer, context),
        Check::NoTextLoss => {
            let delivered = format!("{}{}", answer.reasoning, answer.content());
            match answer.calls.is_empty() && delivered == context.fed {
                true => Ok(()),
                false => failed(format!("no_text_loss: fed {:?}, delivered {delivered:?}", context.fed)),
            }
        }
    }
}

fn is_object(arguments: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

fn name_and_id_once(answer: &Answer) -> Result<(), Stop> {
    for (n, call) in answer.calls.iter().enumerate() {
        let once = answer.calls[..n].iter().all(|other| other.id != call.id && other.index != call.index);
        if !once || call.id.is_empty() || call.name.trim().is_empty() || call.index as usize != n {
            return Err(Stop::fail(format!("name_and_id_once: call {n} of {:?}", answer.calls)));
        }
    }
    Ok(())
}

/// Text that the case itself expects may hold a marker.
fn no_marker_leak(answer: &Answer, context: &Context<'_>) -> Result<(), Stop> {
    if context.markers.is_empty() {
        return Err(Stop::fail("no_marker_leak: no stage declares a marker, so there is nothing to check"));
    }
    for (key, text) in [("content", answer.content()), ("reasoning", answer.reasoning.clone())] {
        let wanted = wanted(key, context.expected.get(key))?;
        if let Some(marker) = context.markers.iter().find(|m| text.contains(m.as_str()) && !wanted.contains(m.as_str()))
        {
            return Err(Stop::fail(format!("no_marker_leak: {marker:?} in {key} {text:?}")));
        }
    }
    Ok(())
}

/// Only the recorded cutting says what arrived before the closing tag: the last recorded step holds it.
fn incremental_args(answer: &Answer, context: &Context<'_>) -> Result<(), Stop> {
    if context.cutting != Cutting::AsRecorded {
        return Ok(());
    }
    let before = context.recorded_steps.saturating_sub(1);
    let early = answer.steps.iter().take(before).flatten();
    let sent = early.filter(|d| matches!(d, Delta::CallArguments { fragment, .. } if !fragment.is_empty())).count();
    if sent == 0 {
        return Err(Stop::fail("incremental_args: no argument text was sent before the closing tag arrived"));
    }
    Ok(())
}

/// A `\uXXXX` escape of a character that could have been written itself.
fn escaped_printable(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        if bytes[at + 1] == b'u'
            && let Some(escape) = json.get(at..at + 6)
            && let Ok(code) = u32::from_str_radix(&escape[2..], 16)
            // Surrogates are halves of printable characters.
            && char::from_u32(code).is_none_or(|c| !c.is_control())
        {
            return Some(escape);
        }
        at += 2;
    }
    None
}
