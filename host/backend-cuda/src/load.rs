//! A model onto the card: weights, rotation table, KV pool, workspace, kernels.

use backend::BackendError;
use backend::load::{LoadOptions, LoadProgress, MemoryPlan};
use backend::ops::{BlockOp, ModelSpec};
use backend::weights::{Weight, WeightId, WeightType};
use contract::PAGE_TOKENS;
use cudarc::driver::result;

use crate::compile::Compiler;
use crate::device::{Buffer, Device, DeviceOptions, fault};
use crate::forward::{DeviceModel, DeviceOp, Kernels, Workspace};
use crate::launch::{Args, Shape};
use crate::prefill::TensorMaps;
use crate::step::CudaBackend;

/// What only this backend can be asked.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    pub device: DeviceOptions,
    /// Share of the card's memory that weights, workspace and KV pool may take together.
    pub memory_fraction: f32,
    /// Decode steps run as captured graphs.
    pub graphs: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { device: DeviceOptions::default(), memory_fraction: 0.9, graphs: true }
    }
}

/// Left free beside the pool for the driver's own needs.
const RESERVE_BYTES: u64 = 512 << 20;

pub fn load(
    spec: &ModelSpec,
    options: &LoadOptions,
    cuda: &CudaOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(CudaBackend, MemoryPlan), BackendError> {
    check_shape(spec)?;
    let device = Device::open(&cuda.device)?;
    let (free_at_start, total) = device.memory()?;
    let shape = &spec.attention;
    let flags = [
        ("HEADS", shape.heads),
        ("KV_HEADS", shape.kv_heads),
        ("HEAD_DIM", shape.head_dim),
        ("SPLIT", crate::forward::SPLIT),
        ("QTOKENS", crate::forward::tile_tokens(shape)),
    ];
    let mut compiler = Compiler::new(&device, cuda.device.kernel_cache.as_deref(), &flags)?;
    let kernels = Kernels::compile(&mut compiler, device.arch, shape)?;
    tracing::info!(compiled = compiler.compiled, cached = compiler.cached, card = %device.name, "kernels are ready");

    let total_bytes = spec.weights.iter().map(|w| (w.rows * w.cols * 2) as u64).sum();
    let mut loader = Loader { device: &device, kernels: &kernels, spec, done: 0, total: total_bytes, progress };
    let ops = loader.ops()?;
    let weight_bytes = loader.done;

    let mut lowered = Vec::new();
    let context_len = options.context_len.unwrap_or(spec.context_len).min(spec.context_len);
    let workspace = Workspace::new(&device, spec, options, context_len)?;
    device.synchronize()?;
    let (free, _) = device.memory()?;
    let allowed = (total as f64 * f64::from(cuda.memory_fraction)) as u64;
    let used = free_at_start.saturating_sub(free);
    let kv_bytes_per_token = (spec.kv_layers * shape.kv_width() * 2 * 2) as u64;
    let budget = allowed.saturating_sub(used).min(free.saturating_sub(RESERVE_BYTES));
    let fits = budget / (kv_bytes_per_token * u64::from(PAGE_TOKENS));
    let asked = options.kv_tokens.map_or(u64::MAX, |tokens| u64::from(tokens.div_ceil(PAGE_TOKENS)));
    // More than every seat at full length is never used.
    let useful = u64::from(options.seats) * u64::from(context_len.div_ceil(PAGE_TOKENS));
    let pages = asked.min(fits).min(useful.max(1));
    if options.kv_tokens.is_some() && pages < asked {
        lowered.push(format!("KV pool: {asked} pages asked, {pages} fit into {budget} bytes"));
    }
    if pages == 0 {
        return Err(BackendError::Memory {
            what: format!("one KV page on {}", device.name),
            needed: kv_bytes_per_token * u64::from(PAGE_TOKENS),
            available: budget,
            fix: "raise --gpu-memory-utilization, or use a smaller model".into(),
        });
    }
    // One page more than the pool: padding rows write there.
    let kv = (0..spec.kv_layers)
        .map(|layer| device.alloc_zeroed(&format!("KV of layer {layer}"), (pages as usize + 1) * page_bytes(spec)))
        .collect::<Result<Vec<_>, _>>()?;
    let plan = MemoryPlan {
        weights: weight_bytes,
        repacked: 0,
        workspace: workspace.bytes() as u64,
        state: 0,
        kv_pool: pages * kv_bytes_per_token * u64::from(PAGE_TOKENS),
        kv_bytes_per_token,
        pages: pages as u32,
        seats: options.seats,
        lowered,
    };
    let tensor_maps = kernels
        .prefill
        .mapped
        .then(|| TensorMaps::new(&device, shape, workspace.attention_rows(), &kv, pages as usize + 1))
        .transpose()?;
    let model = DeviceModel {
        shape: *shape,
        hidden: spec.hidden,
        ffn: spec.ffn,
        vocab: spec.vocab,
        eps: spec.norm_eps,
        rotation: rotation_table(&device, spec, context_len)?,
        ops,
        kv,
        tensor_maps,
    };
    let backend = CudaBackend::new(device, model, kernels, workspace, options, context_len, pages as u32, cuda.graphs)?;
    Ok((backend, plan))
}

fn page_bytes(spec: &ModelSpec) -> usize {
    PAGE_TOKENS as usize * spec.attention.kv_width() * 2 * 2
}

fn check_shape(spec: &ModelSpec) -> Result<(), BackendError> {
    let shape = &spec.attention;
    let group = shape.heads / shape.kv_heads.max(1);
    let unsupported = |what: String| Err(BackendError::Unsupported { what, fix: "use `--device cpu`".into() });
    if !matches!(shape.head_dim, 64 | 96 | 128 | 256) {
        return unsupported(format!("heads of {} on CUDA: 64, 96, 128 and 256 have kernels", shape.head_dim));
    }
    // Decode attention keeps a group's sums of four warps in shared memory.
    if group == 0 || group > 16 || group * shape.head_dim > 2048 || !shape.heads.is_multiple_of(shape.kv_heads) {
        return unsupported(format!(
            "{} query heads of {} over {} KV heads on CUDA",
            shape.heads, shape.head_dim, shape.kv_heads
        ));
    }
    for (name, width) in [("hidden", spec.hidden), ("feed-forward", spec.ffn)] {
        if !width.is_multiple_of(32) {
            return unsupported(format!("a {name} width of {width} on CUDA: it must be a multiple of 32"));
        }
    }
    if spec.rope.dims() != shape.head_dim {
        return unsupported(format!("a rotation of {} of {} dimensions on CUDA", spec.rope.dims(), shape.head_dim));
    }
    Ok(())
}

/// cos and sin of every (position, pair), from f64 angles.
fn rotation_table(device: &Device, spec: &ModelSpec, context_len: u32) -> Result<Buffer, BackendError> {
    let mut table = Vec::with_capacity(context_len as usize * spec.rope.inv_freq.len() * 2);
    for position in 0..context_len {
        for &frequency in &spec.rope.inv_freq {
            let angle = f64::from(position) * f64::from(frequency);
            table.push(angle.cos() as f32);
            table.push(angle.sin() as f32);
        }
    }
    device.upload("the rotation table", &table)
}

struct Loader<'a> {
    device: &'a Device,
    kernels: &'a Kernels,
    spec: &'a ModelSpec,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl Loader<'_> {
    fn ops(&mut self) -> Result<Vec<DeviceOp>, BackendError> {
        let mut ops = Vec::with_capacity(self.spec.ops.len());
        let mut table: Option<(WeightId, std::sync::Arc<Buffer>)> = None;
        for op in &self.spec.ops {
            ops.push(match *op {
                BlockOp::Embed { table: id } => {
                    let buffer = std::sync::Arc::new(self.stacked(&[id])?);
                    table = Some((id, std::sync::Arc::clone(&buffer)));
                    DeviceOp::Embed { table: buffer }
                }
                BlockOp::NormQkv { norm, q, k, v } => {
                    DeviceOp::NormQkv { norm: self.stacked(&[norm])?, weight: self.stacked(&[q, k, v])? }
                }
                BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => DeviceOp::RopeKv {
                    layer: kv_layer as usize,
                    q_norm: q_norm.map(|id| self.stacked(&[id])).transpose()?,
                    k_norm: k_norm.map(|id| self.stacked(&[id])).transpose()?,
                },
                BlockOp::Attend { kv_layer } => DeviceOp::Attend { layer: kv_layer as usize },
                BlockOp::OutResidual { out } => DeviceOp::OutResidual { weight: self.stacked(&[out])? },
                BlockOp::NormGateUp { norm, gate, up } => {
                    DeviceOp::NormGateUp { norm: self.stacked(&[norm])?, weight: self.stacked(&[gate, up])? }
                }
                BlockOp::DownResidual { down } => DeviceOp::DownResidual { weight: self.stacked(&[down])? },
                BlockOp::Head { norm, weight } => DeviceOp::Head {
                    norm: self.stacked(&[norm])?,
                    weight: match &table {
                        // A tied head reads the embedding's own bytes.
                        Some((id, buffer)) if *id == weight => std::sync::Arc::clone(buffer),
                        _ => std::sync::Arc::new(self.stacked(&[weight])?),
                    },
                },
                BlockOp::Tap { layer } => {
                    return Err(BackendError::Unsupported {
                        what: format!("a tap after layer {layer} on CUDA"),
                        fix: "use `--device cpu`".into(),
                    });
                }
            });
        }
        Ok(ops)
    }

    /// Rows of several weights one below the other, as bf16.
    fn stacked(&mut self, ids: &[WeightId]) -> Result<Buffer, BackendError> {
        let weights: Vec<&Weight> = ids.iter().map(|&id| self.spec.weight(id)).collect();
        let elements: usize = weights.iter().map(|w| w.rows * w.cols).sum();
        let buffer = self.device.alloc(&weights[0].name, elements * 2)?;
        let mut at = buffer.pointer;
        for weight in weights {
            if let Some(random) = weight.random {
                let args = Args::default()
                    .pointer(at)
                    .long((weight.rows * weight.cols) as u64)
                    .long(random.seed)
                    .float(random.scale);
                self.kernels.fill_random.launch(self.device, Shape::new(self.device.multiprocessors * 8, 256), args)?;
            } else {
                self.copy_rows(weight, at)?;
            }
            at += (weight.rows * weight.cols * 2) as u64;
            self.done += (weight.rows * weight.cols * 2) as u64;
            (self.progress)(LoadProgress { bytes_done: self.done, bytes_total: self.total });
        }
        Ok(buffer)
    }

    fn copy_rows(&self, weight: &Weight, to: u64) -> Result<(), BackendError> {
        // A few megabytes at a time: conversion and copy never need the whole tensor twice.
        let rows_at_once = (4 << 20) / (weight.cols * 2).max(1) + 1;
        let mut chunk: Vec<u16> = Vec::with_capacity(rows_at_once.min(weight.rows) * weight.cols);
        for first in (0..weight.rows).step_by(rows_at_once) {
            chunk.clear();
            let last = (first + rows_at_once).min(weight.rows);
            for row in first..last {
                push_bf16(&mut chunk, weight, row)?;
            }
            let at = to + (first * weight.cols * 2) as u64;
            // SAFETY: `at` lies inside the buffer that `stacked` sized for this weight, and has room for these rows.
            unsafe { result::memcpy_htod_sync(at, &chunk) }.map_err(|e| fault("cuMemcpyHtoD", e))?;
        }
        Ok(())
    }
}

fn push_bf16(out: &mut Vec<u16>, weight: &Weight, row: usize) -> Result<(), BackendError> {
    let bytes = weight.row(row);
    match weight.ty {
        WeightType::BF16 => out.extend(bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))),
        WeightType::F16 => out.extend(
            bytes
                .chunks_exact(2)
                .map(|b| half::bf16::from_f32(half::f16::from_le_bytes([b[0], b[1]]).to_f32()).to_bits()),
        ),
        WeightType::F32 => out.extend(
            bytes.chunks_exact(4).map(|b| half::bf16::from_f32(f32::from_le_bytes([b[0], b[1], b[2], b[3]])).to_bits()),
        ),
        other => {
            return Err(BackendError::Weight {
                name: weight.name.to_string(),
                reason: format!("{other:?} has no CUDA kernel yet: bf16, f16 and f32 have; use `--device cpu`"),
            });
        }
    }
    Ok(())
}
