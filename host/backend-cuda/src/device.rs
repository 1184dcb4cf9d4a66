//! The device: libraries that must be there, memory that frees itself, and errors that name the call.

use std::path::PathBuf;
use std::sync::Arc;

use backend::BackendError;
use cudarc::driver::{CudaContext, CudaStream, result, sys};

/// Where compiled kernels are kept and which card is used.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    pub ordinal: usize,
    /// `None`: kernels are compiled at every start.
    pub kernel_cache: Option<PathBuf>,
    /// Kernels take the code paths of this compute capability times ten instead of the card's own.
    pub arch: Option<u32>,
}

/// An opened card with one stream.
pub struct Device {
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub name: String,
    /// Compute capability times ten: 90 for Hopper.
    pub arch: u32,
    pub multiprocessors: u32,
}

pub(crate) fn fault(operation: &str, cause: impl std::fmt::Debug) -> BackendError {
    BackendError::Device { operation: operation.to_owned(), cause: format!("{cause:?}") }
}

/// Looks for every library before the first call: a missing one would otherwise panic inside the bindings.
fn check_libraries() -> Result<(), BackendError> {
    // SAFETY: each call only tries to open a shared library.
    let found = unsafe {
        [
            ("the NVIDIA driver (libcuda.so.1)", sys::is_culib_present()),
            ("NVRTC (libnvrtc.so)", cudarc::nvrtc::sys::is_culib_present()),
            ("cuBLASLt (libcublasLt.so)", cudarc::cublaslt::sys::is_culib_present()),
        ]
    };
    let missing: Vec<&str> = found.iter().filter(|(_, present)| !present).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(BackendError::Unsupported {
        what: format!("on CUDA: not found on the loader's path: {}", missing.join(", ")),
        fix:
            "install the driver and CUDA 12 or 13 libraries, add their folder to LD_LIBRARY_PATH, or use `--device cpu`"
                .into(),
    })
}

impl Device {
    pub fn open(options: &DeviceOptions) -> Result<Self, BackendError> {
        check_libraries()?;
        result::init().map_err(|e| fault("cuInit", e))?;
        let count = CudaContext::device_count().map_err(|e| fault("cuDeviceGetCount", e))?;
        if options.ordinal >= count as usize {
            return Err(BackendError::Unsupported {
                what: format!("on cuda:{}: this machine has {count} CUDA devices", options.ordinal),
                fix: "name one that is there, or use `--device cpu`".into(),
            });
        }
        let context = CudaContext::new(options.ordinal).map_err(|e| fault("cuCtxCreate", e))?;
        // SAFETY: one stream is used for everything, so its order is all the synchronisation there is.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|e| fault("cuStreamCreate", e))?;
        let (major, minor) = context.compute_capability().map_err(|e| fault("compute capability", e))?;
        let multiprocessors = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(|e| fault("multiprocessor count", e))?;
        let arch = (major * 10 + minor) as u32;
        if arch < 80 {
            return Err(BackendError::Unsupported {
                what: format!("on compute capability {major}.{minor}: the kernels need bf16 matrix instructions (8.0)"),
                fix: "use a newer card or `--device cpu`".into(),
            });
        }
        let name = context.name().map_err(|e| fault("device name", e))?;
        Ok(Self { context, stream, name, arch, multiprocessors: multiprocessors as u32 })
    }

    /// Free and total bytes.
    pub fn memory(&self) -> Result<(u64, u64), BackendError> {
        let (free, total) = self.context.mem_get_info().map_err(|e| fault("cuMemGetInfo", e))?;
        Ok((free as u64, total as u64))
    }

    pub fn alloc(&self, what: &str, bytes: usize) -> Result<Buffer, BackendError> {
        self.context.bind_to_thread().map_err(|e| fault("cuCtxSetCurrent", e))?;
        // SAFETY: a plain allocation; nothing reads it before it is written or zeroed.
        let pointer = unsafe { result::malloc_sync(bytes.max(16)) };
        match pointer {
            Ok(pointer) => Ok(Buffer { pointer, bytes, context: Arc::clone(&self.context) }),
            Err(_) => {
                let (free, total) = self.memory()?;
                Err(BackendError::Memory {
                    what: format!("{what} on {}", self.name),
                    needed: bytes as u64,
                    available: free,
                    fix: format!(
                        "{} of {total} bytes are in use, by other processes too (nvidia-smi lists them); lower --gpu-memory-utilization or --max-num-seqs",
                        total - free
                    ),
                })
            }
        }
    }

    pub fn alloc_zeroed(&self, what: &str, bytes: usize) -> Result<Buffer, BackendError> {
        let buffer = self.alloc(what, bytes)?;
        // SAFETY: the buffer is `bytes` long (at least 16).
        unsafe { result::memset_d8_async(buffer.pointer, 0, bytes.max(16), self.stream.cu_stream()) }
            .map_err(|e| fault("cuMemsetD8Async", e))?;
        Ok(buffer)
    }

    pub fn upload<T: Copy>(&self, what: &str, data: &[T]) -> Result<Buffer, BackendError> {
        let buffer = self.alloc(what, size_of_val(data))?;
        // SAFETY: the buffer is as long as the slice; pageable memory makes the copy synchronous to the host.
        unsafe { result::memcpy_htod_async(buffer.pointer, data, self.stream.cu_stream()) }
            .map_err(|e| fault("cuMemcpyHtoDAsync", e))?;
        self.synchronize()?;
        Ok(buffer)
    }

    pub fn synchronize(&self) -> Result<(), BackendError> {
        self.stream.synchronize().map_err(|e| fault("cuStreamSynchronize", e))
    }
}

/// Device memory that frees itself.
pub struct Buffer {
    pub pointer: sys::CUdeviceptr,
    pub bytes: usize,
    context: Arc<CudaContext>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `Device::alloc` and freed once. A failure means that the context is gone already.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// Page-locked host memory, cached (not write-combined): the host reads results from it.
pub struct Pinned {
    pointer: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: plain host memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub fn new(device: &Device, bytes: usize) -> Result<Self, BackendError> {
        device.context.bind_to_thread().map_err(|e| fault("cuCtxSetCurrent", e))?;
        // SAFETY: the flags ask for portable, cached memory.
        let pointer = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }
            .map_err(|e| fault("cuMemHostAlloc", e))?;
        Ok(Self { pointer: pointer.cast(), bytes, context: Arc::clone(&device.context) })
    }

    /// Where a kernel finds this memory.
    pub fn device_pointer(&self) -> Result<sys::CUdeviceptr, BackendError> {
        let mut pointer = 0;
        // SAFETY: the memory was allocated by `Pinned::new`; the call writes the pointer.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut pointer, self.pointer.cast(), 0) }
            .result()
            .map_err(|e| fault("cuMemHostGetDevicePointer", e))?;
        Ok(pointer)
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` were allocated, and host memory of any bits is a valid `u8`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `Pinned::new` and freed once.
            let _ = unsafe { result::free_host(self.pointer.cast()) };
        }
    }
}
