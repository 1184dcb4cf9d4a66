//! The gated delta rule: its kernels, the recurrent state of every seat, and the launches of one layer.

use backend::BackendError;
use backend::fp8::floats;
use backend::ops::{DELTA_CHUNK, DeltaShape, GateFn, HeadOrder, ModelSpec};
use backend::weights::WeightId;

use crate::blas::library_rows;
use crate::block_products::{formats_of, one_product};
use crate::compile::{Compiler, Kernel};
use crate::device::{Buffer, Device, fault};
use crate::forward::{DeviceOp, Forward, StepSize};
use crate::fp8_products::Role;
use crate::invariant::groups;
use crate::launch::{Args, Shape};
use crate::load::{Loader, no_kernel};
use crate::products::{Epilogue, Matrix};
use crate::seats::WRITE_EVERY;

/// The type of recurrent states between steps. Steps compute in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateType {
    #[default]
    F32,
    /// Half the bytes, which for many sequences are a good part of a step; a state is rounded each time it is written.
    Bf16,
}

impl StateType {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Tokens that a seat's ring holds.
const RING: usize = 4;
/// Rows of a warp of `delta_conv`, and columns of the state that a block of `delta_scan` keeps.
const CONV_ROWS: usize = 16;
const SCAN_COLUMNS: usize = 32;
/// Warps of a block that makes an output of the gates; the kernels' own.
pub const GATE_WARPS: usize = 16;

/// Beta and alpha of a row, and zeros up to whole tiles of rows of weights: rows of `mix` stay aligned for any number of
/// heads.
pub fn gates_width(value_heads: usize) -> usize {
    (2 * value_heads).next_multiple_of(16)
}

/// A row of `mix` in a layer with the delta rule: q, k, v, z, beta and alpha.
pub fn mix_width(shape: &DeltaShape) -> usize {
    shape.channels() + shape.value_width() + gates_width(shape.value_heads)
}

/// A layer's own numbers, all f32.
pub struct DeltaLayer {
    pub index: usize,
    pub taps: Buffer,
    pub decay: Buffer,
    pub bias: Buffer,
    pub norm: Buffer,
}

impl DeltaLayer {
    pub fn bytes(&self) -> usize {
        [&self.taps, &self.decay, &self.bias, &self.norm].iter().map(|buffer| buffer.bytes).sum()
    }
}

/// Beta and alpha of rows, where they do not stand in `mix`.
struct Gates {
    /// `[rows, gates_width]`.
    rows: Buffer,
    /// Their product for few rows, beside FP8 weights.
    few: Kernel,
}

/// That product for a step's first rows; the kernels' `Gates`.
#[derive(Clone, Copy)]
pub struct GateProduct {
    pub out: u64,
    pub weights: u64,
    /// Outputs: a block each.
    pub n: usize,
}

impl GateProduct {
    pub const NONE: Self = Self { out: 0, weights: 0, n: 0 };

