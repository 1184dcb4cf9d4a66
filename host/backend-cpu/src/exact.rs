//! The oracle: every operation in plain loops, sums in f64, keys and values in f32.
//!
//! It is slow on purpose and has no second way to compute anything; the fast interpreter and every GPU kernel are
//! compared with it. It also runs the shapes that the fast kernels refuse.

use backend::ops::{BlockOp, ModelSpec};
use backend::weights::{Weight, WeightId};
use contract::{PAGE_TOKENS, PageId};

use crate::batch::Batch;
use crate::delta::{self, DeltaWeights};
use crate::interpreter::Interpreter;
use crate::kernels::dequant::dequantize_row;
use crate::kernels::scalar;
use crate::pool::{Panicked, Shares, ThreadPool, Tickets};
use crate::program::Program;
use crate::state::States;

const PAGE: usize = PAGE_TOKENS as usize;

/// See the module.
pub struct Exact {
    spec: ModelSpec,
    program: Program,
    /// See [`Program::numbers`].
    vectors: Vec<Vec<f32>>,
    states: Option<States>,
    pool: ThreadPool,
    /// Of each layer `[page][token][kv_heads head_dim]`.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    h: Vec<f32>,
    mix: Vec<f32>,
    attended: Vec<f32>,
    act: Vec<f32>,
}

impl Exact {
    pub fn new(spec: ModelSpec, program: Program, pool: ThreadPool, pages: usize, states: Option<States>) -> Self {
        let vectors = program.numbers(&spec);
        let layer = pages * PAGE * spec.attention.kv_width();
        let layers = || (0..spec.kv_layers).map(|_| vec![0.0; layer]).collect();
        let (keys, values) = (layers(), layers());
        let none = Vec::new;
        let (h, mix, attended, act) = (none(), none(), none(), none());
        Self { spec, program, vectors, states, pool, keys, values, h, mix, attended, act }
    }

    fn weight(&self, id: WeightId) -> Weight {
        self.spec.weight(id).clone()
    }

    fn normed(&self, norm: WeightId) -> Vec<f32> {
        let (hidden, weight) = (self.spec.hidden, &self.vectors[norm.0 as usize]);
        self.h.chunks_exact(hidden).flat_map(|row| scalar::rms_norm(row, weight, self.spec.norm_eps)).collect()
    }

    /// `W x` for each row of `x`: `[rows][outputs]`.
    fn product(&mut self, weight: &Weight, x: &[f32]) -> Result<Vec<f32>, Panicked> {
        let rows = x.len() / weight.cols;
        let mut out = vec![0.0; rows * weight.rows];
        let (shares, tickets) = (Shares::new(&mut out), Tickets::new(weight.rows, 16));
        self.pool.run(&|_| {
            let mut w = vec![0.0; weight.cols];
            while let Some(outputs) = tickets.take() {
                for n in outputs {
                    dequantize_row(weight.ty, weight.row(n), &mut w);
                    for (m, x) in x.chunks_exact(weight.cols).enumerate() {
                        let at = m * weight.rows + n;
                        // SAFETY: output `n` was handed to this thread alone.
                        let out = unsafe { shares.get(at..at + 1) };
                        out[0] = scalar::dot(&w, x) as f32;
                    }
                }
            }
        })?;
        Ok(out)
    }

    /// The products of all weights with each row of `x`, side by side.
    fn products(&mut self, weights: &[WeightId], x: &[f32]) -> Result<Vec<f32>, Panicked> {
        let rows = x.len() / self.spec.hidden;
        let parts = weights.iter().map(|&id| self.product(&self.weight(id), x)).collect::<Result<Vec<_>, _>>()?;
        let part = |all: &Vec<f32>, row: usize| all[row * all.len() / rows..(row + 1) * all.len() / rows].to_vec();
        Ok((0..rows).flat_map(|row| parts.iter().flat_map(move |all| part(all, row))).collect())
    }

    fn add_product(&mut self, weight: WeightId, x: &[f32]) -> Result<(), Panicked> {
        let out = self.product(&self.weight(weight), x)?;
        self.h.iter_mut().zip(out).for_each(|(h, y)| *h += y);
        Ok(())
    }

    fn op(&mut self, op: &BlockOp, batch: &Batch) -> Result<(), Panicked> {
        match *op {
            BlockOp::NormQkv { norm, q, k, v } => {
                let x = self.normed(norm);
                self.mix = self.products(&[q, k, v], &x)?;
            }
            BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => self.rotate(batch, kv_layer as usize, q_norm, k_norm),
            BlockOp::Attend { kv_layer } => self.attend(batch, kv_layer as usize)?,
            BlockOp::NormDelta { norm, qkv, z, beta, alpha } => {
                let x = self.normed(norm);
                self.mix = self.products(&[qkv, z, beta, alpha], &x)?;
            }
            BlockOp::DeltaRule { state_layer, taps, decay, bias, norm } => {
                let [taps, decay, bias, norm] = [taps, decay, bias, norm].map(|id| &self.vectors[id.0 as usize][..]);
                let weights = DeltaWeights { taps, decay, bias, norm, eps: self.spec.norm_eps };
                let states = self.states.as_mut().expect("a program with delta rules has states");
                self.attended = delta::exact(batch, states, state_layer as usize, &self.mix, &weights);
            }
            BlockOp::OutResidual { out } => {
                let attended = std::mem::take(&mut self.attended);
                self.add_product(out, &attended)?;
            }
            BlockOp::NormGateUp { norm, gate, up } => {
                let x = self.normed(norm);
                let [gate, up] = [gate, up].map(|id| self.weight(id));
                let (gate, up) = (self.product(&gate, &x)?, self.product(&up, &x)?);
                self.act = scalar::silu_mul(&gate, &up);
            }
            BlockOp::DownResidual { down } => {
                let act = std::mem::take(&mut self.act);
                self.add_product(down, &act)?;
            }
            // `Program::new` lets none of these into a body.
            BlockOp::Embed { .. } | BlockOp::Head { .. } | BlockOp::Tap { .. } => {}
        }
        Ok(())
    }

