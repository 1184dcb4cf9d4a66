//! Layers with a recurrent state: the convolution row by row, then each head's tokens in order.

use backend::ops::{DELTA_CHUNK, DeltaShape};
use backend::weights::WeightId;

use super::{Fast, each};
use crate::batch::{Batch, Sequence};
use crate::delta::DeltaWeights;
use crate::kernels::delta::{Head, block, block_scratch, convolve, gate, gates, token, unit};
use crate::kernels::{Isa, elementwise};
use crate::pool::{Panicked, Shares};
use crate::state::States;

/// Memory of a model with such layers; empty for others.
#[derive(Default)]
pub(super) struct DeltaRows {
    /// `[rows][channels]`: q, k and v after the convolution.
    mixed: Vec<f32>,
    /// `[rows][2 value_heads]`: beta, and the logarithm of the decay.
    gates: Vec<f32>,
}

impl DeltaRows {
    pub(super) fn new(shape: Option<DeltaShape>, rows: usize) -> Self {
        let Some(shape) = shape else { return Self::default() };
        Self { mixed: vec![0.0; rows * shape.channels()], gates: vec![0.0; rows * 2 * shape.value_heads] }
    }

    pub(super) fn len(&self) -> usize {
        self.mixed.len() + self.gates.len()
    }
}

/// Numbers that one thread works with.
pub(super) fn scratch_len(shape: DeltaShape) -> usize {
    block_scratch(shape.key_dim, shape.value_dim) + (DELTA_CHUNK + 1) * shape.value_dim
}

/// Taps `[conv][channels]` of a weight `[channels][conv]`: channels lie in lanes.
pub(super) fn turned(taps: &[f32], conv: usize) -> Vec<f32> {
    let channels = taps.len() / conv;
    (0..conv * channels).map(|i| taps[i % channels * conv + i / channels]).collect()
}

impl Fast {
    /// `attended` of the gated delta rule, a row of [`DeltaShape::value_width`] for each row of the batch.
    pub(super) fn delta_rule(&mut self, batch: &Batch, layer: u32, ids: [WeightId; 4]) -> Result<(), Panicked> {
        let Some(states) = self.states.as_mut() else { return Ok(()) };
        let [taps, decay, bias, norm] = ids.map(|id| &self.vectors[id.0 as usize][..]);
        let weights = DeltaWeights { taps, decay, bias, norm, eps: self.norm_eps };
        let layer = Layer { isa: self.isa, shape: states.shape(), layer: layer as usize, weights };
        let DeltaRows { mixed, gates } = &mut self.delta;
        let (mix, width) = (&self.mix, layer.shape.channels());
        {
            let (mixed, gates) = (Shares::new(mixed), Shares::new(gates));
            let (states, heads) = (&*states, layer.shape.value_heads);
            each(&mut self.pool, batch.rows.len(), |_, row| {
                // SAFETY: each row is one item.
                let (mixed, gates) = unsafe {
                    (mixed.get(row * width..(row + 1) * width), gates.get(row * 2 * heads..(row + 1) * 2 * heads))
                };
                layer.row(batch, row, mix, states, mixed, gates);
            })?;
        }
        let ranges = layer.places(batch, states);
        let (mixed, gates) = (&*mixed, &*gates);
        let (numbers, attended, lanes) =
            (Shares::new(states.numbers()), Shares::new(&mut self.attended), Shares::new(&mut self.lanes));
        let heads = layer.shape.value_heads;
        each(&mut self.pool, batch.sequences.len() * heads, |thread, item| {
            // SAFETY: each thread uses its own lane.
            let lane = &mut unsafe { lanes.get(thread..thread + 1) }[0];
            let (sequence, head) = (item / heads, item % heads);
            let run = Run { batch, sequence, head, places: &ranges[sequence], mix, mixed, gates };
            layer.head(&run, &numbers, &attended, &mut lane.delta);
            if head == 0 {
                layer.remember(&run, &numbers);
            }
        })
    }
}

/// One layer of a step.
struct Layer<'a> {
    isa: Isa,
    shape: DeltaShape,
    layer: usize,
    weights: DeltaWeights<'a>,
}

/// Where a sequence's state lies, and where it is copied to after some of its rows.
struct Places {
    matrices: usize,
    ring: usize,
    saves: Vec<Saved>,
}

struct Saved {
    rows: usize,
    matrices: usize,
    ring: usize,
}

/// One head's rows of a sequence.
struct Run<'a> {
    batch: &'a Batch,
    sequence: usize,
    head: usize,
    places: &'a Places,
    mix: &'a [f32],
    mixed: &'a [f32],
    gates: &'a [f32],
}

impl Run<'_> {
    fn sequence(&self) -> &Sequence {
        &self.batch.sequences[self.sequence]
    }
}

