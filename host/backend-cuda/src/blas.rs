//! Products of many rows, through cuBLASLt.

use std::collections::HashMap;
use std::ffi::c_void;

use backend::BackendError;
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::sys as driver;

use crate::device::{Buffer, Device, fault};

const WORKSPACE_BYTES: usize = 64 << 20;
/// Algorithms asked for each shape; the library's own ranking is best first.
const CANDIDATES: usize = 8;
/// Timed passes of each candidate over a model's layers; the fastest counts.
const ROUNDS: usize = 2;

/// Chunks of prompts are counted in tiles of so many rows: half of what the library's products take at once, and the
/// tokens of a tile of attention where four heads share a key.
pub const ROWS_TILE: usize = 32;
/// What the library's products of many rows take at once: with the weights of Qwen3-8B 576 rows take a fifth
/// longer than 512, 832 a quarter longer than 768.
pub const LARGE_ROWS_TILE: usize = 128;
/// Rows up to which a few more or less are felt, since the weights' bytes are most of the time.
const FINE_ROWS_MAX: usize = 128;
/// Rows beyond which a tile is not felt.
const COARSE_ROWS_MIN: usize = 512;
/// The rows that the library computes for `m`: it takes FP8 rows in fours, and few different shapes are worth tuning. The
/// rows behind the last hold numbers that nobody reads.
pub fn library_rows(m: usize) -> usize {
    let grain = if m <= FINE_ROWS_MAX {
        8
    } else if m <= COARSE_ROWS_MIN {
        ROWS_TILE
    } else {
        2 * ROWS_TILE
    };
    m.next_multiple_of(grain)
}

/// How the operands are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operands {
    /// Both in the model's 16-bit type.
    Half,
    /// e4m3 with an f32 for each row of `W` and of `x`.
    Fp8Rows,
    /// e4m3 without scales.
    Fp8Raw,
    /// e4m3; `W` with an f32 for 128 x 128 values, `x` with one for 128 values of a row. Hopper only.
    Fp8Blocks,
}

/// `out[m, n] = x[m, k] W[n, k]^T (+ out)`, f32 sums; `out` in the model's 16-bit type, or f32 for logits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub add: bool,
    pub f32_out: bool,
    pub operands: Operands,
    /// Values from one row of `out` to the next.
    pub width: usize,
}

/// Device addresses of one product. Scales are 0 for [`Operands::Half`].
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub out: u64,
    pub x: u64,
    pub w: u64,
    pub x_scales: u64,
    pub w_scales: u64,
}

struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    candidates: Vec<sys::cublasLtMatmulAlgo_t>,
    chosen: usize,
    tuned: bool,
}

/// Handle, workspace, and a plan per shape: the heuristic is asked once for each.
pub struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    half: sys::cudaDataType_t,
    plans: HashMap<Product, Plan>,
    /// While tuning: what was run, by shape.
    recorded: Option<HashMap<Product, Vec<Call>>>,
}

// SAFETY: the handle and the descriptors are used by the one thread that drives the backend.
unsafe impl Send for Blas {}

impl Blas {
    /// `f16`: the model's 16-bit type is f16, else bf16.
    pub fn new(device: &Device, f16: bool) -> Result<Self, BackendError> {
        let handle = lt::create_handle().map_err(|e| fault("cublasLtCreate", e))?;
        Ok(Self {
            handle,
            workspace: device.alloc("the workspace of cuBLASLt", WORKSPACE_BYTES)?,
            half: if f16 { sys::cudaDataType_t::CUDA_R_16F } else { sys::cudaDataType_t::CUDA_R_16BF },
            plans: HashMap::new(),
            recorded: None,
        })
    }

    /// Fails when the library has no algorithm for this product on this card.
    pub fn check(&mut self, product: Product) -> Result<(), BackendError> {
        self.plan(product)
    }

    pub fn run(&mut self, device: &Device, product: Product, call: Call) -> Result<(), BackendError> {
        self.plan(product)?;
        if let Some(recorded) = &mut self.recorded {
            recorded.entry(product).or_default().push(call);
        }
        self.launch(device, product, call, self.plans[&product].chosen)
    }

