//! Products of FP8 weights: few rows by a kernel of their own, many through cuBLASLt with quantised activations.

use backend::BackendError;
use backend::ops::{DeltaShape, ModelSpec};

use crate::blas::{Blas, Operands, Product, library_rows};
use crate::block_products::{NEAR_NORM_MAX, NEAR_ROWS_MAX};
use crate::compile::{Compiler, Kernel};
use crate::delta::{GATE_WARPS, GateProduct};
use crate::device::{Buffer, Device, fault};
use crate::forward::Forward;
use crate::invariant::groups;
use crate::launch::{Args, Shape};
use crate::products::{Epilogue, Fp8Scales, Matrix, TILE_ROWS, TILES, tile_of};

/// Blocks of `few_rows_fp8` on one multiprocessor: what its shared memory leaves room for.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;
/// X of an FP8 kernel that norms its rows.
const NORMS: usize = 3;

/// What a product is to a layer: it decides what its FP8 kernel reads and writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Normed rows to queries, keys and values.
    Qkv = 0,
    /// Attention's rows to the residual stream.
    Out = 1,
    /// Normed rows to activated ones.
    GateUp = 2,
    /// Activated rows to the residual stream.
    Down = 3,
}

impl Role {
    const ALL: [Self; 4] = [Self::Qkv, Self::Out, Self::GateUp, Self::Down];

    /// Their rows can be normed on the way.
    const NORMED: [Self; 2] = [Self::Qkv, Self::GateUp];

    /// MODE and X of the kernel.
    fn flags(self) -> (usize, usize) {
        match self {
            Self::Qkv => (Epilogue::Store as usize, 0),
            Self::Out => (Epilogue::AddResidual as usize, 1),
            Self::GateUp => (Epilogue::SiluMul as usize, 0),
            Self::Down => (Epilogue::AddResidual as usize, 2),
        }
    }

    /// Outputs of a tile: gate and up share theirs.
    fn tile_outputs(self) -> usize {
        if self == Self::GateUp { TILE_ROWS / 2 } else { TILE_ROWS }
    }
}

/// Warps of a block of `few_rows_fp8`, and the steps of 16 bytes of two rows that each of its threads has on the way.
#[derive(Clone, Copy)]
struct Fp8Ring {
    warps: usize,
    depth: usize,
    /// Whether there are kernels that norm their rows.
    norms: bool,
}

impl Fp8Ring {
    /// Shared memory that lets two blocks of a kernel that norms run beside each other on Hopper: each takes 1 KB more, and
    /// what few sums the kernel declares itself.
    const NEAR_MAX: usize = (228 << 10) / 2 - 1024 - 256;

    fn new(arch: u32) -> Self {
        match arch {
            // Before 8.0 copies are not asynchronous and shared memory is small.
            ..80 => Self { warps: 8, depth: 2, norms: false },
            90 | 100 => Self { warps: GATE_WARPS, depth: 4, norms: true },
            _ => Self { warps: 16, depth: 4, norms: false },
        }
    }

    fn threads(self) -> u32 {
        (self.warps * 32) as u32
    }

    /// The weights on the way beside the partial sums of `m` rows.
    fn shared_bytes(self, m: usize) -> usize {
        let sums = self.warps * m * (TILE_ROWS + 1) * size_of::<f32>();
        self.depth * 2 * self.warps * 32 * 16 + sums.next_multiple_of(16)
    }

    /// Shared memory of a block that norms `m` rows of `k` in it, with the norm's weight and a gate's beside them; `None`:
    /// others must have normed them.
    fn near_shared(self, (m, k): (usize, usize)) -> Option<usize> {
        let bytes = self.shared_bytes(m) + m * (k.next_multiple_of(64) + 8) * 2 + 2 * k * 2;
        let fits = self.norms && m <= NEAR_ROWS_MAX && k <= NEAR_NORM_MAX && bytes <= Self::NEAR_MAX;
        fits.then_some(bytes)
    }
}

pub struct Fp8Kernels {
    ring: Fp8Ring,
    /// By tile count and [`Role`].
    few_rows: Vec<[Kernel; 4]>,
    /// Those of [`Role::NORMED`] that norm their rows, on cards with room for them.
    near: Vec<Kernel>,
    /// The norm in front of `few_rows`: f16 rows.
    pub norm_f16: Kernel,
    /// The norms in front of the library: codes, and 16 bits for a head behind FP8 layers.
    pub norm_codes: Kernel,
    pub norm_half: Kernel,
    pub quantize: Kernel,
    pub silu_mul: Kernel,
    pub scale_rows: Kernel,
    pub dequantize: Kernel,
}

