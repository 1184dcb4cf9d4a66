//! One forward pass as launches: each block operation becomes one to three kernels.
//!
//! Products are in `products.rs`. Nothing here depends on
//! anything that changes between steps but the number of rows, so the same calls can be captured into a graph.

use std::sync::Arc;

use backend::BackendError;
use backend::load::LoadOptions;
use backend::ops::{AttentionShape, DeltaShape, ModelSpec};

use crate::attention::{Decode, PrefillLaunch, SPLIT_WAVES_MAX, TensorMaps};
use crate::blas::{Blas, library_rows};
use crate::block_products::Uses;
use crate::compile::{Compiler, Kernel};
use crate::delta::{Delta, DeltaLayer};
use crate::device::{Buffer, Device, fault};
use crate::fp8_products::Fp8Work;
use crate::launch::{Args, Shape};
use crate::products::{Epilogue, Fp8Scales, Matrix, ProductKernels};
use crate::seats::{SeatUpload, UploadLayout};

/// Keys of one decode work item.
pub const SPLIT: usize = 128;
/// Rows of a prefill tile: query tokens times the group's heads.
const TILE_ROWS: usize = 128;
/// Of them, those of a block of `attend_merge_tiles`.
const MERGED_ROWS: usize = 32;
/// Heads of a row that a warp of `rope_kv` takes, and rows of its value tiles.
const ROPE_UNIT: usize = 4;
const V_TILE_ROWS: usize = 64;
/// Blocks that share a row's vocabulary in `sample`.
pub const SAMPLE_PARTS_MAX: usize = 16;

/// Query tokens of a prefill tile.
pub fn tile_tokens(shape: &AttentionShape) -> usize {
    TILE_ROWS / (shape.heads / shape.kv_heads)
}

/// A block operation with its weights on the device.
pub enum DeviceOp {
    Embed {
        table: Matrix,
    },
    NormQkv {
        norm: Buffer,
        weight: Matrix,
    },
    /// `gates`: beta and alpha, where their weights are in another format than the others.
    NormDelta {
        norm: Buffer,
        weight: Matrix,
        gates: Option<Matrix>,
    },
    DeltaRule(DeltaLayer),
    RopeKv {
        layer: usize,
        q_norm: Option<Buffer>,
        k_norm: Option<Buffer>,
    },
    Attend {
        layer: usize,
    },
    /// `k`: what its layer's mixer gives a row.
    OutResidual {
        weight: Matrix,
        k: usize,
    },
    NormGateUp {
        norm: Buffer,
        weight: Matrix,
    },
    DownResidual {
        weight: Matrix,
    },
    Head {
        norm: Buffer,
        weight: Matrix,
    },
}

impl DeviceOp {
    pub fn matrix(&self) -> Option<&Matrix> {
        match self {
            Self::NormQkv { weight, .. } | Self::NormDelta { weight, .. } | Self::NormGateUp { weight, .. } => {
                Some(weight)
            }
            Self::OutResidual { weight, .. } | Self::DownResidual { weight } => Some(weight),
            Self::Embed { .. } | Self::RopeKv { .. } | Self::Attend { .. } | Self::DeltaRule(_) | Self::Head { .. } => {
                None
            }
        }
    }

    /// Whether this is a layer's product with weights that are not FP8.
    pub fn is_half_product(&self) -> bool {
        self.matrix().is_some_and(|matrix| matches!(matrix, Matrix::Half(_)))
    }

    /// Whether the library could read the scales of this operation's FP8 weights; true where it has none.
    pub fn has_library_scales(&self, scales: Fp8Scales) -> bool {
        self.matrix().is_none_or(|matrix| match matrix {
            Matrix::Half(_) | Matrix::Packed(_) => true,
            Matrix::Fp8 { blocks, .. } => scales == Fp8Scales::Rows || blocks.is_some(),
        })
    }

