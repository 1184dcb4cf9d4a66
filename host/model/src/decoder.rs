//! The decoder that every family shares: pre-norm attention and a gated feed-forward, assembled as block operations.
//!
//! A family is a [`Family`](crate::families::Family) of differences; a file format is a [`Tensors`]. Every tensor's
//! shape is checked against the settings here, and a tensor that nothing would read is an error: a bias that is ignored
//! gives wrong text without a word.

use std::collections::HashSet;
use std::sync::Arc;

use backend::fp8::floats;
use backend::ops::{AttentionShape, BlockOp, DeltaShape, ModelSpec, Rope};
use backend::weights::{SharedBytes, Weight, WeightId, WeightType};

use crate::error::ModelError;

/// What a weight is for. Each file format has its own names for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Embedding,
    FinalNorm,
    Head,
    Layer(u32, LayerPart),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPart {
    AttentionNorm,
    Q,
    K,
    V,
    QNorm,
    KNorm,
    AttentionOut,
    FfnNorm,
    Gate,
    Up,
    Down,
    DeltaQkv,
    DeltaZ,
    DeltaBeta,
    DeltaAlpha,
    DeltaTaps,
    DeltaDecay,
    DeltaBias,
    DeltaNorm,
    DeltaOut,
}

/// A model file's tensors.
pub trait Tensors {
    fn name(&self, part: Part) -> String;
    /// `None` when the file has no such tensor.
    fn weight(&self, name: &str) -> Result<Option<Weight>, ModelError>;
    fn names(&self) -> Vec<String>;
}

/// What a model has besides when some layers keep a recurrent state in the place of keys and values.
#[derive(Clone, Debug, PartialEq)]
pub struct Hybrid {
    pub delta: DeltaShape,
    /// Per layer: attention, or the gated delta rule.
    pub attends: Vec<bool>,
    /// The file holds what was trained: norms (but for the delta rule's own) less 1, and the logarithm of the decay. A GGUF
    /// file holds what is computed with.
    pub as_trained: bool,
}

/// A model's settings, from its metadata or `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub family: &'static str,
    pub hidden: usize,
    pub ffn: usize,
    pub layers: u32,
    pub attention: AttentionShape,
    pub context_len: u32,
    pub norm_eps: f32,
    pub rope: Rope,
    /// Per-head norms of q and k.
    pub qk_norm: bool,
    /// The file stores rows `j` and `j + head_dim / 2` of each q and k head next to each other.
    pub interleaved_qk: bool,
    /// What `config.json` says; a GGUF file says it by having no head. `None`: tied when the head is missing.
    pub tied_head: Option<bool>,
    pub hybrid: Option<Hybrid>,
    /// Tensors that were read for the settings.
    pub used_tensors: Vec<String>,
}

/// Largest value of any width and layer count: ten times what today's largest dense models have.
const WIDTH_MAX: usize = 1 << 18;
const LAYERS_MAX: u32 = 1024;

impl Settings {
    /// Refuses settings that no operation could run.
    pub fn check(&self) -> Result<(), ModelError> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.attention;
        let in_range = |key: &str, value: usize, limit: usize| {
            let expected = format!("expected 1 to {limit}");
            let fail = || ModelError::Setting { key: key.to_owned(), found: value.to_string(), expected };
            if (1..=limit).contains(&value) { Ok(()) } else { Err(fail()) }
        };
        in_range("hidden size", self.hidden, WIDTH_MAX)?;
        in_range("feed-forward size", self.ffn, WIDTH_MAX)?;
        in_range("layer count", self.layers as usize, LAYERS_MAX as usize)?;
        in_range("head count", heads, WIDTH_MAX)?;
        in_range("kv head count", kv_heads, heads)?;
        in_range("head size", head_dim, WIDTH_MAX / heads)?;
        in_range("context length", self.context_len as usize, 1 << 30)?;
        let fail = |key: &str, found: String, expected: &str| {
            Err(ModelError::Setting { key: key.to_owned(), found, expected: expected.to_owned() })
        };
        if !heads.is_multiple_of(kv_heads) {
            return fail("kv head count", kv_heads.to_string(), &format!("expected a divisor of the {heads} heads"));
        }
        if !head_dim.is_multiple_of(2) {
            return fail("head size", head_dim.to_string(), "expected an even number, for rotary pairs");
        }
        if self.rope.dims() > head_dim || (self.interleaved_qk && self.rope.dims() != head_dim) {
            let expected = format!("expected the head size {head_dim}");
            return fail("rotary dimensions", self.rope.dims().to_string(), &expected);
        }
        if !self.rope.inv_freq.iter().all(|f| f.is_finite()) {
            return fail("rotary frequencies", "not finite".into(), "expected finite numbers");
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return fail("norm epsilon", self.norm_eps.to_string(), "expected a number between 0 and 1");
        }
        self.hybrid.as_ref().map_or(Ok(()), |hybrid| hybrid.check(self.layers as usize))
    }
}

