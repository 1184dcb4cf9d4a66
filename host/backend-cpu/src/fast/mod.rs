//! The interpreter that serves: packed weights, 12-bit activation rows, f16 keys and values, all threads.
//!
//! Each operation is one to three phases, and a phase is cut into items that threads take in turn. No item's result
//! depends on which thread took it or what else was in the batch. Memory is made at load for the largest step.

mod attend;
mod delta;
mod products;

use backend::BackendError;
use backend::ops::{AttentionShape, BlockOp, ModelSpec};
use backend::weights::Weight;
use contract::PageId;

use crate::batch::{Batch, Row};
use crate::interpreter::{HEAD_ROWS, Interpreter};
use crate::kernels::attention::{self, KvShape};
use crate::kernels::dequant::dequantize_row;
use crate::kernels::{BLOCK, Isa, PackedWeight, QuantRows, ROW_GRAIN, RowForms, Scratch, elementwise, matmul};
use crate::pool::{Panicked, Shares, ThreadPool, Tickets};
use crate::program::Program;
use crate::state::States;

use self::attend::PartResults;
use self::delta::DeltaRows;

/// Outputs of gate and up that a thread computes at once, in grains.
const GATE_GRAINS_MAX: usize = 4;

/// What one thread works with.
struct Lane {
    scratch: Scratch,
    /// One row of the widest buffer.
    row: Vec<f32>,
    /// `[rows][GATE_GRAINS_MAX grains]` of gate, then of up.
    gate_up: Vec<f32>,
    /// For layers with a recurrent state.
    delta: Vec<f32>,
}

/// What the rows of `attended` are.
#[derive(Clone, Copy)]
enum Mixer {
    Attention,
    Delta,
}

/// See the module.
pub struct Fast {
    isa: Isa,
    hidden: usize,
    ffn: usize,
    attention: AttentionShape,
    norm_eps: f32,
    inv_freq: Vec<f32>,
    program: Program,
    table: Weight,
    /// See [`Program::numbers`].
    vectors: Vec<Vec<f32>>,
    states: Option<States>,
    /// Packed matrices, by weight number; `None` for vectors and for a table that is no head.
    packed: Vec<Option<PackedWeight>>,
    pool: ThreadPool,
    lanes: Vec<Lane>,
    /// Of each layer, in the layout of [`crate::kernels::attention`].
    kv: Vec<Vec<u16>>,
    parts: PartResults,
    h: Vec<f32>,
    /// With gated attention all queries of a row, all gates, then keys and values: `pack` reorders the q projection.
    mix: Vec<f32>,
    attended: Vec<f32>,
    mixer: Mixer,
    delta: DeltaRows,
    /// Cosines, then sines, of each row.
    angles: Vec<f32>,
    acts: QuantRows,
    ffn_acts: QuantRows,
}

/// What [`Fast::new`] is made for.
pub struct FastSizes {
    pub max_rows: usize,
    pub pages: usize,
    pub context_len: usize,
}

/// Why the fast kernels cannot run a model of this shape; `None` when they can.
pub fn refusal(spec: &ModelSpec) -> Option<String> {
    let whole = |what: &str, value: usize, unit: usize| {
        (!value.is_multiple_of(unit)).then(|| format!("its {what} {value} is not a multiple of {unit}"))
    };
    whole("head size", spec.attention.head_dim, 16)
        .or_else(|| whole("hidden size", spec.hidden, BLOCK))
        .or_else(|| whole("feed-forward size", spec.ffn, BLOCK))
        .or_else(|| whole("attention width", spec.attention.q_width(), BLOCK))
        .or_else(|| whole("linear key head size", spec.delta?.key_dim, 16))
        .or_else(|| whole("linear value head size", spec.delta?.value_dim, 16))
        .or_else(|| whole("linear attention width", spec.delta?.value_width(), BLOCK))
}

