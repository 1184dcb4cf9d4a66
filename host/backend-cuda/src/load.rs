//! A model onto the card: weights, rotation table, KV pool, workspace, kernels.

use backend::BackendError;
use backend::fp8::{SCALE_BLOCK, floats};
use backend::load::{LoadOptions, LoadProgress, MemoryPlan, Quantization};
use backend::ops::{AttentionShape, BlockOp, ModelSpec};
use backend::weights::{Weight, WeightId, WeightType};
use contract::PAGE_TOKENS;
use cudarc::driver::result;

use crate::attention::TensorMaps;
use crate::blas::Blas;
use crate::block_products::{Packed, Part, Uses, act_in_eights, formats_of, panel, share_tiles};
use crate::compile::{Compiler, Target};
use crate::delta::{Delta, DeltaLayer, StateType};
use crate::device::{Buffer, Device, DeviceOptions, fault};
use crate::forward::{DeviceModel, DeviceOp, Kernels, Workspace};
use crate::fp8_products::Fp8Work;
use crate::launch::{Args, Shape};
use crate::packed::{Format, TILE_ROWS, pack_tile};
use crate::pool::Pool;
use crate::products::{Fp8Scales, Matrix};
use crate::saved::{SavedStates, Slots};
use crate::step::CudaBackend;

/// What only this backend can be asked.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    pub device: DeviceOptions,
    /// Share of the card's memory that weights, workspace and KV pool may take together.
    pub memory_fraction: f32,
    /// Decode steps run as captured graphs.
    pub graphs: bool,
    /// Room for saved recurrent states, which the prefix cache of a hybrid needs.
    pub saved_states: bool,
    /// A row's sums have one order, whatever else its step has: see `invariant.rs`.
    pub batch_invariant: bool,
    pub state_type: StateType,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            device: DeviceOptions::default(),
            memory_fraction: 0.9,
            graphs: true,
            saved_states: true,
            batch_invariant: false,
            state_type: StateType::F32,
        }
    }
}

impl CudaOptions {
    /// What cannot be had together.
    fn check(&self, recurrent: bool) -> Result<(), BackendError> {
        if recurrent && self.batch_invariant && self.state_type == StateType::Bf16 {
            return Err(BackendError::Unsupported {
                what: "batch_invariant with recurrent states in bf16, which the borders of a prompt's chunks round"
                    .into(),
                fix: "leave one of them out".into(),
            });
        }
        Ok(())
    }
}

/// Bytes of tiles that are packed before they are copied.
const PACK_BYTES: usize = 32 << 20;

