use std::path::Path;

use backend::weights::WeightType;
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{config, tensors, write};
use crate::hf::parse;
use crate::{HfFolder, load};

/// Element `i` of any tensor: exact in every type.
fn value(i: usize) -> f32 {
    i as f32 / 4.0 - 8.0
}

fn element(dtype: Dtype, i: usize) -> Vec<u8> {
    match dtype {
        Dtype::F16 => f16::from_f32(value(i)).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(value(i)).to_le_bytes().to_vec(),
        _ => value(i).to_le_bytes().to_vec(),
    }
}

fn file(tensors: &[(String, Vec<usize>)], dtype: Dtype) -> Vec<u8> {
    let data = |shape: &[usize]| (0..shape.iter().product()).flat_map(|i| element(dtype, i)).collect::<Vec<u8>>();
    let data: Vec<_> = tensors.iter().map(|(name, shape)| (name, shape.clone(), data(shape))).collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(dtype, shape.clone(), bytes).expect("bytes of that shape"))
    });
    serialize(views, None).expect("a small file")
}

fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    write(folder.path(), "config.json", config);
    folder
}

fn error(folder: &Path) -> String {
    load(folder).expect_err("a folder that lies").to_string()
}

#[test]
fn every_plain_type_is_mapped_as_it_is() {
    for (dtype, ty) in [(Dtype::F32, WeightType::F32), (Dtype::F16, WeightType::F16), (Dtype::BF16, WeightType::BF16)] {
        let folder = folder(&config(json!({})));
        write(folder.path(), "model.safetensors", file(&tensors(), dtype));
        let spec = load(folder.path()).expect("a whole model").spec;
        assert_eq!((spec.family.as_str(), spec.vocab, spec.weights.len()), ("llama", 16, 11));
        let down = spec.weights.iter().find(|w| w.name.ends_with("down_proj.weight")).expect("a down projection");
        assert_eq!((down.ty, down.rows, down.cols), (ty, 8, 12));
        let expected: Vec<u8> = (36..48).flat_map(|i| element(dtype, i)).collect();
        assert_eq!(down.row(3), expected);
    }
}

/// A folder whose projections are FP8 with a scale each; `scales` gives a scale tensor's shape and type.
fn fp8_folder(scales: (Vec<usize>, Dtype)) -> TempDir {
    let quantization = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    let folder = folder(&config(json!({"quantization_config": quantization})));
    let mut data = Vec::new();
    for (name, shape) in tensors() {
        let count: usize = shape.iter().product();
        if name.ends_with("_proj.weight") {
            data.push((name.clone(), shape, Dtype::F8_E4M3, (0..count).map(|i| i as u8 & 0x3f).collect::<Vec<u8>>()));
            let (shape, dtype) = scales.clone();
            let bytes = (0..shape.iter().product()).flat_map(|_| match dtype {
                Dtype::BF16 => bf16::from_f32(0.5).to_le_bytes().to_vec(),
                Dtype::F32 => 0.5f32.to_le_bytes().to_vec(),
                _ => vec![0],
            });
            data.push((format!("{name}_scale_inv"), shape, dtype, bytes.collect()));
        } else {
            let bytes = (0..count).flat_map(|i| element(Dtype::BF16, i)).collect();
            data.push((name, shape, Dtype::BF16, bytes));
        }
    }
    let views = data.iter().map(|(name, shape, dtype, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("bytes of that shape"))
    });
    write(folder.path(), "model.safetensors", serialize(views, None).expect("a small file"));
    folder
}

