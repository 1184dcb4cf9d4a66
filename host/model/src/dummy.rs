//! Random weights for a model's shape: speed where no weights are at hand.

use std::collections::HashMap;

use backend::ops::{AttentionShape, BlockOp, DeltaShape, ModelSpec};
use backend::weights::{RandomFill, Weight, WeightId, WeightType};

use crate::decoder::{LayerPart, Part, Settings, Tensors, assemble};
use crate::error::ModelError;

/// A model of this shape with bf16 weights that keep activations near unit variance: uniform in
/// `(-sqrt(3 / inputs), sqrt(3 / inputs))`. The same seed gives the same weights everywhere.
pub fn spec(settings: &Settings, vocab: usize, seed: u64) -> Result<ModelSpec, ModelError> {
    settings.check()?;
    assemble(settings, &Random::new(settings, vocab, seed))
}

struct Random(HashMap<String, Weight>);

const LAYER_PARTS: [LayerPart; 20] = [
    LayerPart::AttentionNorm,
    LayerPart::Q,
    LayerPart::K,
    LayerPart::V,
    LayerPart::QNorm,
    LayerPart::KNorm,
    LayerPart::AttentionOut,
    LayerPart::FfnNorm,
    LayerPart::Gate,
    LayerPart::Up,
    LayerPart::Down,
    LayerPart::DeltaQkv,
    LayerPart::DeltaZ,
    LayerPart::DeltaBeta,
    LayerPart::DeltaAlpha,
    LayerPart::DeltaTaps,
    LayerPart::DeltaDecay,
    LayerPart::DeltaBias,
    LayerPart::DeltaNorm,
    LayerPart::DeltaOut,
];

impl Random {
    fn new(settings: &Settings, vocab: usize, seed: u64) -> Self {
        let layers = (0..settings.layers).flat_map(|layer| LAYER_PARTS.map(|part| Part::Layer(layer, part)));
        let parts = [Part::Embedding, Part::FinalNorm, Part::Head].into_iter().chain(layers);
        let mut weights = HashMap::new();
        for (index, part) in parts.enumerate() {
            let Some((rows, cols)) = shape(settings, vocab, part) else { continue };
            let name = format!("dummy.{part:?}");
            let scale = (3.0 / if rows == 1 { 1.0 } else { cols as f32 }).sqrt();
            // Streams of neighbouring seeds overlap by a shift, so each weight starts far from the others.
            let random = RandomFill { seed: seed.wrapping_add((index as u64) << 40), scale };
            weights.insert(name.clone(), Weight::random(name, rows, cols, random));
        }
        Self(weights)
    }
}

/// `None` for what this model does not have.
fn shape(settings: &Settings, vocab: usize, part: Part) -> Option<(usize, usize)> {
    let Settings { hidden, ffn, attention, .. } = *settings;
    Some(match part {
        Part::Embedding => (vocab, hidden),
        Part::Head if settings.tied_head == Some(true) => return None,
        Part::Head => (vocab, hidden),
        Part::FinalNorm => (1, hidden),
        Part::Layer(layer, part) => match part {
            LayerPart::AttentionNorm | LayerPart::FfnNorm => (1, hidden),
            LayerPart::Gate | LayerPart::Up => (ffn, hidden),
            LayerPart::Down => (hidden, ffn),
            _ => match settings.hybrid.as_ref().filter(|hybrid| !hybrid.attends[layer as usize]) {
                Some(hybrid) => return delta_shape(hidden, &hybrid.delta, part),
                None => return attention_shape(hidden, &attention, settings.qk_norm, part),
            },
        },
    })
}

fn attention_shape(hidden: usize, shape: &AttentionShape, qk_norm: bool, part: LayerPart) -> Option<(usize, usize)> {
    Some(match part {
        LayerPart::Q => (shape.q_rows(), hidden),
        LayerPart::K | LayerPart::V => (shape.kv_width(), hidden),
        LayerPart::QNorm | LayerPart::KNorm if qk_norm => (1, shape.head_dim),
        LayerPart::AttentionOut => (hidden, shape.q_width()),
        _ => return None,
    })
}