    fn rotate(&mut self, batch: &Batch, layer: usize, q_norm: Option<WeightId>, k_norm: Option<WeightId>) {
        let shape = self.spec.attention;
        let (kv_width, head_dim) = (shape.kv_width(), shape.head_dim);
        for (row, mix) in batch.rows.iter().zip(self.mix.chunks_exact_mut(shape.mix_width())) {
            let (queries, keys_values) = mix.split_at_mut(shape.q_rows());
            let (keys, values) = keys_values.split_at_mut(kv_width);
            let turn = |head: &mut [f32], norm: Option<WeightId>| {
                if let Some(norm) = norm {
                    let normed = scalar::rms_norm(head, &self.vectors[norm.0 as usize], self.spec.norm_eps);
                    head.copy_from_slice(&normed);
                }
                scalar::rope(head, &self.spec.rope.inv_freq, row.position);
            };
            queries.chunks_exact_mut(shape.q_stride()).for_each(|head| turn(&mut head[..head_dim], q_norm));
            keys.chunks_exact_mut(head_dim).for_each(|head| turn(head, k_norm));
            let pages = batch.pages_of(&batch.sequences[row.sequence as usize]);
            let at = place(pages, row.position as usize) * kv_width;
            self.keys[layer][at..at + kv_width].copy_from_slice(keys);
            self.values[layer][at..at + kv_width].copy_from_slice(values);
        }
    }

    fn attend(&mut self, batch: &Batch, layer: usize) -> Result<(), Panicked> {
        let shape = self.spec.attention;
        let (q_width, kv_width, head_dim) = (shape.q_width(), shape.kv_width(), shape.head_dim);
        let mut attended = vec![0.0; batch.rows.len() * q_width];
        let (shares, tickets) = (Shares::new(&mut attended), Tickets::new(batch.rows.len() * shape.heads, 1));
        let (mix, keys, values) = (&self.mix, &self.keys[layer], &self.values[layer]);
        self.pool.run(&|_| {
            while let Some(item) = tickets.take() {
                let (index, head) = (item.start / shape.heads, item.start % shape.heads);
                let row = &batch.rows[index];
                let pages = batch.pages_of(&batch.sequences[row.sequence as usize]);
                let kv_head = head / (shape.heads / shape.kv_heads);
                let gather = |from: &[f32]| -> Vec<Vec<f32>> {
                    let at = |token| place(pages, token) * kv_width + kv_head * head_dim;
                    (0..=row.position as usize).map(|token| from[at(token)..at(token) + head_dim].to_vec()).collect()
                };
                let query = &mix[index * shape.mix_width() + head * shape.q_stride()..][..shape.q_stride()];
                let (q, gate) = query.split_at(head_dim);
                let mut out = scalar::attention(q, &gather(keys), &gather(values));
                out.iter_mut().zip(gate).for_each(|(x, &gate)| *x = (f64::from(*x) * scalar::sigmoid(gate)) as f32);
                let at = index * q_width + head * head_dim;
                // SAFETY: this row and head were handed to this thread alone.
                unsafe { shares.get(at..at + head_dim) }.copy_from_slice(&out);
            }
        })?;
        self.attended = attended;
        Ok(())
    }
}

/// Index of a token's place in a layer.
fn place(pages: &[PageId], position: usize) -> usize {
    pages[position / PAGE].0 as usize * PAGE + position % PAGE
}

impl Interpreter for Exact {
    fn run(&mut self, batch: &Batch) -> Result<(), Panicked> {
        let hidden = self.spec.hidden;
        let table = self.weight(self.program.table);
        self.h = vec![0.0; batch.rows.len() * hidden];
        for (row, h) in batch.rows.iter().zip(self.h.chunks_exact_mut(hidden)) {
            dequantize_row(table.ty, table.row(row.token as usize), h);
        }
        let body = std::mem::take(&mut self.program.body);
        let ran = body.iter().try_for_each(|op| self.op(op, batch));
        self.program.body = body;
        ran
    }

    fn head(&mut self, rows: &[usize], logits: &mut [f32]) -> Result<(), Panicked> {
        let mut normed = vec![0.0; rows.len() * self.spec.hidden];
        self.normed_rows(rows, &mut normed);
        let out = self.product(&self.weight(self.program.head), &normed)?;
        logits.copy_from_slice(&out);
        Ok(())
    }

    fn normed_rows(&mut self, rows: &[usize], out: &mut [f32]) {
        let (hidden, norm) = (self.spec.hidden, &self.vectors[self.program.head_norm.0 as usize]);
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(hidden)) {
            let h = &self.h[row * hidden..(row + 1) * hidden];
            out.copy_from_slice(&scalar::rms_norm(h, norm, self.spec.norm_eps));
        }
    }

    fn copy_page(&mut self, from: PageId, to: PageId) {
        let len = PAGE * self.spec.attention.kv_width();
        let (from, to) = (from.0 as usize * len, to.0 as usize * len);
        for layer in self.keys.iter_mut().chain(&mut self.values) {
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
