//! The gated delta rule in plain loops, by its recurrence: the oracle of every other form of it, on any device.
//!
//! Sums in f64, the state in f32 as it is kept between tokens.

use std::collections::VecDeque;

use backend::ops::{DeltaShape, GateFn};

use crate::batch::{Batch, Sequence};
use crate::kernels::scalar;
use crate::state::States;

/// Added to the sum of squares when q and k are brought to unit length.
pub const UNIT_EPS: f32 = 1e-6;

/// Above it `ln(1 + e^x)` is `x` in f32.
pub const SOFTPLUS_LINEAR: f32 = 20.0;

/// A layer's small weights.
#[derive(Clone, Copy)]
pub struct DeltaWeights<'a> {
    pub taps: &'a [f32],
    pub decay: &'a [f32],
    pub bias: &'a [f32],
    pub norm: &'a [f32],
    pub eps: f32,
}

/// One token's q, k and v of all heads.
struct Mixed {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// All rows of a batch through one layer: the rows of `attended`. Moves the states of its seats on, and saves them as the
/// batch says.
pub fn exact(batch: &Batch, states: &mut States, layer: usize, mix: &[f32], weights: &DeltaWeights<'_>) -> Vec<f32> {
    let width = states.shape().mix_width();
    let mut attended = Vec::with_capacity(batch.rows.len() * states.shape().value_width());
    for (index, sequence) in batch.sequences.iter().enumerate() {
        let rows = &mix[sequence.first_row * width..(sequence.first_row + sequence.rows) * width];
        let mut run = Run::load(states, sequence, layer, *weights);
        for (done, row) in (1..).zip(rows.chunks_exact(width)) {
            attended.extend(run.token(row));
            for save in batch.saves.iter().filter(|save| save.sequence == index && save.rows == done) {
                let slot = states.slot(save.slot);
                run.store(states, slot, layer);
            }
        }
        run.store(states, sequence.seat, layer);
    }
    attended
}

/// A sequence on its way through a layer.
struct Run<'a> {
    shape: DeltaShape,
    weights: DeltaWeights<'a>,
    /// `[value_heads][value_dim][key_dim]`
    state: Vec<f32>,
    /// The last inputs of the convolution, the oldest first.
    ring: VecDeque<Vec<f32>>,
}

impl<'a> Run<'a> {
    fn load(states: &mut States, sequence: &Sequence, layer: usize, weights: DeltaWeights<'a>) -> Self {
        let shape = states.shape();
        let (state, ring) = (states.matrices(sequence.seat, layer), states.ring(sequence.seat, layer));
        let state = states.numbers()[state].to_vec();
        let ring = states.numbers()[ring].chunks_exact(shape.channels()).map(<[f32]>::to_vec).collect();
        Self { shape, weights, state, ring }
    }

    fn store(&self, states: &mut States, index: usize, layer: usize) {
        let (state, ring) = (states.matrices(index, layer), states.ring(index, layer));
        states.numbers()[state].copy_from_slice(&self.state);
        let flat: Vec<f32> = self.ring.iter().flatten().copied().collect();
        states.numbers()[ring].copy_from_slice(&flat);
    }

    fn token(&mut self, row: &[f32]) -> Vec<f32> {
        let DeltaShape { value_heads, value_dim, .. } = self.shape;
        let (inputs, rest) = row.split_at(self.shape.channels());
        let (z, gates) = rest.split_at(self.shape.value_width());
        let (beta, alpha) = gates.split_at(value_heads);
        let mixed = self.convolve(inputs);
        let mut out = Vec::with_capacity(z.len());
        for (head, z) in z.chunks_exact(value_dim).enumerate() {
            let growth = self.weights.decay[head] * softplus(alpha[head] + self.weights.bias[head]);
            let o = self.step(head, &mixed, scalar::sigmoid(beta[head]) as f32, growth.exp());
            let o = scalar::rms_norm(&o, self.weights.norm, self.weights.eps);
            out.extend(o.iter().zip(z).map(|(&o, &z)| (f64::from(o) * gate(self.shape.gate, z)) as f32));
        }
        out
    }

    /// The convolution with its activation, then q and k of unit length, q also over the root of its length.
    fn convolve(&mut self, inputs: &[f32]) -> Mixed {
        self.ring.push_back(inputs.to_vec());
        let channel = |(channel, taps): (usize, &[f32])| {
            let sum: f64 = self.ring.iter().zip(taps).map(|(u, &w)| f64::from(u[channel]) * f64::from(w)).sum();
            (sum * scalar::sigmoid(sum as f32)) as f32
        };
        let all: Vec<f32> = self.weights.taps.chunks_exact(self.shape.conv).enumerate().map(channel).collect();
        self.ring.pop_front();
        let (keys, values) = all.split_at(2 * self.shape.key_width());
        let (q, k) = keys.split_at(self.shape.key_width());
        let unit = |x: &[f32], scale: f64| -> Vec<f32> {
            let heads = x.chunks_exact(self.shape.key_dim);
            let normed = heads.flat_map(|head| {
                let scale = scale / (scalar::dot(head, head) + f64::from(UNIT_EPS)).sqrt();
                head.iter().map(move |&x| (f64::from(x) * scale) as f32)
            });
            normed.collect()
        };
        let root = (self.shape.key_dim as f64).sqrt();
        Mixed { q: unit(q, 1.0 / root), k: unit(k, 1.0), v: values.to_vec() }
    }

    /// `S = decay S; d = beta (v - S k); S = S + d k^T; S q`
    fn step(&mut self, head: usize, mixed: &Mixed, beta: f32, decay: f32) -> Vec<f32> {
        let DeltaShape { key_dim, value_dim, .. } = self.shape;
        let at = self.shape.key_head(head) * key_dim;
        let (q, k) = (&mixed.q[at..at + key_dim], &mixed.k[at..at + key_dim]);
        let v = &mixed.v[head * value_dim..(head + 1) * value_dim];
        let state = &mut self.state[head * value_dim * key_dim..(head + 1) * value_dim * key_dim];
        let rows = state.chunks_exact_mut(key_dim).zip(v);
        rows.map(|(row, &v)| {
            row.iter_mut().for_each(|s| *s *= decay);
            let delta = f64::from(beta) * (f64::from(v) - scalar::dot(row, k));
            row.iter_mut().zip(k).for_each(|(s, &k)| *s = (f64::from(*s) + delta * f64::from(k)) as f32);
            scalar::dot(row, q) as f32
        })
        .collect()
    }
}

fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LINEAR { x } else { f64::from(x).exp().ln_1p() as f32 }
}

fn gate(function: GateFn, z: f32) -> f64 {
    match function {
        GateFn::Silu => f64::from(z) * scalar::sigmoid(z),
        GateFn::Sigmoid => scalar::sigmoid(z),
    }
}