fn delta_shape(hidden: usize, shape: &DeltaShape, part: LayerPart) -> Option<(usize, usize)> {
    Some(match part {
        LayerPart::DeltaQkv => (shape.channels(), hidden),
        LayerPart::DeltaZ => (shape.value_width(), hidden),
        LayerPart::DeltaBeta | LayerPart::DeltaAlpha => (shape.value_heads, hidden),
        LayerPart::DeltaTaps => (shape.channels(), shape.conv),
        LayerPart::DeltaDecay | LayerPart::DeltaBias => (1, shape.value_heads),
        LayerPart::DeltaNorm => (1, shape.value_dim),
        LayerPart::DeltaOut => (hidden, shape.value_width()),
        _ => return None,
    })
}

impl Tensors for Random {
    fn name(&self, part: Part) -> String {
        format!("dummy.{part:?}")
    }

    fn weight(&self, name: &str) -> Result<Option<Weight>, ModelError> {
        Ok(self.0.get(name).cloned())
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

/// Formats as quantising programs mix them over a model's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// llama.cpp's `Q4_K_M`: Q4_K, and Q6_K for the head and for half of the layers' `v` and `down`.
    Q4KM,
    /// llama.cpp's `IQ4_XS`: Q5_K for `v`, Q6_K for the head.
    Iq4Xs,
    /// One format for everything.
    Only(WeightType),
}

const ONLY: [(&str, WeightType); 10] = [
    ("q4_0", WeightType::Q4_0),
    ("q4_1", WeightType::Q4_1),
    ("q5_0", WeightType::Q5_0),
    ("q5_1", WeightType::Q5_1),
    ("q8_0", WeightType::Q8_0),
    ("q4_k", WeightType::Q4_K),
    ("q5_k", WeightType::Q5_K),
    ("q6_k", WeightType::Q6_K),
    ("iq4_nl", WeightType::IQ4_NL),
    ("iq4_xs", WeightType::IQ4_XS),
];

/// What a weight is to a mix.
#[derive(Clone, Copy)]
enum Role {
    Head,
    /// Of a layer that may get more bits.
    V(bool),
    Down(bool),
    Other,
}

impl Mix {
    /// By the name that files have, in lower case.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "q4_k_m" => Some(Self::Q4KM),
            "iq4_xs" => Some(Self::Iq4Xs),
            _ => ONLY.iter().find(|(known, _)| *known == name).map(|&(_, ty)| Self::Only(ty)),
        }
    }

    /// Every name, for messages.
    pub fn names() -> String {
        let only = ONLY.iter().map(|(name, _)| *name).filter(|name| *name != "iq4_xs");
        ["q4_k_m", "iq4_xs"].into_iter().chain(only).collect::<Vec<_>>().join(", ")
    }

    fn format(self, role: Role, cols: usize) -> WeightType {
        let ty = match (self, role) {
            (Self::Only(ty), _) => ty,
            (_, Role::Head) | (Self::Q4KM, Role::V(true) | Role::Down(true)) => WeightType::Q6_K,
            (Self::Iq4Xs, Role::V(_)) => WeightType::Q5_K,
            (Self::Q4KM, _) => WeightType::Q4_K,
            (Self::Iq4Xs, _) => WeightType::IQ4_XS,
        };
        if cols.is_multiple_of(ty.block_len()) {
            return ty;
        }
        // Rows that are not whole blocks of 256 get the next format with blocks of 32, as llama.cpp does it.
        match ty {
            WeightType::Q4_K => WeightType::Q5_0,
            WeightType::Q5_K => WeightType::Q5_1,
            WeightType::Q6_K => WeightType::Q8_0,
            _ => WeightType::IQ4_NL,
        }
    }
}

