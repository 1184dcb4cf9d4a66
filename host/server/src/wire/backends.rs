//! A model onto the device that was asked for.

use backend::Backend;
use backend::load::{LoadOptions, MemoryPlan};
use backend::ops::ModelSpec;
use backend_cuda::{CudaOptions, DeviceOptions};

use crate::device::Device;
use crate::progress::Progress;
use crate::settings::EngineSettings;

/// On a GPU a step of thousands of rows is what fills it, and weights are read once for all sequences.
const CUDA_SEATS: u16 = 128;
const CUDA_ROWS: u32 = 8192;

/// What the settings ask of a backend, with the device's own defaults.
pub fn load_options(settings: &EngineSettings) -> LoadOptions {
    let defaults = match settings.device {
        Device::Cpu => LoadOptions::default(),
        Device::Cuda(_) => LoadOptions { seats: CUDA_SEATS, max_rows: CUDA_ROWS, ..LoadOptions::default() },
    };
    LoadOptions {
        seats: settings.max_num_seqs.unwrap_or(defaults.seats),
        max_rows: settings.max_num_batched_tokens.unwrap_or(defaults.max_rows),
        context_len: settings.max_model_len,
        kv_tokens: settings.kv_cache_tokens,
        threads: settings.threads.map(|n| n as usize),
        quantization: settings.quantization,
    }
}

pub fn load(
    spec: ModelSpec,
    settings: &EngineSettings,
    asked: &LoadOptions,
) -> anyhow::Result<(Box<dyn Backend>, MemoryPlan)> {
    let mut progress = Progress::new("loading", &settings.name);
    let loaded: (Box<dyn Backend>, _) = match settings.device {
        Device::Cpu => {
            let (backend, plan) = backend_cpu::load(spec, asked, &mut |done| progress.update(done))?;
            (Box::new(backend), plan)
        }
        Device::Cuda(ordinal) => {
            let options = cuda_options(settings, ordinal);
            let (backend, plan) = backend_cuda::load(&spec, asked, &options, &mut |done| progress.update(done))?;
            (Box::new(backend), plan)
        }
    };
    progress.finish();
    Ok(loaded)
}

fn cuda_options(settings: &EngineSettings, ordinal: usize) -> CudaOptions {
    CudaOptions {
        device: DeviceOptions { ordinal, kernel_cache: crate::env::kernel_cache(), arch: settings.cuda_arch },
        memory_fraction: settings.gpu_memory_utilization.unwrap_or(CudaOptions::default().memory_fraction),
        graphs: !settings.enforce_eager,
        saved_states: settings.prefix_caching,
        batch_invariant: settings.batch_invariant,
        state_type: settings.state_type,
    }
}
