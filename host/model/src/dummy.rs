//! Random weights for a model's shape: speed where no weights are at hand.

use std::collections::HashMap;

use backend::ops::{AttentionShape, DeltaShape, ModelSpec};
use backend::weights::{RandomFill, Weight};

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
