//! Tokens to text and back: tokenizers, templates, stop strings, the chain of output stages.
