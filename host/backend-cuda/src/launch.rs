//! Kernel launches with the attributes that the safe bindings lack.

use std::ffi::c_void;

use backend::BackendError;
use cudarc::driver::sys;

use crate::compile::Kernel;
use crate::device::{Device, fault};

/// Grid, block and dynamic shared memory of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub grid: (u32, u32),
    pub block: u32,
    pub shared_bytes: u32,
    /// Blocks in a row that read each other's shared memory; more than one from compute capability 9.0 on.
    pub cluster: u32,
    /// How much of a multiprocessor's memory should be shared, in percent of the most; the rest is its first cache. Where it
    /// is not said, the driver decides.
    pub shared_percent: Option<u32>,
}

impl Shape {
    pub fn new(grid: u32, block: u32) -> Self {
        Self::of((grid, 1), block)
    }

    pub fn of(grid: (u32, u32), block: u32) -> Self {
        Self { grid, block, shared_bytes: 0, cluster: 1, shared_percent: None }
    }

    pub fn shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    pub fn cluster(self, cluster: u32) -> Self {
        Self { cluster, ..self }
    }
}

/// Shared memory of a block on Hopper.
pub const HOPPER_SHARED_MAX: usize = 227 << 10;

/// Arguments of a launch. Values are copied in, in the kernel's order, from multiples of eight bytes on.
#[derive(Default)]
pub struct Args {
    values: Vec<u64>,
    /// Words that belong to the argument before them.
    further: Vec<usize>,
}

impl Args {
    pub fn pointer(mut self, pointer: sys::CUdeviceptr) -> Self {
        self.values.push(pointer);
        self
    }

    pub fn int(mut self, value: usize) -> Self {
        self.values.push(u64::from(value as u32));
        self
    }

    /// A structure, by value.
    pub fn words(mut self, words: &[u64]) -> Self {
        self.further.extend(self.values.len() + 1..self.values.len() + words.len());
        self.values.extend_from_slice(words);
        self
    }

    pub fn long(mut self, value: u64) -> Self {
        self.values.push(value);
        self
    }

    pub fn float(mut self, value: f32) -> Self {
        self.values.push(u64::from(value.to_bits()));
        self
    }
}

impl Kernel {
    /// Queues the kernel behind the stream's earlier work. On Hopper and later it may begin before its predecessor has
    /// ended; every kernel waits (`wait_previous`) before it touches what others write.
    pub fn launch(&self, device: &Device, shape: Shape, mut args: Args) -> Result<(), BackendError> {
        let base = args.values.as_mut_ptr();
        let starts = (0..args.values.len()).filter(|index| !args.further.contains(index));
        let mut pointers: Vec<*mut c_void> = starts.map(|index| base.wrapping_add(index).cast()).collect();
        use sys::CUlaunchAttributeID_enum::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER,
            CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVEOUT,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as EARLY,
        };
        let mut attributes = Vec::new();
        let mut set = |id, value| attributes.push(sys::CUlaunchAttribute_st { id, pad: [0; 4], value });
        if device.arch >= 90 {
            set(EARLY, sys::CUlaunchAttributeValue_union { programmaticStreamSerializationAllowed: 1 });
        }
        if shape.cluster > 1 {
            let blocks = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
            set(CLUSTER, sys::CUlaunchAttributeValue_union { clusterDim: blocks });
        }
        if let Some(percent) = shape.shared_percent {
            set(CARVEOUT, sys::CUlaunchAttributeValue_union { sharedMemCarveout: percent });
        }
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid.0,
            gridDimY: shape.grid.1,
            gridDimZ: 1,
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: device.stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let Some(function) = self.function() else {
            return Err(fault(&format!("launching `{}`", self.name), "it was compiled without a card"));
        };
        // SAFETY: `pointers` are as many as the kernel's parameters and outlive the call, which copies them; each value has
        // at least the parameter's bytes. What the kernel touches is the caller's buffers.
        unsafe { sys::cuLaunchKernelEx(&config, function.cu_function(), pointers.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(|e| fault(&format!("launching `{}`", self.name), e))
    }

    /// Allows more dynamic shared memory than 48 KiB.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), BackendError> {
        // A kernel that was only compiled is never launched.
        let Some(function) = self.function() else { return Ok(()) };
        function
            .set_attribute(
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes as i32,
            )
            .map_err(|e| fault(&format!("shared memory of `{}`", self.name), e))
    }
}