    /// From here on products are remembered, for [`Self::tune`].
    pub fn record(&mut self) {
        self.recorded = Some(HashMap::new());
    }

    /// Times the library's candidates for each recorded shape over the recorded calls, which read a whole model's
    /// weights and so find the caches as a step does. Outputs are overwritten.
    pub fn tune(&mut self, device: &Device) -> Result<(), BackendError> {
        for (product, calls) in self.recorded.take().unwrap_or_default() {
            let plan = &self.plans[&product];
            if plan.tuned {
                continue;
            }
            let mut best = (f32::INFINITY, 0);
            for candidate in 0..plan.candidates.len() {
                // A candidate that fails is passed over; the first one has just run.
                if let Ok(millis) = self.time(device, product, &calls, candidate)
                    && millis < best.0
                {
                    best = (millis, candidate);
                }
            }
            let plan = self.plans.get_mut(&product).expect("planned when it was recorded");
            (plan.chosen, plan.tuned) = (best.1, true);
        }
        Ok(())
    }

    fn time(&self, device: &Device, product: Product, calls: &[Call], candidate: usize) -> Result<f32, BackendError> {
        let event = || {
            let flags = Some(driver::CUevent_flags::CU_EVENT_DEFAULT);
            device.context.new_event(flags).map_err(|e| fault("cuEventCreate", e))
        };
        let mut best = f32::INFINITY;
        for _ in 0..ROUNDS {
            let (begun, ended) = (event()?, event()?);
            begun.record(&device.stream).map_err(|e| fault("cuEventRecord", e))?;
            for &call in calls {
                self.launch(device, product, call, candidate)?;
            }
            ended.record(&device.stream).map_err(|e| fault("cuEventRecord", e))?;
            device.synchronize()?;
            best = best.min(begun.elapsed_ms(&ended).map_err(|e| fault("cuEventElapsedTime", e))?);
        }
        Ok(best)
    }

    fn launch(&self, device: &Device, product: Product, call: Call, candidate: usize) -> Result<(), BackendError> {
        let plan = &self.plans[&product];
        if scale_modes(product.operands).is_some() {
            Self::set_scales(plan.desc, product, call)?;
        }
        let (alpha, beta) = (1.0f32, if product.add { 1.0f32 } else { 0.0 });
        // SAFETY: the layouts describe the caller's buffers; alpha and beta are host values of the scale type; the
        // workspace is ours and the stream orders its use.
        unsafe {
            lt::matmul(
                self.handle,
                plan.desc,
                (&raw const alpha).cast::<c_void>(),
                (&raw const beta).cast::<c_void>(),
                call.w as *const c_void,
                plan.a,
                call.x as *const c_void,
                plan.b,
                call.out as *const c_void,
                plan.c,
                call.out as *mut c_void,
                plan.c,
                &plan.candidates[candidate],
                self.workspace.pointer as *mut c_void,
                WORKSPACE_BYTES,
                device.stream.cu_stream().cast(),
            )
        }
        .map_err(|e| fault(&format!("cublasLtMatmul of {product:?}"), e))
    }

