//! Kernels: what one thread computes on plain slices. Knows nothing of models, seats or threads.
//!
//! Read in this order: [`formats`] (what a weight is once packed), [`rows`] (activations), [`matmul`], [`attention`],
//! [`elementwise`]. Every kernel is one generic function over [`simd::Simd`], compiled once per instruction set; the
//! plain fp32 forms they are tested against are in [`scalar`].
//!
//! Shapes and units
//! - A [`PackedWeight`] is `rows` outputs by `cols` inputs, cut into tiles of [`TILE_ROWS`] outputs. `cols` is a
//!   multiple of 32 for block formats. The packed size is that of the file, plus a few percent for some formats.
//! - [`QuantRows`] holds up to `max_rows` activation rows, as 12-bit codes in blocks of 32 with one scale each and, where a float
//!   weight reads them, as f32.
//! - [`matmul::matmul`] writes `out[m][n] = sum_k w[n][k] x[m][k]` for the outputs `n` that the calling thread owns:
//!   ranges start at multiples of [`TILE_ROWS`], best at multiples of [`ROW_GRAIN`]. The result of one (row, output)
//!   depends on neither the number of rows, nor the range, nor the number of threads, down to the last bit.
//! - KV pages hold [`contract::PAGE_TOKENS`] tokens as f16: see [`attention::KvShape`].
//!
//! NaN or infinity in an activation block makes the outputs that read it NaN and touches no other row.

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod attention;
mod buffer;
pub mod delta;
pub mod dequant;
pub mod elementwise;
pub mod formats;
mod isa;
pub mod matmul;
mod out;
mod packed;
pub mod rows;
pub mod scalar;
mod simd;
mod tile;

#[cfg(test)]
mod tests;

pub use buffer::Scratch;
pub use isa::Isa;
pub use out::OutCols;
pub use packed::PackedWeight;
pub use rows::{QuantRows, RowForms, RowWriter};

/// Outputs that one stream of weight bytes serves: the lanes of a 512-bit register.
pub const TILE_ROWS: usize = 16;

/// Best granularity of a thread's outputs: two tiles, which is also one activation block of the next operation.
pub const ROW_GRAIN: usize = 32;

/// Activations per scale.
pub const BLOCK: usize = 32;

/// Activation rows that one read of the weights serves.
pub const GROUP_ROWS: usize = 16;
