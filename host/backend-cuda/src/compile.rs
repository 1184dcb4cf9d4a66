//! Kernel sources to machine code, once per model shape, kept on disk by content.

use std::ffi::{CString, c_char};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use backend::BackendError;
use cudarc::driver::{CudaFunction, CudaModule};
use cudarc::nvrtc::{Ptx, result as nvrtc, sys as nvrtc_sys};
use kernels::Source;
use sha2::{Digest, Sha256};

use crate::device::{Device, fault};

/// Changes whenever what a cache entry means changes.
const CACHE_FORMAT: u32 = 1;

/// Compiles for one card and one set of flags.
pub struct Compiler<'a> {
    device: &'a Device,
    cache: Option<&'a Path>,
    flags: Vec<String>,
    version: (i32, i32),
    pub compiled: u32,
    pub cached: u32,
}

/// A loaded entry point; the module stays loaded as long as it.
#[derive(Clone)]
pub struct Kernel {
    pub name: &'static str,
    pub function: CudaFunction,
    _module: Arc<CudaModule>,
}

impl<'a> Compiler<'a> {
    /// `flags` hold for every kernel of the model, as `NAME=value`.
    pub fn new(device: &'a Device, cache: Option<&'a Path>, flags: &[(&str, usize)]) -> Result<Self, BackendError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|e| fault("nvrtcVersion", e))?;
        let flags = flags.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
        Ok(Self { device, cache, flags, version: (major, minor), compiled: 0, cached: 0 })
    }

    pub fn kernel(&mut self, source: Source, extra: &[(&str, usize)]) -> Result<Kernel, BackendError> {
        let mut options = vec![format!("--gpu-architecture={}", target(self.device.arch)), "--std=c++17".into()];
        options.extend(self.flags.iter().cloned());
        options.extend(extra.iter().map(|(name, value)| format!("-D{name}={value}")));
        let cubin = self.cubin(source, &options)?;
        let module = self
            .device
            .context
            .load_module(Ptx::from_binary(cubin))
            .map_err(|e| fault(&format!("loading kernel `{}`", source.name), e))?;
        let function =
            module.load_function(source.name).map_err(|e| fault(&format!("finding kernel `{}`", source.name), e))?;
        Ok(Kernel { name: source.name, function, _module: module })
    }

    fn cubin(&mut self, source: Source, options: &[String]) -> Result<Vec<u8>, BackendError> {
        let unit = source.unit();
        let key = cache_key(&unit, options, self.version);
        let path = self.cache.map(|dir| dir.join(format!("{}-{key}.cubin", source.name)));
        if let Some(bytes) =
            path.as_ref().and_then(|path| fs::read(path).ok()).filter(|bytes| bytes.starts_with(b"\x7fELF"))
        {
            self.cached += 1;
            return Ok(bytes);
        }
        let bytes = compile(source.name, &unit, options)?;
        self.compiled += 1;
        if let Some(path) = path {
            // A cache that cannot be written costs time at the next start, nothing else.
            let part = path.with_extension(format!("{}.part", std::process::id()));
            let written = fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
                .and_then(|()| fs::write(&part, &bytes))
                .and_then(|()| fs::rename(&part, &path));
            if let Err(error) = written {
                tracing::warn!(path = %path.display(), %error, "compiled kernel was not cached");
            }
        }
        Ok(bytes)
    }
}

/// The machine target: Hopper and data-center Blackwell need their `a` variants for matrix and copy instructions.
fn target(arch: u32) -> String {
    match arch {
        90 | 100 => format!("sm_{arch}a"),
        _ => format!("sm_{arch}"),
    }
}

fn cache_key(unit: &str, options: &[String], version: (i32, i32)) -> String {
    let mut hasher = Sha256::new();
    hasher.update(format!("{CACHE_FORMAT} {version:?} {options:?}\n"));
    hasher.update(unit);
    hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn compile(name: &str, unit: &str, options: &[String]) -> Result<Vec<u8>, BackendError> {
    let invalid = |_| fault("nvrtcCreateProgram", "a kernel source holds a zero byte");
    let text = CString::new(unit).map_err(invalid)?;
    let file = CString::new(format!("{name}.cu")).map_err(invalid)?;
    let program = nvrtc::create_program(&text, Some(&file)).map_err(|e| fault("nvrtcCreateProgram", e))?;
    // SAFETY: the program was just created and is destroyed once, below.
    let compiled = unsafe { nvrtc::compile_program(program, options) };
    let answer = match compiled {
        Ok(()) => machine_code(program),
        Err(error) => {
            // SAFETY: the program is alive; its log is a C string.
            let log = unsafe { nvrtc::get_program_log(program) }.unwrap_or_default();
            let log: Vec<u8> = log.into_iter().map(|c| c as u8).take_while(|&c| c != 0).collect();
            Err(fault(
                &format!("compiling kernel `{name}` ({options:?})"),
                format!("{error:?}: {}", String::from_utf8_lossy(&log)),
            ))
        }
    };
    // SAFETY: as above.
    unsafe { nvrtc::destroy_program(program) }.map_err(|e| fault("nvrtcDestroyProgram", e))?;
    answer
}

fn machine_code(program: nvrtc_sys::nvrtcProgram) -> Result<Vec<u8>, BackendError> {
    let mut size = 0;
    // SAFETY: the program is alive and was compiled for a machine target.
    unsafe { nvrtc_sys::nvrtcGetCUBINSize(program, &mut size) }.result().map_err(|e| fault("nvrtcGetCUBINSize", e))?;
    let mut bytes = vec![0u8; size];
    // SAFETY: the buffer has the size that was just asked for.
    unsafe { nvrtc_sys::nvrtcGetCUBIN(program, bytes.as_mut_ptr().cast::<c_char>()) }
        .result()
        .map_err(|e| fault("nvrtcGetCUBIN", e))?;
    Ok(bytes)
}
