//! A model's operations, checked against its shape before anything runs.

use backend::BackendError;
use backend::ops::{BlockOp, ModelSpec};
use backend::weights::{Weight, WeightId, WeightType};

use crate::kernels::dequant::dequantize_row;

/// The operations between embedding and head, and those two.
#[derive(Clone, Debug)]
pub struct Program {
    pub table: WeightId,
    pub body: Vec<BlockOp>,
    pub head_norm: WeightId,
    pub head: WeightId,
}

impl Program {
    /// Checks every operation's weights.
    ///
    /// # Errors
    /// [`BackendError::Weight`] for a weight of another shape than the operation needs or with a number that is not
    /// finite; [`BackendError::Unsupported`] for an operation or an order that this backend does not run.
    pub fn new(spec: &ModelSpec) -> Result<Self, BackendError> {
        let unsupported = |what: &str, fix: &str| BackendError::Unsupported { what: what.into(), fix: fix.into() };
        let (Some(BlockOp::Embed { table }), Some(BlockOp::Head { norm, weight })) =
            (spec.ops.first(), spec.ops.last())
        else {
            return Err(unsupported("this list of operations", "it must begin with Embed and end with Head"));
        };
        let shape = spec.attention;
        let check = |id: WeightId, rows: usize, cols: usize| check_shape(spec, id, rows, cols);
        check(*table, spec.vocab, spec.hidden)?;
        check(*norm, 1, spec.hidden)?;
        check(*weight, spec.vocab, spec.hidden)?;
        let body = spec.ops[1..spec.ops.len() - 1].to_vec();
        for op in &body {
            match *op {
                BlockOp::NormQkv { norm, q, k, v } => {
                    check(norm, 1, spec.hidden)?;
                    check(q, shape.q_width(), spec.hidden)?;
                    check(k, shape.kv_width(), spec.hidden)?;
                    check(v, shape.kv_width(), spec.hidden)?;
                }
                BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm } => {
                    check_layer(spec, kv_layer)?;
                    for norm in q_norm.iter().chain(&k_norm) {
                        check(*norm, 1, shape.head_dim)?;
                    }
                }
                BlockOp::Attend { kv_layer } => check_layer(spec, kv_layer)?,
                BlockOp::OutResidual { out } => check(out, spec.hidden, shape.q_width())?,
                BlockOp::NormGateUp { norm, gate, up } => {
                    check(norm, 1, spec.hidden)?;
                    check(gate, spec.ffn, spec.hidden)?;
                    check(up, spec.ffn, spec.hidden)?;
                }
                BlockOp::DownResidual { down } => check(down, spec.hidden, spec.ffn)?,
                BlockOp::Tap { .. } => return Err(unsupported("Tap", "it is for models with drafters")),
                BlockOp::Embed { .. } | BlockOp::Head { .. } => {
                    return Err(unsupported("a second Embed or Head", "a model has one of each"));
                }
            }
        }
        Ok(Self { table: *table, body, head_norm: *norm, head: *weight })
    }
}

fn check_layer(spec: &ModelSpec, layer: u32) -> Result<(), BackendError> {
    if (layer as usize) < spec.kv_layers {
        return Ok(());
    }
    let what = format!("an operation on KV layer {layer} of {}", spec.kv_layers);
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

/// A one-row weight as numbers.
pub fn vector(weight: &Weight) -> Vec<f32> {
    let mut out = vec![0.0; weight.cols];
    dequantize_row(weight.ty, weight.row(0), &mut out);
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
