//! Events to answers: the plain ones by folding, the streamed ones chunk by chunk.

mod chat;
#[cfg(test)]
mod tests;
mod text;

pub use chat::{ChatChunks, ChatFold, message_of};
pub use text::{Asked, TextChunks, TextFold};

use ::text::{Piece, Tokenizer};
use bytes::Bytes;
use contract::TokenId;
use contract::sampling::TokenLogprobs;

use crate::sse::{DONE, data};
use crate::wire::reply::{Envelope, PromptLogprobs, Usage, prompt_logprobs};

/// What all parts of one answer share.
#[derive(Clone)]
pub struct Frame {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub tokenizer: Tokenizer,
    /// Alternatives per token of the answer, where logprobs are wanted.
    pub logprobs: Option<u8>,
    /// The same of the prompt.
    pub prompt_logprobs: Option<u8>,
    pub wants_token_ids: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
}

impl Frame {
    fn envelope<C>(&self, object: &'static str, choices: Vec<C>, usage: Option<Usage>) -> Envelope<'_, C> {
        Envelope {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage,
            prompt_token_ids: None,
            prompt_logprobs: None,
        }
    }
}

impl Frame {
    fn prompt(&self, positions: &[TokenLogprobs], top: u8) -> PromptLogprobs {
        prompt_logprobs(&self.tokenizer, positions, usize::from(top))
    }
}

/// Logprobs and ids that wait for the next chunk.
#[derive(Default)]
struct Riders {
    logprobs: Vec<TokenLogprobs>,
    token_ids: Vec<TokenId>,
}

impl Riders {
    fn take_from(&mut self, piece: &mut Piece) {
        self.logprobs.append(&mut piece.logprobs);
        self.token_ids.append(&mut piece.token_ids);
    }

    fn logprobs(&mut self, frame: &Frame) -> Option<Vec<TokenLogprobs>> {
        let positions = std::mem::take(&mut self.logprobs);
        (frame.logprobs.is_some() && !positions.is_empty()).then_some(positions)
    }

    fn token_ids(&mut self, frame: &Frame) -> Option<Vec<TokenId>> {
        let ids = std::mem::take(&mut self.token_ids);
        (frame.wants_token_ids && !ids.is_empty()).then_some(ids)
    }
}

/// The usage chunk, if one was asked for, and the end.
fn last_frames(usage: Option<String>) -> Vec<Bytes> {
    usage.iter().map(|json| data(json)).chain([DONE]).collect()
}

fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("answers have string keys and finite numbers only")
}
