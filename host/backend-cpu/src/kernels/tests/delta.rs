//! The delta rule's blocks against its tokens, and both against the plain recurrence in f64.

use backend::ops::{DELTA_CHUNK, GateFn};

use super::Random;
use crate::kernels::Isa;
use crate::kernels::delta::{Head, block, block_scratch, convolve, gate, token, unit};
use crate::kernels::scalar;

fn random(len: usize, seed: u64) -> Vec<f32> {
    Random(seed).normals(len)
}

/// A head's tokens: unit keys that resemble each other, as those of a repetitive text do.
struct Tokens {
    key_dim: usize,
    value_dim: usize,
    rows: Vec<f32>,
    gates: Vec<f32>,
}

impl Tokens {
    fn new(key_dim: usize, value_dim: usize, count: usize, seed: u64) -> Self {
        let stride = 2 * key_dim + value_dim;
        let (mut rows, common) = (random(count * stride, seed), random(key_dim, seed + 1));
        let levels = random(2 * count, seed + 2);
        for row in rows.chunks_exact_mut(stride) {
            row[key_dim..2 * key_dim].iter_mut().zip(&common).for_each(|(k, c)| *k = 0.3 * *k + c);
            for (head, scale) in [(0, 1.0 / (key_dim as f32).sqrt()), (key_dim, 1.0)] {
                let head = &mut row[head..head + key_dim];
                let length = scale / (scalar::dot(head, head) as f32 + 1e-6).sqrt();
                head.iter_mut().for_each(|x| *x *= length);
            }
        }
        let gate = |pair: &[f32]| [scalar::sigmoid(3.0 * pair[0]) as f32, -0.2 * pair[1].abs()];
        Self { key_dim, value_dim, rows, gates: levels.chunks_exact(2).flat_map(gate).collect() }
    }

    fn head(&self, at: usize) -> Head<'_> {
        let stride = 2 * self.key_dim + self.value_dim;
        let (row, gates) = (&self.rows[at * stride..], &self.gates[at * 2..]);
        Head {
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            q: row,
            k: &row[self.key_dim..],
            v: &row[2 * self.key_dim..],
            stride,
            beta: gates,
            log_decay: &gates[1..],
            gate_stride: 2,
        }
    }

    /// The recurrence in f64: all outputs, and the state `[key_dim][value_dim]`.
    fn plain(&self, count: usize) -> (Vec<f64>, Vec<f64>) {
        let (keys, values) = (self.key_dim, self.value_dim);
        let (mut state, mut out) = (vec![0.0; keys * values], Vec::new());
        for at in 0..count {
            let head = self.head(at);
            let (beta, decay) = (f64::from(head.beta[0]), f64::from(head.log_decay[0]).exp());
            state.iter_mut().for_each(|s| *s *= decay);
            for j in 0..values {
                let by = |x: &[f32], state: &[f64]| -> f64 {
                    (0..keys).map(|i| f64::from(x[i]) * state[i * values + j]).sum()
                };
                let change = beta * (f64::from(head.v[j]) - by(head.k, &state));
                (0..keys).for_each(|i| state[i * values + j] += change * f64::from(head.k[i]));
                out.push(by(head.q, &state));
            }
        }
        (out, state)
    }
}

/// Relative distance in the 2-norm.
fn apart(found: &[f32], expected: &[f64]) -> f64 {
    let sum = |it: &mut dyn Iterator<Item = f64>| it.map(|x| x * x).sum::<f64>().sqrt();
    let difference = sum(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - b));
    difference / sum(&mut expected.iter().copied())
}

#[test]
fn blocks_and_tokens_are_the_recurrence() {
    for isa in Isa::all_available() {
        for (key_dim, value_dim, seed) in [(128, 128, 1), (32, 32, 2), (64, 80, 3), (16, 144, 4)] {
            let count = 3 * DELTA_CHUNK;
            let tokens = Tokens::new(key_dim, value_dim, count, seed);
            let (out, state) = tokens.plain(count);
            let mut scratch = vec![f32::NAN; block_scratch(key_dim, value_dim)];
            for size in [1, DELTA_CHUNK] {
                let mut own = vec![0.0; key_dim * value_dim];
                let mut found = vec![f32::NAN; count * value_dim];
                for (at, found) in (0..count).step_by(size).zip(found.chunks_exact_mut(size * value_dim)) {
                    if size == 1 {
                        token(isa, &tokens.head(at), &mut own, found);
                    } else {
                        block(isa, &tokens.head(at), &mut own, found, &mut scratch);
                    }
                }
                let (o, s) = (apart(&found, &out), apart(&own, &state));
                assert!(o <= 2e-5 && s <= 1e-5, "{isa:?} {key_dim} x {value_dim} by {size}: o {o:e}, S {s:e}");
            }
        }
    }
}

/// A state that is forgotten at once, and one that nothing changes, stay finite.
#[test]
fn extreme_gates_stay_finite() {
    for isa in Isa::all_available() {
        for (beta, log_decay) in [(1.0, -1e4), (0.0, 0.0), (1.0, 0.0), (1.0, -80.0)] {
            let mut tokens = Tokens::new(32, 32, DELTA_CHUNK, 5);
            tokens.gates.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&[beta, log_decay]));
            let (expected, _) = tokens.plain(DELTA_CHUNK);
            let (mut state, mut out) = (vec![0.0; 32 * 32], vec![0.0; DELTA_CHUNK * 32]);
            let mut scratch = vec![0.0; block_scratch(32, 32)];
            block(isa, &tokens.head(0), &mut state, &mut out, &mut scratch);
            assert!(state.iter().chain(&out).all(|x| x.is_finite()), "{isa:?} beta {beta}, decay {log_decay}");
            if expected.iter().any(|x| *x != 0.0) {
                let apart = apart(&out, &expected);
                assert!(apart <= 1e-4, "{isa:?} beta {beta}, decay {log_decay}: {apart:e}");
            }
        }
    }
}

#[test]
fn rows_before_the_rule() {
    for isa in Isa::all_available() {
        let inputs: Vec<Vec<f32>> = (0..4).map(|i| random(48, 10 + i)).collect();
        let views: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let taps = random(4 * 48, 20);
        let mut out = vec![0.0; 48];
        convolve(isa, &views, &taps, &mut out);
        for (channel, found) in out.iter().enumerate() {
            let sum: f32 = (0..4).map(|i| inputs[i][channel] * taps[i * 48 + channel]).sum();
            let expected = f64::from(sum) * scalar::sigmoid(sum);
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{isa:?} channel {channel}: {found} for {expected}");
        }
        let mut head = random(48, 30);
        unit(isa, &mut head, 0.5);
        assert!((scalar::dot(&head, &head) - 0.25).abs() < 1e-5, "{isa:?}");
        let (z, x) = (random(48, 40), random(48, 41));
        for function in [GateFn::Silu, GateFn::Sigmoid] {
            gate(isa, function, &z, &x, &mut out);
            for ((z, x), found) in z.iter().zip(&x).zip(&out) {
                let through = scalar::sigmoid(*z) * if function == GateFn::Silu { f64::from(*z) } else { 1.0 };
                assert!((f64::from(*found) - through * f64::from(*x)).abs() < 1e-5, "{isa:?} {function:?}");
            }
        }
    }
}
