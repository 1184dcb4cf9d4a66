//! Tokens to text and back: tokenizers, templates, stop strings, the chain of output stages.
//!
//! This crate owns every rule between a checked chat request and prompt tokens, and between generated tokens and the
//! deltas a client sees, and which grammar a request's output is held to. It knows no HTTP, no wire JSON of an endpoint, no wasmtime, no thread and no clock: templates
//! and stages are trait objects from `contract`, and the current time is an argument.
//!
//! Start with [`model::TextModel`], which ties the parts of one served name together; [`prepare`] is the way in,
//! [`pipeline`] the way out. [`cases`] runs recorded failure cases through the same pipeline.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cases;
pub mod conform;
pub mod constrain;
pub mod detokenizer;
pub mod error;
pub mod finish;
pub mod model;
pub mod normalise;
pub mod pipeline;
pub mod prepare;
pub mod shadow;
pub mod stops;
#[cfg(test)]
mod test_stages;
pub mod tokenizer;

pub use constrain::{ConstraintJob, ConstraintPlan, Structure};
pub use error::TextError;
pub use finish::{EndOfStream, finish_reason};
pub use grammar;
pub use model::{TextModel, TextModelParts};
pub use pipeline::{ChainStep, Delta, OutputJob, OutputPipeline, OutputUsage, Piece};
pub use prepare::{ChatJob, Prepared, Stops};
pub use tokenizer::{ByteVocabToken, GgufVocab, Tokenizer};
