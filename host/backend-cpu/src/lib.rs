//! The CPU backend, and the oracle for every kernel.

pub mod kernels;
