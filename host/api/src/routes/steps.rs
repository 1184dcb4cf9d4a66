//! The events of one step of `/parse`, as JSON.

use contract::TokenId;
use contract::output::{Channel, OutputEvent};
use serde_json::{Value, json};
use text::{ChainStep, Delta, Piece, Tokenizer};

/// What the stages made of one token; without a token, of the end.
pub fn row(tokenizer: &Tokenizer, token: Option<TokenId>, step: &ChainStep, piece: &Piece) -> Value {
    let events = |events: &Vec<OutputEvent>| events.iter().map(event).collect::<Vec<_>>();
    let token = token.map(|id| json!({"id": id, "text": String::from_utf8_lossy(&tokenizer.token_bytes(id))}));
    json!({
        "token": token,
        "fed": events(&step.fed),
        "stages": step.stages.iter().map(events).collect::<Vec<_>>(),
        "deltas": piece.deltas.iter().map(delta).collect::<Vec<_>>(),
    })
}

fn event(event: &OutputEvent) -> Value {
    match event {
        OutputEvent::Text { channel, text, token } => {
            let channel = match channel {
                Channel::Content => "content",
                Channel::Reasoning => "reasoning",
                Channel::Other(name) => name,
            };
            json!({"type": "text", "channel": channel, "text": text, "token": token})
        }
        OutputEvent::CallStart { index, id, name, .. } => {
            json!({"type": "call-start", "index": index, "id": id, "name": name})
        }
        OutputEvent::CallArguments { index, fragment } => {
            json!({"type": "call-arguments", "index": index, "fragment": fragment})
        }
        OutputEvent::CallEnd { index, complete } => {
            json!({"type": "call-end", "index": index, "complete": complete})
        }
        OutputEvent::Ext { key, value } => json!({"type": "ext", "key": key, "value": value}),
    }
}

fn delta(delta: &Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"type": "content", "text": text}),
        Delta::Reasoning(text) => json!({"type": "reasoning", "text": text}),
        Delta::CallStart { index, id, name } => json!({"type": "call-start", "index": index, "id": id, "name": name}),
        Delta::CallArguments { index, fragment } => {
            json!({"type": "call-arguments", "index": index, "fragment": fragment})
        }
        Delta::CallEnd { index, complete } => json!({"type": "call-end", "index": index, "complete": complete}),
    }
}
