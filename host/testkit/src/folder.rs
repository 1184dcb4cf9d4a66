//! A tiny model as a Hugging Face folder: settings, weights, tokenizer, template.

use std::path::Path;

use anyhow::Context;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Ids of the model; the tokenizer knows those below [`KNOWN`].
pub const VOCAB: u32 = 320;
/// 256 bytes in the order of the alphabet of byte-level BPE, then `<|im_start|>` and `<|im_end|>`.
pub const KNOWN: u32 = 258;

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + \
                        '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}";

/// A folder on disk; it goes when this is dropped.
pub struct Folder {
    folder: TempDir,
}

impl Folder {
    /// Only a `config.json`.
    pub fn config_only() -> anyhow::Result<Self> {
        let folder = Self { folder: tempfile::tempdir()? };
        folder.write("config.json", config().to_string())?;
        Ok(folder)
    }

    /// A whole model with random weights of seed 1.
    pub fn whole() -> anyhow::Result<Self> {
        let folder = Self::config_only()?;
        folder.write("model.safetensors", weights()?)?;
        folder.write("tokenizer.json", tokenizer().to_string())?;
        let config = json!({"eos_token": {"content": "<|im_end|>"}, "pad_token": null, "chat_template": TEMPLATE});
        folder.write("tokenizer_config.json", config.to_string())?;
        folder.write("generation_config.json", json!({"temperature": 0.6, "eos_token_id": [257, 3]}).to_string())?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
        std::fs::write(self.path().join(name), bytes).with_context(|| name.to_owned())
    }

    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        std::fs::remove_file(self.path().join(name)).with_context(|| name.to_owned())
    }
}

/// The settings: two layers of 32.
fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512,
        "vocab_size": VOCAB, "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": 257
    })
}

fn weights() -> anyhow::Result<Vec<u8>> {
    let mut shapes: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens.weight".into(), vec![VOCAB as usize, 32]), ("model.norm.weight".into(), vec![32])];
    for layer in 0..2 {
        let parts: [(&str, &[usize]); 11] = [
            ("input_layernorm", &[32]),
            ("self_attn.q_proj", &[32, 32]),
            ("self_attn.k_proj", &[16, 32]),
            ("self_attn.v_proj", &[16, 32]),
            ("self_attn.q_norm", &[16]),
            ("self_attn.k_norm", &[16]),
            ("self_attn.o_proj", &[32, 32]),
            ("post_attention_layernorm", &[32]),
            ("mlp.gate_proj", &[64, 32]),
            ("mlp.up_proj", &[64, 32]),
            ("mlp.down_proj", &[32, 64]),
        ];
        shapes.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape.to_vec())));
    }
    let mut state = 1u64;
    let mut tensors = Vec::with_capacity(shapes.len());
    for (name, shape) in shapes {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|_| random(&mut state).to_le_bytes()).collect();
        tensors.push((name, shape, bytes));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    Ok(serialize(views.collect::<Result<Vec<_>, _>>()?, None)?)
}

/// In (-1, 1): the high bits of a linear congruential generator (Knuth's MMIX constants).
fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / 8_388_608.0 - 1.0
}

/// Byte-level BPE without merges: one token per byte.
fn tokenizer() -> Value {
    let vocab: Map<String, Value> =
        alphabet().enumerate().map(|(id, character)| (character.to_string(), id.into())).collect();
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(256, "<|im_start|>"), added(257, "<|im_end|>")],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    })
}

/// The character of each byte in byte-level BPE: printable ones stand for themselves, the others for U+0100 and up.
fn alphabet() -> impl Iterator<Item = char> {
    let mut others = 0x100u32..;
    (0..=255u8).filter_map(move |byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(byte)),
        _ => others.next().and_then(char::from_u32),
    })
}
