//! The matrix products and what stands between them row by row.

use backend::ops::GateFn;
use backend::weights::WeightId;

use super::{Fast, GATE_GRAINS_MAX, Lane, each};
use crate::kernels::delta::gate;
use crate::kernels::matmul::{Store, matmul};
use crate::kernels::{Isa, OutCols, PackedWeight, QuantRows, ROW_GRAIN};
use crate::pool::{Panicked, Shares, ThreadPool, Tickets};

/// Outputs that a thread takes at once, in grains; a multiple of the widest kernel's need.
const GRAINS_MAX: usize = 16;

/// Turns of each thread in a phase: the last one, which others may have to wait for, is then a small part of it.
const TURNS: usize = 8;

/// A weight whose products go to consecutive columns from `first_col` on.
#[derive(Clone, Copy)]
struct Target<'a> {
    weight: &'a PackedWeight,
    first_col: usize,
}

impl Fast {
    /// `acts = rms(h; norm)` for the first `rows` rows.
    pub(super) fn norm_rows(&mut self, norm: WeightId, rows: usize) -> Result<(), Panicked> {
        self.acts.set_shape(rows, self.hidden);
        self.norm_into_acts(norm, rows, |row| row)
    }

    pub(super) fn norm_for_head(&mut self, rows: &[usize]) -> Result<(), Panicked> {
        self.acts.set_shape(rows.len(), self.hidden);
        self.norm_into_acts(self.program.head_norm, rows.len(), |i| rows[i])
    }

    fn norm_into_acts(
        &mut self,
        norm: WeightId,
        count: usize,
        source: impl Fn(usize) -> usize + Sync,
    ) -> Result<(), Panicked> {
        let (isa, hidden, eps) = (self.isa, self.hidden, self.norm_eps);
        let (h, acts, norm) = (&self.h, &self.acts, &self.vectors[norm.0 as usize]);
        each(&mut self.pool, count, |_, i| {
            let row = source(i);
            let values = &h[row * hidden..(row + 1) * hidden];
            // SAFETY: each row is one item, and nobody reads the rows before this phase is over.
            unsafe { acts.shared_writer() }.put_rms_norm(isa, i, values, norm, eps);
        })
    }

    /// Attention's rows, times the sigmoids of their gates where the shape has them.
    pub(super) fn quantise_attended(&mut self, rows: usize) -> Result<(), Panicked> {
        let (isa, shape, q_width) = (self.isa, self.attention, self.attention.q_width());
        self.acts.set_shape(rows, q_width);
        let (acts, attended, mix, width) = (&self.acts, &self.attended, &self.mix, q_width / shape.kv_heads);
        let lanes = Shares::new(&mut self.lanes);
        each(&mut self.pool, rows, |thread, row| {
            // SAFETY: each thread uses its own lane.
            let out = &mut unsafe { lanes.get(thread..thread + 1) }[0].row[..q_width];
            for (kv_head, out) in out.chunks_exact_mut(width).enumerate() {
                let group = &attended[(kv_head * rows + row) * width..][..width];
                if shape.gated {
                    let gates = &mix[row * shape.mix_width() + q_width + kv_head * width..][..width];
                    gate(isa, GateFn::Sigmoid, gates, group, out);
                } else {
                    out.copy_from_slice(group);
                }
            }
            // SAFETY: each row is one item, and nobody reads the rows before this phase is over.
            unsafe { acts.shared_writer() }.put(isa, row, 0, out);
        })
    }

    /// The rows that a layer with a recurrent state gave.
    pub(super) fn quantise_delta(&mut self, rows: usize) -> Result<(), Panicked> {
        let width = self.states.as_ref().map_or(0, |states| states.shape().value_width());
        self.acts.set_shape(rows, width);
        let (isa, acts, attended) = (self.isa, &self.acts, &self.attended);
        each(&mut self.pool, rows, |_, row| {
            // SAFETY: each row is one item, and nobody reads the rows before this phase is over.
            unsafe { acts.shared_writer() }.put(isa, row, 0, &attended[row * width..(row + 1) * width]);
        })
    }

    /// `mix = W acts` of all weights, side by side in rows of `width`.
    pub(super) fn products_into_mix(
        &mut self,
        rows: usize,
        width: usize,
        weights: &[WeightId],
    ) -> Result<(), Panicked> {
        let mut mix = std::mem::take(&mut self.mix);
        let mut targets = [const { None }; MIX_WEIGHTS_MAX];
        let mut first_col = 0;
        for (target, id) in targets.iter_mut().zip(weights) {
            let weight = self.packed[id.0 as usize].as_ref().expect(PACKED);
            *target = Some(Target { weight, first_col });
            first_col += weight.rows();
        }
        let out = OutCols::new(&mut mix[..rows * width], width, 0..width);
        let mut call = Call { pool: &mut self.pool, lanes: &mut self.lanes, isa: self.isa, acts: &self.acts };
        let ran = call.products(&targets, &out, Store::Set);
        self.mix = mix;
        ran
    }

