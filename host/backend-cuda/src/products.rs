//! Products of activations and weights: which kernel or library call each takes, by its rows and the weights' format.
//!
//! Up to [`FEW_ROWS_MAX`] rows `few_rows` reads each weight once for all of them. Above, cuBLASLt takes over: FP8 weights
//! meet activations that are quantised on the way (in the norm, in the activation, or by a kernel of their own); where the
//! library has no FP8 product for the card, the weights are turned back into 16 bits first.
//!
//! For weights with a scale a row, the library's FP8 products with scales have one algorithm, which is slow for few rows;
//! those without have many. Up to [`RAW_ROWS_MAX`] rows the library therefore sums bare codes, and whoever reads the sums
//! next multiplies with the scales: the norm behind it, the activation, or a kernel of its own.

use std::sync::Arc;

use backend::BackendError;

use crate::blas::{Call, Operands, Product, library_rows};
use crate::block_products::{BlockKernels, Packed, Rows, Uses};
use crate::compile::{Compiler, Kernel};
use crate::delta::GateProduct;
use crate::device::{Buffer, Device, fault};
use crate::forward::{DeviceOp, Forward};
use crate::fp8_products::{Fp8Kernels, Fp8Work, Role};
use crate::gate_up::GateUp;
use crate::launch::{Args, Shape};

/// Rows up to which one read of the weights through `few_rows` wins over the library.
pub const FEW_ROWS_MAX: usize = 16;
/// Token tiles of `few_rows`, eight rows each.
pub const TILES: [usize; 2] = [1, 2];
/// Rows of weights that a block of `few_rows` takes at once.
pub const TILE_ROWS: usize = 16;
const WARPS: usize = 8;
/// Rows up to which sums of bare codes are faster: on an H200 66 against 103 us a layer of Qwen3-8B at 32 rows, 72 against
/// 96 at 128, and nothing from 512 on.
const RAW_ROWS_MAX: usize = 256;
/// What `few_rows` does with its sums; the kernel's MODE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    Store = 0,
    AddResidual = 1,
    SiluMul = 2,
    StoreF32 = 3,
}

/// Where the scales of a model's FP8 weights lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8Scales {
    /// One for each row: what quantising at load gives.
    Rows,
    /// One for each 128 x 128 block: what checkpoints hold.
    Blocks,
}

/// A weight matrix on the device, `[n, k]` row-major, or several one below the other.
pub enum Matrix {
    /// In GGUF's block formats.
    Packed(Arc<Packed>),
    /// In the model's 16-bit type; a tied head shares the embedding's.
    Half(Arc<Buffer>),
    Fp8 {
        codes: Buffer,
        /// `[n]`, or `[n / 16, k / 128]` rounded up: a block's scale again for each of its tiles.
        scales: Buffer,
        /// `[n / 128, k / 128]` as the library wants them; `None` where a part does not end at a block's border.
        blocks: Option<Buffer>,
    },
}

impl Matrix {
    pub fn bytes(&self) -> usize {
        match self {
            Self::Half(weights) => weights.bytes,
            Self::Packed(packed) => packed.bytes(),
            Self::Fp8 { codes, scales, blocks } => {
                codes.bytes + scales.bytes + blocks.as_ref().map_or(0, |blocks| blocks.bytes)
            }
        }
    }
}

pub struct ProductKernels {
    /// By tile count and epilogue.
    few_rows: Vec<[Kernel; 4]>,
    silu_mul: Kernel,
    pub gate_up: Vec<GateUp>,
    pub fp8: Option<Fp8Kernels>,
    pub blocks: BlockKernels,
}

/// Shared memory of `few_rows`: the partial sums of its warps.
fn few_rows_shared(tiles: usize, silu: bool) -> u32 {
    let matrices = if silu { 2 } else { 1 };
    (WARPS * tiles * 8 * (matrices * TILE_ROWS + 1) * size_of::<f32>()) as u32
}

fn compile_few_rows(compiler: &mut Compiler<'_>) -> Result<Vec<[Kernel; 4]>, BackendError> {
    let mut kernel = |tiles: usize, mode: Epilogue| {
        let kernel = compiler.kernel(kernels::FEW_ROWS, &[("NT", tiles), ("MODE", mode as usize)])?;
        kernel.allow_shared(few_rows_shared(tiles, mode == Epilogue::SiluMul))?;
        Ok(kernel)
    };
    let modes = [Epilogue::Store, Epilogue::AddResidual, Epilogue::SiluMul, Epilogue::StoreF32];
    let mut all = |tiles| {
        Ok([kernel(tiles, modes[0])?, kernel(tiles, modes[1])?, kernel(tiles, modes[2])?, kernel(tiles, modes[3])?])
    };
    TILES.iter().map(|&tiles| all(tiles)).collect()
}

