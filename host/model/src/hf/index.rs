//! Which files hold a folder's tensors: an index of shards, or every `model*.safetensors`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use backend::fp8::{SCALE_BLOCK, floats};
use backend::weights::{Weight, WeightType};
use serde::Deserialize;

use super::error::HfError;
use super::safetensors::Shard;
use super::{read_json, read_text};
use crate::ModelError;
use crate::decoder::{LayerPart, Part, Tensors};

pub const INDEX: &str = "model.safetensors.index.json";
/// An index has a line per tensor; the largest models have some hundred thousand.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// The largest checkpoints have a few hundred.
const SHARDS_MAX: usize = 4096;

#[derive(Deserialize)]
struct IndexFile {
    /// Ordered, so that the same damage gives the same message.
    weight_map: BTreeMap<String, String>,
}

/// All tensors of a folder.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<Shard>,
    by_name: HashMap<String, usize>,
    /// How the names of the text model's tensors begin.
    body: &'static str,
    /// How the names of tensors begin that nobody reads.
    skipped: &'static [&'static str],
}

/// With an image encoder beside it the text model is one level deeper.
const BODIES: [&str; 2] = ["model.language_model.", "model."];

impl Shards {
    /// Tensors whose names begin with one of `skipped` need not be read.
    pub fn open(folder: &Path, skipped: &'static [&'static str]) -> Result<Self, ModelError> {
        let index = folder.join(INDEX);
        if !index.exists() {
            return Self::join(all_files(folder)?, skipped);
        }
        let fail = |source| ModelError::Hf { path: index.clone(), source };
        let file: IndexFile = read_json(&index, &read_text(&index, INDEX_BYTES_MAX)?)?;
        let mut paths: BTreeMap<&str, PathBuf> = BTreeMap::new();
        for (tensor, shard) in &file.weight_map {
            let (tensor, shard) = (|| tensor.clone(), shard.as_str());
            if paths.contains_key(shard) {
                continue;
            }
            if Path::new(shard).file_name().is_none_or(|name| name != shard) {
                return Err(fail(HfError::ShardName { tensor: tensor(), shard: shard.to_owned() }));
            }
            let path = folder.join(shard);
            if !path.is_file() {
                return Err(fail(HfError::MissingShard { tensor: tensor(), shard: shard.to_owned() }));
            }
            paths.insert(shard, path);
        }
        let whole = Self::join(paths.into_values().collect(), skipped)?;
        let lost = file.weight_map.iter().find(|(tensor, shard)| {
            let found = whole.by_name.get(*tensor).map(|&i| &whole.shards[i]);
            found.is_none_or(|found| found.path.file_name().is_none_or(|name| name != shard.as_str()))
        });
        match lost {
            Some((tensor, shard)) => Err(fail(HfError::NotInShard { tensor: tensor.clone(), shard: shard.clone() })),
            None => Ok(whole),
        }
    }

    fn join(paths: Vec<PathBuf>, skipped: &'static [&'static str]) -> Result<Self, ModelError> {
        if let Some(path) = paths.get(SHARDS_MAX) {
            return Err(ModelError::Hf { path: path.clone(), source: HfError::ShardCount { limit: SHARDS_MAX } });
        }
        let shards = paths.iter().map(|path| Shard::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut by_name = HashMap::new();
        for (i, shard) in shards.iter().enumerate() {
            for name in shard.names() {
                if let Some(other) = by_name.insert(name.to_owned(), i) {
                    let other = shards[other].path.display().to_string();
                    let source = HfError::Twice { tensor: name.to_owned(), other };
                    return Err(ModelError::Hf { path: shard.path.clone(), source });
                }
            }
        }
        let has = |body: &&str| by_name.keys().any(|name| name.starts_with(body));
        let body = BODIES.into_iter().find(has).unwrap_or(BODIES[1]);
        Ok(Self { shards, by_name, body, skipped })
    }

    fn find(&self, name: &str) -> Option<(&Shard, Weight)> {
        let shard = &self.shards[*self.by_name.get(name)?];
        Some((shard, shard.weight(name)?))
    }
}

/// What the name of an FP8 weight's scales ends with.
const SCALE_SUFFIX: &str = "_scale_inv";