/// Taps of a convolution, and numbers of a state's row or column: those that exist have 4, and 128.
const TAPS_MAX: usize = 16;
const DELTA_DIM_MAX: usize = 1024;

impl Hybrid {
    fn check(&self, layers: usize) -> Result<(), ModelError> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, conv, .. } = self.delta;
        let wrong = |key: &str, found: usize, expected: String| {
            Err(ModelError::Setting { key: key.to_owned(), found: found.to_string(), expected })
        };
        for (key, value, most) in [
            ("linear key heads", key_heads, WIDTH_MAX),
            ("linear value heads", value_heads, WIDTH_MAX),
            ("linear key head size", key_dim, DELTA_DIM_MAX),
            ("linear value head size", value_dim, DELTA_DIM_MAX),
        ] {
            if !(1..=most).contains(&value) {
                return wrong(key, value, format!("expected 1 to {most}"));
            }
        }
        if !(2..=TAPS_MAX).contains(&conv) {
            return wrong("convolution taps", conv, format!("expected 2 to {TAPS_MAX}"));
        }
        if !value_heads.is_multiple_of(key_heads) {
            return wrong(
                "linear value heads",
                value_heads,
                format!("expected a multiple of the {key_heads} key heads"),
            );
        }
        if self.delta.channels() > WIDTH_MAX {
            return wrong("linear channels", self.delta.channels(), format!("expected up to {WIDTH_MAX}"));
        }
        if self.attends.len() != layers {
            return wrong("layer kinds", self.attends.len(), format!("expected one for each of the {layers} layers"));
        }
        Ok(())
    }
}

/// Puts the block operations and weights of a model together.
pub fn assemble(settings: &Settings, tensors: &dyn Tensors) -> Result<ModelSpec, ModelError> {
    settings.check()?;
    let mut builder = Builder { settings, tensors, weights: Vec::new(), used: HashSet::new() };
    builder.used.extend(settings.used_tensors.iter().cloned());
    let table = builder.embedding()?;
    let mut ops = vec![BlockOp::Embed { table }];
    let (mut kv_layers, mut state_layers) = (0, 0);
    for layer in 0..settings.layers {
        match settings.hybrid.as_ref().filter(|hybrid| !hybrid.attends[layer as usize]) {
            Some(hybrid) => {
                builder.delta(layer, state_layers, &hybrid.delta, &mut ops)?;
                state_layers += 1;
            }
            None => {
                builder.attention(layer, kv_layers, &mut ops)?;
                kv_layers += 1;
            }
        }
        builder.feed_forward(layer, &mut ops)?;
    }
    let vocab = builder.weights[table.0 as usize].rows;
    let norm = builder.norm(Part::FinalNorm, settings.hidden)?;
    let weight = builder.head(table, vocab)?;
    ops.push(BlockOp::Head { norm, weight });
    if let Some(name) = tensors.names().into_iter().find(|name| !builder.used.contains(name)) {
        return Err(ModelError::UnusedTensor { name, family: settings.family.to_owned() });
    }
    Ok(ModelSpec {
        family: settings.family.to_owned(),
        vocab,
        vocab_used: vocab,
        hidden: settings.hidden,
        ffn: settings.ffn,
        attention: settings.attention,
        kv_layers: kv_layers as usize,
        delta: settings.hybrid.as_ref().map(|hybrid| hybrid.delta),
        state_layers: state_layers as usize,
        context_len: settings.context_len,
        norm_eps: settings.norm_eps,
        rope: settings.rope.clone(),
        ops,
        weights: builder.weights,
    })
}