    /// `h += W acts`, with the feed-forward's rows when `ffn` says so.
    pub(super) fn add_to_h(&mut self, rows: usize, weight: WeightId, ffn: bool) -> Result<(), Panicked> {
        let acts = if ffn { &self.ffn_acts } else { &self.acts };
        let targets = [Some(Target { weight: self.packed[weight.0 as usize].as_ref().expect(PACKED), first_col: 0 })];
        let out = OutCols::new(&mut self.h[..rows * self.hidden], self.hidden, 0..self.hidden);
        Call { pool: &mut self.pool, lanes: &mut self.lanes, isa: self.isa, acts }.products(&targets, &out, Store::Add)
    }

    pub(super) fn head_product(&mut self, rows: usize, logits: &mut [f32]) -> Result<(), Panicked> {
        let weight = self.packed[self.program.head.0 as usize].as_ref().expect(PACKED);
        let vocab = weight.rows();
        let targets = [Some(Target { weight, first_col: 0 })];
        let out = OutCols::new(&mut logits[..rows * vocab], vocab, 0..vocab);
        let mut call = Call { pool: &mut self.pool, lanes: &mut self.lanes, isa: self.isa, acts: &self.acts };
        call.products(&targets, &out, Store::Set)
    }

    /// `ffn_acts = silu(Wgate acts) (Wup acts)`: a thread computes both products of some outputs, then activates them.
    pub(super) fn gate_up(&mut self, rows: usize, gate: WeightId, up: WeightId) -> Result<(), Panicked> {
        self.ffn_acts.set_shape(rows, self.ffn);
        let [gate, up] = [gate, up].map(|id| self.packed[id.0 as usize].as_ref().expect(PACKED));
        let (isa, ffn, acts, ffn_acts) = (self.isa, self.ffn, &self.acts, &self.ffn_acts);
        let grains = ffn.div_ceil(ROW_GRAIN);
        let tickets = Tickets::new(grains, (grains / (self.pool.threads() * TURNS)).clamp(1, GATE_GRAINS_MAX));
        let lanes = Shares::new(&mut self.lanes);
        self.pool.run(&|thread| {
            // SAFETY: each thread uses its own lane.
            let Lane { scratch, gate_up, .. } = &mut unsafe { lanes.get(thread..thread + 1) }[0];
            while let Some(range) = tickets.take() {
                let outputs = range.start * ROW_GRAIN..(range.end * ROW_GRAIN).min(ffn);
                let width = outputs.len();
                let (gates, rest) = gate_up.split_at_mut(rows * width);
                let ups = &mut rest[..rows * width];
                for (weight, out) in [(gate, &mut *gates), (up, &mut *ups)] {
                    let mut out = OutCols::new(out, width, 0..width);
                    matmul(isa, weight, acts, outputs.clone(), &mut out, Store::Set, scratch);
                }
                for (row, (gate, up)) in gates.chunks_exact(width).zip(ups.chunks_exact(width)).enumerate() {
                    // SAFETY: these columns of every row are this ticket's, and nobody reads them in this phase.
                    unsafe { ffn_acts.shared_writer() }.put_silu_mul(isa, row, outputs.start, gate, up);
                }
            }
        })
    }
}

/// Projections of one operation: q, k and v, or those of a layer with a recurrent state.
const MIX_WEIGHTS_MAX: usize = 4;

const PACKED: &str = "every matrix that an operation names is packed at load";

/// What a product phase works with.
struct Call<'a> {
    pool: &'a mut ThreadPool,
    lanes: &'a mut [Lane],
    isa: Isa,
    acts: &'a QuantRows,
}

impl Call<'_> {
    /// All outputs of all targets, shared among the threads by the grain.
    fn products(&mut self, targets: &[Option<Target<'_>>], out: &OutCols<'_>, store: Store) -> Result<(), Panicked> {
        let grains_of = |target: &Target<'_>| target.weight.rows().div_ceil(ROW_GRAIN);
        let grains: usize = targets.iter().flatten().map(grains_of).sum();
        let tickets = Tickets::new(grains, (grains / (self.pool.threads() * TURNS)).clamp(1, GRAINS_MAX));
        let (isa, acts, lanes) = (self.isa, self.acts, Shares::new(self.lanes));
        self.pool.run(&|thread| {
            // SAFETY: each thread uses its own lane.
            let lane = &mut unsafe { lanes.get(thread..thread + 1) }[0];
            while let Some(range) = tickets.take() {
                let mut first_grain = 0;
                for target in targets.iter().flatten() {
                    let end_grain = first_grain + grains_of(target);
                    let (from, to) = (range.start.max(first_grain), range.end.min(end_grain));
                    if from < to {
                        let to = ((to - first_grain) * ROW_GRAIN).min(target.weight.rows());
                        let outputs = (from - first_grain) * ROW_GRAIN..to;
                        let cols = target.first_col + outputs.start..target.first_col + outputs.end;
                        // SAFETY: these columns belong to grains that were handed to this thread alone.
                        let mut out = unsafe { out.alias(cols) };
                        matmul(isa, target.weight, acts, outputs, &mut out, store, &mut lane.scratch);
                    }
                    first_grain = end_grain;
                }
            }
        })
    }
}
