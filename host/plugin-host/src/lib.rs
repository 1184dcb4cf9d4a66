//! Sandboxed plugins: the only crate that knows wasmtime.
