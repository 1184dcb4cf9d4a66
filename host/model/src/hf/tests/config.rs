use std::path::Path;

use serde_json::{Value, json};

use super::config;
use crate::hf::Config;

fn parse(changes: Value) -> Result<Config, String> {
    Config::parse(Path::new("config.json"), &config(changes)).map_err(|e| e.to_string())
}

fn parsed(changes: Value) -> Config {
    parse(changes).expect("usable settings")
}

#[test]
fn what_is_left_out_has_the_families_defaults() {
    let config = parsed(json!({}));
    assert_eq!((config.settings.family, config.vocab, config.eos.as_slice()), ("llama", 16, &[2][..]));
    assert_eq!((config.settings.attention.head_dim, config.settings.tied_head), (4, Some(true)));
    assert!(!config.settings.qk_norm && !config.settings.interleaved_qk);
    let config = parsed(json!({"num_key_value_heads": null, "tie_word_embeddings": null, "rms_norm_eps": null,
        "rope_theta": null, "eos_token_id": [3, 4], "bos_token_id": 1}));
    assert_eq!((config.settings.attention.kv_heads, config.settings.tied_head), (2, Some(false)));
    assert_eq!((config.settings.norm_eps, config.settings.rope.inv_freq.as_slice()), (1e-6, &[1.0, 0.01][..]));
    assert_eq!((config.bos, config.eos.as_slice()), (Some(1), &[3, 4][..]));
    let qwen = parsed(json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 16, "sliding_window": 4096,
        "use_sliding_window": false, "layer_types": ["full_attention"]}));
    assert_eq!((qwen.settings.family, qwen.settings.qk_norm, qwen.settings.attention.head_dim), ("qwen3", true, 16));
}

#[test]
fn rotary_frequencies() {
    let frequencies = |changes: Value| parsed(changes).settings.rope.inv_freq;
    let plain = [1.0, 0.1, 0.01, 0.001];
    assert_eq!(frequencies(json!({"head_dim": 8, "rope_scaling": {"type": "default"}})), plain);
    assert_eq!(
        frequencies(json!({"head_dim": 8, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})),
        plain
    );
    let linear = json!({"head_dim": 8, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}});
    assert_eq!(frequencies(linear), [0.5, 0.05, 0.005, 0.0005]);
    // 64 positions are 10.2, 1.02, 0.1 and 0.01 turns: kept, blended by 0.02 / 3, and stretched by 8.
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let found = frequencies(json!({"head_dim": 8, "rope_scaling": llama3}));
    let blend = (6.4 / std::f64::consts::TAU - 1.0) / 3.0;
    let expected = [1.0, (0.1 * (blend + (1.0 - blend) / 8.0)) as f32, 0.00125, 0.000125];
    assert_eq!(found, expected);
}

#[test]
fn what_would_change_the_result_is_refused_by_name() {
    for (changes, needle) in [
        (json!({"architectures": null}), "architecture `` is not one of: LlamaForCausalLM, Qwen3ForCausalLM"),
        (
            json!({"architectures": ["Qwen3_5ForConditionalGeneration"]}),
            "`Qwen3_5ForConditionalGeneration` is not one of",
        ),
        (json!({"hidden_size": null}), "config.json: not usable: missing field `hidden_size`"),
        (json!({"hidden_size": -8}), "invalid value"),
        (json!({"num_attention_heads": 0}), "`num_attention_heads` is 0"),
        (json!({"num_key_value_heads": 3}), "kv head count"),
        (json!({"head_dim": 1u64 << 60}), "`head_dim` is 1152921504606846976"),
        (json!({"head_dim": 5}), "expected an even number"),
        (json!({"vocab_size": 1u64 << 40}), "`vocab_size`"),
        (json!({"attention_bias": true}), "`attention_bias` is true"),
        (json!({"mlp_bias": true}), "`mlp_bias` is true"),
        (json!({"hidden_act": "gelu"}), "`hidden_act` is `gelu`"),
        (json!({"sliding_window": 4096}), "`sliding_window` is 4096"),
        (json!({"layer_types": ["sliding_attention"]}), "`layer_types` is `sliding_attention` in a layer"),
        (json!({"quantization_config": {"quant_method": "awq"}}), "`quantization_config` is `awq`"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "`quantization_config.weight_block_size` is null"),
        (
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"}}),
            "`quantization_config.fmt` is `e5m2`",
        ),
        (json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor` is 0.5"),
        (json!({"rope_theta": 0.0}), "`rope_theta` is 0"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}), "`rope_type` is `yarn`"),
        (json!({"rope_scaling": {"type": "linear"}}), "`rope_scaling.factor` is missing"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), "`rope_scaling.factor` is 0"),
        (json!({"rms_norm_eps": 2.0}), "norm epsilon"),
    ] {
        let error = parse(changes.clone()).expect_err(&changes.to_string());
        assert!(error.contains(needle), "{changes}: {error}");
    }
    let error = Config::parse(Path::new("a/config.json"), "{").expect_err("half a file").to_string();
    assert!(error.starts_with("a/config.json: not usable: EOF"), "{error}");
}