struct Builder<'a> {
    settings: &'a Settings,
    tensors: &'a dyn Tensors,
    weights: Vec<Weight>,
    used: HashSet<String>,
}

impl Builder<'_> {
    fn attention(&mut self, layer: u32, kv_layer: u32, ops: &mut Vec<BlockOp>) -> Result<(), ModelError> {
        let Settings { hidden, attention, qk_norm, .. } = *self.settings;
        let part = |part| Part::Layer(layer, part);
        ops.push(BlockOp::NormQkv {
            norm: self.norm(part(LayerPart::AttentionNorm), hidden)?,
            q: self.rotated(part(LayerPart::Q), attention.q_rows())?,
            k: self.rotated(part(LayerPart::K), attention.kv_width())?,
            v: self.matrix(part(LayerPart::V), attention.kv_width(), hidden)?,
        });
        let (q_norm, k_norm) = if qk_norm {
            let q_norm = self.norm(part(LayerPart::QNorm), attention.head_dim)?;
            (Some(q_norm), Some(self.norm(part(LayerPart::KNorm), attention.head_dim)?))
        } else {
            (None, None)
        };
        ops.push(BlockOp::QkNormRopeKv { kv_layer, q_norm, k_norm });
        ops.push(BlockOp::Attend { kv_layer });
        ops.push(BlockOp::OutResidual {
            out: self.matrix(part(LayerPart::AttentionOut), hidden, attention.q_width())?,
        });
        Ok(())
    }

    fn delta(
        &mut self,
        layer: u32,
        state_layer: u32,
        delta: &DeltaShape,
        ops: &mut Vec<BlockOp>,
    ) -> Result<(), ModelError> {
        let (hidden, heads, width) = (self.settings.hidden, delta.value_heads, delta.value_width());
        let part = |part| Part::Layer(layer, part);
        ops.push(BlockOp::NormDelta {
            norm: self.norm(part(LayerPart::AttentionNorm), hidden)?,
            qkv: self.matrix(part(LayerPart::DeltaQkv), delta.channels(), hidden)?,
            z: self.matrix(part(LayerPart::DeltaZ), width, hidden)?,
            beta: self.matrix(part(LayerPart::DeltaBeta), heads, hidden)?,
            alpha: self.matrix(part(LayerPart::DeltaAlpha), heads, hidden)?,
        });
        let as_trained = self.settings.hybrid.as_ref().is_some_and(|hybrid| hybrid.as_trained);
        let decay = |log: f32| if as_trained { -log.exp() } else { log };
        ops.push(BlockOp::DeltaRule {
            state_layer,
            taps: self.matrix(part(LayerPart::DeltaTaps), delta.channels(), delta.conv)?,
            decay: self.vector(part(LayerPart::DeltaDecay), heads, decay)?,
            bias: self.matrix(part(LayerPart::DeltaBias), 1, heads)?,
            norm: self.matrix(part(LayerPart::DeltaNorm), 1, delta.value_dim)?,
        });
        ops.push(BlockOp::OutResidual { out: self.matrix(part(LayerPart::DeltaOut), hidden, width)? });
        Ok(())
    }

    fn feed_forward(&mut self, layer: u32, ops: &mut Vec<BlockOp>) -> Result<(), ModelError> {
        let Settings { hidden, ffn, .. } = *self.settings;
        let part = |part| Part::Layer(layer, part);
        ops.push(BlockOp::NormGateUp {
            norm: self.norm(part(LayerPart::FfnNorm), hidden)?,
            gate: self.matrix(part(LayerPart::Gate), ffn, hidden)?,
            up: self.matrix(part(LayerPart::Up), ffn, hidden)?,
        });
        ops.push(BlockOp::DownResidual { down: self.matrix(part(LayerPart::Down), hidden, ffn)? });
        Ok(())
    }

    /// The vocabulary's size is the embedding's: some files say another one in their settings.
    fn embedding(&mut self) -> Result<WeightId, ModelError> {
        let weight = self.read(Part::Embedding)?;
        let (rows, cols) = (weight.rows, self.settings.hidden);
        self.add(weight, rows, cols)
    }

    fn head(&mut self, table: WeightId, vocab: usize) -> Result<WeightId, ModelError> {
        let name = self.tensors.name(Part::Head);
        let tied =
            self.settings.tied_head.map_or_else(|| Ok(self.tensors.weight(&name)?.is_none()), Ok::<_, ModelError>)?;
        if tied {
            // A tied checkpoint may still hold the head as a copy; the settings say that the embedding counts.
            self.used.insert(name);
            return Ok(table);
        }
        self.matrix(Part::Head, vocab, self.settings.hidden)
    }

    fn matrix(&mut self, part: Part, rows: usize, cols: usize) -> Result<WeightId, ModelError> {
        let weight = self.read(part)?;
        self.add(weight, rows, cols)
    }

    /// A norm's weight, as it is multiplied with.
    fn norm(&mut self, part: Part, width: usize) -> Result<WeightId, ModelError> {
        if self.settings.hybrid.as_ref().is_some_and(|hybrid| hybrid.as_trained) {
            return self.vector(part, width, |w| 1.0 + w);
        }
        self.matrix(part, 1, width)
    }

    /// A vector of plain numbers, each through `f`, as f32.
    fn vector(&mut self, part: Part, width: usize, f: impl Fn(f32) -> f32) -> Result<WeightId, ModelError> {
        let id = self.matrix(part, 1, width)?;
        let weight = &self.weights[id.0 as usize];
        let plain = || ModelError::NotPlain { name: weight.name.to_string(), found: weight.ty };
        let numbers = floats(weight.ty, weight.row(0)).ok_or_else(plain)?;
        let bytes = SharedBytes::from_vec(numbers.into_iter().flat_map(|x| f(x).to_le_bytes()).collect());
        let weight = Weight::new(Arc::clone(&weight.name), WeightType::F32, 1, width, bytes);
        self.weights[id.0 as usize] = weight.expect("four bytes for each number");
        Ok(id)
    }

    /// A q or k projection with its rows in half-split order.
    fn rotated(&mut self, part: Part, rows: usize) -> Result<WeightId, ModelError> {
        let id = self.matrix(part, rows, self.settings.hidden)?;
        if self.settings.interleaved_qk {
            let weight = self.weights[id.0 as usize].clone();
            let order = half_split_order(rows, self.settings.attention.head_dim);
            let ordered = weight.with_row_order(order).expect("the order is a permutation of the checked rows");
            self.weights[id.0 as usize] = ordered;
        }
        Ok(id)
    }

    fn read(&mut self, part: Part) -> Result<Weight, ModelError> {
        let name = self.tensors.name(part);
        let weight = self.tensors.weight(&name)?;
        let family = self.settings.family.to_owned();
        let weight = weight.ok_or_else(|| ModelError::MissingTensor { name: name.clone(), family })?;
        self.used.insert(name);
        Ok(weight)
    }

    fn add(&mut self, weight: Weight, rows: usize, cols: usize) -> Result<WeightId, ModelError> {
        if (weight.rows, weight.cols) != (rows, cols) {
            let (found, expected) = (vec![weight.rows, weight.cols], vec![rows, cols]);
            return Err(ModelError::Shape { name: weight.name.to_string(), found, expected });
        }
        self.weights.push(weight);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }
}

/// Files of the llama architecture store row `s * half + j` of a head (`s` in 0..2) at `2 j + s`.
fn half_split_order(rows: usize, head_dim: usize) -> Arc<[u32]> {
    let half = head_dim / 2;
    (0..rows)
        .map(|row| {
            let (head, within) = (row / head_dim, row % head_dim);
            (head * head_dim + 2 * (within % half) + within / half) as u32
        })
        .collect()
}
