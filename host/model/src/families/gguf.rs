//! Settings and tensor names of GGUF files.

use backend::ops::{AttentionShape, ModelSpec, Rope};
use backend::weights::{Weight, WeightType};

use super::{FAMILIES, Family, HEAD_DIM_MAX, qwen35};
use crate::decoder::{LayerPart, Part, Settings, Tensors, assemble};
use crate::error::ModelError;
use crate::gguf::{Gguf, GgufError, Metadata, Required};

const ROPE_DIVISORS: &str = "rope_freqs.weight";
const DRAFT_LAYERS: &str = "nextn_predict_layers";

/// The model of a GGUF file, by its `general.architecture`.
pub fn from_gguf(gguf: &Gguf) -> Result<ModelSpec, ModelError> {
    let architecture = gguf.metadata().string("general.architecture").required("general.architecture")?;
    let family = FAMILIES.iter().find(|family| family.name == architecture);
    let family = family.ok_or_else(|| {
        let known = FAMILIES.map(|family| family.name).join(", ");
        ModelError::Architecture { found: architecture.to_owned(), known }
    })?;
    let settings = settings(gguf, family)?;
    assemble(&settings, &FileTensors { gguf, family, layers: settings.layers })
}

/// Reads the keys `ARCHITECTURE.NAME`.
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn optional(&self, name: &str) -> Result<Option<u32>, GgufError> {
        self.metadata.u32(&self.key(name))
    }

    fn required(&self, name: &str) -> Result<u32, GgufError> {
        self.optional(name).required(&self.key(name))
    }

    fn unsupported<T>(&self, name: &str, found: impl ToString, expected: &str) -> Result<T, ModelError> {
        Err(ModelError::Setting { key: self.key(name), found: found.to_string(), expected: expected.to_owned() })
    }
}

fn settings(gguf: &Gguf, family: &'static Family) -> Result<Settings, ModelError> {
    let keys = Keys { metadata: gguf.metadata(), architecture: family.name };
    if let Some(experts @ 1..) = keys.optional("expert_count")? {
        return keys.unsupported("expert_count", experts, "mixtures of experts are not supported");
    }
    let hidden = keys.required("embedding_length")? as usize;
    let heads = keys.required("attention.head_count")? as usize;
    let kv_heads = keys.optional("attention.head_count_kv")?.map_or(heads, |n| n as usize);
    let head_dim = match keys.optional("attention.key_length")? {
        Some(head_dim) => head_dim as usize,
        None if heads > 0 => hidden / heads,
        None => return keys.unsupported("attention.head_count", 0, "expected at least 1"),
    };
    if let Some(value) = keys.optional("attention.value_length")?
        && value as usize != head_dim
    {
        let expected = format!("values as wide as keys ({head_dim}) are supported");
        return keys.unsupported("attention.value_length", value, &expected);
    }
    // Before anything is made that has the head's size.
    if head_dim > HEAD_DIM_MAX {
        return keys.unsupported(
            "attention.key_length",
            head_dim,
            &format!("expected a head size of 1 to {HEAD_DIM_MAX}"),
        );
    }
    let eps = keys.key("attention.layer_norm_rms_epsilon");
    let layers = layers(&keys)?;
    let rope = rope(gguf, &keys, head_dim)?;
    Ok(Settings {
        family: family.name,
        hidden,
        ffn: keys.required("feed_forward_length")? as usize,
        layers,
        attention: AttentionShape { heads, kv_heads, head_dim, gated: family.hybrid },
        context_len: keys.required("context_length")?,
        norm_eps: keys.metadata.f32(&eps).required(&eps)?,
        rope,
        qk_norm: family.qk_norm,
        interleaved_qk: family.gguf_interleaves_qk,
        tied_head: None,
        hybrid: if family.hybrid { Some(qwen35::from_gguf(gguf, layers)?) } else { None },
        used_tensors: vec![ROPE_DIVISORS.to_owned()],
    })
}

/// Without those of a drafter, which the file counts too.
fn layers(keys: &Keys<'_>) -> Result<u32, ModelError> {
    let (blocks, drafters) = (keys.required("block_count")?, keys.optional(DRAFT_LAYERS)?.unwrap_or(0));
    match blocks.checked_sub(drafters) {
        Some(layers) => Ok(layers),
        None => keys.unsupported(DRAFT_LAYERS, drafters, &format!("the file has {blocks} blocks in all")),
    }
}

