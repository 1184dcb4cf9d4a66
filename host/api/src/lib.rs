//! The OpenAI API: the only crate that knows HTTP.