pub fn load(
    spec: &ModelSpec,
    options: &LoadOptions,
    cuda: &CudaOptions,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(CudaBackend, MemoryPlan), BackendError> {
    check_shape(spec)?;
    cuda.check(spec.delta.is_some())?;
    let device = Device::open(&cuda.device)?;
    if let Some(delta) = &spec.delta {
        crate::delta::check_shape(delta, device.arch)?;
    }
    let (free_at_start, total) = device.memory()?;
    let shape = &spec.attention;
    let fp8 = fp8_scales(spec, options)?;
    let blocks = Uses { invariant: cuda.batch_invariant, ..Uses::of(spec)? };
    // Cards before 8.0 have no bf16 products; a checkpoint of f16 would lose mantissa bits in bf16.
    let f16 = device.arch < 80 || embedding_type(spec) == Some(WeightType::F16);
    let target = Target { machine: device.machine, arch: device.arch, f16 };
    let cache = cuda.device.kernel_cache.as_deref();
    let flags = model_flags(shape, spec.rope.dims(), cuda.batch_invariant);
    let mut compiler = Compiler::new(Some(&device.context), target, cache, &flags)?;
    let plain = fp8.is_none() && blocks.few_rows.is_empty();
    let kernels = Kernels::compile(&mut compiler, shape, fp8, &blocks, plain.then_some((spec.ffn, spec.hidden)))?;
    tracing::info!(compiled = compiler.compiled, cached = compiler.cached, card = %device.name, "kernels are ready");

    let total_bytes = spec.weights.iter().map(|w| device_bytes(w) as u64).sum();
    let mut loader =
        Loader { device: &device, kernels: &kernels, spec, fp8, f16, done: 0, total: total_bytes, progress };
    let ops = loader.ops()?;
    let weight_bytes = ops.iter().map(DeviceOp::weight_bytes).sum::<usize>() as u64;

    let mut lowered = Vec::new();
    let context_len = options.context_len.unwrap_or(spec.context_len).min(spec.context_len);
    let workspace = Workspace::new(&device, spec, options, context_len)?;
    let memory = (free_at_start, total, cuda.memory_fraction);
    let left = || Ok((Pool::budget(&device, memory)?, Pool::bytes_wanted(spec, options, context_len)));
    let slots = Slots::new(spec, cuda.state_type, options, cuda.saved_states.then(left).transpose()?);
    lowered.extend(slots.remark);
    let (delta, saved) = recurrent(&device, &mut compiler, spec, (&workspace, &ops), (slots.count, cuda))?.unzip();
    let mut blas = Blas::new(&device, f16)?;
    let fp8 = fp8_work(&device, spec, fp8, &ops, &mut blas, workspace.max_rows)?;
    let panel = panel(&device, spec)?;
    device.synchronize()?;
    let pool = Pool::new(&device, spec, options, memory, context_len)?;
    let Pool { pages, kv_bytes_per_token, .. } = pool;
    lowered.extend(pool.remark);
    let kv = key_values(&device, spec, pages as usize)?;
    lowered.extend(fp8.as_ref().and_then(Fp8Work::remark));
    let plan = MemoryPlan {
        weights: weight_bytes,
        repacked: 0,
        workspace: (workspace.bytes()
            + panel.as_ref().map_or(0, |panel| panel.bytes)
            + fp8.as_ref().map_or(0, Fp8Work::bytes)
            + delta.as_ref().map_or(0, Delta::work_bytes)) as u64,
        state: delta.as_ref().map_or(0, Delta::state_bytes) as u64,
        kv_pool: pages * kv_bytes_per_token * u64::from(PAGE_TOKENS),
        kv_bytes_per_token,
        pages: pages as u32,
        seats: options.seats,
        lowered,
        notes: slots.note.into_iter().collect(),
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
        vocab_used: spec.vocab_used,
        eps: spec.norm_eps,
        f16,
        act_in_eights: act_in_eights(&ops),
        rotation: rotation_table(&device, spec, context_len)?,
        ops,
        kv,
        panel,
        tensor_maps,
        delta,
        invariant: cuda.batch_invariant,
    };
    let backend = CudaBackend::new(
        device,
        model,
        kernels,
        workspace,
        (blas, fp8, saved),
        options,
        context_len,
        pages as u32,
        cuda.graphs,
    )?;
    Ok((backend, plan))
}

/// What a weight takes on the device.
fn device_bytes(weight: &Weight) -> usize {
    match Format::of(weight.ty) {
        Some(_) => weight.size_bytes(),
        None => weight.rows * weight.cols * if weight.scales().is_some() { 1 } else { 2 },
    }
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
    // In a part of a head the two dimensions of a pair lie in lanes whose numbers differ in one bit.
    let (dims, lane) = (spec.rope.dims(), (shape.head_dim / 2).div_ceil(32));
    let apart = dims / 2 / lane;
    let partial = dims * 2 <= shape.head_dim && dims == apart * lane * 2 && apart.is_power_of_two();
    if dims != shape.head_dim && !partial {
        return unsupported(format!("a rotation of {dims} of {} dimensions on CUDA", shape.head_dim));
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

/// One page more than the pool: padding rows write there.
fn key_values(device: &Device, spec: &ModelSpec, pages: usize) -> Result<Vec<Buffer>, BackendError> {
    let layer = |layer| device.alloc_zeroed(&format!("KV of layer {layer}"), (pages + 1) * page_bytes(spec));
    (0..spec.kv_layers).map(layer).collect()
}

/// What recurrent layers need, and the states that can be saved.
fn recurrent(
    device: &Device,
    compiler: &mut Compiler<'_>,
    spec: &ModelSpec,
    (workspace, ops): (&Workspace, &[DeviceOp]),
    (slots, cuda): (u32, &CudaOptions),
) -> Result<Option<(Delta, SavedStates)>, BackendError> {
    let Some(shape) = spec.delta else { return Ok(None) };
    let separate = ops.iter().any(|op| matches!(op, DeviceOp::NormDelta { gates: Some(_), .. }));
    let sizes = (workspace.seats, slots as usize, workspace.max_rows, separate);
    let delta = Delta::new(device, compiler, spec, shape, sizes, (cuda.state_type, cuda.batch_invariant))?;
    let saved = SavedStates::new(device, compiler, &delta, (workspace.seats, slots, cuda.batch_invariant))?;
    Ok(Some((delta, saved)))
}

fn fp8_work(
    device: &Device,
    spec: &ModelSpec,
    scales: Option<Fp8Scales>,
    ops: &[DeviceOp],
    blas: &mut Blas,
    max_rows: usize,
) -> Result<Option<Fp8Work>, BackendError> {
    let Some(scales) = scales else { return Ok(None) };
    let uniform = !ops.iter().any(DeviceOp::is_half_product);
    let aligned = ops.iter().all(|op| op.has_library_scales(scales));
    Fp8Work::new(device, spec, (scales, uniform, aligned), blas, max_rows).map(Some)
}

/// What every kernel of a model is compiled with.
pub(crate) fn model_flags(shape: &AttentionShape, rotated: usize, invariant: bool) -> [(&'static str, usize); 8] {
    [
        ("HEADS", shape.heads),
        ("KV_HEADS", shape.kv_heads),
        ("HEAD_DIM", shape.head_dim),
        ("Q_STEP", shape.q_stride() / shape.head_dim),
        ("ROT_DIM", rotated),
        ("SPLIT", crate::forward::SPLIT),
        ("QTOKENS", crate::forward::tile_tokens(shape)),
        ("DECODE_ROWS", usize::from(!invariant)),
    ]
}

fn embedding_type(spec: &ModelSpec) -> Option<WeightType> {
    spec.ops.iter().find_map(|op| match op {
        BlockOp::Embed { table } => Some(spec.weight(*table).ty),
        _ => None,
    })
}

/// How the model's FP8 weights will be scaled; `None` when it has none.
fn fp8_scales(spec: &ModelSpec, options: &LoadOptions) -> Result<Option<Fp8Scales>, BackendError> {
    if spec.weights.iter().any(|weight| weight.scales().is_some()) {
        return Ok(Some(Fp8Scales::Blocks));
    }
    let Some(Quantization::Fp8) = options.quantization else { return Ok(None) };
    match spec.weights.iter().find(|weight| weight.ty.block_len() > 1) {
        None => Ok(Some(Fp8Scales::Rows)),
        Some(weight) => Err(BackendError::Unsupported {
            what: format!("FP8 of weights that are quantised already: `{}` is {:?}", weight.name, weight.ty),
            fix: "leave --quantization out".into(),
        }),
    }
}

pub(crate) struct Loader<'a> {
    pub(crate) device: &'a Device,
    pub(crate) kernels: &'a Kernels,
    pub(crate) spec: &'a ModelSpec,
    pub(crate) fp8: Option<Fp8Scales>,
    pub(crate) f16: bool,
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) progress: &'a mut dyn FnMut(LoadProgress),
}

impl Loader<'_> {
    fn ops(&mut self) -> Result<Vec<DeviceOp>, BackendError> {
        let mut ops = Vec::with_capacity(self.spec.ops.len());
        let mut table: Option<(WeightId, Matrix)> = None;
        for op in &self.spec.ops {
            ops.push(match *op {
                BlockOp::Embed { table: id } => {
                    let matrix = self.unquantised(&[id])?;
                    table = Some((id, shared(&matrix)?));
                    DeviceOp::Embed { table: matrix }
                }
                BlockOp::NormQkv { norm, q, k, v } => {
                    DeviceOp::NormQkv { norm: self.stacked(&[norm])?, weight: self.matrix(&[q, k, v])? }
                }
                BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => DeviceOp::RopeKv {
                    layer: kv_layer as usize,
                    q_norm: q_norm.map(|id| self.stacked(&[id])).transpose()?,
                    k_norm: k_norm.map(|id| self.stacked(&[id])).transpose()?,
                },
                BlockOp::Attend { kv_layer } => DeviceOp::Attend { layer: kv_layer as usize },
                BlockOp::OutResidual { out } => {
                    DeviceOp::OutResidual { weight: self.matrix(&[out])?, k: self.spec.weight(out).cols }
                }
                BlockOp::NormGateUp { norm, gate, up } => {
                    DeviceOp::NormGateUp { norm: self.stacked(&[norm])?, weight: self.gate_up([gate, up])? }
                }
                BlockOp::DownResidual { down } => DeviceOp::DownResidual { weight: self.matrix(&[down])? },
                BlockOp::Head { norm, weight } => DeviceOp::Head {
                    norm: self.stacked(&[norm])?,
                    // A tied head reads the embedding's own bytes. Heads stay in 16 bits.
                    weight: match &table {
                        Some((id, matrix)) if *id == weight => shared(matrix)?,
                        _ => self.unquantised(&[weight])?,
                    },
                },
                BlockOp::NormDelta { norm, qkv, z, beta, alpha } => self.norm_delta(norm, [qkv, z], [beta, alpha])?,
                BlockOp::DeltaRule { state_layer, taps, decay, bias, norm } => DeviceOp::DeltaRule(DeltaLayer {
                    index: state_layer as usize,
                    taps: self.f32(taps)?,
                    decay: self.f32(decay)?,
                    bias: self.f32(bias)?,
                    norm: self.f32(norm)?,
                }),
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

    /// Weights one below the other as the file has them: in 16 bits, or in block formats.
    pub(crate) fn unquantised(&mut self, ids: &[WeightId]) -> Result<Matrix, BackendError> {
        let spec = self.spec;
        let weights: Vec<&Weight> = ids.iter().map(|&id| spec.weight(id)).collect();
        let Some(formats) = formats_of(&weights)? else {
            return Ok(Matrix::Half(std::sync::Arc::new(self.stacked(ids)?)));
        };
        let (mut parts, mut column) = (Vec::new(), 0);
        for (weight, format) in weights.into_iter().zip(formats) {
            let rows = |tile: usize, r: usize| {
                let row = tile * TILE_ROWS + r;
                (row < weight.rows).then(|| weight.row(row))
            };
            let tiles = (weight.rows.div_ceil(TILE_ROWS), weight.period().div_ceil(TILE_ROWS));
            let units = self.pack(weight, format, tiles, rows)?;
            parts.push(Part { units, format, rows: weight.rows, column });
            column += weight.rows;
        }
        Ok(Matrix::Packed(std::sync::Arc::new(Packed { parts, gate_up: false })))
    }

    /// Gate and up: in one format they share tiles, so that one block of the kernel has both sums of an output.
    fn gate_up(&mut self, ids: [WeightId; 2]) -> Result<Matrix, BackendError> {
        let spec = self.spec;
        let [gate, up] = ids.map(|id| spec.weight(id));
        match formats_of(&[gate, up])? {
            Some(formats) if share_tiles(&formats) => {
                let half = TILE_ROWS / 2;
                let rows = |tile: usize, r: usize| {
                    let row = tile * half + r % half;
                    (row < gate.rows).then(|| if r < half { gate.row(row) } else { up.row(row) })
                };
                let tiles = (gate.rows.div_ceil(half), gate.period().max(up.period()).div_ceil(half));
                let units = self.pack(gate, formats[0], tiles, rows)?;
                let parts = vec![Part { units, format: formats[0], rows: gate.rows, column: 0 }];
                Ok(Matrix::Packed(std::sync::Arc::new(Packed { parts, gate_up: true })))
            }
            _ => self.matrix(&ids),
        }
    }

    /// Tiles of 16 rows, packed by all cores a few megabytes at a time; of `tiles` the second number are no repetitions.
    fn pack<'w>(
        &mut self,
        weight: &Weight,
        format: Format,
        (tiles, distinct): (usize, usize),
        rows: impl Fn(usize, usize) -> Option<&'w [u8]> + Sync,
    ) -> Result<Buffer, BackendError> {
        let bytes = format.tile_bytes(weight.cols);
        let buffer = self.device.alloc(&weight.name, tiles * bytes)?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let at_once = (PACK_BYTES / bytes).max(threads);
        let distinct = distinct.min(tiles);
        let mut chunk = Vec::new();
        for first in (0..distinct).step_by(at_once) {
            let count = at_once.min(distinct - first);
            chunk.clear();
            chunk.resize(count * bytes, 0u8);
            let share = count.div_ceil(threads);
            std::thread::scope(|scope| {
                for (part, out) in chunk.chunks_mut(share * bytes).enumerate() {
                    let rows = &rows;
                    scope.spawn(move || {
                        for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
                            let tile = first + part * share + index;
                            pack_tile(format, weight.cols, |r| rows(tile, r), out);
                        }
                    });
                }
            });
            // SAFETY: the buffer has room for all tiles, of which these are some.
            unsafe { result::memcpy_htod_sync(buffer.pointer + (first * bytes) as u64, &chunk) }
                .map_err(|e| fault("cuMemcpyHtoD", e))?;
            self.done += (chunk.len() * tiles / distinct) as u64;
            (self.progress)(LoadProgress { bytes_done: self.done.min(self.total), bytes_total: self.total });
        }
        let mut there = distinct * bytes;
        while there < tiles * bytes {
            let more = there.min(tiles * bytes - there);
            let stream = self.device.stream.cu_stream();
            // SAFETY: both ranges lie inside the buffer and do not overlap.
            unsafe { result::memcpy_dtod_async(buffer.pointer + there as u64, buffer.pointer, more, stream) }
                .map_err(|e| fault("cuMemcpyDtoDAsync", e))?;
            there += more;
        }
        Ok(buffer)
    }

    /// The weights of a product, one below the other, in the format that the model runs in.
    pub(crate) fn matrix(&mut self, ids: &[WeightId]) -> Result<Matrix, BackendError> {
        let weights: Vec<&Weight> = ids.iter().map(|&id| self.spec.weight(id)).collect();
        let (n, k) = (weights.iter().map(|w| w.rows).sum::<usize>(), weights[0].cols);
        match self.fp8 {
            Some(Fp8Scales::Rows) => {
                weights.iter().try_for_each(|weight| whole_tiles(weight))?;
                let half = self.stacked(ids)?;
                let codes = self.device.alloc(&weights[0].name, n * k)?;
                let scales = self.device.alloc("weight scales", n * 4)?;
                let to = (codes.pointer, scales.pointer);
                self.kernels.products.quantize_rows(self.device, to, half.pointer, (n, k))?;
                // The 16-bit weights are freed behind the kernel that reads them.
                self.device.synchronize()?;
                Ok(Matrix::Fp8 { codes, scales, blocks: None })
            }
            Some(Fp8Scales::Blocks) if weights.iter().all(|w| w.scales().is_some()) => {
                self.fp8_blocks(&weights, (n, k))
            }
            _ => self.unquantised(ids),
        }
    }

    /// FP8 weights as they are, with their scales where the kernels and the library look for them.
    fn fp8_blocks(&mut self, weights: &[&Weight], (n, k): (usize, usize)) -> Result<Matrix, BackendError> {
        let groups = k.div_ceil(SCALE_BLOCK);
        let codes = self.device.alloc(&weights[0].name, n * k)?;
        let (mut tiles, mut blocks) = (Vec::new(), Vec::new());
        let mut at = codes.pointer;
        for weight in weights {
            whole_tiles(weight)?;
            let scales = weight.scales().expect("the caller looked");
            for tile in 0..weight.rows / 16 {
                tiles.extend_from_slice(&scales[tile * 16 / SCALE_BLOCK * groups..][..groups]);
            }
            for row in scales.chunks_exact(groups) {
                blocks.extend_from_slice(row);
                // The library wants rows of whole fours.
                blocks.extend(std::iter::repeat_n(1.0f32, groups.next_multiple_of(4) - groups));
            }
            let bytes: Vec<u8> = (0..weight.rows).flat_map(|row| weight.row(row)).copied().collect();
            // SAFETY: the buffer was sized for the rows of all parts, and `at` counts those before.
            unsafe { result::memcpy_htod_sync(at, &bytes) }.map_err(|e| fault("cuMemcpyHtoD", e))?;
            at += bytes.len() as u64;
            self.done += bytes.len() as u64;
            (self.progress)(LoadProgress { bytes_done: self.done, bytes_total: self.total });
        }
        let whole = weights.iter().all(|weight| weight.rows.is_multiple_of(SCALE_BLOCK));
        let blocks = if whole { Some(self.device.upload("weight scales", &blocks)?) } else { None };
        Ok(Matrix::Fp8 { codes, scales: self.device.upload("weight scales", &tiles)?, blocks })
    }

    /// Rows of several weights one below the other, in the model's 16-bit type.
    pub(crate) fn stacked(&mut self, ids: &[WeightId]) -> Result<Buffer, BackendError> {
        let rows = ids.iter().map(|&id| self.spec.weight(id).rows).sum();
        self.stacked_to(rows, ids)
    }

    /// As [`Self::stacked`], with rows of zeros up to `rows`.
    pub(crate) fn stacked_to(&mut self, rows: usize, ids: &[WeightId]) -> Result<Buffer, BackendError> {
        let weights: Vec<&Weight> = ids.iter().map(|&id| self.spec.weight(id)).collect();
        let buffer = self.device.alloc(&weights[0].name, rows * weights[0].cols * 2)?;
        let cols = weights[0].cols;
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
        // Only what nobody writes: copies from the host are not ordered behind the stream.
        self.device.clear(at, (buffer.pointer as usize + rows * cols * 2) - at as usize)?;
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
                push_half(&mut chunk, weight, row, self.f16)?;
            }
            let at = to + (first * weight.cols * 2) as u64;
            // SAFETY: `at` lies inside the buffer that `stacked` sized for this weight, and has room for these rows.
            unsafe { result::memcpy_htod_sync(at, &chunk) }.map_err(|e| fault("cuMemcpyHtoD", e))?;
        }
        Ok(())
    }
}

/// Another owner of an embedding, for a tied head.
fn shared(matrix: &Matrix) -> Result<Matrix, BackendError> {
    match matrix {
        Matrix::Half(weights) => Ok(Matrix::Half(std::sync::Arc::clone(weights))),
        Matrix::Packed(packed) => Ok(Matrix::Packed(std::sync::Arc::clone(packed))),
        Matrix::Fp8 { .. } => Err(fault("an embedding", "it is in FP8")),
    }
}

fn whole_tiles(weight: &Weight) -> Result<(), BackendError> {
    let (rows, cols) = (weight.rows, weight.cols);
    if rows.is_multiple_of(16) && cols.is_multiple_of(16) {
        return Ok(());
    }
    Err(BackendError::Weight {
        name: weight.name.to_string(),
        reason: format!("FP8 of {rows} rows and {cols} columns on CUDA: both must be multiples of 16"),
    })
}

pub(crate) fn no_kernel(weight: &Weight) -> BackendError {
    BackendError::Weight {
        name: weight.name.to_string(),
        reason: format!("{:?} has no CUDA kernel here; use `--device cpu`", weight.ty),
    }
}

fn push_half(out: &mut Vec<u16>, weight: &Weight, row: usize, f16: bool) -> Result<(), BackendError> {
    let bytes = weight.row(row);
    let stored = if f16 { WeightType::F16 } else { WeightType::BF16 };
    if weight.ty == stored {
        out.extend(bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])));
        return Ok(());
    }
    let values = floats(weight.ty, bytes).ok_or_else(|| no_kernel(weight))?;
    if f16 {
        // What f16 cannot hold becomes its largest number, as in the kernels.
        let largest = half::f16::MAX.to_f32();
        out.extend(values.iter().map(|x| half::f16::from_f32(x.clamp(-largest, largest)).to_bits()));
    } else {
        out.extend(values.iter().map(|&x| half::bf16::from_f32(x).to_bits()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use backend::weights::SharedBytes;

    use super::*;

    fn weight(ty: WeightType, cols: usize, bytes: Vec<u8>) -> Weight {
        Weight::new("w", ty, 1, cols, SharedBytes::from_vec(bytes)).expect("one whole row")
    }

    #[test]
    fn rounded_states_are_not_invariant() {
        let options =
            |batch_invariant| CudaOptions { batch_invariant, state_type: StateType::Bf16, ..CudaOptions::default() };
        assert!(options(false).check(true).is_ok() && options(true).check(false).is_ok());
        let error = options(true).check(true).expect_err("states that chunks round").to_string();
        assert!(error.contains("states in bf16") && error.contains("leave one of them out"), "{error}");
    }

    /// Floats become the model's type, within its range; a block format is refused by name.
    #[test]
    fn rows_become_the_models_type() {
        let bytes = [1.0f32, -1e6].iter().flat_map(|x| x.to_le_bytes()).collect();
        let row = weight(WeightType::F32, 2, bytes);
        for (f16, expected) in [(false, [0x3f80, 0xc974]), (true, [0x3c00, 0xfbff])] {
            let mut out = Vec::new();
            push_half(&mut out, &row, 0, f16).expect("floats");
            assert_eq!(out, expected, "f16: {f16}");
        }
        let block = weight(WeightType::Q8_0, 32, vec![0; 34]);
        let error = push_half(&mut Vec::new(), &block, 0, false).expect_err("no kernel").to_string();
        assert_eq!(error, "weight `w`: Q8_0 has no CUDA kernel here; use `--device cpu`");
        let error = whole_tiles(&block).expect_err("one row").to_string();
        assert_eq!(error, "weight `w`: FP8 of 1 rows and 32 columns on CUDA: both must be multiples of 16");
    }
}