fn scale_name(weight: &str) -> String {
    format!("{weight}{SCALE_SUFFIX}")
}

/// Every `model*.safetensors`, by name.
fn all_files(folder: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let io = |source| ModelError::Io { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(ModelError::Hf { path: folder.to_owned(), source: HfError::NoWeights });
    }
    Ok(paths)
}

impl Tensors for Shards {
    fn name(&self, part: Part) -> String {
        let body = self.body;
        let (layer, part) = match part {
            Part::Embedding => return format!("{body}embed_tokens.weight"),
            Part::FinalNorm => return format!("{body}norm.weight"),
            Part::Head => return "lm_head.weight".to_owned(),
            Part::Layer(layer, part) => (layer, part),
        };
        let name = match part {
            LayerPart::AttentionNorm => "input_layernorm.weight",
            LayerPart::Q => "self_attn.q_proj.weight",
            LayerPart::K => "self_attn.k_proj.weight",
            LayerPart::V => "self_attn.v_proj.weight",
            LayerPart::QNorm => "self_attn.q_norm.weight",
            LayerPart::KNorm => "self_attn.k_norm.weight",
            LayerPart::AttentionOut => "self_attn.o_proj.weight",
            LayerPart::FfnNorm => "post_attention_layernorm.weight",
            LayerPart::Gate => "mlp.gate_proj.weight",
            LayerPart::Up => "mlp.up_proj.weight",
            LayerPart::Down => "mlp.down_proj.weight",
            LayerPart::DeltaQkv => "linear_attn.in_proj_qkv.weight",
            LayerPart::DeltaZ => "linear_attn.in_proj_z.weight",
            LayerPart::DeltaBeta => "linear_attn.in_proj_b.weight",
            LayerPart::DeltaAlpha => "linear_attn.in_proj_a.weight",
            LayerPart::DeltaTaps => "linear_attn.conv1d.weight",
            LayerPart::DeltaDecay => "linear_attn.A_log",
            LayerPart::DeltaBias => "linear_attn.dt_bias",
            LayerPart::DeltaNorm => "linear_attn.norm.weight",
            LayerPart::DeltaOut => "linear_attn.out_proj.weight",
        };
        format!("{body}layers.{layer}.{name}")
    }

    fn weight(&self, name: &str) -> Result<Option<Weight>, ModelError> {
        let Some((shard, weight)) = self.find(name) else { return Ok(None) };
        if weight.ty != WeightType::F8_E4M3 {
            return Ok(Some(weight));
        }
        let fail = |reason: String| {
            let source = HfError::Scales { name: name.to_owned(), reason };
            ModelError::Hf { path: shard.path.clone(), source }
        };
        let (_, scales) = self.find(&scale_name(name)).ok_or_else(|| fail("there is no such tensor".into()))?;
        let expected = [weight.rows, weight.cols].map(|n| n.div_ceil(SCALE_BLOCK));
        if [scales.rows, scales.cols] != expected {
            return Err(fail(format!(
                "its shape is {:?}, blocks of {SCALE_BLOCK} x {SCALE_BLOCK} need {expected:?}",
                [scales.rows, scales.cols]
            )));
        }
        let values: Option<Vec<Vec<f32>>> = (0..scales.rows).map(|row| floats(scales.ty, scales.row(row))).collect();
        let values = values.ok_or_else(|| fail(format!("its type is {:?}", scales.ty)))?.concat();
        if let Some(bad) = values.iter().find(|scale| !scale.is_finite()) {
            return Err(fail(format!("it holds {bad}")));
        }
        Ok(weight.with_scales(values.into()))
    }

    /// Without the rotary frequencies that old checkpoints hold, which say what the settings say, without the scales that
    /// come with their weights, and without what is skipped.
    fn names(&self) -> Vec<String> {
        let scales =
            |name: &str| name.strip_suffix(SCALE_SUFFIX).is_some_and(|weight| self.by_name.contains_key(weight));
        let skipped = |name: &str| self.skipped.iter().any(|start| name.starts_with(start));
        let whole = |name: &&String| !name.ends_with(".rotary_emb.inv_freq") && !scales(name) && !skipped(name);
        self.by_name.keys().filter(whole).cloned().collect()
    }
}
