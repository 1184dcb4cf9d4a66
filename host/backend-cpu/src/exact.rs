//! The oracle: every operation in plain loops, sums in f64, keys and values in f32.
//!
//! It is slow on purpose and has no second way to compute anything; the fast interpreter and every GPU kernel are
//! compared with it. It also runs the shapes that the fast kernels refuse.

use backend::ops::{BlockOp, ModelSpec};
use backend::weights::{Weight, WeightId};
use contract::{PAGE_TOKENS, PageId};

use crate::batch::Batch;
use crate::interpreter::Interpreter;
use crate::kernels::dequant::dequantize_row;
use crate::kernels::scalar;
use crate::pool::{Panicked, Shares, ThreadPool, Tickets};
use crate::program::{Program, vector};

const PAGE: usize = PAGE_TOKENS as usize;

/// See the module.
pub struct Exact {
    spec: ModelSpec,
    program: Program,
    /// One-row weights as numbers, by weight number.
    vectors: Vec<Vec<f32>>,
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
    pub fn new(spec: ModelSpec, program: Program, pool: ThreadPool, pages: usize) -> Self {
        let vectors = spec.weights.iter().map(|w| if w.rows == 1 { vector(w) } else { Vec::new() }).collect();
        let layer = pages * PAGE * spec.attention.kv_width();
        let layers = || (0..spec.kv_layers).map(|_| vec![0.0; layer]).collect();
        let (keys, values) = (layers(), layers());
        let none = Vec::new;
        Self { spec, program, vectors, pool, keys, values, h: none(), mix: none(), attended: none(), act: none() }
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

    fn add_product(&mut self, weight: WeightId, x: &[f32]) -> Result<(), Panicked> {
        let out = self.product(&self.weight(weight), x)?;
        self.h.iter_mut().zip(out).for_each(|(h, y)| *h += y);
        Ok(())
    }

    fn op(&mut self, op: &BlockOp, batch: &Batch) -> Result<(), Panicked> {
        match *op {
            BlockOp::NormQkv { norm, q, k, v } => {
                let x = self.normed(norm);
                let [q, k, v] = [q, k, v].map(|id| self.weight(id));
                let (q, k, v) = (self.product(&q, &x)?, self.product(&k, &x)?, self.product(&v, &x)?);
                let rows = batch.rows.len();
                let part = |all: &[f32], row: usize| all[row * all.len() / rows..(row + 1) * all.len() / rows].to_vec();
                self.mix = (0..rows).flat_map(|row| [part(&q, row), part(&k, row), part(&v, row)].concat()).collect();
            }
            BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => self.rotate(batch, kv_layer as usize, q_norm, k_norm),
            BlockOp::Attend { kv_layer } => self.attend(batch, kv_layer as usize)?,
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
        let (q_width, kv_width) = (shape.q_width(), shape.kv_width());
        for (row, mix) in batch.rows.iter().zip(self.mix.chunks_exact_mut(q_width + 2 * kv_width)) {
            for (i, head) in mix[..q_width + kv_width].chunks_exact_mut(shape.head_dim).enumerate() {
                if let Some(norm) = if i < shape.heads { q_norm } else { k_norm } {
                    let normed = scalar::rms_norm(head, &self.vectors[norm.0 as usize], self.spec.norm_eps);
                    head.copy_from_slice(&normed);
                }
                scalar::rope(head, &self.spec.rope.inv_freq, row.position);
            }
            let pages = batch.pages_of(&batch.sequences[row.sequence as usize]);
            let at = place(pages, row.position as usize) * kv_width;
            self.keys[layer][at..at + kv_width].copy_from_slice(&mix[q_width..q_width + kv_width]);
            self.values[layer][at..at + kv_width].copy_from_slice(&mix[q_width + kv_width..]);
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
                let q = &mix[index * (q_width + 2 * kv_width) + head * head_dim..][..head_dim];
                let out = scalar::attention(q, &gather(keys), &gather(values));
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

    fn pool(&mut self) -> &mut ThreadPool {
        &mut self.pool
    }
}