impl Fp8Kernels {
    pub fn compile(compiler: &mut Compiler<'_>, scales: Fp8Scales) -> Result<Self, BackendError> {
        let arch = compiler.target.arch;
        let groups = usize::from(scales == Fp8Scales::Blocks);
        let ring = Fp8Ring::new(arch);
        let mut few_rows_of = |role: Role, tiles: usize, near: bool| {
            let (mode, x) = role.flags();
            let flags = [
                ("NT", tiles),
                ("MODE", mode),
                ("SCALES", groups),
                ("X", if near { NORMS } else { x }),
                ("DEPTH", ring.depth),
                ("WARPS", ring.warps),
            ];
            let kernel = compiler.kernel(kernels::FEW_ROWS_FP8, &flags)?;
            kernel.allow_shared(if near { Fp8Ring::NEAR_MAX } else { ring.shared_bytes(tiles * 8) } as u32)?;
            Ok::<_, BackendError>(kernel)
        };
        let [a, b, c, d] = Role::ALL;
        let mut few_rows = Vec::new();
        for tiles in TILES {
            let mut kernel = |role| few_rows_of(role, tiles, false);
            few_rows.push([kernel(a)?, kernel(b)?, kernel(c)?, kernel(d)?]);
        }
        let normed = if ring.norms { &Role::NORMED[..] } else { &[] };
        let near = normed.iter().map(|&role| few_rows_of(role, TILES[0], true)).collect::<Result<_, _>>()?;
        Ok(Self {
            ring,
            few_rows,
            near,
            norm_f16: compiler.kernel(kernels::RMS_NORM, &[("F16", 1)])?,
            norm_codes: compiler.kernel(kernels::RMS_NORM_FP8, &[("OUT", groups)])?,
            norm_half: compiler.kernel(kernels::RMS_NORM_FP8, &[("OUT", 2)])?,
            quantize: compiler.kernel(kernels::QUANTIZE, &[("GROUPS", groups)])?,
            silu_mul: compiler.kernel(kernels::SILU_MUL_FP8, &[("GROUPS", groups)])?,
            scale_rows: compiler.kernel(kernels::SCALE_ROWS, &[])?,
            dequantize: compiler.kernel(kernels::DEQUANTIZE, &[("TILES", groups)])?,
        })
    }
}

/// What products of FP8 weights with many rows need beside the weights.
pub struct Fp8Work {
    pub operands: Operands,
    pub scales: Fp8Scales,
    /// Codes and scales of the activations in front of the product at hand.
    pub codes: Buffer,
    pub row_scales: Buffer,
    /// The weights of the product at hand in 16 bits, where the library has no FP8 product for this card.
    pub dense: Option<Buffer>,
    /// Why the library has none.
    lacking: Option<String>,
}

impl Fp8Work {
    pub fn new(
        device: &Device,
        spec: &ModelSpec,
        (scales, uniform, aligned): (Fp8Scales, bool, bool),
        blas: &mut Blas,
        max_rows: usize,
    ) -> Result<Self, BackendError> {
        let operands = match scales {
            Fp8Scales::Rows => Operands::Fp8Rows,
            Fp8Scales::Blocks => Operands::Fp8Blocks,
        };
        let (hidden, q_width) = (spec.hidden, spec.attention.q_width());
        let mut shapes =
            vec![(spec.attention.mix_width(), hidden), (hidden, q_width), (2 * spec.ffn, hidden), (hidden, spec.ffn)];
        let values = spec.delta.as_ref().map_or(0, DeltaShape::value_width);
        if let Some(delta) = &spec.delta {
            shapes.extend([(delta.channels() + values, hidden), (hidden, values)]);
        }
        if !uniform {
            return Err(BackendError::Unsupported {
                what: "on CUDA: a checkpoint whose layers are FP8 only in part".into(),
                fix: "use one with all of its layers' projections in FP8, or `--device cpu`".into(),
            });
        }
        let lacking = lacking(device, blas, (operands, aligned), &shapes);
        let library = lacking.is_none();
        let widest = hidden.max(q_width).max(spec.ffn).max(values);
        let rows = library_rows(max_rows);
        let largest = shapes.iter().map(|(n, k)| n * k).max().unwrap_or(0);
        Ok(Self {
            operands,
            scales,
            codes: device.alloc_zeroed("activation codes", if library { rows * widest } else { 0 })?,
            row_scales: device
                .alloc_zeroed("activation scales", if library { rows * widest.div_ceil(128) * 4 } else { 0 })?,
            lacking,
            dense: (!library).then(|| device.alloc("dequantised weights", largest * 2)).transpose()?,
        })
    }