impl Layer<'_> {
    fn places(&self, batch: &Batch, states: &States) -> Vec<Places> {
        let at = |index: usize| (states.matrices(index, self.layer).start, states.ring(index, self.layer).start);
        let of = |(number, sequence): (usize, &Sequence)| {
            let (matrices, ring) = at(sequence.seat);
            let saves = batch.saves.iter().filter(|save| save.sequence == number).map(|save| {
                let (matrices, ring) = at(states.slot(save.slot));
                Saved { rows: save.rows, matrices, ring }
            });
            Places { matrices, ring, saves: saves.collect() }
        };
        batch.sequences.iter().enumerate().map(of).collect()
    }

    /// The convolution and everything that needs no other token.
    fn row(&self, batch: &Batch, row: usize, mix: &[f32], states: &States, mixed: &mut [f32], own: &mut [f32]) {
        let (channels, width, conv) = (self.shape.channels(), self.shape.mix_width(), self.shape.conv);
        let sequence = &batch.sequences[batch.rows[row].sequence as usize];
        let ring = states.read(states.ring(sequence.seat, self.layer));
        let mut inputs = [&ring[..0]; CONV_MAX];
        let inputs = &mut inputs[..conv];
        for (tap, input) in inputs.iter_mut().enumerate() {
            // Rows before the sequence's first one of this step are in its ring.
            *input = match (row + tap + 1).checked_sub(conv).filter(|&from| from >= sequence.first_row) {
                Some(from) => &mix[from * width..from * width + channels],
                None => &ring[(row - sequence.first_row + tap) * channels..][..channels],
            };
        }
        convolve(self.isa, inputs, self.weights.taps, mixed);
        let (q, k) = mixed[..2 * self.shape.key_width()].split_at_mut(self.shape.key_width());
        let root = 1.0 / (self.shape.key_dim as f32).sqrt();
        q.chunks_exact_mut(self.shape.key_dim).for_each(|head| unit(self.isa, head, root));
        k.chunks_exact_mut(self.shape.key_dim).for_each(|head| unit(self.isa, head, 1.0));
        own.copy_from_slice(&mix[(row + 1) * width - own.len()..(row + 1) * width]);
        let (beta, alpha) = own.split_at_mut(self.shape.value_heads);
        gates(self.weights.decay, self.weights.bias, beta, alpha);
    }

    /// A head's rows in order: whole blocks at their places in the sequence by the chunk form, the others one by one.
    fn head(&self, run: &Run<'_>, numbers: &Shares<'_, f32>, attended: &Shares<'_, f32>, scratch: &mut [f32]) {
        let DeltaShape { key_dim, value_dim, value_heads, .. } = self.shape;
        let (sequence, len) = (run.sequence(), key_dim * value_dim);
        let at = run.places.matrices + run.head * len;
        // SAFETY: a seat's state is in one sequence of a batch, and this head of it is one item.
        let state = unsafe { numbers.get(at..at + len) };
        let (out, scratch) = scratch.split_at_mut((DELTA_CHUNK + 1) * value_dim);
        let (out, normed) = out.split_at_mut(DELTA_CHUNK * value_dim);
        let mut done = 0;
        while done < sequence.rows {
            let row = sequence.first_row + done;
            let head = self.tokens(run, row);
            let aligned = (sequence.first_position + done).is_multiple_of(DELTA_CHUNK);
            let count = if aligned && sequence.rows - done >= DELTA_CHUNK { DELTA_CHUNK } else { 1 };
            let out = &mut out[..count * value_dim];
            if count == 1 {
                token(self.isa, &head, state, out)
            } else {
                block(self.isa, &head, state, out, scratch)
            }
            for (row, o) in (row..).zip(out.chunks_exact(value_dim)) {
                elementwise::rms_norm(self.isa, o, self.weights.norm, self.weights.eps, normed);
                let z = row * self.shape.mix_width() + self.shape.channels() + run.head * value_dim;
                let to = (row * value_heads + run.head) * value_dim;
                // SAFETY: this row and head are in one item.
                let to = unsafe { attended.get(to..to + value_dim) };
                gate(self.isa, self.shape.gate, &run.mix[z..z + value_dim], normed, to);
            }
            done += count;
            for save in run.places.saves.iter().filter(|save| save.rows == done) {
                let to = save.matrices + run.head * len;
                // SAFETY: a slot is saved to once in a step, and this head of it is one item.
                unsafe { numbers.get(to..to + len) }.copy_from_slice(state);
            }
        }
    }

    fn tokens<'a>(&self, run: &Run<'a>, row: usize) -> Head<'a> {
        let DeltaShape { key_dim, value_dim, value_heads, .. } = self.shape;
        let (keys, stride) = (self.shape.key_width(), self.shape.channels());
        let key = row * stride + self.shape.key_head(run.head) * key_dim;
        let gates = &run.gates[row * 2 * value_heads + run.head..];
        Head {
            key_dim,
            value_dim,
            q: &run.mixed[key..],
            k: &run.mixed[key + keys..],
            v: &run.mixed[row * stride + 2 * keys + run.head * value_dim..],
            stride,
            beta: gates,
            log_decay: &gates[value_heads..],
            gate_stride: 2 * value_heads,
        }
    }

    /// The convolution's last inputs, after all rows and where states are saved.
    fn remember(&self, run: &Run<'_>, numbers: &Shares<'_, f32>) {
        let (channels, width, kept) = (self.shape.channels(), self.shape.mix_width(), self.shape.conv - 1);
        let sequence = run.sequence();
        let len = kept * channels;
        // SAFETY: only the first head's item of a sequence touches its ring, and rows are read in the phase before.
        let ring = unsafe { numbers.get(run.places.ring..run.places.ring + len) };
        let row = |number: usize| &run.mix[(sequence.first_row + number) * width..][..channels];
        for save in &run.places.saves {
            // SAFETY: as for the ring: a slot is saved to once in a step.
            let slot = unsafe { numbers.get(save.ring..save.ring + len) };
            for (place, to) in slot.chunks_exact_mut(channels).enumerate() {
                to.copy_from_slice(match (save.rows + place).checked_sub(kept) {
                    Some(number) => row(number),
                    None => &ring[(save.rows + place) * channels..][..channels],
                });
            }
        }
        for place in 0..kept {
            match (sequence.rows + place).checked_sub(kept) {
                Some(number) => ring[place * channels..][..channels].copy_from_slice(row(number)),
                // Fewer rows than it holds: what stays moves up, the oldest first, so that nothing is lost.
                None => {
                    let from = (sequence.rows + place) * channels;
                    ring.copy_within(from..from + channels, place * channels);
                }
            }
        }
    }
}

/// Taps that a row's inputs are kept for: more than any settings pass.
const CONV_MAX: usize = 16;