    pub fn words(self) -> [u64; 3] {
        [self.out, self.weights, self.n as u64]
    }
}

/// What models with recurrent layers have beside the others.
pub struct Delta {
    pub shape: DeltaShape,
    pub state_type: StateType,
    step: Kernel,
    step_shared: u32,
    conv: Kernel,
    chunk: Kernel,
    scan: Kernel,
    out: Kernel,
    chunk_shared: u32,
    scan_shared: u32,
    conv_rows: Buffer,
    chunk_u: Buffer,
    chunk_w: Buffer,
    chunk_p: Buffer,
    chunk_g: Buffer,
    gates: Option<Gates>,
    /// Of each layer `[numbers, value_heads, value_dim, key_dim]`, and `[numbers, RING, channels]`: those of the seats and
    /// of the null seat, then the saved ones.
    pub states: Vec<Buffer>,
    pub rings: Vec<Buffer>,
    /// Of each layer `[seats, value_heads]`: updates that the seats' matrices lack.
    deferred: Vec<Buffer>,
}

/// Shapes that have kernels.
pub fn check_shape(shape: &DeltaShape, arch: u32) -> Result<(), BackendError> {
    let unsupported = |what: String| Err(BackendError::Unsupported { what, fix: "use `--device cpu`".into() });
    let (k, v) = (shape.key_dim, shape.value_dim);
    if k != v || !matches!(k, 64 | 128) || shape.conv != RING {
        return unsupported(format!(
            "the gated delta rule on CUDA with keys of {k}, values of {v} and {} taps: 64 or 128 for both, and 4, have \
             kernels",
            shape.conv
        ));
    }
    if shape.key_heads == 0 || !shape.value_heads.is_multiple_of(shape.key_heads) {
        return unsupported(format!("{} value heads over {} key heads", shape.value_heads, shape.key_heads));
    }
    if arch < 80 {
        return unsupported(format!("the gated delta rule on compute capability {} / 10: 8.0 is the first", arch));
    }
    Ok(())
}

impl Delta {
    /// `separate_gates`: beta and alpha come from a product of their own.
    pub fn new(
        device: &Device,
        compiler: &mut Compiler<'_>,
        spec: &ModelSpec,
        shape: DeltaShape,
        (seats, saved, rows, separate_gates): (usize, usize, usize, bool),
        (state_type, invariant): (StateType, bool),
    ) -> Result<Self, BackendError> {
        let [step, conv, chunk, scan, out] = kernels(compiler, &shape, (state_type, invariant))?;
        let (chunk_shared, scan_shared) = (chunk_shared(&shape), scan_shared(&shape, stages(compiler.target.arch)));
        let step_shared = step_shared(&shape, state_type);
        step.allow_shared(step_shared)?;
        chunk.allow_shared(chunk_shared)?;
        scan.allow_shared(scan_shared)?;
        let padded = library_rows(rows);
        // A run ends in a part of a chunk at most once.
        let items = (rows / DELTA_CHUNK + seats.min(rows) + 1) * shape.value_heads * DELTA_CHUNK;
        let alloc = |what: &str, bytes: usize| device.alloc_zeroed(what, bytes);
        let layers = |what: &str, count: usize, bytes: usize| {
            let one = |layer| device.alloc_zeroed(&format!("{what} of layer {layer}"), count * bytes);
            (0..spec.state_layers).map(one).collect::<Result<Vec<_>, _>>()
        };
        let numbers = seats + 1 + saved;
        let gates = || -> Result<_, BackendError> {
            let rows = device.alloc_zeroed("gates of the delta rule", padded * gates_width(shape.value_heads) * 2)?;
            Ok(Gates { rows, few: gates_kernel(compiler)? })
        };
        Ok(Self {
            step,
            step_shared,
            conv,
            chunk,
            scan,
            out,
            chunk_shared,
            scan_shared,
            conv_rows: alloc("convolved rows", rows * shape.channels() * 2)?,
            chunk_u: alloc("chunks of the delta rule", items * shape.value_dim * 2)?,
            chunk_w: alloc("chunks of the delta rule", items * shape.key_dim * 2)?,
            chunk_p: alloc("chunks of the delta rule", items * DELTA_CHUNK * 2)?,
            chunk_g: alloc("chunks of the delta rule", items * 4)?,
            gates: separate_gates.then(gates).transpose()?,
            states: layers("recurrent state", numbers, matrix_bytes(&shape, state_type))?,
            rings: layers("convolution", numbers, ring_bytes(&shape))?,
            deferred: layers("deferred updates", seats + 1, deferred_bytes(&shape))?,
            shape,
            state_type,
        })
    }

    /// What a step works with, without the state.
    pub fn work_bytes(&self) -> usize {
        let gates = self.gates.as_ref().map_or(0, |gates| gates.rows.bytes);
        let buffers = [&self.conv_rows, &self.chunk_u, &self.chunk_w, &self.chunk_p, &self.chunk_g];
        gates + buffers.iter().map(|buffer| buffer.bytes).sum::<usize>()
    }

