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
    /// Whose code paths run, as compute capability times ten: 90 for Hopper. The card's own unless an older one was asked
    /// for.
    pub arch: u32,
    /// The card's own.
    pub machine: u32,
    pub multiprocessors: u32,
    pub shared_per_multiprocessor: u32,
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

/// As the driver says it: 13000 for CUDA 13.0.
fn driver_version() -> Result<i32, BackendError> {
    let mut version = 0;
    // SAFETY: the pointer is valid for the call.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| fault("cuDriverGetVersion", e))?;
    Ok(version)
}

/// Oldest compute capability with matrix instructions.
const MACHINE_MIN: u32 = 70;
/// The last NVRTC that compiles for Volta.
const VOLTA_NVRTC: i32 = 12;

/// A driver loads no code of a newer CUDA, and a compiler knows no card that is too old for it: both are said with their
/// versions here, before either fails in words of its own.
fn check_versions(driver: i32, (major, minor): (i32, i32), machine: u32) -> Result<(), BackendError> {
    let unsupported = |what: String, fix: &str| Err(BackendError::Unsupported { what, fix: fix.into() });
    let (driver_major, driver_minor) = (driver / 1000, driver % 1000 / 10);
    if machine < MACHINE_MIN {
        let what = format!("on compute capability {machine} / 10: the kernels need matrix instructions (7.0)");
        return unsupported(what, "use a newer card or `--device cpu`");
    }
    if driver_major < major {
        return unsupported(
            format!("code of NVRTC {major}.{minor} with a driver for CUDA {driver_major}.{driver_minor}"),
            "update the NVIDIA driver, or put CUDA libraries of the driver's version first on LD_LIBRARY_PATH",
        );
    }
    if machine < 75 && major > VOLTA_NVRTC {
        return unsupported(
            format!("on compute capability {machine} / 10 with NVRTC {major}.{minor}, which no longer compiles for it"),
            "put CUDA 12 libraries first on LD_LIBRARY_PATH, or use `--device cpu`",
        );
    }
    Ok(())
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
        let shared = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
            .map_err(|e| fault("shared memory", e))?;
        let machine = (major * 10 + minor) as u32;
        check_versions(driver_version()?, crate::compile::nvrtc_version()?, machine)?;
        let arch = options.arch.unwrap_or(machine);
        if arch > machine {
            return Err(BackendError::Unsupported {
                what: format!("code for compute capability {arch} / 10 on a card of {machine} / 10"),
                fix: "leave --cuda-arch out, or name an older one".into(),
            });
        }
        let name = context.name().map_err(|e| fault("device name", e))?;
        let (multiprocessors, shared_per_multiprocessor) = (multiprocessors as u32, shared as u32);
        Ok(Self { context, stream, name, arch, machine, multiprocessors, shared_per_multiprocessor })
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
                        "{} of {total} bytes are in use, {}; lower --gpu-memory-utilization or --max-num-seqs",
                        total - free,
                        holders(),
                    ),
                })
            }
        }
    }

    pub fn alloc_zeroed(&self, what: &str, bytes: usize) -> Result<Buffer, BackendError> {
        let buffer = self.alloc(what, bytes)?;
        self.clear(buffer.pointer, bytes)?;
        Ok(buffer)
    }

    /// Queues zeros for `bytes` from an address inside a buffer.
    pub fn clear(&self, at: u64, bytes: usize) -> Result<(), BackendError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the callers give ranges of buffers that they hold.
        unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) }
            .map_err(|e| fault("cuMemsetD8Async", e))
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

/// Who holds memory on the cards, as the driver's own tool says; it may see no other containers.
fn holders() -> String {
    let query = ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"];
    let listed = std::process::Command::new("nvidia-smi").args(query).output();
    let text =
        listed.ok().filter(|out| out.status.success()).map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    describe_holders(text.as_deref(), std::process::id())
}

/// Lines of `pid, name, memory`.
fn describe_holders(text: Option<&str>, own: u32) -> String {
    let Some(text) = text else { return "by whom `nvidia-smi` would say, which did not answer".into() };
    let process = |line: &str| {
        let (pid, rest) = line.split_once(',')?;
        let (name, memory) = rest.rsplit_once(',')?;
        let whose = if pid.trim().parse() == Ok(own) { "this process" } else { name.trim() };
        Some(format!("{whose} (pid {}) {}", pid.trim(), memory.trim()))
    };
    let named: Vec<String> = text.lines().filter_map(process).collect();
    if named.is_empty() {
        return "by processes that this one cannot see".into();
    }
    format!("by {}", named.join(", "))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Which versions go together, and what is said when they do not.
    #[test]
    fn versions_are_compared() {
        for (driver, nvrtc, machine, needle) in [
            (13000, (13, 0), 90, None),
            (13010, (12, 9), 70, None),
            (12040, (12, 9), 80, None),
            (12040, (13, 0), 90, Some("NVRTC 13.0 with a driver for CUDA 12.4; update the NVIDIA driver")),
            (13000, (13, 0), 70, Some("70 / 10 with NVRTC 13.0, which no longer compiles for it; put CUDA 12")),
            (13000, (12, 9), 61, Some("61 / 10: the kernels need matrix instructions (7.0); use a newer card")),
        ] {
            let found = check_versions(driver, nvrtc, machine).err().map(|e| e.to_string());
            match (&found, needle) {
                (None, None) => {}
                (Some(text), Some(needle)) => assert!(text.contains(needle), "{text}"),
                _ => panic!("{driver}, {nvrtc:?}, {machine}: {found:?}"),
            }
        }
    }

    #[test]
    fn holders_of_memory_are_named() {
        let text = "41, python3, 80000 MiB\n7, /usr/bin/tokenloom, 512 MiB\n";
        assert_eq!(describe_holders(Some(text), 7), "by python3 (pid 41) 80000 MiB, this process (pid 7) 512 MiB");
        assert_eq!(describe_holders(Some(""), 7), "by processes that this one cannot see");
        assert!(describe_holders(None, 7).contains("did not answer"));
    }

    /// Without a driver or a library, opening a card is an error that names what was looked for.
    #[test]
    fn a_machine_without_cuda_is_told_what_is_missing() {
        // On a machine with a card this opens one; that there is no panic is the point.
        if let Err(error) = Device::open(&DeviceOptions::default()) {
            let text = error.to_string();
            assert!(text.contains("libcuda") || text.contains("NVRTC") || text.contains("cu"), "{text}");
        }
    }
}
