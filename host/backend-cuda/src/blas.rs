//! Products of many rows, through cuBLASLt.

use std::collections::HashMap;
use std::ffi::c_void;

use backend::BackendError;
use cudarc::cublaslt::{result as lt, sys};

use crate::device::{Buffer, Device, fault};

const WORKSPACE_BYTES: usize = 64 << 20;

/// `out[m, n] = x[m, k] W[n, k]^T (+ out)`, all bf16 but for f32 logits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Product {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub add: bool,
    pub f32_out: bool,
}

struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// Handle, workspace, and a plan per shape: the heuristic is asked once for each.
pub struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Buffer,
    plans: HashMap<Product, Plan>,
}

// SAFETY: the handle and the descriptors are used by the one thread that drives the backend.
unsafe impl Send for Blas {}

impl Blas {
    pub fn new(device: &Device) -> Result<Self, BackendError> {
        let handle = lt::create_handle().map_err(|e| fault("cublasLtCreate", e))?;
        Ok(Self {
            handle,
            workspace: device.alloc("the workspace of cuBLASLt", WORKSPACE_BYTES)?,
            plans: HashMap::new(),
        })
    }

    pub fn run(&mut self, device: &Device, product: Product, out: u64, x: u64, w: u64) -> Result<(), BackendError> {
        if !self.plans.contains_key(&product) {
            let plan = self.plan(product)?;
            self.plans.insert(product, plan);
        }
        let plan = &self.plans[&product];
        let (alpha, beta) = (1.0f32, if product.add { 1.0f32 } else { 0.0 });
        // SAFETY: the layouts describe the caller's buffers; alpha and beta are host values of the scale type; the
        // workspace is ours and the stream orders its use.
        unsafe {
            lt::matmul(
                self.handle,
                plan.desc,
                (&raw const alpha).cast::<c_void>(),
                (&raw const beta).cast::<c_void>(),
                w as *const c_void,
                plan.a,
                x as *const c_void,
                plan.b,
                out as *const c_void,
                plan.c,
                out as *mut c_void,
                plan.c,
                &plan.algorithm,
                self.workspace.pointer as *mut c_void,
                WORKSPACE_BYTES,
                device.stream.cu_stream().cast(),
            )
        }
        .map_err(|e| fault(&format!("cublasLtMatmul of {product:?}"), e))
    }

    /// cuBLASLt is column-major: our row-major `out` is its `n x m` matrix, `W` transposed times `x`.
    fn plan(&self, product: Product) -> Result<Plan, BackendError> {
        let err = |e| fault(&format!("cuBLASLt descriptor of {product:?}"), e);
        let bf16 = sys::cudaDataType_t::CUDA_R_16BF;
        let out = if product.f32_out { sys::cudaDataType_t::CUDA_R_32F } else { bf16 };
        let (m, n, k) = (product.m as u64, product.n as u64, product.k as u64);
        let a = lt::create_matrix_layout(bf16, k, n, k as i64).map_err(err)?;
        let b = lt::create_matrix_layout(bf16, k, m, k as i64).map_err(err)?;
        let c = lt::create_matrix_layout(out, n, m, n as i64).map_err(err)?;
        let desc =
            lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F)
                .map_err(err)?;
        // CUBLAS_OP_T of the library's enumeration, which the bindings of cuBLASLt alone do not hold.
        let transpose: i32 = 1;
        let workspace = WORKSPACE_BYTES;
        // SAFETY: each attribute is given with its own type and size; the preference is destroyed after its one use.
        unsafe {
            lt::set_matmul_desc_attribute(
                desc,
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const transpose).cast(),
                size_of_val(&transpose),
            )
            .map_err(err)?;
            let preference = lt::create_matmul_pref().map_err(err)?;
            lt::set_matmul_pref_attribute(
                preference,
                sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const workspace).cast(),
                size_of_val(&workspace),
            )
            .map_err(err)?;
            let found = lt::get_matmul_algo_heuristic(self.handle, desc, a, b, c, c, preference).map_err(err)?;
            lt::destroy_matmul_pref(preference).map_err(err)?;
            Ok(Plan { desc, a, b, c, algorithm: found.algo })
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        for (_, plan) in self.plans.drain() {
            // SAFETY: created by `plan` and destroyed once; a failure at exit changes nothing.
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
