//! `config.json` to the decoder's settings. What would change the result and is not supported is refused by name.

use std::path::Path;

use backend::fp8::SCALE_BLOCK;
use backend::ops::AttentionShape;
use serde::Deserialize;
use serde_json::Value;

use super::error::HfError;
use super::read_json;
use super::rope::RopeTable;
use crate::ModelError;
use crate::decoder::Settings;
use crate::families::{FAMILIES, Family, HEAD_DIM_MAX, qwen35};

/// More than ten times the largest vocabulary there is; it sizes allocations.
const VOCAB_MAX: usize = 4_000_000;

/// A folder's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub settings: Settings,
    pub vocab: usize,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    /// The folder's own weights are FP8.
    pub fp8: bool,
    /// How the names of tensors begin that the text model does not need.
    pub skipped: &'static [&'static str],
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    architectures: Option<Vec<String>>,
}

/// The keys that matter; those of other programs are left alone.
#[derive(Deserialize)]
struct ConfigFile {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: u32,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: u32,
    vocab_size: usize,
    rms_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    tie_word_embeddings: Option<bool>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeTable>,
    rope_parameters: Option<RopeTable>,
    partial_rotary_factor: Option<f64>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<u64>,
    layer_types: Option<Vec<String>>,
    #[serde(flatten)]
    linear: qwen35::Keys,
    quantization_config: Option<Value>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<OneOrMany>,
}

/// A token id, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

fn refuse<T>(key: &str, found: impl ToString, expected: impl Into<String>) -> Result<T, ModelError> {
    Err(ModelError::Setting { key: key.to_owned(), found: found.to_string(), expected: expected.into() })
}

impl Config {
    /// `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ModelError> {
        let head: Head = read_json(path, text)?;
        let name = head.architectures.unwrap_or_default().into_iter().next().unwrap_or_default();
        let Some(family) = FAMILIES.into_iter().find(|family| family.hf_names.contains(&name.as_str())) else {
            let known = FAMILIES.map(|family| family.hf_names.join(", ")).join(", ");
            return Err(ModelError::Architecture { found: name, known });
        };
        let file: ConfigFile = if family.hybrid { read_text_part(path, text)? } else { read_json(path, text)? };
        file.settings(family)
    }
}

/// The settings of a model that may be wrapped together with an image encoder: those of the text model, and what is said
/// of both beside it.
fn read_text_part(path: &Path, text: &str) -> Result<ConfigFile, ModelError> {
    let mut outer: serde_json::Map<String, Value> = read_json(path, text)?;
    if let Some(Value::Object(inner)) = outer.remove("text_config") {
        outer.extend(inner);
    }
    let fail = |e: serde_json::Error| ModelError::Hf { path: path.to_owned(), source: HfError::Json(e.to_string()) };
    serde_json::from_value(Value::Object(outer)).map_err(fail)
}

