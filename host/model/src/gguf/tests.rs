//! Files that lie, and files that do not.

use backend::ops::HeadOrder;
use proptest::prelude::*;

use super::writer::{Tensor, Value, Writer, tiny};
use super::{Gguf, GgufError, parse};
use crate::{GgufTokenizerData, ModelError, families};

fn model(writer: &Writer) -> Result<backend::ops::ModelSpec, ModelError> {
    families::from_gguf(&Gguf::from_bytes(writer.bytes())?)
}

/// What reading the changed tiny model says.
fn refused(change: impl FnOnce(&mut Writer)) -> String {
    let mut writer = tiny("llama");
    change(&mut writer);
    model(&writer).expect_err("the change must be refused").to_string()
}

fn tensor<'a>(writer: &'a mut Writer, name: &str) -> &'a mut Tensor {
    writer.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the tiny model")
}

#[test]
fn a_tiny_model_is_read() {
    let spec = model(&tiny("llama")).expect("a whole model");
    assert_eq!((spec.family.as_str(), spec.vocab, spec.hidden, spec.ffn, spec.ops.len()), ("llama", 10, 8, 12, 8));
    // Row j of a half-split head of 4 is stored at 0, 2, 1, 3.
    let q = spec.weights.iter().find(|w| &*w.name == "blk.0.attn_q.weight").expect("q");
    let first = |row: usize| f32::from_le_bytes(q.row(row)[..4].try_into().expect("4 bytes"));
    assert_eq!([0, 1, 2, 3, 4, 5].map(first), [0.0, 16.0, 8.0, 24.0, 32.0, 48.0]);
}

#[test]
fn qwen3_has_norms_and_plain_rows() {
    let mut writer = tiny("qwen3");
    writer.tensor("blk.0.attn_q_norm.weight", &[4], 0.0).tensor("blk.0.attn_k_norm.weight", &[4], 0.0);
    let spec = model(&writer).expect("a whole model");
    let q = spec.weights.iter().find(|w| &*w.name == "blk.0.attn_q.weight").expect("q");
    assert_eq!(f32::from_le_bytes(q.row(1)[..4].try_into().expect("4 bytes")), 8.0);
    let error = model(&tiny("qwen3")).expect_err("without its norms").to_string();
    assert_eq!(error, "tensor `blk.0.attn_q_norm.weight` is missing; a qwen3 model needs it");
}

/// A linear layer, an attention layer, and a drafter's block that is not read.
fn hybrid() -> Writer {
    let mut w = tiny("qwen35");
    w.tensors.retain(|tensor| !tensor.name.starts_with("blk."));
    let numbers = [
        ("block_count", 3),
        ("nextn_predict_layers", 1),
        ("full_attention_interval", 2),
        ("rope.dimension_count", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 4),
        ("ssm.group_count", 1),
        ("ssm.time_step_rank", 2),
        ("ssm.inner_size", 8),
    ];
    for (key, value) in numbers {
        w.set(&format!("qwen35.{key}"), Value::U32(value));
    }
    let ffn: [(&str, &[u64]); 5] = [
        ("attn_norm.weight", &[8]),
        ("post_attention_norm.weight", &[8]),
        ("ffn_gate.weight", &[8, 12]),
        ("ffn_up.weight", &[8, 12]),
        ("ffn_down.weight", &[12, 8]),
    ];
    let linear: [(&str, &[u64]); 9] = [
        ("attn_qkv.weight", &[8, 16]),
        ("attn_gate.weight", &[8, 8]),
        ("ssm_beta.weight", &[8, 2]),
        ("ssm_alpha.weight", &[8, 2]),
        ("ssm_conv1d.weight", &[4, 16]),
        ("ssm_a", &[2]),
        ("ssm_dt.bias", &[2]),
        ("ssm_norm.weight", &[4]),
        ("ssm_out.weight", &[8, 8]),
    ];
    let attention: [(&str, &[u64]); 6] = [
        ("attn_q.weight", &[8, 16]),
        ("attn_k.weight", &[8, 4]),
        ("attn_v.weight", &[8, 4]),
        ("attn_output.weight", &[8, 8]),
        ("attn_q_norm.weight", &[4]),
        ("attn_k_norm.weight", &[4]),
    ];
    for (name, dims) in ffn.iter().chain(&linear) {
        w.tensor(&format!("blk.0.{name}"), dims, -2.0);
    }
    for (name, dims) in ffn.iter().chain(&attention) {
        w.tensor(&format!("blk.1.{name}"), dims, 0.0);
    }
    w.tensor("blk.2.nextn.eh_proj.weight", &[16, 8], 0.0);
    w
}

