//! What a load costs and what it lowers is said in numbers; what cannot be served is refused.

mod common;

use backend::load::LoadOptions;
use backend::ops::BlockOp;
use backend::weights::{SharedBytes, Weight, WeightType};
use backend::{Backend, BackendError};
use backend_cpu::{CpuOptions, load_with};

use common::spec;

/// Two layers of two key heads of 32: keys and values in f16 take 512 bytes a token, 32 KiB a page.
const PAGE_BYTES: u64 = 32 * 1024;

#[test]
fn the_pool_is_capped_and_says_so() {
    let options = LoadOptions { seats: 4, context_len: Some(600), threads: Some(1), ..LoadOptions::default() };
    let cpu = CpuOptions { kv_bytes_max: 10 * PAGE_BYTES + 5, ..CpuOptions::default() };
    let mut last = None;
    let (backend, plan) = load_with(spec("tiny-llama"), &options, &cpu, &mut |p| last = Some(p)).expect("it fits");
    assert_eq!((plan.pages, plan.kv_pool, plan.kv_bytes_per_token), (10, 10 * PAGE_BYTES, 512));
    assert_eq!(
        plan.lowered,
        [
            "context length lowered from 600 to 512: the model's own",
            "KV pages of 64 tokens lowered from 32 to 10: a page takes 32768 bytes and the pool may take 327685",
        ]
    );
    assert_eq!((backend.caps().context_len, backend.caps().pages, backend.caps().in_flight), (512, 10, 1));
    let last = last.expect("progress was reported");
    assert_eq!((last.bytes_done, last.bytes_total), (plan.weights, plan.weights));
    let cpu = CpuOptions { kv_bytes_max: PAGE_BYTES - 1, ..CpuOptions::default() };
    let answer = load_with(spec("tiny-llama"), &options, &cpu, &mut |_| {});
    assert!(matches!(answer, Err(BackendError::Memory { needed: PAGE_BYTES, .. })));
}

#[test]
fn damaged_weights_and_foreign_operations_are_refused() {
    let refused = |change: fn(&mut backend::ops::ModelSpec)| {
        let mut spec = spec("tiny-llama");
        change(&mut spec);
        let cpu = CpuOptions::default();
        match load_with(spec, &LoadOptions::default(), &cpu, &mut |_| {}) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let nan = refused(|spec| {
        let mut bytes = spec.weights[0].row(0).repeat(spec.weights[0].rows);
        bytes[4 * 64 + 3] = 0x7f;
        bytes[4 * 64 + 2] = 0xc0;
        let Weight { rows, cols, name, .. } = spec.weights[0].clone();
        spec.weights[0] = Weight::new(name, WeightType::F32, rows, cols, SharedBytes::from_vec(bytes)).expect("whole");
    });
    assert_eq!(nan, "weight `token_embd.weight`: row 1 holds a number that is not finite; the file is damaged");
    let scale = refused(|spec| {
        // Rows of two blocks of 34 bytes, each of which begins with its f16 scale.
        let mut bytes = vec![0; spec.weights[0].rows * 68];
        bytes[3 * 68 + 34..][..2].copy_from_slice(&[0x01, 0xfe]);
        let Weight { rows, cols, name, .. } = spec.weights[0].clone();
        spec.weights[0] = Weight::new(name, WeightType::Q8_0, rows, cols, SharedBytes::from_vec(bytes)).expect("whole");
    });
    assert_eq!(scale, "weight `token_embd.weight`: row 3 holds a scale that is not finite; the file is damaged");
    let shape = refused(|spec| spec.hidden = 32);
    assert_eq!(shape, "weight `token_embd.weight`: is 256 by 64, the operation needs 256 by 32");
    let tap = refused(|spec| spec.ops.insert(1, BlockOp::Tap { layer: 0 }));
    assert_eq!(tap, "this backend cannot run Tap; it is for models with drafters");
}
