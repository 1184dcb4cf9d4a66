//! Kernel sources to machine code, once per model shape, kept on disk by content.

use std::ffi::{CString, c_char};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use backend::BackendError;
use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::{Ptx, result as nvrtc, sys as nvrtc_sys};
use kernels::Source;
use sha2::{Digest, Sha256};

use crate::device::fault;

/// Changes whenever what a cache entry means changes.
const CACHE_FORMAT: u32 = 1;

/// What kernels are compiled for. Compute capabilities are times ten: 90 for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The machine code.
    pub machine: u32,
    /// The code paths: those of an older card run on a newer one too.
    pub arch: u32,
    /// The 16-bit type is f16, else bf16.
    pub f16: bool,
}

/// Compiles for one target and one set of flags.
pub struct Compiler<'a> {
    /// Without one, kernels are compiled and not loaded.
    context: Option<&'a Arc<CudaContext>>,
    pub target: Target,
    cache: Option<&'a Path>,
    /// Flags of the model's shape, which only reach kernels that know of heads.
    shape_flags: Vec<(String, String)>,
    flags: Vec<String>,
    version: (i32, i32),
    pub compiled: u32,
    pub cached: u32,
}

/// A loaded entry point; the module stays loaded as long as it.
#[derive(Clone)]
pub struct Kernel {
    pub name: &'static str,
    loaded: Option<(CudaFunction, Arc<CudaModule>)>,
}

impl Kernel {
    /// `None` where it was only compiled.
    pub fn function(&self) -> Option<&CudaFunction> {
        self.loaded.as_ref().map(|(function, _)| function)
    }
}

impl<'a> Compiler<'a> {
    /// `flags` hold for every kernel of the model, as `NAME=value`.
    pub fn new(
        context: Option<&'a Arc<CudaContext>>,
        target: Target,
        cache: Option<&'a Path>,
        flags: &[(&str, usize)],
    ) -> Result<Self, BackendError> {
        let shape_flags = flags.iter().map(|(name, value)| ((*name).to_owned(), format!("-D{name}={value}"))).collect();
        let mut flags = Vec::new();
        if target.f16 {
            flags.push("-DTL_F16".into());
        }
        if target.arch != target.machine {
            flags.push(format!("-DTL_ARCH={}", target.arch * 10));
        }
        Ok(Self { context, target, cache, shape_flags, flags, version: nvrtc_version()?, compiled: 0, cached: 0 })
    }

    pub fn kernel(&mut self, source: Source, extra: &[(&str, usize)]) -> Result<Kernel, BackendError> {
        let mut options =
            vec![format!("--gpu-architecture={}", target_name(self.target.machine)), "--std=c++17".into()];
        options.extend(self.flags.iter().cloned());
        // The others are the same for every shape, and so is their code in the cache.
        let whole = source.mentions("HEAD_DIM");
        let shape_flags = self.shape_flags.iter().filter(|(name, _)| whole || source.mentions(name));
        options.extend(shape_flags.map(|(_, flag)| flag.clone()));
        options.extend(extra.iter().map(|(name, value)| format!("-D{name}={value}")));
        let cubin = self.cubin(source, &options)?;
        let Some(context) = self.context else { return Ok(Kernel { name: source.name, loaded: None }) };
        let module = context
            .load_module(Ptx::from_binary(cubin))
            .map_err(|e| fault(&format!("loading kernel `{}`", source.name), e))?;
        let function =
            module.load_function(source.name).map_err(|e| fault(&format!("finding kernel `{}`", source.name), e))?;
        Ok(Kernel { name: source.name, loaded: Some((function, module)) })
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

/// Major and minor.
pub fn nvrtc_version() -> Result<(i32, i32), BackendError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid for the call.
    unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|e| fault("nvrtcVersion", e))?;
    Ok((major, minor))
}

/// The machine target: Hopper and data-center Blackwell need their `a` variants for matrix and copy instructions.
fn target_name(machine: u32) -> String {
    match machine {
        90 | 100 => format!("sm_{machine}a"),
        _ => format!("sm_{machine}"),
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
