//! A model's operations, checked against its shape before anything runs.

use backend::BackendError;
use backend::ops::{BlockOp, DeltaShape, ModelSpec};
use backend::weights::{Weight, WeightId, WeightType};

use crate::kernels::dequant::dequantize_row;

/// The operations between embedding and head, and those two.
#[derive(Clone, Debug)]
pub struct Program {
    pub table: WeightId,
    pub body: Vec<BlockOp>,
    pub head_norm: WeightId,
    pub head: WeightId,
    /// By weight number: it is read as plain numbers, not multiplied with.
    pub plain: Vec<bool>,
}

impl Program {
    /// Checks every operation's weights.
    ///
    /// # Errors
    /// [`BackendError::Weight`] for a weight of another shape than the operation needs or with a number that is not
    /// finite; [`BackendError::Unsupported`] for an operation or an order that this backend does not run.
    pub fn new(spec: &ModelSpec) -> Result<Self, BackendError> {
        let (Some(BlockOp::Embed { table }), Some(BlockOp::Head { norm, weight })) =
            (spec.ops.first(), spec.ops.last())
        else {
            return Err(unsupported("this list of operations", "it must begin with Embed and end with Head"));
        };
        let mut checker = Checker { spec, plain: vec![false; spec.weights.len()], attended: spec.attention.q_width() };
        checker.matrix(*table, spec.vocab, spec.hidden)?;
        checker.numbers(*norm, 1, spec.hidden)?;
        checker.matrix(*weight, spec.vocab, spec.hidden)?;
        let body = spec.ops[1..spec.ops.len() - 1].to_vec();
        body.iter().try_for_each(|op| checker.op(op))?;
        Ok(Self { table: *table, body, head_norm: *norm, head: *weight, plain: checker.plain })
    }

    /// The weights that are read as plain numbers, by weight number, row after row; none for the others.
    pub fn numbers(&self, spec: &ModelSpec) -> Vec<Vec<f32>> {
        spec.weights.iter().zip(&self.plain).map(|(w, &plain)| if plain { numbers(w) } else { Vec::new() }).collect()
    }
}

fn unsupported(what: &str, fix: &str) -> BackendError {
    BackendError::Unsupported { what: what.into(), fix: fix.into() }
}

struct Checker<'a> {
    spec: &'a ModelSpec,
    plain: Vec<bool>,
    /// Width of what the last mixer gives.
    attended: usize,
}

impl Checker<'_> {
    fn op(&mut self, op: &BlockOp) -> Result<(), BackendError> {
        let (spec, shape) = (self.spec, self.spec.attention);
        match *op {
            BlockOp::NormQkv { norm, q, k, v } => {
                self.numbers(norm, 1, spec.hidden)?;
                self.matrix(q, shape.q_rows(), spec.hidden)?;
                self.matrix(k, shape.kv_width(), spec.hidden)?;
                self.matrix(v, shape.kv_width(), spec.hidden)
            }
            BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => {
                check_layer("KV", kv_layer, spec.kv_layers)?;
                q_norm.iter().chain(&k_norm).try_for_each(|&norm| self.numbers(norm, 1, shape.head_dim))
            }
            BlockOp::Attend { kv_layer } => {
                self.attended = shape.q_width();
                check_layer("KV", kv_layer, spec.kv_layers)
            }
            BlockOp::NormDelta { norm, qkv, z, beta, alpha } => {
                let delta = self.delta()?;
                self.numbers(norm, 1, spec.hidden)?;
                self.matrix(qkv, delta.channels(), spec.hidden)?;
                self.matrix(z, delta.value_width(), spec.hidden)?;
                self.matrix(beta, delta.value_heads, spec.hidden)?;
                self.matrix(alpha, delta.value_heads, spec.hidden)
            }
            BlockOp::DeltaRule { state_layer, taps, decay, bias, norm } => {
                let delta = self.delta()?;
                check_layer("state", state_layer, spec.state_layers)?;
                self.attended = delta.value_width();
                self.numbers(taps, delta.channels(), delta.conv)?;
                self.numbers(decay, 1, delta.value_heads)?;
                self.numbers(bias, 1, delta.value_heads)?;
                self.numbers(norm, 1, delta.value_dim)
            }
            BlockOp::OutResidual { out } => self.matrix(out, spec.hidden, self.attended),
            BlockOp::NormGateUp { norm, gate, up } => {
                self.numbers(norm, 1, spec.hidden)?;
                self.matrix(gate, spec.ffn, spec.hidden)?;
                self.matrix(up, spec.ffn, spec.hidden)
            }
            BlockOp::DownResidual { down } => self.matrix(down, spec.hidden, spec.ffn),
            BlockOp::Tap { .. } => Err(unsupported("Tap", "it is for models with drafters")),
            BlockOp::Embed { .. } | BlockOp::Head { .. } => {
                Err(unsupported("a second Embed or Head", "a model has one of each"))
            }
        }
    }

    fn delta(&self) -> Result<DeltaShape, BackendError> {
        let fix = "the model's list of operations is wrong";
        self.spec.delta.ok_or_else(|| unsupported("a delta rule without a shape", fix))
    }

    fn matrix(&self, id: WeightId, rows: usize, cols: usize) -> Result<(), BackendError> {
        check_shape(self.spec, id, rows, cols)
    }

    fn numbers(&mut self, id: WeightId, rows: usize, cols: usize) -> Result<(), BackendError> {
        check_shape(self.spec, id, rows, cols)?;
        self.plain[id.0 as usize] = true;
        Ok(())
    }
}