impl ProductKernels {
    /// `ffn`: `(ffn, hidden)` of a model whose gate and up are in 16 bits.
    pub fn compile(
        compiler: &mut Compiler<'_>,
        fp8: Option<Fp8Scales>,
        blocks: &Uses,
        ffn: Option<(usize, usize)>,
    ) -> Result<Self, BackendError> {
        let fp8 = fp8.map(|scales| Fp8Kernels::compile(compiler, scales)).transpose()?;
        let few_rows = compile_few_rows(compiler)?;
        let blocks = BlockKernels::compile(compiler, blocks)?;
        let gate_up = ffn.map_or(Ok(Vec::new()), |(ffn, hidden)| GateUp::compile(compiler, ffn, hidden))?;
        Ok(Self { few_rows, silu_mul: compiler.kernel(kernels::SILU_MUL, &[])?, gate_up, fp8, blocks })
    }

    /// Rows of 16-bit weights to codes with a scale each.
    pub fn quantize_rows(
        &self,
        device: &Device,
        (codes, scales): (u64, u64),
        weights: u64,
        (n, k): (usize, usize),
    ) -> Result<(), BackendError> {
        let fp8 = self.fp8.as_ref().expect("compiled for a model that is quantised");
        let args = Args::default().pointer(codes).pointer(scales).int(n).pointer(weights).int(k);
        fp8.quantize.launch(device, Shape::new(n as u32, 256), args)
    }
}