#[test]
fn fp8_weights_bring_their_scales() {
    for dtype in [Dtype::F32, Dtype::BF16] {
        let spec = load(fp8_folder((vec![1, 1], dtype)).path()).expect("a whole model").spec;
        let down = spec.weights.iter().find(|w| w.name.ends_with("down_proj.weight")).expect("a down projection");
        assert_eq!((down.ty, down.scales()), (WeightType::F8_E4M3, Some(&[0.5f32][..])));
        let whole = backend::fp8::dequantized(down);
        // Code 0x2c of row 3: 1.5 times 2^-2, halved.
        let expected = bf16::from_f32(1.5 / 4.0 / 2.0).to_le_bytes();
        assert_eq!((whole.ty, &whole.row(3)[16..18]), (WeightType::BF16, &expected[..]));
    }
    for (scales, needle) in [
        ((vec![2, 1], Dtype::F32), "its shape is [2, 1], blocks of 128 x 128 need [1, 1]"),
        ((vec![1, 1], Dtype::F8_E4M3), "its type is F8_E4M3"),
    ] {
        let error = error(fp8_folder(scales).path());
        assert!(error.contains(needle), "{error}");
    }
}

/// The tensors in two shards, with an index over them.
fn sharded() -> TempDir {
    let folder = folder(&config(json!({})));
    let tensors = tensors();
    let (first, second) = tensors.split_at(5);
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut map = serde_json::Map::new();
    for (part, name) in [first, second].into_iter().zip(names) {
        write(folder.path(), name, file(part, Dtype::BF16));
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), Value::from(name))));
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    write(folder.path(), "model.safetensors.index.json", index.to_string());
    folder
}

fn change_index(folder: &Path, tensor: &str, shard: &str) {
    let path = folder.join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("the index")).expect("JSON");
    index["weight_map"][tensor] = shard.into();
    std::fs::write(path, index.to_string()).expect("the index");
}

#[test]
fn shards_are_one_model() {
    let folder = sharded();
    assert_eq!(load(folder.path()).expect("both shards").spec.weights.len(), 11);
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).expect("the index");
    assert_eq!(load(folder.path()).expect("both shards, without an index").spec.weights.len(), 11);
}

#[test]
fn shards_that_lie_are_named() {
    let folder = sharded();
    std::fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).expect("a shard");
    let text = error(folder.path());
    assert!(text.contains("should be in the shard `model-00002-of-00002.safetensors`, which is missing"), "{text}");
    for (tensor, shard, needle) in [
        ("model.norm.weight", "../model.safetensors", "which is not a plain file name"),
        ("model.norm.weight", "", "which is not a plain file name"),
        ("model.norm.weight", "model-00002-of-00002.safetensors", "`model.norm.weight` should be in the shard"),
        ("model.other.weight", "model-00001-of-00002.safetensors", "which does not have it"),
    ] {
        let folder = sharded();
        change_index(folder.path(), tensor, shard);
        let text = error(folder.path());
        assert!(text.contains(needle) && text.contains(tensor), "{tensor} {shard}: {text}");
    }
    let folder = sharded();
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).expect("the index");
    write(folder.path(), "model-copy.safetensors", file(&tensors()[1..2], Dtype::F32));
    let text = error(folder.path());
    assert!(text.contains("tensor `model.norm.weight` comes twice"), "{text}");
}