/// The same model with random blocks for the random weights of its products and its embedding.
pub fn quantised(mut spec: ModelSpec, mix: Mix) -> ModelSpec {
    let layers = spec.ops.iter().filter(|op| matches!(op, BlockOp::DownResidual { .. })).count();
    // llama.cpp: the first and the last eighth, and every third between.
    let more =
        |layer: usize| layer < layers / 8 || layer >= 7 * layers / 8 || layer.saturating_sub(layers / 8) % 3 == 2;
    let mut layer = 0;
    let mut roles: Vec<(WeightId, Role)> = Vec::new();
    for op in &spec.ops {
        match *op {
            BlockOp::Embed { table } => roles.push((table, Role::Other)),
            BlockOp::NormQkv { q, k, v, .. } => {
                roles.extend([(q, Role::Other), (k, Role::Other), (v, Role::V(more(layer)))]);
            }
            BlockOp::NormDelta { qkv, z, beta, alpha, .. } => {
                roles.push((qkv, Role::V(more(layer))));
                roles.extend([z, beta, alpha].map(|id| (id, Role::Other)));
            }
            BlockOp::OutResidual { out } => roles.push((out, Role::Other)),
            BlockOp::NormGateUp { gate, up, .. } => roles.extend([(gate, Role::Other), (up, Role::Other)]),
            BlockOp::DownResidual { down } => {
                roles.push((down, Role::Down(more(layer))));
                layer += 1;
            }
            // A tied head decides for the embedding too.
            BlockOp::Head { weight, .. } => roles.push((weight, Role::Head)),
            _ => {}
        }
    }
    for (index, &(id, role)) in roles.iter().enumerate() {
        if roles[index + 1..].iter().any(|(later, _)| *later == id) {
            continue;
        }
        let weight = &mut spec.weights[id.0 as usize];
        let (Some(random), ty) = (weight.random, mix.format(role, weight.cols)) else { continue };
        let made = Weight::random_blocks(weight.name.clone(), ty, (weight.rows, weight.cols), random);
        if let Some(made) = made {
            *weight = made;
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use backend::ops::{AttentionShape, Rope};

    use super::*;

    /// Which format each weight of a layer gets, and that a tied embedding follows the head.
    #[test]
    fn mixes_are_llama_cpps() {
        let settings = Settings {
            family: "test",
            hidden: 256,
            ffn: 544,
            layers: 16,
            attention: AttentionShape { heads: 4, kv_heads: 2, head_dim: 64, gated: false },
            context_len: 64,
            norm_eps: 1e-5,
            rope: Rope::plain(64, 1e4),
            qk_norm: false,
            interleaved_qk: false,
            tied_head: Some(true),
            hybrid: None,
            used_tensors: Vec::new(),
        };
        let spec = quantised(spec(&settings, 300, 1).expect("a good shape"), Mix::Q4KM);
        let ty = |id: WeightId| spec.weight(id).ty;
        let (mut v, mut down) = (Vec::new(), Vec::new());
        for op in &spec.ops {
            match *op {
                BlockOp::Embed { table } => assert_eq!(ty(table), WeightType::Q6_K),
                BlockOp::NormQkv { q, v: value, .. } => {
                    assert_eq!(ty(q), WeightType::Q4_K);
                    v.push(ty(value) == WeightType::Q6_K);
                }
                // 544 columns are no whole blocks of 256.
                BlockOp::DownResidual { down: weight } => down.push(ty(weight) == WeightType::Q8_0),
                _ => {}
            }
        }
        let more: Vec<usize> = v.iter().enumerate().filter(|(_, more)| **more).map(|(layer, _)| layer).collect();
        assert_eq!((more, &down), (vec![0, 1, 4, 7, 10, 13, 14, 15], &v));
        assert_eq!((Mix::named("q4_k_m"), Mix::named("q3_k")), (Some(Mix::Q4KM), None));
    }
}
