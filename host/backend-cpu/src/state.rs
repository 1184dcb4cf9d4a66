//! Recurrent states: one for each seat, then the saved ones, all of one size.
//!
//! Of each layer the matrices of the delta rule, `[value_heads][value_dim][key_dim]` as the exact interpreter keeps them and
//! `[value_heads][key_dim][value_dim]` as the fast one does; then what the convolution remembers, `[conv - 1][channels]`,
//! the oldest token first. Memory of a state that was never written is not touched.

use std::ops::Range;

use backend::ops::{DeltaShape, ModelSpec};

/// See the module.
pub struct States {
    shape: DeltaShape,
    layers: usize,
    seats: usize,
    numbers: Vec<f32>,
}

impl States {
    /// `None` for a model without recurrent layers.
    pub fn new(spec: &ModelSpec, seats: usize, slots: usize) -> Option<Self> {
        let (shape, layers) = (spec.delta?, spec.state_layers);
        let len = (seats + slots) * layers * (shape.state_len() + shape.ring_len());
        Some(Self { shape, layers, seats, numbers: vec![0.0; len] })
    }

    pub fn shape(&self) -> DeltaShape {
        self.shape
    }

    /// The number of a saved state among all.
    pub fn slot(&self, slot: usize) -> usize {
        self.seats + slot
    }

    /// A sequence begins on this seat.
    pub fn reset(&mut self, seat: usize) {
        let range = self.whole(seat);
        self.numbers[range].fill(0.0);
    }

    /// Copies state number `from` over number `to`; see [`States::slot`].
    pub fn copy(&mut self, from: usize, to: usize) {
        let (from, to) = (self.whole(from), self.whole(to));
        self.numbers.copy_within(from, to.start);
    }

    /// All numbers, and where a layer's matrices and memory of state `index` lie in them.
    pub fn numbers(&mut self) -> &mut [f32] {
        &mut self.numbers
    }

    pub fn read(&self, range: Range<usize>) -> &[f32] {
        &self.numbers[range]
    }

    /// All of one state.
    pub fn of(&self, index: usize) -> &[f32] {
        self.read(self.whole(index))
    }

    pub fn matrices(&self, index: usize, layer: usize) -> Range<usize> {
        let start = (index * self.layers + layer) * (self.shape.state_len() + self.shape.ring_len());
        start..start + self.shape.state_len()
    }

    pub fn ring(&self, index: usize, layer: usize) -> Range<usize> {
        let start = self.matrices(index, layer).end;
        start..start + self.shape.ring_len()
    }

    fn whole(&self, index: usize) -> Range<usize> {
        let len = self.layers * (self.shape.state_len() + self.shape.ring_len());
        index * len..(index + 1) * len
    }
}

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "States({} seats, {} numbers)", self.seats, self.numbers.len())
    }
}