fn check_layer(kind: &str, layer: u32, layers: usize) -> Result<(), BackendError> {
    if (layer as usize) < layers {
        return Ok(());
    }
    let what = format!("an operation on {kind} layer {layer} of {layers}");
    Err(BackendError::Unsupported { what, fix: "the model's list of operations is wrong".to_owned() })
}

fn check_shape(spec: &ModelSpec, id: WeightId, rows: usize, cols: usize) -> Result<(), BackendError> {
    let Some(weight) = spec.weights.get(id.0 as usize) else {
        let reason = format!("an operation names weight {} of {}", id.0, spec.weights.len());
        return Err(BackendError::Weight { name: format!("number {}", id.0), reason });
    };
    if (weight.rows, weight.cols) != (rows, cols) {
        let reason = format!("is {} by {}, the operation needs {rows} by {cols}", weight.rows, weight.cols);
        return Err(BackendError::Weight { name: weight.name.to_string(), reason });
    }
    Ok(())
}

/// A weight's values, row after row.
fn numbers(weight: &Weight) -> Vec<f32> {
    let mut out = vec![0.0; weight.rows * weight.cols];
    for (row, out) in out.chunks_exact_mut(weight.cols).enumerate() {
        dequantize_row(weight.ty, weight.row(row), out);
    }
    out
}

/// Refuses scales and plain numbers that are not finite: one of them turns every later number into NaN.
pub fn check_finite(weight: &Weight) -> Result<(), BackendError> {
    let fail = |row: usize, what: &str| {
        let reason = format!("row {row} holds {what} that is not finite; the file is damaged");
        Err(BackendError::Weight { name: weight.name.to_string(), reason })
    };
    // An f16 is not finite when its five exponent bits are all set, a bf16 or f32 when its eight are.
    let f16 = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7c00 == 0x7c00;
    let bf16 = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7f80 == 0x7f80;
    for row in 0..weight.rows {
        let bytes = weight.row(row);
        let blocks = || bytes.chunks_exact(weight.ty.block_bytes());
        let bad = match weight.ty {
            WeightType::F32 => blocks().any(|b| bf16(&b[2..])),
            WeightType::BF16 => blocks().any(bf16),
            WeightType::F8_E4M3 => blocks().any(|b| b[0] & 0x7f == 0x7f),
            WeightType::F16 | WeightType::Q8_0 | WeightType::Q4_0 | WeightType::Q5_0 => blocks().any(f16),
            WeightType::IQ4_NL | WeightType::IQ4_XS => blocks().any(f16),
            WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => {
                blocks().any(|b| f16(b) || f16(&b[2..]))
            }
            WeightType::Q6_K => blocks().any(|b| f16(&b[208..])),
            // Its scale is a power of two; the code 255 is the format's NaN.
            WeightType::MXFP4 => blocks().any(|b| b[0] == 255),
        };
        if bad {
            let plain = weight.ty.block_len() == 1;
            return fail(row, if plain { "a number" } else { "a scale" });
        }
    }
    Ok(())
}