    pub fn state_bytes(&self) -> usize {
        self.states.iter().chain(&self.rings).chain(&self.deferred).map(|buffer| buffer.bytes).sum()
    }

    /// A row of `mix` in a layer with the delta rule.
    pub fn mix_width(&self) -> usize {
        match self.gates {
            Some(_) => self.shape.channels() + self.shape.value_width(),
            None => mix_width(&self.shape),
        }
    }
}

/// What a layer keeps of a sequence: its matrices, and the newest tokens.
pub fn matrix_bytes(shape: &DeltaShape, state_type: StateType) -> usize {
    shape.state_len() * state_type.bytes()
}

pub fn ring_bytes(shape: &DeltaShape) -> usize {
    RING * shape.channels() * 2
}

/// What a layer keeps of a seat beside: the kernels' `Deferred` of each value head.
pub fn deferred_bytes(shape: &DeltaShape) -> usize {
    shape.value_heads * deferred_head_bytes(shape)
}

fn deferred_head_bytes(shape: &DeltaShape) -> usize {
    let updates = WRITE_EVERY as usize - 1;
    (updates * (shape.key_dim + shape.value_dim) + updates.next_multiple_of(4)) * size_of::<f32>()
}

/// Chunks in shared memory: most cards have too little for two.
fn stages(arch: u32) -> usize {
    if matches!(arch, 80 | 90 | 100) { 2 } else { 1 }
}

/// Shared memory of `delta_step`, whose structure says the same: a head's state, what it lacks, what of that its token needs,
/// four columns of keys, each padded by 64 bytes, the head's channels, and sums of eight warps.
fn step_shared(shape: &DeltaShape, state_type: StateType) -> u32 {
    let of_key = |keys: usize| keys * state_type.bytes();
    let columns = 4 * (of_key(shape.key_dim) + 64);
    let floats = 2 * shape.key_dim + shape.value_dim + 8;
    let (updates, of_update) = (deferred_head_bytes(shape), 16 * WRITE_EVERY as usize);
    (of_key(shape.value_dim * shape.key_dim) + updates + of_update + columns + floats * size_of::<f32>()) as u32
}

/// What `delta_step` asks for of a multiprocessor's memory where it stands among products of few rows: room for one block or
/// two. Those products load through the first cache, which has what is left; with room for three, one row of eight layers of
/// 9B takes 1.64 ms instead of 1.43.
fn shared_percent(arch: u32, rows: usize) -> Option<u32> {
    // Others have less, or no kernel that begins early.
    matches!(arch, 90 | 100).then_some(if rows <= 2 { 44 } else { 58 })
}

/// Shared memory of `delta_chunk` and `delta_scan`; their structures say the same.
fn chunk_shared(shape: &DeltaShape) -> u32 {
    let row = shape.key_dim + 8;
    (2 * 64 * row * 2 + 2 * 64 * 72 * 2 + 2 * 64 * 4) as u32
}

fn scan_shared(shape: &DeltaShape, stages: usize) -> u32 {
    let (row, columns) = (shape.key_dim + 8, SCAN_COLUMNS + 8);
    let stage = 64 * (3 * row + 72 + columns) * 2 + 64 * 4;
    (stages * stage + (shape.key_dim + 2 * 64) * columns * 2) as u32
}

/// In the order of their launches. `invariant`: see [`crate::CudaOptions::batch_invariant`].
pub fn kernels(
    compiler: &mut Compiler<'_>,
    shape: &DeltaShape,
    (state_type, invariant): (StateType, bool),
) -> Result<[Kernel; 5], BackendError> {
    let flags = [
        ("KEY_HEADS", shape.key_heads),
        ("VALUE_HEADS", shape.value_heads),
        ("KEY_DIM", shape.key_dim),
        ("VALUE_DIM", shape.value_dim),
        ("TILED", usize::from(shape.order == HeadOrder::Tiled)),
        ("GATE_SIGMOID", usize::from(shape.gate == GateFn::Sigmoid)),
        ("INVARIANT", usize::from(invariant)),
        ("STATE16", usize::from(state_type == StateType::Bf16)),
        ("WRITE_EVERY", WRITE_EVERY as usize),
    ];
    let scan_flags = [&flags[..], &[("STAGES", stages(compiler.target.arch))]].concat();
    Ok([
        compiler.kernel(kernels::DELTA_STEP, &flags)?,
        compiler.kernel(kernels::DELTA_CONV, &flags)?,
        compiler.kernel(kernels::DELTA_CHUNK, &flags)?,
        compiler.kernel(kernels::DELTA_SCAN, &scan_flags)?,
        compiler.kernel(kernels::DELTA_OUT, &flags)?,
    ])
}

pub fn gates_kernel(compiler: &mut Compiler<'_>) -> Result<Kernel, BackendError> {
    compiler.kernel(kernels::DELTA_GATES, &[])
}

/// Chunks of runs that do not go on by the recurrence, which is how many blocks `delta_chunk` wants.
pub fn chunks(rows: impl Iterator<Item = u32>) -> usize {
    rows.map(|rows| rows.div_ceil(DELTA_CHUNK as u32) as usize).sum()
}

impl Loader<'_> {
    /// Beta and alpha decide what a state forgets: they are never FP8, and are then a product of their own.
    pub(crate) fn norm_delta(
        &mut self,
        norm: WeightId,
        [qkv, z]: [WeightId; 2],
        [beta, alpha]: [WeightId; 2],
    ) -> Result<DeviceOp, BackendError> {
        let norm = self.stacked(&[norm])?;
        let (spec, heads) = (self.spec, self.spec.weight(beta).rows);
        let packed_gates = formats_of(&[spec.weight(beta), spec.weight(alpha)])?;
        let packed = formats_of(&[spec.weight(qkv), spec.weight(z)])?.is_some();
        if !packed && packed_gates.is_none() && self.fp8.is_none() {
            let rows = spec.weight(qkv).rows + spec.weight(z).rows + gates_width(heads);
            let weight = self.stacked_to(rows, &[qkv, z, beta, alpha])?;
            return Ok(DeviceOp::NormDelta { norm, weight: Matrix::Half(std::sync::Arc::new(weight)), gates: None });
        }
        if one_product(spec, [qkv, z, beta, alpha])? {
            return Ok(DeviceOp::NormDelta { norm, weight: self.unquantised(&[qkv, z, beta, alpha])?, gates: None });
        }
        let gates = match packed_gates {
            None => Matrix::Half(std::sync::Arc::new(self.stacked_to(gates_width(heads), &[beta, alpha])?)),
            Some(_) if 2 * heads == gates_width(heads) => self.unquantised(&[beta, alpha])?,
            Some(formats) => {
                return Err(BackendError::Unsupported {
                    what: format!(
                        "{:?} of {heads} gates of the delta rule on CUDA: whole tiles of 16 rows have kernels",
                        formats[0]
                    ),
                    fix: "use `--device cpu`".into(),
                });
            }
        };
        Ok(DeviceOp::NormDelta { norm, weight: self.matrix(&[qkv, z])?, gates: Some(gates) })
    }