    /// What an operator should know: many rows cost more than they would elsewhere.
    pub fn remark(&self) -> Option<String> {
        self.lacking.as_ref().map(|why| {
            format!("FP8 prompts run on weights turned back into 16 bits: cuBLASLt has no product for {why}")
        })
    }

    pub fn bytes(&self) -> usize {
        self.codes.bytes + self.row_scales.bytes + self.dense.as_ref().map_or(0, |dense| dense.bytes)
    }
}

/// What keeps the library from FP8 products of these `(n, k)`; `None`: it has them.
fn lacking(
    device: &Device,
    blas: &mut Blas,
    (operands, aligned): (Operands, bool),
    shapes: &[(usize, usize)],
) -> Option<String> {
    // Compute capability 8.9 is the first with FP8 products; an older one may be asked for on a newer card.
    if device.arch < 89 {
        return Some(format!("compute capability {} / 10", device.arch));
    }
    if !aligned {
        return Some("weights whose parts do not end at a block's border".into());
    }
    shapes.iter().find_map(|&(n, k)| {
        if !k.is_multiple_of(128) || !n.is_multiple_of(16) {
            return Some(format!("a matrix of {n} x {k}"));
        }
        let product = Product { m: 32, n, k, add: false, f32_out: false, operands, width: n };
        blas.check(product).err().map(|error| error.to_string())
    })
}

impl Forward<'_> {
    pub(crate) fn fp8_kernels(&self) -> &Fp8Kernels {
        self.kernels.products.fp8.as_ref().expect("compiled for every model with FP8 weights")
    }

    /// Rows of `h` normed for [`Self::few_rows_fp8`].
    pub(crate) fn norm_f16(&self, norm: &Buffer, pick: u64, m: usize) -> Result<(), BackendError> {
        self.norm_with(&self.fp8_kernels().norm_f16, norm, pick, m, false)
    }

    pub(crate) fn few_rows_fp8(
        &self,
        role: Role,
        out: u64,
        x: u64,
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let fp8 = self.fp8_kernels();
        groups(m).try_for_each(|(first, m)| {
            let (out, x) = (out + (first * n * 2) as u64, x + (first * k * 2) as u64);
            let kernel = &fp8.few_rows[tile_of(m)][role as usize];
            let form = (kernel, fp8.ring.shared_bytes(m), role);
            self.launch_fp8(form, (out, x), (0, GateProduct::NONE), matrix, (m, n, k))
        })
    }

    /// A product of rows of the residual stream that norms them itself and makes `gates` on its way; false: the rows are to
    /// be normed before, and the gates are not made.
    pub(crate) fn norming_fp8(
        &self,
        role: Role,
        out: u64,
        (norm, gates): (&Buffer, GateProduct),
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<bool, BackendError> {
        let fp8 = self.fp8_kernels();
        let at = Role::NORMED.iter().position(|&normed| normed == role);
        let shared = fp8.ring.near_shared((m, k));
        let (Some(kernel), Some(shared)) = (at.and_then(|at| fp8.near.get(at)), shared) else {
            return Ok(false);
        };
        if gates.n > self.fp8_blocks(role, n) {
            return Ok(false);
        }
        let x = self.work.h.pointer;
        self.launch_fp8((kernel, shared, role), (out, x), (norm.pointer, gates), matrix, (m, n, k))?;
        Ok(true)
    }

    fn fp8_blocks(&self, role: Role, n: usize) -> usize {
        (n / role.tile_outputs()).min((self.device.multiprocessors * BLOCKS_PER_MULTIPROCESSOR) as usize)
    }

    fn launch_fp8(
        &self,
        (kernel, shared, role): (&Kernel, usize, Role),
        (out, x): (u64, u64),
        (norm, gates): (u64, GateProduct),
        matrix: &Matrix,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let Matrix::Fp8 { codes, scales, .. } = matrix else {
            return Err(fault("an FP8 product", "its weights are not FP8"));
        };
        let tile_scales = match self.fp8.map(|fp8| fp8.scales) {
            Some(Fp8Scales::Blocks) => k.div_ceil(128),
            _ => TILE_ROWS,
        };
        let args = Args::default()
            .pointer(out)
            .pointer(x)
            .pointer(codes.pointer)
            .pointer(codes.pointer + (n * k) as u64)
            .pointer(scales.pointer)
            .pointer(scales.pointer + (n / TILE_ROWS * tile_scales * size_of::<f32>()) as u64)
            .int(m)
            .int(n)
            .int(k)
            .pointer(norm)
            .float(self.model.eps)
            .words(&gates.words());
        let (blocks, threads) = (self.fp8_blocks(role, n), self.fp8_kernels().ring.threads());
        kernel.launch(self.device, Shape::new(blocks as u32, threads).shared(shared as u32), args)
    }
}
