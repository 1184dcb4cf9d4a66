//! Which files hold a folder's tensors: an index of shards, or every `model*.safetensors`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use backend::weights::Weight;
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
}

impl Shards {
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let index = folder.join(INDEX);
        if !index.exists() {
            return Self::join(all_files(folder)?);
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
        let whole = Self::join(paths.into_values().collect())?;
        let lost = file.weight_map.iter().find(|(tensor, shard)| {
            let found = whole.by_name.get(*tensor).map(|&i| &whole.shards[i]);
            found.is_none_or(|found| found.path.file_name().is_none_or(|name| name != shard.as_str()))
        });
        match lost {
            Some((tensor, shard)) => Err(fail(HfError::NotInShard { tensor: tensor.clone(), shard: shard.clone() })),
            None => Ok(whole),
        }
    }

    fn join(paths: Vec<PathBuf>) -> Result<Self, ModelError> {
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
        Ok(Self { shards, by_name })
    }
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
        let (layer, part) = match part {
            Part::Embedding => return "model.embed_tokens.weight".to_owned(),
            Part::FinalNorm => return "model.norm.weight".to_owned(),
            Part::Head => return "lm_head.weight".to_owned(),
            Part::Layer(layer, part) => (layer, part),
        };
        let name = match part {
            LayerPart::AttentionNorm => "input_layernorm",
            LayerPart::Q => "self_attn.q_proj",
            LayerPart::K => "self_attn.k_proj",
            LayerPart::V => "self_attn.v_proj",
            LayerPart::QNorm => "self_attn.q_norm",
            LayerPart::KNorm => "self_attn.k_norm",
            LayerPart::AttentionOut => "self_attn.o_proj",
            LayerPart::FfnNorm => "post_attention_layernorm",
            LayerPart::Gate => "mlp.gate_proj",
            LayerPart::Up => "mlp.up_proj",
            LayerPart::Down => "mlp.down_proj",
        };
        format!("model.layers.{layer}.{name}.weight")
    }

    fn weight(&self, name: &str) -> Result<Option<Weight>, ModelError> {
        Ok(self.by_name.get(name).and_then(|&i| self.shards[i].weight(name)))
    }

    /// Without the rotary frequencies that old checkpoints hold: they say what the settings say.
    fn names(&self) -> Vec<String> {
        self.by_name.keys().filter(|name| !name.ends_with(".rotary_emb.inv_freq")).cloned().collect()
    }
}
