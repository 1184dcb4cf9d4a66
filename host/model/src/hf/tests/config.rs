use std::path::Path;

use backend::ops::{GateFn, HeadOrder};
use serde_json::{Value, json};

use super::config;
use crate::hf::Config;

fn parse_text(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("config.json"), text).map_err(|e| e.to_string())
}

fn parse(changes: Value) -> Result<Config, String> {
    parse_text(&config(changes))
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

/// A hybrid, wrapped together with an image encoder; `changes` are laid over the text model's settings.
fn hybrid(changes: Value) -> Result<Config, String> {
    let own = json!({"architectures": null, "layer_types": ["linear_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 16, "head_dim": 16,
        "linear_conv_kernel_dim": 4, "tie_word_embeddings": null,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}});
    let mut text: Value = serde_json::from_str(&config(own)).expect("settings");
    for (key, value) in changes.as_object().expect("an object") {
        text[key] = value.clone();
    }
    let name = "Qwen3_5ForConditionalGeneration";
    parse_text(&json!({"architectures": [name], "text_config": text, "tie_word_embeddings": true}).to_string())
}

#[test]
fn hybrids_say_which_layers_attend() {
    let settings = hybrid(json!({})).expect("usable settings").settings;
    assert_eq!((settings.family, settings.tied_head, settings.rope.dims()), ("qwen35", Some(true), 4));
    let found = settings.hybrid.expect("a hybrid");
    let widths = (found.delta.channels(), found.delta.value_width(), found.delta.conv);
    assert_eq!((widths, found.attends, found.as_trained), ((192, 64, 4), vec![false], true));
    assert_eq!((found.delta.order, found.delta.gate), (HeadOrder::Grouped, GateFn::Silu));
    assert!(settings.attention.gated);
    let every_second = json!({"layer_types": null, "num_hidden_layers": 4, "full_attention_interval": 2,
        "output_gate_type": "sigmoid"});
    let found = hybrid(every_second).expect("usable settings").settings.hybrid.expect("a hybrid");
    assert_eq!((found.attends, found.delta.gate), (vec![false, true, false, true], GateFn::Sigmoid));
}

#[test]
fn hybrids_that_cannot_run_are_refused_by_name() {
    for (changes, needle) in [
        (
            json!({"layer_types": ["conv"]}),
            "`layer_types` is `conv` in a layer; `full_attention` and `linear_attention`",
        ),
        (json!({"layer_types": []}), "`layer kinds` is 0; expected one for each of the 1 layers"),
        (json!({"output_gate_type": "tanh"}), "`output_gate_type` is `tanh`; `swish` and `sigmoid` are supported"),
        (json!({"attn_output_gate": false}), "`attn_output_gate` is false"),
        (json!({"linear_num_value_heads": 3}), "`linear value heads` is 3; expected a multiple of the 2 key heads"),
        (json!({"linear_num_key_heads": null}), "`linear_num_key_heads` is missing"),
        (json!({"linear_key_head_dim": 0}), "`linear key head size` is 0"),
        (json!({"linear_conv_kernel_dim": 1}), "`convolution taps` is 1; expected 2 to 16"),
        (json!({"layer_types": null, "full_attention_interval": 0}), "`full_attention_interval` is 0"),
        (json!({"rope_parameters": {"partial_rotary_factor": 0.01}}), "`partial_rotary_factor` is 0.01"),
    ] {
        let error = hybrid(changes.clone()).expect_err(&changes.to_string());
        assert!(error.contains(needle), "{changes}: {error}");
    }
}

#[test]
fn what_would_change_the_result_is_refused_by_name() {
    for (changes, needle) in [
        (json!({"architectures": null}), "architecture `` is not one of: LlamaForCausalLM, Qwen3ForCausalLM"),
        (json!({"architectures": ["MambaForCausalLM"]}), "`MambaForCausalLM` is not one of"),
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
