//! A message's header: everything between the message's start and its text.

use blocks::grammar::{Writer, demanded};
use tokenloom_sdk::output::{Channel, Constraint, Request, Tool};

use crate::MARKERS;

/// The markers, in the order of [`MARKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Start,
    Channel,
    Constrain,
    Message,
    /// `<|end|>`, `<|call|>` or `<|return|>`.
    End,
}

impl Mark {
    pub fn of(position: usize) -> Self {
        [Self::Start, Self::Channel, Self::Constrain, Self::Message].get(position).copied().unwrap_or(Self::End)
    }
}

/// What a header says about its message.
#[derive(Clone, Debug, PartialEq)]
pub enum Purpose {
    Text(Channel),
    /// A call of this function, and the channel its text belongs to if it is none.
    Call(String, Channel),
}

/// Longest header; a longer one is none.
pub const BYTES_MAX: usize = 1024;

/// A header as text, its markers included: `assistant<|channel|>commentary to=functions.f <|constrain|>json`.
pub fn purpose(header: &str) -> Purpose {
    let channel = header.split("<|channel|>").nth(1).unwrap_or_default();
    let word = channel.trim_start().split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default();
    let channel = if word == "analysis" { Channel::Reasoning } else { Channel::Content };
    let recipient = header.split("to=").nth(1).unwrap_or_default();
    let recipient = recipient.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default();
    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
    if name.is_empty() || name.len() > blocks::tool::NAME_BYTES_MAX || name == "user" || name == "assistant" {
        return Purpose::Text(channel);
    }
    Purpose::Call(name.into(), channel)
}

/// What the prompt left open: the header or the message that the output goes on with.
pub fn left_open(turn_prefix: &str) -> (String, Option<Purpose>) {
    let Some(at) = turn_prefix.rfind(MARKERS[0]) else { return (String::new(), None) };
    let message = &turn_prefix[at + MARKERS[0].len()..];
    match message.split_once(MARKERS[3]) {
        Some((_, text)) if MARKERS[4..].iter().any(|end| text.contains(end)) => (String::new(), None),
        Some((header, _)) => (String::new(), Some(purpose(header))),
        None => (message.into(), None),
    }
}

/// A call in the commentary, where the request demands one; in its own message when reasoning came before.
pub fn constrain(request: &Request) -> Option<Constraint> {
    let tools = demanded(request);
    if tools.is_empty() {
        return None;
    }
    let mut writer = Writer::new(request, MARKERS.map(String::from).to_vec());
    let call = |tool: &&Tool| {
        let head = format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name);
        let schema = tool.schema_json.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        format!("{} {} {}", writer.text(&head), Writer::json(&schema), writer.text("<|call|>"))
    };
    let calls: Vec<String> = tools.iter().map(call).collect();
    writer.rule("call", &calls.join("\n  | "));
    let role = writer.text("<|start|>assistant");
    // Where a call's end does not stop the model, more may follow.
    let more = if request.parallel_calls { format!("({role} call)*") } else { String::new() };
    Some(writer.finish(&format!("({role})? call {more}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipients_stand_on_either_side_of_the_channel() {
        let call = |name: &str| Purpose::Call(name.into(), Channel::Content);
        for header in [
            "assistant<|channel|>commentary to=functions.f <|constrain|>json",
            "assistant to=functions.f<|channel|>commentary json",
            "<|channel|>commentary to=functions.f<|constrain|>json",
        ] {
            assert_eq!(purpose(header), call("f"), "{header}");
        }
        assert_eq!(purpose("<|channel|>commentary to=browser.search code"), call("browser.search"));
        assert_eq!(purpose("assistant<|channel|>final"), Purpose::Text(Channel::Content));
        assert_eq!(purpose("<|channel|>analysis"), Purpose::Text(Channel::Reasoning));
    }
}