impl Fast {
    /// Packs the weights; `packed` hears the file bytes done after each.
    pub fn new(
        spec: &ModelSpec,
        program: Program,
        pool: ThreadPool,
        sizes: &FastSizes,
        states: Option<States>,
        mut packed_bytes: impl FnMut(u64),
    ) -> Result<Self, BackendError> {
        let mut packed = Vec::with_capacity(spec.weights.len());
        let table_is_head = program.head == program.table;
        for (i, weight) in spec.weights.iter().enumerate() {
            let skip = program.plain[i] || (i == program.table.0 as usize && !table_is_head);
            packed.push(if skip { None } else { Some(pack(spec, &program, i)?) });
            packed_bytes(weight.size_bytes() as u64);
        }
        let mut vectors = program.numbers(spec);
        for op in &program.body {
            if let (BlockOp::DeltaRule { taps, .. }, Some(delta)) = (op, spec.delta) {
                let taps = &mut vectors[taps.0 as usize];
                *taps = delta::turned(taps, delta.conv);
            }
        }
        let AttentionShape { kv_heads, head_dim, .. } = spec.attention;
        let mixed = spec.delta.map_or(0, |delta| delta.mix_width()).max(spec.attention.mix_width());
        let attended = spec.delta.map_or(0, |delta| delta.value_width()).max(spec.attention.q_width());
        let page_len = KvShape { kv_heads, head_dim }.page_len();
        let rows = sizes.max_rows.max(HEAD_ROWS);
        let widest = spec.hidden.max(attended);
        let forms = packed.iter().flatten().map(PackedWeight::reads).fold(RowForms::default(), RowForms::and);
        let group = spec.attention.heads / kv_heads;
        let products = packed.iter().flatten().map(matmul::scratch_bytes).max().unwrap_or(0);
        let scratch_bytes = products.max(attention::scratch_bytes_max(KvShape { kv_heads, head_dim }, group));
        let lane = |_| Lane {
            scratch: Scratch::with_capacity(scratch_bytes),
            row: vec![0.0; widest],
            gate_up: vec![0.0; 2 * rows * GATE_GRAINS_MAX * ROW_GRAIN],
            delta: vec![0.0; spec.delta.map_or(0, delta::scratch_len)],
        };
        let lanes: Vec<Lane> = (0..pool.threads()).map(lane).collect();
        Ok(Self {
            isa: Isa::detect(),
            hidden: spec.hidden,
            ffn: spec.ffn,
            attention: spec.attention,
            norm_eps: spec.norm_eps,
            inv_freq: spec.rope.inv_freq.clone(),
            table: spec.weight(program.table).clone(),
            program,
            vectors,
            states,
            packed,
            kv: (0..spec.kv_layers).map(|_| vec![0; sizes.pages * page_len]).collect(),
            parts: PartResults::new(spec.attention, pool.threads(), sizes.context_len),
            h: vec![0.0; rows * spec.hidden],
            mix: vec![0.0; rows * mixed],
            attended: vec![0.0; rows * attended],
            mixer: Mixer::Attention,
            delta: DeltaRows::new(spec.delta, rows),
            angles: vec![0.0; rows * 2 * spec.rope.inv_freq.len()],
            acts: QuantRows::new(rows, widest, forms),
            ffn_acts: QuantRows::new(rows, spec.ffn, forms),
            pool,
            lanes,
        })
    }

    /// Bytes of packed weights and of working memory.
    pub fn memory(&self) -> (u64, u64) {
        let packed: usize = self.packed.iter().flatten().map(PackedWeight::size_bytes).sum();
        let floats = [&self.h, &self.mix, &self.attended, &self.angles].map(Vec::len).iter().sum::<usize>();
        let lane = |lane: &Lane| lane.row.len() + lane.gate_up.len() + lane.delta.len();
        let floats = floats + self.lanes.iter().map(lane).sum::<usize>() + self.parts.len() + self.delta.len();
        (packed as u64, (4 * floats + self.acts.size_bytes() + self.ffn_acts.size_bytes()) as u64)
    }

