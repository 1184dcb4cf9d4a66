//! The CUDA backend: the block operations of [`backend::ops`] as launches on one card.
//!
//! It builds without CUDA: the driver, NVRTC and cuBLASLt are looked for when a device is opened. It knows no text and no
//! policy. Start with `step.rs`, the [`backend::Backend`] that the engine drives; `forward.rs` lowers the operations to
//! launches; `load.rs` puts a model on the card; `device.rs`, `compile.rs`, `launch.rs` and `blas.rs` are the layer above
//! the driver. The kernels themselves are in the crate `kernels`, each with its formula and shapes at the head.

mod attention;
mod blas;
mod block_products;
mod compile;
mod delta;
mod device;
mod forward;
mod fp8_products;
mod gate_up;
mod invariant;
mod launch;
mod lay_out;
mod load;
pub mod packed;
mod pool;
mod products;
mod prompt;
mod saved;
mod seats;
mod step;
mod targets;
mod tensor_map;
mod tuning;

pub use delta::StateType;
pub use device::DeviceOptions;
pub use load::{CudaOptions, load};
pub use step::CudaBackend;
pub use targets::{TARGETS, compile_for};
