//! Descriptions of arrays from which Hopper's kernels copy boxes.

use backend::BackendError;
use cudarc::driver::sys;

use crate::device::fault;

/// 128 bytes that the copy engine reads: in a buffer, or an argument of a kernel.
pub type TensorMap = sys::CUtensorMap;

/// A map of bf16 values with the 128-byte swizzle: (length, box) of each axis, innermost first; strides of all but that.
pub fn tensor_map(pointer: u64, axes: &[(usize, usize)], stride_bytes: &[usize]) -> Result<TensorMap, BackendError> {
    let lengths: Vec<u64> = axes.iter().map(|axis| axis.0 as u64).collect();
    let boxes: Vec<u32> = axes.iter().map(|axis| axis.1 as u32).collect();
    let strides: Vec<u64> = stride_bytes.iter().map(|&stride| stride as u64).collect();
    let steps = vec![1u32; axes.len()];
    let mut map = TensorMap { opaque: [0; 16] };
    // SAFETY: the slices are as long as the rank says; the call reads them and writes the map.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            axes.len() as u32,
            pointer as *mut _,
            lengths.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()
    .map_err(|e| fault(&format!("cuTensorMapEncodeTiled of {axes:?}"), e))?;
    Ok(map)
}