    fn set_scales(desc: sys::cublasLtMatmulDesc_t, product: Product, call: Call) -> Result<(), BackendError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        for (attribute, scales) in [
            (Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.w_scales),
            (Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.x_scales),
        ] {
            // SAFETY: the attribute is a device pointer, given with its size.
            unsafe { lt::set_matmul_desc_attribute(desc, attribute, (&raw const scales).cast(), size_of::<u64>()) }
                .map_err(|e| fault(&format!("cuBLASLt scales of {product:?}"), e))?;
        }
        Ok(())
    }

    fn plan(&mut self, product: Product) -> Result<(), BackendError> {
        if !self.plans.contains_key(&product) {
            let plan = self.describe(product)?;
            self.plans.insert(product, plan);
        }
        Ok(())
    }

    /// cuBLASLt is column-major: our row-major `out` is its `n x m` matrix, `W` transposed times `x`.
    fn describe(&self, product: Product) -> Result<Plan, BackendError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let err = |e| fault(&format!("cuBLASLt descriptor of {product:?}"), e);
        let (f32_type, fp8) = (sys::cudaDataType_t::CUDA_R_32F, sys::cudaDataType_t::CUDA_R_8F_E4M3);
        let input = if product.operands == Operands::Half { self.half } else { fp8 };
        let out = if product.f32_out { f32_type } else { self.half };
        let (m, n, k) = (product.m as u64, product.n as u64, product.k as u64);
        let a = lt::create_matrix_layout(input, k, n, k as i64).map_err(err)?;
        let b = lt::create_matrix_layout(input, k, m, k as i64).map_err(err)?;
        let c = lt::create_matrix_layout(out, n, m, product.width as i64).map_err(err)?;
        let desc = lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, f32_type).map_err(err)?;
        let set = |attribute, value: i32| {
            // SAFETY: the attribute is a 32-bit integer, given with its size.
            unsafe { lt::set_matmul_desc_attribute(desc, attribute, (&raw const value).cast(), size_of::<i32>()) }
                .map_err(err)
        };
        // CUBLAS_OP_T of the library's enumeration, which the bindings of cuBLASLt alone do not hold.
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 1)?;
        // Sums of a few dozen codes are kept in fewer bits, which is what makes FP8 fast; sums of blocks are short anyway.
        if matches!(product.operands, Operands::Fp8Raw | Operands::Fp8Rows) {
            let fast: i8 = 1;
            // SAFETY: the attribute is an 8-bit integer, given with its size.
            unsafe {
                lt::set_matmul_desc_attribute(
                    desc,
                    Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                    (&raw const fast).cast(),
                    size_of::<i8>(),
                )
            }
            .map_err(err)?;
        }
        if let Some((w_mode, x_mode)) = scale_modes(product.operands) {
            set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w_mode as i32)?;
            set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode as i32)?;
            // The library looks for algorithms only when there are scales, wherever they lie.
            let anywhere = self.workspace.pointer;
            let call = Call { out: 0, x: 0, w: 0, x_scales: anywhere, w_scales: anywhere };
            Self::set_scales(desc, product, call)?;
        }
        let candidates = self.candidates(product, desc, [a, b, c])?;
        Ok(Plan { desc, a, b, c, candidates, chosen: 0, tuned: false })
    }

    fn candidates(
        &self,
        product: Product,
        desc: sys::cublasLtMatmulDesc_t,
        [a, b, c]: [sys::cublasLtMatrixLayout_t; 3],
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, BackendError> {
        let err = |e| fault(&format!("cuBLASLt algorithms of {product:?}"), e);
        let workspace = WORKSPACE_BYTES;
        // SAFETY: plain integers and opaque arrays of them; the library fills as many as it says.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: the attribute is given with its own type and size, the array with its length; the preference is
        // destroyed after its one use.
        unsafe {
            let preference = lt::create_matmul_pref().map_err(err)?;
            let asked = lt::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                size_of_val(&workspace),
            )
            .and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    desc,
                    a,
                    b,
                    c,
                    c,
                    preference,
                    CANDIDATES as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()
            });
            lt::destroy_matmul_pref(preference).map_err(err)?;
            asked.map_err(err)?;
        }
        if count == 0 {
            return Err(fault(&format!("cuBLASLt algorithms of {product:?}"), "there is none"));
        }
        Ok(found[..count as usize].iter().map(|result| result.algo).collect())
    }
}

type ScaleMode = sys::cublasLtMatmulMatrixScale_t;

/// Of `W` and of `x`.
fn scale_modes(operands: Operands) -> Option<(ScaleMode, ScaleMode)> {
    match operands {
        Operands::Half | Operands::Fp8Raw => None,
        Operands::Fp8Rows => Some((
            ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
            ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        )),
        Operands::Fp8Blocks => Some((
            ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
            ScaleMode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        )),
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        for (_, plan) in self.plans.drain() {
            // SAFETY: created by `describe` and destroyed once; a failure at exit changes nothing.
            unsafe {
                let _ = lt::destroy_matmul_desc(plan.desc);
                for layout in [plan.a, plan.b, plan.c] {
                    let _ = lt::destroy_matrix_layout(layout);
                }
            }
        }
        // SAFETY: as above.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}