    /// A tied head counts with the embedding.
    pub fn weight_bytes(&self) -> usize {
        let norms = match self {
            Self::NormQkv { norm, .. } | Self::NormGateUp { norm, .. } => norm.bytes,
            Self::RopeKv { q_norm, k_norm, .. } => [q_norm, k_norm].into_iter().flatten().map(|norm| norm.bytes).sum(),
            Self::NormDelta { norm, gates, .. } => norm.bytes + gates.as_ref().map_or(0, Matrix::bytes),
            Self::DeltaRule(layer) => layer.bytes(),
            Self::Embed { table } => table.bytes(),
            Self::Head { norm, weight: Matrix::Half(weight) } if Arc::strong_count(weight) > 1 => norm.bytes,
            Self::Head { norm, weight: Matrix::Packed(weight) } if Arc::strong_count(weight) > 1 => norm.bytes,
            Self::Head { norm, weight } => norm.bytes + weight.bytes(),
            Self::Attend { .. } | Self::OutResidual { .. } | Self::DownResidual { .. } => 0,
        };
        norms + self.matrix().map_or(0, Matrix::bytes)
    }
}

pub struct DeviceModel {
    pub shape: AttentionShape,
    pub hidden: usize,
    pub ffn: usize,
    pub vocab: usize,
    /// Ids from here on are never sampled.
    pub vocab_used: usize,
    pub eps: f32,
    /// The 16-bit type is f16, else bf16.
    pub f16: bool,
    /// All feed-forward weights are in block formats, so few rows between their products are in eights.
    pub act_in_eights: bool,
    pub rotation: Buffer,
    pub ops: Vec<DeviceOp>,
    pub kv: Vec<Buffer>,
    /// Weights in block formats become 16 bits here before they are multiplied with many rows.
    pub panel: Option<Buffer>,
    /// For a prefill kernel that reads through them.
    pub tensor_maps: Option<TensorMaps>,
    /// For layers with the gated delta rule.
    pub delta: Option<Delta>,
    /// See [`crate::CudaOptions::batch_invariant`].
    pub invariant: bool,
}

pub struct Kernels {
    pub begin_step: Kernel,
    pub embed: Kernel,
    pub rms_norm: Kernel,
    pub products: ProductKernels,
    pub rope_kv: Kernel,
    pub attend_decode: Decode,
    pub attend_merge: Kernel,
    pub attend_merge_tiles: Kernel,
    pub attend_prefill: Kernel,
    pub prefill: PrefillLaunch,
    pub sample: Kernel,
    pub end_step: Kernel,
    pub fill_random: Kernel,
}

impl Kernels {
    pub fn compile(
        compiler: &mut Compiler<'_>,
        shape: &AttentionShape,
        fp8: Option<Fp8Scales>,
        blocks: &Uses,
        ffn: Option<(usize, usize)>,
    ) -> Result<Self, BackendError> {
        let prefill = PrefillLaunch::new(compiler.target.arch, shape);
        let attend_prefill = compiler.kernel(prefill.source, &[])?;
        attend_prefill.allow_shared(prefill.shared_bytes)?;
        Ok(Self {
            begin_step: compiler.kernel(kernels::BEGIN_STEP, &[])?,
            embed: compiler.kernel(kernels::EMBED, &[])?,
            rms_norm: compiler.kernel(kernels::RMS_NORM, &[("F16", 0)])?,
            products: ProductKernels::compile(compiler, fp8, blocks, ffn)?,
            rope_kv: compiler.kernel(kernels::ROPE_KV, &[])?,
            attend_decode: Decode::compile(compiler, shape)?,
            attend_merge: compiler.kernel(kernels::ATTEND_MERGE, &[])?,
            attend_merge_tiles: compiler.kernel(kernels::ATTEND_MERGE_TILES, &[])?,
            attend_prefill,
            prefill,
            sample: compiler.kernel(kernels::SAMPLE, &[])?,
            end_step: compiler.kernel(kernels::END_STEP, &[])?,
            fill_random: compiler.kernel(kernels::FILL_RANDOM, &[])?,
        })
    }
}