impl ConfigFile {
    fn settings(self, family: &'static Family) -> Result<Config, ModelError> {
        self.refuse_unsupported(family)?;
        let heads = self.num_attention_heads;
        if heads == 0 {
            return refuse("num_attention_heads", 0, "expected at least 1");
        }
        let head_dim = self.head_dim.unwrap_or(self.hidden_size / heads);
        if !(1..=HEAD_DIM_MAX).contains(&head_dim) {
            return refuse("head_dim", head_dim, format!("expected 1 to {HEAD_DIM_MAX}"));
        }
        if !(1..=VOCAB_MAX).contains(&self.vocab_size) {
            return refuse("vocab_size", self.vocab_size, format!("expected 1 to {VOCAB_MAX}"));
        }
        let table = self.rope_parameters.or(self.rope_scaling).unwrap_or_default();
        // 10,000 is the base of the paper and what files leave out.
        let theta = table.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        let part = table.partial_rotary_factor.or(self.partial_rotary_factor).unwrap_or(1.0);
        let rotated = rotated_dims(family, head_dim, part)?;
        let kv_heads = self.num_key_value_heads.unwrap_or(heads);
        let settings = Settings {
            family: family.name,
            hidden: self.hidden_size,
            ffn: self.intermediate_size,
            layers: self.num_hidden_layers,
            attention: AttentionShape { heads, kv_heads, head_dim, gated: family.hybrid },
            context_len: self.max_position_embeddings,
            norm_eps: self.rms_norm_eps.unwrap_or(1e-6),
            rope: table.rope(rotated, theta)?,
            qk_norm: family.qk_norm,
            interleaved_qk: false,
            // Both families have a head of their own unless the file says otherwise.
            tied_head: Some(self.tie_word_embeddings.unwrap_or(false)),
            hybrid: match family.hybrid {
                true => Some(self.linear.hybrid(self.num_hidden_layers, self.layer_types.as_deref())?),
                false => None,
            },
            used_tensors: Vec::new(),
        };
        settings.check()?;
        let eos = match self.eos_token_id {
            None => Vec::new(),
            Some(OneOrMany::One(token)) => vec![token],
            Some(OneOrMany::Many(tokens)) => tokens,
        };
        Ok(Config {
            settings,
            vocab: self.vocab_size,
            bos: self.bos_token_id,
            eos,
            fp8: self.quantization_config.is_some(),
            skipped: family.skipped,
        })
    }

    fn refuse_unsupported(&self, family: &Family) -> Result<(), ModelError> {
        for (key, value) in [("attention_bias", self.attention_bias), ("mlp_bias", self.mlp_bias)] {
            if value == Some(true) {
                return refuse(key, true, "projections with a bias are not supported");
            }
        }
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return refuse("hidden_act", format!("`{act}`"), "`silu` is supported");
        }
        // Some files give the window's size although it is switched off.
        let window = self.use_sliding_window.unwrap_or(self.sliding_window.is_some());
        if window {
            let size = self.sliding_window.map_or_else(|| "on".to_owned(), |n| n.to_string());
            return refuse("sliding_window", size, "attention over the whole context is supported");
        }
        if let Some(kind) = self.layer_types.iter().flatten().find(|kind| *kind != "full_attention" && !family.hybrid) {
            return refuse("layer_types", format!("`{kind}` in a layer"), "`full_attention` is supported");
        }
        if let Some(quantization) = &self.quantization_config {
            check_quantization(quantization)?;
        }
        Ok(())
    }
}

/// Dimensions of a head that are rotated.
fn rotated_dims(family: &Family, head_dim: usize, part: f64) -> Result<usize, ModelError> {
    // Whether a whole head can be rotated is the decoder's to say.
    if part == 1.0 {
        return Ok(head_dim);
    }
    if !family.hybrid {
        return refuse("partial_rotary_factor", part, "only whole heads are rotated");
    }
    let dims = (head_dim as f64 * part) as usize;
    if !(part > 0.0 && part <= 1.0) || dims < 2 || !dims.is_multiple_of(2) {
        let expected = format!("expected a part of the head size {head_dim} that is an even number of dimensions");
        return refuse("partial_rotary_factor", part, expected);
    }
    Ok(dims)
}

/// FP8 with block scales is the one kind of quantised checkpoint that is read.
fn check_quantization(table: &Value) -> Result<(), ModelError> {
    let method = table["quant_method"].as_str().unwrap_or("unnamed");
    if method != "fp8" {
        return refuse("quantization_config", format!("`{method}`"), "weights of bf16, f16, f32 and fp8 are supported");
    }
    let block = &table["weight_block_size"];
    if *block != serde_json::json!([SCALE_BLOCK, SCALE_BLOCK]) {
        let expected = format!("a scale for each block of [{SCALE_BLOCK}, {SCALE_BLOCK}] is supported");
        return refuse("quantization_config.weight_block_size", block, expected);
    }
    for (key, known) in [("fmt", "e4m3"), ("activation_scheme", "dynamic")] {
        if let Some(found) = table[key].as_str().filter(|found| *found != known) {
            return refuse(
                &format!("quantization_config.{key}"),
                format!("`{found}`"),
                format!("`{known}` is supported"),
            );
        }
    }
    Ok(())
}