#[test]
fn hybrids_are_read_and_their_mistakes_named() {
    let spec = model(&hybrid()).expect("a whole model");
    let delta = spec.delta.expect("a linear layer");
    assert_eq!((spec.ops.len(), spec.kv_layers, spec.state_layers, spec.rope.dims()), (13, 1, 1, 2));
    assert_eq!((delta.channels(), delta.value_dim, delta.order), (16, 4, HeadOrder::Tiled));
    // What the file holds is what is computed with: nothing is added to norms, the decay is no logarithm.
    let decay = spec.weights.iter().find(|w| &*w.name == "blk.0.ssm_a").expect("a decay");
    assert_eq!(f32::from_le_bytes(decay.row(0)[..4].try_into().expect("4 bytes")), -2.0);
    let refused = |change: &dyn Fn(&mut Writer)| {
        let mut writer = hybrid();
        change(&mut writer);
        model(&writer).expect_err("the change must be refused").to_string()
    };
    check(&[
        (
            refused(&|w| w.tensors.retain(|t| t.name != "blk.0.ssm_out.weight")),
            "tensor `blk.0.ssm_out.weight` is missing; a qwen35 model needs it",
        ),
        (
            refused(&|w| {
                w.tensor("blk.1.ssm_a", &[2], 0.0);
            }),
            "tensor `blk.1.ssm_a` is not part of a qwen35 model; leaving it out would give wrong results",
        ),
        (
            refused(&|w| {
                w.tensors.iter_mut().filter(|t| t.name == "blk.0.ssm_conv1d.weight").for_each(|t| t.dims.swap(0, 1))
            }),
            "tensor `blk.0.ssm_conv1d.weight` has the shape [4, 16]; the model's settings need [16, 4]",
        ),
        (
            refused(&|w| {
                w.set("qwen35.ssm.inner_size", Value::U32(7));
            }),
            "`qwen35.ssm.inner_size` is 7; expected a multiple of the 2 value heads",
        ),
        (
            refused(&|w| {
                w.set("qwen35.nextn_predict_layers", Value::U32(4));
            }),
            "`qwen35.nextn_predict_layers` is 4; the file has 3 blocks in all",
        ),
        (
            refused(&|w| w.metadata.retain(|(key, _)| key != "qwen35.ssm.state_size")),
            "metadata key `qwen35.ssm.state_size` is missing",
        ),
    ]);
}

fn check(cases: &[(String, &str)]) {
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}\nexpected {expected}");
    }
}

#[test]
fn wrong_settings_are_named() {
    let cases: Vec<(String, &str)> = vec![
        (refused(|w| w.version = 2), "GGUF version 2 is not supported, only version 3 is; convert the model again"),
        (
            refused(|w| {
                w.set("general.architecture", Value::Text("mamba".into()));
            }),
            "architecture `mamba` is not one of: llama, qwen3",
        ),
        (
            refused(|w| w.metadata.retain(|(k, _)| k != "llama.block_count")),
            "metadata key `llama.block_count` is missing",
        ),
        (
            refused(|w| {
                w.set("llama.block_count", Value::Text("one".into()));
            }),
            "metadata key `llama.block_count` holds text, expected an integer of at least 0",
        ),
        (
            refused(|w| {
                w.set("llama.attention.head_count_kv", Value::U32(3));
            }),
            "`kv head count` is 3; expected 1 to 2",
        ),
        (
            refused(|w| {
                w.set("llama.embedding_length", Value::U32(1 << 31));
            }),
            "`llama.attention.key_length` is 1073741824; expected a head size of 1 to 65536",
        ),
        (
            refused(|w| {
                w.set("llama.rope.scaling.type", Value::Text("yarn".into()));
            }),
            "`llama.rope.scaling.type` is yarn; `none` and `linear` are supported",
        ),
        (
            refused(|w| {
                w.set("llama.expert_count", Value::U32(8));
            }),
            "`llama.expert_count` is 8; mixtures of experts are not supported",
        ),
        (
            refused(|w| w.metadata.push(("llama.block_count".into(), Value::U32(1)))),
            "metadata key `llama.block_count` comes twice",
        ),
    ];
    check(&cases);
}