/// Everything a step reads and writes beside weights and KV, allocated once.
pub struct Workspace {
    pub max_rows: usize,
    pub seats: usize,
    pub table_width: usize,
    /// `StepInfo`, runs, mask indices, appends, saves, tokens: one upload a step.
    pub upload: Buffer,
    pub layout: UploadLayout,
    pub seat_states: Buffer,
    pub page_table: Buffer,
    pub counts: Buffer,
    pub masks: Buffer,
    pub mask_words: usize,
    pub row_seat: Buffer,
    pub row_position: Buffer,
    pub row_token: Buffer,
    emit_row: Buffer,
    pub emit_run: Buffer,
    decode_items: Buffer,
    tiles: Buffer,
    /// Of each tile in parts the first one's place in `tiles`.
    merges: Buffer,
    pub h: Buffer,
    pub normed: Buffer,
    pub mix: Buffer,
    pub attended: Buffer,
    pub gate_up: Buffer,
    pub act: Buffer,
    part_o: Buffer,
    part_ml: Buffer,
    /// Sums of split prefill tiles.
    tile_o: Buffer,
    tile_ml: Buffer,
    pub logits: Buffer,
    /// What the blocks of a sampled row hand to its last, and how many have: zero between steps.
    pub sample_parts: Buffer,
    pub sample_arrived: Buffer,
}

impl Workspace {
    pub fn new(
        device: &Device,
        spec: &ModelSpec,
        options: &LoadOptions,
        context_len: u32,
    ) -> Result<Self, BackendError> {
        let (rows, seats) = (options.max_rows as usize, usize::from(options.seats));
        // Products read and write whole tiles of rows.
        let padded = library_rows(rows);
        let shape = &spec.attention;
        let group = shape.heads / shape.kv_heads;
        let table_width = (context_len as usize).div_ceil(64) + 1;
        let layout = UploadLayout::new(seats, rows, table_width);
        let items = (seats + 1) * (context_len as usize).div_ceil(SPLIT) * shape.kv_heads;
        let split_items = SPLIT_WAVES_MAX * device.multiprocessors as usize;
        let split_rows = split_items * TILE_ROWS;
        let tiles = ((rows / tile_tokens(shape) + seats + 1) * shape.kv_heads).max(split_items);
        let mask_words = spec.vocab.div_ceil(32);
        let delta = spec.delta.as_ref();
        let mix_width = shape.mix_width().max(delta.map_or(0, crate::delta::mix_width));
        let mixed_width = shape.q_width().max(delta.map_or(0, DeltaShape::value_width));
        let alloc = |what: &str, bytes: usize| device.alloc_zeroed(what, bytes);
        let emits = seats + 1;
        Ok(Self {
            max_rows: rows,
            seats,
            table_width,
            upload: alloc("step upload", layout.bytes)?,
            layout,
            seat_states: alloc("seat states", (seats + 1) * size_of::<SeatUpload>())?,
            page_table: alloc("page tables", (seats + 1) * table_width * 4)?,
            counts: alloc("penalty counts", (seats + 1) * spec.vocab * 4)?,
            masks: alloc("grammar masks", emits * mask_words * 4)?,
            mask_words,
            row_seat: alloc("row seats", rows * 4)?,
            row_position: alloc("row positions", rows * 4)?,
            row_token: alloc("row tokens", rows * 4)?,
            emit_row: alloc("emitted rows", emits * 4)?,
            emit_run: alloc("emitting runs", emits * 4)?,
            decode_items: alloc("decode work", items * 16)?,
            tiles: alloc("prefill work", tiles * 16)?,
            merges: alloc("prefill tiles in parts", split_items * 4)?,
            h: alloc("residual rows", padded * spec.hidden * 2)?,
            normed: alloc("normed rows", padded * spec.hidden * 2)?,
            mix: alloc("mixer inputs", padded * mix_width * 2)?,
            attended: alloc("mixer outputs", padded * mixed_width * 2)?,
            gate_up: alloc("gate and up rows", padded * spec.ffn * 4)?,
            act: alloc("activated rows", padded * spec.ffn * 2)?,
            part_o: alloc("attention splits", items * group * shape.head_dim * 4)?,
            part_ml: alloc("attention split sums", items * group * 8)?,
            tile_o: alloc("prefill splits", split_rows * shape.head_dim * 4)?,
            tile_ml: alloc("prefill split sums", split_rows * 8)?,
            logits: alloc("logits", library_rows(emits) * spec.vocab * 4)?,
            sample_parts: alloc("sampling parts", emits * SAMPLE_PARTS_MAX * 16)?,
            sample_arrived: alloc("sampling arrivals", emits * 4)?,
        })
    }

