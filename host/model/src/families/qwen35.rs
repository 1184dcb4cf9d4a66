//! Qwen3.5, 3.6 and 3.8 dense: of four layers three keep the state of a gated delta rule (arXiv 2412.06464), the fourth
//! has attention with gated heads, of which a quarter is rotated.

use backend::ops::{DeltaShape, GateFn, HeadOrder};
use serde::Deserialize;

use super::Family;
use crate::ModelError;
use crate::decoder::Hybrid;
use crate::gguf::{Gguf, Required};

pub(super) const FAMILY: Family = Family {
    name: "qwen35",
    hf_names: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
    qk_norm: true,
    gguf_interleaves_qk: false,
    hybrid: true,
    gguf_ffn_norm: "post_attention_norm",
    // A drafter and an image encoder, which text is served without.
    skipped: &["mtp.", "model.visual.", "visual."],
};

const ATTENTION: &str = "full_attention";
const LINEAR: &str = "linear_attention";

/// The keys of a `config.json` that only this family has.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Keys {
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_conv_kernel_dim: Option<usize>,
    full_attention_interval: Option<usize>,
    attn_output_gate: Option<bool>,
    output_gate_type: Option<String>,
}

fn wrong<T>(key: &str, found: impl ToString, expected: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError::Setting { key: key.to_owned(), found: found.to_string(), expected: expected.into() })
}

/// Layer `i` attends when `i + 1` is a multiple of `interval`.
fn by_interval(key: &str, layers: u32, interval: usize) -> Result<Vec<bool>, ModelError> {
    if interval == 0 {
        return wrong(key, interval, "expected at least 1");
    }
    Ok((1..=layers as usize).map(|number| number.is_multiple_of(interval)).collect())
}

impl Keys {
    pub fn hybrid(&self, layers: u32, layer_types: Option<&[String]>) -> Result<Hybrid, ModelError> {
        let needed = |key: &str, value: Option<usize>| match value {
            Some(value) => Ok(value),
            None => wrong(key, "missing", "a model with linear layers needs it"),
        };
        if self.attn_output_gate == Some(false) {
            return wrong("attn_output_gate", false, "attention with gated heads is supported");
        }
        let gate = match self.output_gate_type.as_deref() {
            None | Some("swish" | "silu") => GateFn::Silu,
            Some("sigmoid") => GateFn::Sigmoid,
            Some(other) => {
                return wrong("output_gate_type", format!("`{other}`"), "`swish` and `sigmoid` are supported");
            }
        };
        let attends = match layer_types {
            Some(kinds) => kinds.iter().map(|kind| kind_attends(kind)).collect::<Result<_, _>>()?,
            None => by_interval("full_attention_interval", layers, self.full_attention_interval.unwrap_or(4))?,
        };
        let delta = DeltaShape {
            key_heads: needed("linear_num_key_heads", self.linear_num_key_heads)?,
            value_heads: needed("linear_num_value_heads", self.linear_num_value_heads)?,
            key_dim: needed("linear_key_head_dim", self.linear_key_head_dim)?,
            value_dim: needed("linear_value_head_dim", self.linear_value_head_dim)?,
            conv: needed("linear_conv_kernel_dim", self.linear_conv_kernel_dim)?,
            order: HeadOrder::Grouped,
            gate,
        };
        Ok(Hybrid { delta, attends, as_trained: true })
    }
}

fn kind_attends(kind: &str) -> Result<bool, ModelError> {
    match kind {
        ATTENTION => Ok(true),
        LINEAR => Ok(false),
        other => {
            wrong("layer_types", format!("`{other}` in a layer"), format!("`{ATTENTION}` and `{LINEAR}` are supported"))
        }
    }
}

/// From the metadata of a GGUF file, whose value heads are tiled.
pub(super) fn from_gguf(gguf: &Gguf, layers: u32) -> Result<Hybrid, ModelError> {
    let metadata = gguf.metadata();
    let number = |name: &str| {
        let key = format!("{}.{name}", FAMILY.name);
        metadata.u32(&key).required(&key).map(|value| value as usize)
    };
    let (state, heads, inner) = (number("ssm.state_size")?, number("ssm.time_step_rank")?, number("ssm.inner_size")?);
    if heads == 0 || !inner.is_multiple_of(heads) {
        return wrong("qwen35.ssm.inner_size", inner, format!("expected a multiple of the {heads} value heads"));
    }
    let kinds = "qwen35.attention.recurrent_layers";
    let attends = match metadata.bools(kinds)? {
        // The file's own layers come first, a drafter's behind them.
        Some(recurrent) if recurrent.len() >= layers as usize => {
            recurrent[..layers as usize].iter().map(|recurrent| !recurrent).collect()
        }
        Some(recurrent) => {
            return wrong(kinds, format!("{} values", recurrent.len()), format!("the model has {layers} layers"));
        }
        None => by_interval("qwen35.full_attention_interval", layers, number("full_attention_interval")?)?,
    };
    let delta = DeltaShape {
        key_heads: number("ssm.group_count")?,
        value_heads: heads,
        key_dim: state,
        value_dim: inner / heads,
        conv: number("ssm.conv_kernel")?,
        order: HeadOrder::Tiled,
        gate: GateFn::Silu,
    };
    Ok(Hybrid { delta, attends, as_trained: false })
}
