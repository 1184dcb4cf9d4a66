//! The engine's two seams.
//!
//! [`step::Backend`] is what the engine drives: seats, pages, a forward call and a sample call per step. [`ops::BlockOp`]
//! is what a backend runs: a model is a list of about ten block operations at the grain of fused kernels, over named
//! [`weights::Weight`]s. A backend interprets the list, so a new family adds operations or data, never a second engine.
//!
//! [`sampler`] is the reference sampler: the CPU backends call it, and the GPU's sampling kernels are tested against it.
//! This crate knows no file format and no text.

pub mod blocks;
pub mod error;
pub mod fp8;
pub mod load;
pub mod ops;
pub mod rng;
pub mod sampler;
pub mod step;
pub mod weights;

pub use error::BackendError;
pub use step::Backend;