    pub fn bytes(&self) -> usize {
        let buffers = [
            &self.upload,
            &self.seat_states,
            &self.page_table,
            &self.counts,
            &self.masks,
            &self.row_seat,
            &self.row_position,
            &self.row_token,
            &self.emit_row,
            &self.emit_run,
            &self.decode_items,
            &self.tiles,
            &self.merges,
            &self.h,
            &self.normed,
            &self.mix,
            &self.attended,
            &self.gate_up,
            &self.act,
            &self.part_o,
            &self.part_ml,
            &self.tile_o,
            &self.tile_ml,
            &self.logits,
            &self.sample_parts,
            &self.sample_arrived,
        ];
        buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// The rows that attention reads, and how many fit.
    pub fn attention_rows(&self) -> (u64, usize) {
        (self.mix.pointer, self.max_rows)
    }

    pub fn runs_pointer(&self) -> u64 {
        self.upload.pointer + self.layout.runs as u64
    }

    pub fn saves_pointer(&self) -> u64 {
        self.upload.pointer + self.layout.saves as u64
    }
}

/// How many rows of which kind a step has: all that a forward pass depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepSize {
    pub runs: usize,
    pub rows: usize,
    /// Runs of one row.
    pub decodes: usize,
    /// Rows of longer runs.
    pub prefill_rows: usize,
    /// Tiles of prefill attention whose keys are cut into parts, at most.
    pub split_tiles: usize,
    /// Chunks of the delta rule; see [`crate::delta::chunks`].
    pub chunks: usize,
    /// States that runs of several rows leave on their way.
    pub saves: usize,
    pub emits: usize,
}

impl StepSize {
    /// One row for each of `rows` seats, and each emits.
    pub fn decode(rows: usize) -> Self {
        Self { runs: rows, rows, decodes: rows, prefill_rows: 0, split_tiles: 0, chunks: 0, saves: 0, emits: rows }
    }
}

/// The parts of a backend that a forward pass uses.
pub struct Forward<'a> {
    pub device: &'a Device,
    pub model: &'a DeviceModel,
    pub kernels: &'a Kernels,
    pub work: &'a Workspace,
    pub blas: &'a mut Blas,
    pub fp8: Option<&'a Fp8Work>,
    /// Scales of weights whose product left bare sums that `h` still lacks; 0 for none.
    pub pending: u64,
    /// Every row's residual stream is wanted behind the pass, not only the emitted ones'.
    pub every_row: bool,
}