impl Forward<'_> {
    /// Whether products of so many rows take FP8 activations.
    fn quantised(&self, rows: usize) -> Option<&Fp8Work> {
        self.fp8.filter(|fp8| !self.few(rows) && fp8.dense.is_none())
    }

    /// Whether the library sums bare codes, for the next kernel to scale.
    fn raw(&self, rows: usize) -> bool {
        rows <= RAW_ROWS_MAX && !self.every_row && self.quantised(rows).is_some_and(|fp8| fp8.scales == Fp8Scales::Rows)
    }

    /// A product of normed rows of the residual stream. `pick` 0: the rows as they are, else an index of rows.
    pub(crate) fn normed_product(
        &mut self,
        epilogue: Epilogue,
        out: u64,
        (norm, pick): (&Buffer, u64),
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let normed = self.work.normed.pointer;
        match matrix {
            Matrix::Fp8 { .. } if self.quantised(m).is_some() => {
                self.norm_behind_fp8(norm, pick, m, true)?;
                self.library(epilogue, out, 0, matrix, (m, n, k))
            }
            Matrix::Fp8 { .. } if self.few(m) => {
                let role = if epilogue == Epilogue::SiluMul { Role::GateUp } else { Role::Qkv };
                if pick == 0 && self.norming_fp8(role, out, (norm, GateProduct::NONE), matrix, (m, n, k))? {
                    return Ok(());
                }
                self.norm_f16(norm, pick, m)?;
                self.few_rows_fp8(role, out, normed, matrix, (m, n, k))
            }
            Matrix::Packed(packed) if pick == 0 && self.norming_product(epilogue, out, norm, packed, (m, n, k))? => {
                Ok(())
            }
            _ => {
                let eights = self.few(m) && matches!(matrix, Matrix::Packed(_));
                if self.pending == 0 {
                    self.norm_with(&self.kernels.rms_norm, norm, pick, m, eights)?;
                } else {
                    self.norm_behind_fp8(norm, pick, m, false)?;
                }
                self.product(epilogue, out, Rows { pointer: normed, eights }, matrix, (m, n, k))
            }
        }
    }

    /// Rows of `h` after the last norm and, with `logits` to write to, times the head. Where the result lies.
    pub(crate) fn head_rows(&mut self, picks: u64, rows: usize, logits: Option<u64>) -> Result<u64, BackendError> {
        let model = self.model;
        let Some(DeviceOp::Head { norm, weight }) = model.ops.last() else {
            return Err(fault("prompt outputs", "the model has no head"));
        };
        match logits {
            Some(out) => {
                let shape = (rows, model.vocab, model.hidden);
                self.normed_product(Epilogue::StoreF32, out, (norm, picks), weight, shape)?;
                Ok(out)
            }
            None => {
                self.norm_with(&self.kernels.rms_norm, norm, picks, rows, false)?;
                Ok(self.work.normed.pointer)
            }
        }
    }

    /// The norm of rows that may still lack the sums of the product before: to codes, or to 16 bits.
    fn norm_behind_fp8(&mut self, norm: &Buffer, pick: u64, m: usize, codes: bool) -> Result<(), BackendError> {
        let fp8 = self.fp8.expect("the model has FP8 products");
        let (kernel, out) = match codes {
            true => (&self.fp8_kernels().norm_codes, fp8.codes.pointer),
            false => (&self.fp8_kernels().norm_half, self.work.normed.pointer),
        };
        let args = Args::default()
            .pointer(out)
            .pointer(fp8.row_scales.pointer)
            .int(library_rows(m))
            .pointer(self.work.h.pointer)
            .pointer(norm.pointer)
            .pointer(pick)
            .pointer(if self.pending == 0 { 0 } else { self.work.gate_up.pointer })
            .pointer(self.pending)
            .int(self.model.hidden)
            .float(self.model.eps);
        kernel.launch(self.device, Shape::new(m as u32, 256), args)?;
        self.pending = 0;
        Ok(())
    }

    /// Whether rows between the two feed-forward products are in eights.
    fn act_in_eights(&self, rows: usize) -> bool {
        self.few(rows) && self.model.act_in_eights
    }

    /// `h += W attended`.
    pub(crate) fn out(&mut self, matrix: &Matrix, (m, n, k): (usize, usize, usize)) -> Result<(), BackendError> {
        let (h, attended) = (self.work.h.pointer, self.work.attended.pointer);
        match matrix {
            Matrix::Fp8 { .. } if self.few(m) => self.few_rows_fp8(Role::Out, h, attended, matrix, (m, n, k)),
            _ => self.product(Epilogue::AddResidual, h, attended.into(), matrix, (m, n, k)),
        }
    }

    /// `h += W act`, behind the product that made `act`: with FP8 weights its rows are codes, or scaled f16.
    pub(crate) fn down(&mut self, matrix: &Matrix, (m, n, k): (usize, usize, usize)) -> Result<(), BackendError> {
        let (h, act) = (self.work.h.pointer, self.work.act.pointer);
        match matrix {
            Matrix::Fp8 { .. } if self.few(m) => self.few_rows_fp8(Role::Down, h, act, matrix, (m, n, k)),
            Matrix::Fp8 { .. } if self.quantised(m).is_some() => {
                self.library(Epilogue::AddResidual, h, 0, matrix, (m, n, k))
            }
            _ => {
                let act = Rows { pointer: act, eights: self.act_in_eights(m) };
                self.product(Epilogue::AddResidual, h, act, matrix, (m, n, k))
            }
        }
    }

    /// `(rows, n, k)`, of rows in the model's 16-bit type; for [`Epilogue::SiluMul`] the matrix holds `n` rows of the gate
    /// and as many of `up`.
    pub(crate) fn product(
        &mut self,
        epilogue: Epilogue,
        out: u64,
        x: Rows,
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        if m > FEW_ROWS_MAX && self.few(m) {
            return self.product_in_groups(epilogue, (out, x), matrix, (m, n, k));
        }
        if let (Epilogue::SiluMul, Matrix::Half(weights), Some(kernel)) = (epilogue, matrix, self.gate_up_kernel(m)) {
            return self.gate_up(kernel, (out, x.pointer), weights, (m, n, k));
        }
        if let Matrix::Packed(packed) = matrix {
            return self.packed_product(epilogue, out, x, packed, (m, n, k));
        }
        let x = x.pointer;
        match (matrix, self.quantised(m)) {
            (Matrix::Half(weights), _) if m <= FEW_ROWS_MAX => {
                let up = weights.pointer + (n * k * 2) as u64;
                let (tile, silu) = (tile_of(m), epilogue == Epilogue::SiluMul);
                let args =
                    Args::default().pointer(out).pointer(x).pointer(weights.pointer).pointer(up).int(m).int(n).int(k);
                let blocks = n.div_ceil(TILE_ROWS) as u32;
                let shape = Shape::new(blocks, 256).shared(few_rows_shared(TILES[tile], silu));
                return self.kernels.products.few_rows[tile][epilogue as usize].launch(self.device, shape, args);
            }
            (Matrix::Fp8 { .. }, Some(fp8)) => {
                let args = Args::default()
                    .pointer(fp8.codes.pointer)
                    .pointer(fp8.row_scales.pointer)
                    .int(library_rows(m))
                    .pointer(x)
                    .int(k);
                self.fp8_kernels().quantize.launch(self.device, Shape::new(m as u32, 256), args)?;
            }
            _ => {}
        }
        self.library(epilogue, out, x, matrix, (m, n, k))
    }

    /// Through cuBLASLt. FP8 rows are in the work buffers when [`Self::quantised`], else `x` holds them in 16 bits.
    pub(crate) fn library(
        &mut self,
        epilogue: Epilogue,
        out: u64,
        x: u64,
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let silu = epilogue == Epilogue::SiluMul;
        let rows = if silu { 2 * n } else { n };
        let mut product = Product {
            m: library_rows(m),
            n: rows,
            k,
            add: epilogue == Epilogue::AddResidual,
            f32_out: epilogue == Epilogue::StoreF32,
            operands: Operands::Half,
            width: rows,
        };
        let to = if silu { self.work.gate_up.pointer } else { out };
        let mut sums_of = 0;
        let call = match (matrix, self.quantised(m)) {
            (Matrix::Packed(packed), _) => return self.packed_product(epilogue, out, x.into(), packed, (m, n, k)),
            (Matrix::Half(weights), _) => Call { out: to, x, w: weights.pointer, x_scales: 0, w_scales: 0 },
            (Matrix::Fp8 { codes, scales, blocks }, Some(fp8)) => {
                product.operands = fp8.operands;
                let w_scales = blocks.as_ref().unwrap_or(scales).pointer;
                let (x, x_scales) = (fp8.codes.pointer, fp8.row_scales.pointer);
                let mut call = Call { out: to, x, w: codes.pointer, x_scales, w_scales };
                if self.raw(m) {
                    (product.operands, sums_of) = (Operands::Fp8Raw, w_scales);
                    if product.add {
                        (product.add, call.out) = (false, self.work.gate_up.pointer);
                    }
                }
                call
            }
            (Matrix::Fp8 { codes, scales, .. }, None) => {
                let dense = self.fp8.and_then(|fp8| fp8.dense.as_ref()).expect("allocated where the library lacks FP8");
                let args = Args::default().pointer(dense.pointer).pointer(codes.pointer).pointer(scales.pointer).int(k);
                self.fp8_kernels().dequantize.launch(self.device, Shape::new(rows as u32, 256), args)?;
                Call { out: to, x, w: dense.pointer, x_scales: 0, w_scales: 0 }
            }
        };
        self.blas.run(self.device, product, call)?;
        match epilogue {
            Epilogue::SiluMul => self.activate(out, sums_of, (m, n)),
            // The norm that comes next adds them.
            Epilogue::AddResidual => {
                self.pending = sums_of;
                Ok(())
            }
            _ if sums_of != 0 => {
                let args = Args::default().pointer(out).pointer(call.x_scales).pointer(sums_of).int(n);
                let shape = Shape::of(((n / 8).div_ceil(256) as u32, m as u32), 256);
                self.fp8_kernels().scale_rows.launch(self.device, shape, args)
            }
            _ => Ok(()),
        }
    }

    /// `silu(gate) * up` of rows that the library made: to 16 bits, or to the codes that the next product reads. `sums_of`:
    /// the scales that bare sums still need, or 0.
    pub(crate) fn activate(&self, out: u64, sums_of: u64, (m, n): (usize, usize)) -> Result<(), BackendError> {
        if let Some(fp8) = self.quantised(m) {
            let args = Args::default()
                .pointer(fp8.codes.pointer)
                .pointer(fp8.row_scales.pointer)
                .int(library_rows(m))
                .pointer(self.work.gate_up.pointer)
                .pointer(sums_of)
                .int(n);
            return self.fp8_kernels().silu_mul.launch(self.device, Shape::new(m as u32, 256), args);
        }
        let eights = usize::from(self.act_in_eights(m));
        let args = Args::default().pointer(out).pointer(self.work.gate_up.pointer).int(n).int(eights);
        let shape = Shape::of(((n / 8).div_ceil(256) as u32, m as u32), 256);
        self.kernels.products.silu_mul.launch(self.device, shape, args)
    }
}

/// Which of [`TILES`] holds `m` rows, at most [`FEW_ROWS_MAX`].
pub fn tile_of(m: usize) -> usize {
    TILES.iter().position(|&tiles| m <= tiles * 8).expect("m is at most 16")
}
