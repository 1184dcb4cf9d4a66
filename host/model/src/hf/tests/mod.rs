//! Folders written by the test: right ones, and every lie that a file can tell.

mod config;
mod files;

use std::path::Path;

use serde_json::{Value, json};

/// A model of one layer. `changes` are laid over it; null takes a key away.
fn config(changes: Value) -> String {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "vocab_size": 16,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": true,
        "attention_bias": false, "mlp_bias": false, "eos_token_id": 2
    });
    for (key, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => config.as_object_mut().expect("an object").remove(key),
            value => config.as_object_mut().expect("an object").insert(key.clone(), value.clone()),
        };
    }
    config.to_string()
}

/// Names and shapes of its tensors.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let layer = |name: &str, shape: &[usize]| (format!("model.layers.0.{name}.weight"), shape.to_vec());
    vec![
        ("model.embed_tokens.weight".into(), vec![16, 8]),
        ("model.norm.weight".into(), vec![8]),
        layer("input_layernorm", &[8]),
        layer("self_attn.q_proj", &[8, 8]),
        layer("self_attn.k_proj", &[4, 8]),
        layer("self_attn.v_proj", &[4, 8]),
        layer("self_attn.o_proj", &[8, 8]),
        layer("post_attention_layernorm", &[8]),
        layer("mlp.gate_proj", &[12, 8]),
        layer("mlp.up_proj", &[12, 8]),
        layer("mlp.down_proj", &[8, 12]),
    ]
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), bytes).expect("a scratch file");
}
