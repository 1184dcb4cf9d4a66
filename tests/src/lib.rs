//! The tests live under `it/`, one binary.