#[test]
fn tensors_must_be_those_of_the_settings() {
    let folder = folder(&config(json!({})));
    assert!(error(folder.path()).contains("no model.safetensors.index.json and no model*.safetensors"));
    let mut cases: Vec<(Vec<_>, &str)> = vec![(tensors(), ""), (tensors(), ""), (tensors(), ""), (tensors(), "")];
    cases[0].0.remove(3);
    cases[0].1 = "tensor `model.layers.0.self_attn.q_proj.weight` is missing";
    cases[1].0[3].1 = vec![4, 8];
    cases[1].1 = "`model.layers.0.self_attn.q_proj.weight` has the shape [4, 8]; the model's settings need [8, 8]";
    cases[2].0.push(("model.layers.0.self_attn.q_proj.bias".into(), vec![8]));
    cases[2].1 = "tensor `model.layers.0.self_attn.q_proj.bias` is not part of a llama model";
    cases[3].0[0].1 = vec![15, 8];
    cases[3].1 = "`vocab_size` is 16; the embedding has 15 rows";
    for (tensors, needle) in cases {
        write(folder.path(), "model.safetensors", file(&tensors, Dtype::F32));
        let text = error(folder.path());
        assert!(text.contains(needle), "{needle}: {text}");
    }
    // Frequencies that old checkpoints repeat are no part of the model, and a tied head may be there as a copy.
    let mut more = tensors();
    more.push(("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![2]));
    more.push(("lm_head.weight".into(), vec![16, 8]));
    write(folder.path(), "model.safetensors", file(&more, Dtype::F32));
    assert_eq!(load(folder.path()).expect("a whole model").spec.weights.len(), 11);
}

/// A file with this header and so many bytes after it.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn headers_that_lie_are_refused() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(
            r#"{{"__metadata__":{{"format":"pt"}},"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#
        )
    };
    for shape in ["[2,3]", "[2,1,3]"] {
        let found = &parse(&raw(&one("F32", shape, "[0,24]"), 24)).expect("a right one")["a"];
        assert_eq!((found.rows, found.cols), (2, 3));
    }
    let max = u64::MAX;
    for (bytes, needle) in [
        (vec![1, 2, 3], "truncated: the header's length needs 8 bytes, the file has 3".to_owned()),
        (max.to_le_bytes().to_vec(), format!("{max} bytes, the limit is 100000000")),
        (100u64.to_le_bytes().to_vec(), "truncated: the header needs 108 bytes, the file has 8".into()),
        (raw("[]", 0), "expected an object with one entry per tensor".into()),
        (raw(r#"{"a":{},"a":{}}"#, 0), "`a` comes twice".into()),
        (raw(r#"{"a":{}}"#, 0), "tensor `a` in the header: missing field `dtype`".into()),
        (raw(&one("F32", "[-1]", "[0,4]"), 4), "invalid value".into()),
        (raw(&one("F8_E5M2", "[4]", "[0,4]"), 4), "tensor `a` has the type F8_E5M2".into()),
        (raw(&one("F32", "[]", "[0,4]"), 4), "tensor `a` has the shape []".into()),
        (raw(&one("F32", "[0]", "[0,0]"), 0), "tensor `a` has the shape [0]".into()),
        (raw(&one("F32", "[1,0,1]", "[0,0]"), 0), "tensor `a` has the shape [1, 0, 1]".into()),
        (raw(&one("F32", "[2]", "[0,4]"), 4), "tensor `a` has 4 bytes in the file, its shape and type need 8".into()),
        (raw(&one("F32", &format!("[{max},{max}]"), "[0,4]"), 4), format!("need {max}")),
        (raw(&one("F32", "[1]", "[0,4]"), 3), "truncated: tensor `a` (offsets 0 to 4) needs 4 bytes".into()),
        (raw(&one("F32", "[1]", &format!("[0,{max}]")), 4), "truncated: tensor `a`".into()),
        (raw(&one("F32", "[1]", "[4,8]"), 8), "tensor `a` begins at byte 4 of the data, expected 0".into()),
        (raw(&one("F32", "[1]", "[0,4]"), 8), "4 bytes follow the last tensor".into()),
    ] {
        let error = parse(&bytes).expect_err(&needle).to_string();
        assert!(error.contains(&needle), "{needle}: {error}");
    }
}

#[test]
fn dummy_weights_need_the_settings_only() {
    let folder = folder(&config(json!({"tie_word_embeddings": false})));
    let spec = HfFolder::open(folder.path()).expect("settings").dummy(1).expect("random weights");
    assert_eq!((spec.vocab, spec.weights.len()), (16, 12));
    assert!(spec.weights.iter().all(|weight| weight.random.is_some()));
}

proptest! {
    /// Whatever the bytes are, reading them ends with a result.
    #[test]
    fn damaged_files_never_panic(at in 0usize..2000, byte: u8, keep in 0usize..4000) {
        let mut bytes = file(&tensors(), Dtype::BF16);
        let last = bytes.len() - 1;
        bytes[at.min(last)] = byte;
        bytes.truncate(keep.max(1));
        if let Ok(tensors) = parse(&bytes) {
            prop_assert!(tensors.values().all(|tensor| tensor.bytes.end <= bytes.len()));
        }
    }
}
