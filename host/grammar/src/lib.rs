//! Grammars over token ids: what structured output, tool calls and thinking budgets ask of the sampler.
//!
//! A [`Source`] (a JSON schema, a regular expression, a choice, Lark, a structural tag) is checked here, compiled by
//! llguidance on threads of this crate's own, and becomes a [`StreamConstraint`], which the engine asks for a mask before
//! each row. It knows token ids and their bytes; it knows no tokenizer library, no template, no HTTP and no request.
//!
//! Start with [`Compiler`]; [`schema`] says what of JSON Schema is enforced and names the place of what is not,
//! [`stream`] is one request's state.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod compiler;
mod error;
mod metrics;
pub mod schema;
mod source;
pub mod stream;
mod tag;
mod vocabulary;

pub use compiler::{Compiled, Compiler, Limits};
pub use error::GrammarError;
pub use metrics::Metrics;
pub use schema::Strictness;
pub use source::Source;
pub use stream::{Start, StreamConstraint, StreamParts};
pub use vocabulary::Vocabulary;