    /// Weights that were packed, and those that were not.
    pub fn packed_and_mapped(&self) -> (usize, usize) {
        let packed = self.packed.iter().flatten().count();
        (packed, self.packed.len() - packed)
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    fn embed(&mut self, batch: &Batch) -> Result<(), Panicked> {
        let (hidden, pairs) = (self.hidden, self.inv_freq.len());
        let (h, angles) = (Shares::new(&mut self.h), Shares::new(&mut self.angles));
        let (table, inv_freq) = (&self.table, &self.inv_freq);
        each(&mut self.pool, batch.rows.len(), |_, row| {
            let Row { token, position, .. } = batch.rows[row];
            // SAFETY: each row is one item, so its elements are this thread's.
            let (h, angles) = unsafe {
                (h.get(row * hidden..(row + 1) * hidden), angles.get(row * 2 * pairs..(row + 1) * 2 * pairs))
            };
            dequantize_row(table.ty, table.row(token as usize), h);
            let (cos, sin) = angles.split_at_mut(pairs);
            elementwise::rope_angles(inv_freq, position, cos, sin);
        })
    }

    fn op(&mut self, op: &BlockOp, batch: &Batch) -> Result<(), Panicked> {
        let rows = batch.rows.len();
        match *op {
            BlockOp::NormQkv { norm, q, k, v } => {
                self.norm_rows(norm, rows)?;
                self.products_into_mix(rows, self.attention.mix_width(), &[q, k, v])
            }
            BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => {
                self.rotate_and_store(batch, kv_layer as usize, q_norm, k_norm)
            }
            BlockOp::Attend { kv_layer } => {
                self.mixer = Mixer::Attention;
                self.attend(batch, kv_layer as usize)
            }
            BlockOp::NormDelta { norm, qkv, z, beta, alpha } => {
                self.norm_rows(norm, rows)?;
                let width = self.states.as_ref().map_or(0, |states| states.shape().mix_width());
                self.products_into_mix(rows, width, &[qkv, z, beta, alpha])
            }
            BlockOp::DeltaRule { state_layer, taps, decay, bias, norm } => {
                self.mixer = Mixer::Delta;
                self.delta_rule(batch, state_layer, [taps, decay, bias, norm])
            }
            BlockOp::OutResidual { out } => {
                match self.mixer {
                    Mixer::Attention => self.quantise_attended(rows)?,
                    Mixer::Delta => self.quantise_delta(rows)?,
                }
                self.add_to_h(rows, out, false)
            }
            BlockOp::NormGateUp { norm, gate, up } => {
                self.norm_rows(norm, rows)?;
                self.gate_up(rows, gate, up)
            }
            BlockOp::DownResidual { down } => self.add_to_h(rows, down, true),
            // `Program::new` lets none of these into a body.
            BlockOp::Embed { .. } | BlockOp::Head { .. } | BlockOp::Tap { .. } => Ok(()),
        }
    }
}

impl Interpreter for Fast {
    fn run(&mut self, batch: &Batch) -> Result<(), Panicked> {
        self.embed(batch)?;
        let body = std::mem::take(&mut self.program.body);
        let ran = body.iter().try_for_each(|op| self.op(op, batch));
        self.program.body = body;
        ran
    }

    fn head(&mut self, rows: &[usize], logits: &mut [f32]) -> Result<(), Panicked> {
        self.norm_for_head(rows)?;
        self.head_product(rows.len(), logits)
    }

    fn normed_rows(&mut self, rows: &[usize], out: &mut [f32]) {
        let norm = &self.vectors[self.program.head_norm.0 as usize];
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.hidden)) {
            let h = &self.h[row * self.hidden..(row + 1) * self.hidden];
            elementwise::rms_norm(self.isa, h, norm, self.norm_eps, out);
        }
    }

    fn copy_page(&mut self, from: PageId, to: PageId) {
        let len = KvShape { kv_heads: self.attention.kv_heads, head_dim: self.attention.head_dim }.page_len();
        let (from, to) = (from.0 as usize * len, to.0 as usize * len);
        for layer in &mut self.kv {
            layer.copy_within(from..from + len, to);
        }
    }

    fn states(&mut self) -> Option<&mut States> {
        self.states.as_mut()
    }

    fn pool(&mut self) -> &mut ThreadPool {
        &mut self.pool
    }
}

/// Packs a matrix; a gated q projection with all queries before all gates.
fn pack(spec: &ModelSpec, program: &Program, index: usize) -> Result<PackedWeight, BackendError> {
    let weight = &spec.weights[index];
    let projects = |op: &BlockOp| matches!(op, BlockOp::NormQkv { q, .. } if q.0 as usize == index);
    if !spec.attention.gated || !program.body.iter().any(projects) {
        return PackedWeight::pack(weight);
    }
    let (head_dim, width) = (spec.attention.head_dim, spec.attention.q_width());
    let stored = |row: usize| (row % width / head_dim * 2 + row / width) * head_dim + row % head_dim;
    let order = (0..weight.rows).map(|row| stored(row) as u32).collect();
    PackedWeight::pack(&weight.clone().with_row_order(order).expect("a permutation of rows without scales"))
}

/// Calls `item(thread, i)` for `i < count`, on the calling thread alone when there is only one.
fn each(pool: &mut ThreadPool, count: usize, item: impl Fn(usize, usize) + Sync) -> Result<(), Panicked> {
    if count == 1 {
        return ThreadPool::run_here(|| item(0, 0));
    }
    let tickets = Tickets::new(count, count / (pool.threads() * 4));
    pool.run(&|thread| {
        while let Some(range) = tickets.take() {
            range.for_each(|i| item(thread, i));
        }
    })
}