    /// All values of a small weight.
    pub(crate) fn f32(&self, id: WeightId) -> Result<Buffer, BackendError> {
        let weight = self.spec.weight(id);
        let mut values = Vec::with_capacity(weight.rows * weight.cols);
        for row in 0..weight.rows {
            values.extend(floats(weight.ty, weight.row(row)).ok_or_else(|| no_kernel(weight))?);
        }
        self.device.upload(&weight.name, &values)
    }
}

fn no_delta() -> BackendError {
    fault("the delta rule", "the model has no recurrent state")
}

impl Forward<'_> {
    /// The input products of a layer.
    pub(crate) fn delta_inputs(
        &mut self,
        norm: &Buffer,
        weight: &Matrix,
        gates: Option<&Matrix>,
        rows: usize,
    ) -> Result<(), BackendError> {
        let (delta, hidden) = (self.model.delta.as_ref().ok_or_else(no_delta)?, self.model.hidden);
        let shape = (rows, delta.mix_width(), hidden);
        let (mix, normed) = (self.work.mix.pointer, self.work.normed.pointer);
        if let (Some(Matrix::Half(few)), Some(out), Matrix::Fp8 { .. }) = (gates, &delta.gates, weight)
            && self.few(rows)
        {
            let n = gates_width(delta.shape.value_heads);
            let own = GateProduct { out: out.rows.pointer, weights: few.pointer, n };
            if self.norming_fp8(Role::Qkv, mix, (norm, own), weight, shape)? {
                return Ok(());
            }
            // One norm for both products; the small one first, for the other's weights come meanwhile.
            self.norm_f16(norm, 0, rows)?;
            groups(rows).try_for_each(|(first, rows)| {
                let own = GateProduct { out: own.out + (first * n * 2) as u64, ..own };
                let x = normed + (first * hidden * 2) as u64;
                let args = Args::default().words(&own.words()).pointer(x).int(rows).int(hidden);
                let block = Shape::new(n as u32, (GATE_WARPS * 32) as u32);
                out.few.launch(self.device, block.shared((2 * hidden) as u32), args)
            })?;
            return self.few_rows_fp8(Role::Qkv, mix, normed, weight, shape);
        }
        self.normed_product(Epilogue::Store, mix, (norm, 0), weight, shape)?;
        let (Some(gates), Some(out)) = (gates, &delta.gates) else { return Ok(()) };
        let shape = (rows, gates_width(delta.shape.value_heads), hidden);
        self.normed_product(Epilogue::Store, out.rows.pointer, (norm, 0), gates, shape)
    }

    /// Single rows by the recurrence, prompts by chunks. `gates_apart`: beta and alpha do not stand in `mix`.
    pub(crate) fn delta(&self, layer: &DeltaLayer, gates_apart: bool, size: StepSize) -> Result<(), BackendError> {
        let delta = self.model.delta.as_ref().ok_or_else(no_delta)?;
        let (w, model, shape) = (self.work, self.model, &delta.shape);
        let (mix, width) = (w.mix.pointer, delta.mix_width());
        let heads = shape.value_heads;
        let (gates, gates_width) = match delta.gates.as_ref().filter(|_| gates_apart) {
            Some(gates) => (gates.rows.pointer, gates_width(heads)),
            None => (mix + ((shape.channels() + shape.value_width()) * 2) as u64, width),
        };
        let (states, rings) = (delta.states[layer.index].pointer, delta.rings[layer.index].pointer);
        let (deferred, conv) = (delta.deferred[layer.index].pointer, delta.conv_rows.pointer);
        let grid = |x: usize, y: usize, block: u32, shared_bytes: u32| {
            Shape::of((x as u32, y as u32), block).shared(shared_bytes)
        };
        if size.decodes > 0 {
            let args = Args::default()
                .pointer(w.attended.pointer)
                .pointer(mix)
                .int(width)
                .pointer(gates)
                .int(gates_width)
                .pointer(states)
                .pointer(deferred)
                .pointer(rings)
                .pointer(layer.taps.pointer)
                .pointer(layer.decay.pointer)
                .pointer(layer.bias.pointer)
                .pointer(layer.norm.pointer)
                .pointer(w.runs_pointer())
                .float(model.eps);
            let blocks = grid(size.runs * heads, 1, 256, delta.step_shared);
            let shared_percent = shared_percent(self.device.arch, size.rows).filter(|_| self.few(size.rows));
            delta.step.launch(self.device, Shape { shared_percent, ..blocks }, args)?;
        }
        if size.prefill_rows == 0 {
            return Ok(());
        }
        let args = Args::default()
            .pointer(conv)
            .pointer(mix)
            .int(width)
            .pointer(rings)
            .pointer(layer.taps.pointer)
            .pointer(w.row_seat.pointer)
            .pointer(w.row_position.pointer)
            .int(size.rows);
        let conv_heads = shape.channels() / shape.key_dim;
        let blocks = grid(size.rows.div_ceil(CONV_ROWS), conv_heads.div_ceil(4), 128, 0);
        delta.conv.launch(self.device, blocks, args)?;
        let args = Args::default()
            .pointer(delta.chunk_u.pointer)
            .pointer(delta.chunk_w.pointer)
            .pointer(delta.chunk_p.pointer)
            .pointer(delta.chunk_g.pointer)
            .pointer(conv)
            .pointer(gates)
            .int(gates_width)
            .pointer(layer.decay.pointer)
            .pointer(layer.bias.pointer)
            .pointer(w.upload.pointer)
            .pointer(w.runs_pointer());
        delta.chunk.launch(self.device, grid(size.chunks, heads, 128, delta.chunk_shared), args)?;
        let args = Args::default()
            .pointer(conv)
            .pointer(delta.chunk_u.pointer)
            .pointer(delta.chunk_w.pointer)
            .pointer(delta.chunk_p.pointer)
            .pointer(delta.chunk_g.pointer)
            .pointer(states)
            .pointer(deferred)
            .pointer(w.runs_pointer())
            .pointer(w.saves_pointer())
            .int(size.saves);
        let splits = shape.value_dim / SCAN_COLUMNS;
        delta.scan.launch(self.device, grid(size.runs, heads * splits, 128, delta.scan_shared), args)?;
        let args = Args::default()
            .pointer(w.attended.pointer)
            .pointer(conv)
            .pointer(mix)
            .int(width)
            .pointer(rings)
            .pointer(layer.norm.pointer)
            .pointer(w.row_seat.pointer)
            .pointer(w.row_position.pointer)
            .int(size.rows)
            .float(model.eps)
            .pointer(w.saves_pointer())
            .int(size.saves)
            .pointer(w.upload.pointer)
            .pointer(w.runs_pointer());
        delta.out.launch(self.device, grid(size.rows, heads.div_ceil(4), 128, 0), args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(key_dim: usize, conv: usize) -> DeltaShape {
        let (order, gate) = (HeadOrder::Grouped, GateFn::Silu);
        DeltaShape { key_heads: 16, value_heads: 32, key_dim, value_dim: key_dim, conv, order, gate }
    }

    /// What has no kernel is refused before anything is loaded.
    #[test]
    fn shapes_without_kernels_are_refused() {
        assert!(check_shape(&shape(128, 4), 90).is_ok());
        for (shape, arch) in [(shape(96, 4), 90), (shape(128, 3), 90), (shape(128, 4), 75)] {
            let error = check_shape(&shape, arch).expect_err("no kernel").to_string();
            assert!(error.contains("delta rule"), "{error}");
        }
    }

    /// Two chunks fit where a block may have 160 KB, one everywhere from 8.0 on.
    #[test]
    fn shared_memory_fits() {
        assert_eq!((chunk_shared(&shape(128, 4)), scan_shared(&shape(128, 4), 2)), (53_760, 154_112));
        assert!(scan_shared(&shape(128, 4), 1) < 99 << 10);
        let step = |state_type| step_shared(&shape(128, 4), state_type);
        assert_eq!([step(StateType::F32), step(StateType::Bf16)], [72_560, 38_768]);
    }

    #[test]
    fn chunks_are_counted_over_long_runs() {
        assert_eq!(chunks([64, 65, 2].into_iter()), 4);
    }
}