/// Base frequencies, divided by `rope_freqs.weight` where the file has it (how llama-3 scaling is stored).
fn rope(gguf: &Gguf, keys: &Keys<'_>, head_dim: usize) -> Result<Rope, ModelError> {
    let dims = keys.optional("rope.dimension_count")?.map_or(head_dim, |n| n as usize);
    if dims > head_dim || !dims.is_multiple_of(2) {
        let expected = format!("expected an even number up to the head size {head_dim}");
        return keys.unsupported("rope.dimension_count", dims, &expected);
    }
    let theta = keys.metadata.f32(&keys.key("rope.freq_base"))?.unwrap_or(10_000.0);
    if theta <= 0.0 {
        return keys.unsupported("rope.freq_base", theta, "expected a number above 0");
    }
    let mut rope = Rope::plain(dims, f64::from(theta));
    match keys.metadata.string(&keys.key("rope.scaling.type"))? {
        None | Some("none") => {}
        Some("linear") => {
            let key = keys.key("rope.scaling.factor");
            let factor = keys.metadata.f32(&key).required(&key)?;
            rope.inv_freq.iter_mut().for_each(|f| *f /= factor);
        }
        Some(other) => return keys.unsupported("rope.scaling.type", other, "`none` and `linear` are supported"),
    }
    if gguf.tensor(ROPE_DIVISORS).is_some() {
        let weight = gguf.weight(ROPE_DIVISORS)?;
        if weight.ty != WeightType::F32 || weight.rows != 1 || weight.cols != dims / 2 {
            let reason = format!("expected {} numbers of type F32, found {weight:?}", dims / 2);
            return Err(GgufError::Tensor { name: ROPE_DIVISORS.to_owned(), reason }.into());
        }
        for (frequency, bytes) in rope.inv_freq.iter_mut().zip(weight.row(0).chunks_exact(4)) {
            *frequency /= f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
    Ok(rope)
}

/// A file's tensors by its family's names.
struct FileTensors<'a> {
    gguf: &'a Gguf,
    family: &'static Family,
    layers: u32,
}

impl Tensors for FileTensors<'_> {
    fn name(&self, part: Part) -> String {
        let (layer, part) = match part {
            Part::Embedding => return "token_embd.weight".to_owned(),
            Part::FinalNorm => return "output_norm.weight".to_owned(),
            Part::Head => return "output.weight".to_owned(),
            Part::Layer(layer, part) => (layer, part),
        };
        let name = match part {
            LayerPart::AttentionNorm => "attn_norm.weight",
            LayerPart::Q => "attn_q.weight",
            LayerPart::K => "attn_k.weight",
            LayerPart::V => "attn_v.weight",
            LayerPart::QNorm => "attn_q_norm.weight",
            LayerPart::KNorm => "attn_k_norm.weight",
            LayerPart::AttentionOut => "attn_output.weight",
            LayerPart::FfnNorm => return format!("blk.{layer}.{}.weight", self.family.gguf_ffn_norm),
            LayerPart::Gate => "ffn_gate.weight",
            LayerPart::Up => "ffn_up.weight",
            LayerPart::Down => "ffn_down.weight",
            LayerPart::DeltaQkv => "attn_qkv.weight",
            LayerPart::DeltaZ => "attn_gate.weight",
            LayerPart::DeltaBeta => "ssm_beta.weight",
            LayerPart::DeltaAlpha => "ssm_alpha.weight",
            LayerPart::DeltaTaps => "ssm_conv1d.weight",
            LayerPart::DeltaDecay => "ssm_a",
            LayerPart::DeltaBias => "ssm_dt.bias",
            LayerPart::DeltaNorm => "ssm_norm.weight",
            LayerPart::DeltaOut => "ssm_out.weight",
        };
        format!("blk.{layer}.{name}")
    }

    fn weight(&self, name: &str) -> Result<Option<Weight>, ModelError> {
        if self.gguf.tensor(name).is_none() {
            return Ok(None);
        }
        Ok(Some(self.gguf.weight(name)?))
    }

    /// Without those of a drafter's layers.
    fn names(&self) -> Vec<String> {
        let block = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<u32>().ok();
        let drafted = |name: &str| self.family.hybrid && block(name).is_some_and(|block| block >= self.layers);
        self.gguf.tensors().iter().map(|tensor| tensor.name.clone()).filter(|name| !drafted(name)).collect()
    }
}