#[test]
fn wrong_tensors_are_named() {
    let cases: Vec<(String, &str)> = vec![
        (refused(|w| w.tensors.push(w.tensors[0].clone())), "tensor `token_embd.weight` comes twice"),
        (
            refused(|w| w.tensors.retain(|t| t.name != "blk.0.ffn_up.weight")),
            "tensor `blk.0.ffn_up.weight` is missing; a llama model needs it",
        ),
        (
            refused(|w| {
                w.tensor("blk.0.attn_q.bias", &[8], 0.0);
            }),
            "tensor `blk.0.attn_q.bias` is not part of a llama model; leaving it out would give wrong results",
        ),
        (
            refused(|w| {
                w.set("llama.feed_forward_length", Value::U32(13));
            }),
            "tensor `blk.0.ffn_gate.weight` has the shape [12, 8]; the model's settings need [13, 8] (outputs, inputs)",
        ),
        (
            refused(|w| tensor(w, "output_norm.weight").offset += 1),
            "tensor `output_norm.weight`: its offset 321 is not a multiple of the alignment 32",
        ),
        (
            refused(|w| tensor(w, "blk.0.attn_q.weight").dims = vec![1 << 40, 1 << 40]),
            "tensor `blk.0.attn_q.weight`: the product of its dimensions [1099511627776, 1099511627776] overflows",
        ),
        (
            refused(|w| tensor(w, "blk.0.attn_q.weight").dims = vec![0, 8]),
            "tensor `blk.0.attn_q.weight`: one of its dimensions [0, 8] is 0",
        ),
        (
            refused(|w| tensor(w, "blk.0.attn_q.weight").ty = 2),
            "tensor `blk.0.attn_q.weight`: its rows of 8 elements are not whole Q4_0 blocks of 32",
        ),
        (
            refused(|w| tensor(w, "blk.0.attn_q.weight").dims = vec![8; 5]),
            "the number of dimensions of tensor `blk.0.attn_q.weight` (at least 1) is 5, the limit is 4",
        ),
    ];
    check(&cases);
    let unknown = refused(|w| tensor(w, "blk.0.attn_q.weight").ty = 10);
    assert!(unknown.starts_with("tensor `blk.0.attn_q.weight` has the type 10, which"), "{unknown}");
    let beyond = refused(|w| tensor(w, "blk.0.ffn_down.weight").offset = 1 << 62);
    assert!(beyond.starts_with("truncated: tensor `blk.0.ffn_down.weight` needs 384 bytes"), "{beyond}");
}

/// Every prefix of a file is refused as truncated (or as no GGUF file at all).
#[test]
fn a_truncated_file_says_what_is_cut() {
    let bytes = tiny("llama").bytes();
    for len in 0..bytes.len() {
        let error = parse(&bytes[..len]).expect_err("a prefix");
        assert!(matches!(error, GgufError::Truncated { .. }), "{len}: {error}");
    }
}

#[test]
fn lying_counts_are_refused_before_memory_is_taken() {
    let bytes = tiny("llama").bytes();
    for at in [8, 16, 24] {
        let mut bytes = bytes.clone();
        bytes[at..at + 8].fill(0xff);
        assert!(matches!(parse(&bytes), Err(GgufError::Limit { .. } | GgufError::Truncated { .. })), "byte {at}");
    }
}

#[test]
fn tokenizer_data_is_handed_out() {
    let mut writer = tiny("llama");
    writer.set("tokenizer.ggml.model", Value::Text("gpt2".into()));
    writer.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into(), "\u{120}b".into()]));
    writer.set("tokenizer.ggml.eos_token_id", Value::U32(1));
    let read = |writer: &Writer| GgufTokenizerData::read(&Gguf::from_bytes(writer.bytes()).expect("a whole file"));
    let data = read(&writer).expect("whole data");
    assert_eq!((data.tokens.len(), data.tokens[1].as_str(), data.eos, data.bos), (2, "\u{120}b", Some(1), None));
    writer.set("tokenizer.ggml.eos_token_id", Value::U32(2));
    let error = read(&writer).expect_err("an id beyond the vocabulary").to_string();
    assert_eq!(error, "`tokenizer.ggml.eos_token_id` is 2, the limit is 1");
}

/// Everything a reader of a file may call.
fn read_all(bytes: Vec<u8>) {
    let Ok(gguf) = Gguf::from_bytes(bytes) else { return };
    let _ = families::from_gguf(&gguf);
    let _ = GgufTokenizerData::read(&gguf);
    for key in gguf.metadata().keys() {
        let _ = gguf.metadata().value(key);
    }
    for tensor in gguf.tensors() {
        if let Ok(weight) = gguf.weight(&tensor.name) {
            (0..weight.rows.min(64)).for_each(|row| assert_eq!(weight.row(row).len(), weight.row_bytes()));
        }
    }
}

proptest! {
    /// Changed, cut and spliced files are refused or read, and never panic.
    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((0usize..4_000, any::<u8>()), 0..12),
        wide in prop::option::of((0usize..4_000, any::<u64>())),
        cut in prop::option::of(0usize..4_000),
    ) {
        let mut writer = tiny("llama");
        writer.set("tokenizer.ggml.model", Value::Text("gpt2".into()));
        writer.set("tokenizer.ggml.tokens", Value::Texts(vec!["a".into(), "b".into()]));
        let mut bytes = writer.bytes();
        for (at, byte) in changes {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        if let Some((at, value)) = wide {
            let at = at % (bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        read_all(bytes);
    }

    #[test]
    fn any_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let head = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &1u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
        read_all(bytes.clone());
        bytes.splice(0..0, head);
        read_all(bytes);
    }
}
