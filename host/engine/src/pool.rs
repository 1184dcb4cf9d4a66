//! Requests that are read and say nothing: their hidden states become one vector.

use backend::step::Emit;
use contract::generation::{GenerationError, TokenEvent};
use tokio::sync::oneshot;

use crate::handle::Generation;

/// How the hidden states of a prompt become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The last token's, which in a decoder has seen all others.
    #[default]
    Last,
    Mean,
}

/// What has been read of one request so far.
pub(crate) struct Pool {
    kind: Pooling,
    /// For the mean, the sum over the tokens that were read.
    vector: Vec<f32>,
    tokens: u32,
    sender: oneshot::Sender<Vec<f32>>,
}

impl Pool {
    pub fn new(kind: Pooling) -> (Self, oneshot::Receiver<Vec<f32>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { kind, vector: Vec::new(), tokens: 0, sender }, receiver)
    }

    /// What a chunk of the prompt must give back.
    pub fn emit(&self, last_chunk: bool) -> Emit {
        match self.kind {
            Pooling::Mean => Emit::Pool { mean: true },
            Pooling::Last if last_chunk => Emit::Pool { mean: false },
            Pooling::Last => Emit::Nothing,
        }
    }

    /// Tokens that were read: where the next chunk must begin.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Takes what one chunk gave; `end` is the sequence's length after it.
    pub fn take(&mut self, pooled: &[f32], end: u32) {
        let tokens = end.saturating_sub(self.tokens);
        self.tokens = end;
        match self.kind {
            Pooling::Last => self.vector = pooled.to_vec(),
            Pooling::Mean => {
                self.vector.resize(pooled.len(), 0.0);
                self.vector.iter_mut().zip(pooled).for_each(|(sum, mean)| *sum += mean * tokens as f32);
            }
        }
    }

    pub fn finish(mut self) {
        if self.kind == Pooling::Mean {
            let tokens = self.tokens.max(1) as f32;
            self.vector.iter_mut().for_each(|sum| *sum /= tokens);
        }
        // A client that went away needs no vector.
        let _ = self.sender.send(self.vector);
    }
}

/// A vector on its way. Dropping it aborts the request.
pub struct Pooled {
    pub(crate) generation: Generation,
    pub(crate) vector: oneshot::Receiver<Vec<f32>>,
}

impl Pooled {
    /// Waits for the vector; as many numbers as the model's hidden state has.
    pub async fn vector(mut self) -> Result<Vec<f32>, GenerationError> {
        while let Some(event) = self.generation.next().await {
            match event {
                TokenEvent::Failed(error) => return Err(error),
                TokenEvent::Finished { .. } => break,
                TokenEvent::Started { .. } | TokenEvent::Prompt { .. } | TokenEvent::Tokens { .. } => {}
            }
        }
        self.vector.await.map_err(|_| GenerationError::Engine("the request ended without a vector".into()))
    }
}