impl Forward<'_> {
    /// Queues the whole pass, up to the logits.
    pub fn run(&mut self, size: StepSize) -> Result<(), BackendError> {
        self.begin(size)?;
        for index in 0..self.model.ops.len() {
            self.op(index, size)?;
        }
        // `sample` moves whoever emits.
        if size.emits == size.runs {
            return Ok(());
        }
        self.kernels.end_step.launch(
            self.device,
            Shape::new(1, 1024),
            Args::default()
                .pointer(self.work.upload.pointer)
                .pointer(self.work.runs_pointer())
                .pointer(self.work.seat_states.pointer),
        )
    }

    fn begin(&self, _size: StepSize) -> Result<(), BackendError> {
        let (w, base) = (self.work, self.work.upload.pointer);
        let args = Args::default()
            .pointer(base)
            .pointer(w.runs_pointer())
            .pointer(base + w.layout.appends as u64)
            .pointer(base + w.layout.tokens as u64)
            .pointer(w.seat_states.pointer)
            .pointer(w.page_table.pointer)
            .int(w.table_width)
            .pointer(w.row_seat.pointer)
            .pointer(w.row_position.pointer)
            .pointer(w.row_token.pointer)
            .pointer(w.emit_row.pointer)
            .pointer(w.emit_run.pointer)
            .pointer(w.decode_items.pointer)
            .pointer(w.tiles.pointer)
            .pointer(w.merges.pointer);
        self.kernels.begin_step.launch(self.device, Shape::new(1, 1024), args)
    }

    fn op(&mut self, index: usize, size: StepSize) -> Result<(), BackendError> {
        let (model, w) = (self.model, self.work);
        let (hidden, ffn) = (model.hidden, model.ffn);
        let rows = size.rows;
        match &model.ops[index] {
            DeviceOp::Embed { table: Matrix::Packed(table) } => self.embed_packed(table, rows),
            DeviceOp::Embed { table: Matrix::Fp8 { .. } } => Err(fault("embedding", "its table is in FP8")),
            DeviceOp::Embed { table: Matrix::Half(table) } => {
                let args = Args::default()
                    .pointer(w.h.pointer)
                    .pointer(table.pointer)
                    .pointer(w.row_token.pointer)
                    .int(hidden);
                self.kernels.embed.launch(self.device, Shape::new(rows as u32, 128), args)
            }
            DeviceOp::NormQkv { norm, weight } => {
                let n = model.shape.mix_width();
                self.normed_product(Epilogue::Store, w.mix.pointer, (norm, 0), weight, (rows, n, hidden))
            }
            DeviceOp::NormDelta { norm, weight, gates } => self.delta_inputs(norm, weight, gates.as_ref(), rows),
            DeviceOp::DeltaRule(layer) => {
                let apart = matches!(model.ops[index - 1], DeviceOp::NormDelta { gates: Some(_), .. });
                self.delta(layer, apart, size)
            }
            // Steps of single rows do it in their attention.
            DeviceOp::RopeKv { .. } if self.attention_rows(size).1 == 0 => Ok(()),
            DeviceOp::RopeKv { layer, q_norm, k_norm } => self.rope_kv(*layer, q_norm.as_ref(), k_norm.as_ref(), size),
            DeviceOp::Attend { layer } => match &model.ops[index - 1] {
                DeviceOp::RopeKv { q_norm, k_norm, .. } => {
                    self.attend(*layer, (q_norm.as_ref(), k_norm.as_ref()), size)
                }
                _ => Err(fault("attention", "no rotation stands before it")),
            },
            DeviceOp::OutResidual { weight, k } => self.out(weight, (rows, hidden, *k)),
            DeviceOp::NormGateUp { norm, weight } => {
                self.normed_product(Epilogue::SiluMul, w.act.pointer, (norm, 0), weight, (rows, ffn, hidden))
            }
            DeviceOp::DownResidual { weight } => self.down(weight, (rows, hidden, ffn)),
            DeviceOp::Head { norm, weight } => {
                if size.emits == 0 {
                    return Ok(());
                }
                let shape = (size.emits, model.vocab, hidden);
                // Where every row emits, the rows are the emitted ones already.
                let pick = if size.emits == size.rows { 0 } else { w.emit_row.pointer };
                self.normed_product(Epilogue::StoreF32, w.logits.pointer, (norm, pick), weight, shape)
            }
        }
    }

    /// Rows of `h`, or those that `pick` names, normed by `kernel`.
    pub(crate) fn norm_with(
        &self,
        kernel: &Kernel,
        weight: &Buffer,
        pick: u64,
        rows: usize,
        eights: bool,
    ) -> Result<(), BackendError> {
        let args = Args::default()
            .pointer(self.work.normed.pointer)
            .pointer(self.work.h.pointer)
            .pointer(weight.pointer)
            .pointer(pick)
            .int(self.model.hidden)
            .float(self.model.eps)
            .int(usize::from(eights));
        kernel.launch(self.device, Shape::new(rows as u32, 256), args)
    }

    fn rope_kv(
        &self,
        layer: usize,
        q_norm: Option<&Buffer>,
        k_norm: Option<&Buffer>,
        size: StepSize,
    ) -> Result<(), BackendError> {
        let (w, model, rows) = (self.work, self.model, size.rows);
        let (heads, kv_heads) = (model.shape.heads, model.shape.kv_heads);
        // Values of a prompt are neighbours in their pages; those of single rows are not.
        let turned = size.prefill_rows >= V_TILE_ROWS;
        let v_tiles = if turned { rows.div_ceil(V_TILE_ROWS) * kv_heads } else { 0 };
        let units = (heads + if turned { kv_heads } else { 2 * kv_heads }).div_ceil(ROPE_UNIT);
        let args = Args::default()
            .pointer(w.mix.pointer)
            .pointer(model.kv[layer].pointer)
            .pointer(q_norm.map_or(0, |b| b.pointer))
            .pointer(k_norm.map_or(0, |b| b.pointer))
            .pointer(model.rotation.pointer)
            .pointer(w.row_seat.pointer)
            .pointer(w.row_position.pointer)
            .pointer(w.page_table.pointer)
            .int(w.table_width)
            .int(rows)
            .int(v_tiles)
            .float(model.eps);
        let blocks = (rows * units).div_ceil(8) + v_tiles;
        self.kernels.rope_kv.launch(self.device, Shape::new(blocks as u32, 256), args)
    }

    fn attend(
        &self,
        layer: usize,
        norms: (Option<&Buffer>, Option<&Buffer>),
        size: StepSize,
    ) -> Result<(), BackendError> {
        let (w, model) = (self.work, self.model);
        // Scores go through exp2: the logarithm of 2 is in the scale.
        let scale = std::f32::consts::LOG2_E / (model.shape.head_dim as f32).sqrt();
        let common = |args: Args, work: u64| {
            args.pointer(w.mix.pointer)
                .pointer(model.kv[layer].pointer)
                .pointer(w.upload.pointer)
                .pointer(w.runs_pointer())
                .pointer(work)
                .pointer(w.page_table.pointer)
                .int(w.table_width)
                .float(scale)
        };
        let (decodes, prefill_rows) = self.attention_rows(size);
        if decodes > 0 {
            let args =
                common(Args::default().pointer(w.part_o.pointer).pointer(w.part_ml.pointer), w.decode_items.pointer)
                    .pointer(norms.0.map_or(0, |b| b.pointer))
                    .pointer(norms.1.map_or(0, |b| b.pointer))
                    .pointer(model.rotation.pointer)
                    .float(model.eps);
            let rope = prefill_rows == 0;
            self.kernels.attend_decode.of(decodes, rope).launch(self.device, rope, args)?;
            let args = Args::default()
                .pointer(w.attended.pointer)
                .pointer(w.part_o.pointer)
                .pointer(w.part_ml.pointer)
                .pointer(w.runs_pointer())
                .pointer(w.mix.pointer);
            let grid = (size.runs as u32, model.shape.heads as u32);
            let shape = Shape::of(grid, model.shape.head_dim as u32);
            self.kernels.attend_merge.launch(self.device, shape, args)?;
        }
        if prefill_rows > 0 {
            let launch = &self.kernels.prefill;
            let out = Args::default().pointer(w.attended.pointer);
            let args = match &model.tensor_maps {
                Some(maps) => out
                    .pointer(maps.layer(layer))
                    .pointer(w.mix.pointer)
                    .pointer(w.upload.pointer)
                    .pointer(w.runs_pointer())
                    .pointer(w.tiles.pointer)
                    .pointer(w.page_table.pointer)
                    .int(w.table_width)
                    .int(layer)
                    .float(scale)
                    .pointer(w.tile_o.pointer)
                    .pointer(w.tile_ml.pointer),
                None => common(out, w.tiles.pointer),
            };
            let shape = Shape::new(self.device.multiprocessors, launch.threads).shared(launch.shared_bytes);
            self.kernels.attend_prefill.launch(self.device, shape, args)?;
            if size.split_tiles > 0 {
                let args = Args::default()
                    .pointer(w.attended.pointer)
                    .pointer(w.tile_o.pointer)
                    .pointer(w.tile_ml.pointer)
                    .pointer(w.upload.pointer)
                    .pointer(w.runs_pointer())
                    .pointer(w.tiles.pointer)
                    .pointer(w.merges.pointer)
                    .pointer(w.mix.pointer);
                let grid = (size.split_tiles as u32, (TILE_ROWS / MERGED_ROWS) as u32);
                let shape = Shape::of(grid, 256);
                self.kernels.attend_merge_tiles.launch(self.device, shape, args)?;
            }
        }
        Ok(())
    }
}
