//! Models with recurrent layers: against transformers, and a sequence's state against itself, however it was cut.

mod common;

use std::path::Path;

use backend::ops::ModelSpec;
use backend::step::Emit;
use backend_cpu::Numerics;
use contract::{Seat, TokenId};

use common::{Driver, against_transformers, argmax, data, feed, greedy, largest_difference, load, sigma, tiny_tokens};

const RATIOS: [&str; 3] = ["hybrid-1", "hybrid-2", "hybrid-3"];
const POSITIONS: usize = 210;

/// A whole sequence token by token, in one step, and in chunks that end inside and at blocks.
const CUTS: [&[usize]; 3] = [&[1; POSITIONS], &[POSITIONS], &[64, 37, 1, 26, 64, 18]];

fn folder(name: &str) -> ModelSpec {
    model::load(&data(name)).unwrap_or_else(|e| panic!("{name}: {e}")).spec
}

#[test]
fn exact_numerics_equal_transformers() {
    for name in RATIOS {
        for chunks in CUTS {
            against_transformers(name, folder(name), Numerics::Exact, chunks, 1e-3);
        }
        against_transformers(name, common::spec(name), Numerics::Exact, &[POSITIONS], 1e-3);
    }
}

#[test]
fn fast_numerics_stay_within_half_precision() {
    for name in RATIOS {
        for chunks in CUTS {
            against_transformers(name, folder(name), Numerics::Fast, chunks, 1e-2);
            against_transformers(name, common::spec(name), Numerics::Fast, chunks, 1e-2);
        }
    }
}

/// A multimodal checkpoint in FP8: deeper names, an image encoder and a drafter that are not read, scales in bf16.
#[test]
fn fp8_checkpoints_equal_transformers() {
    let name = "hybrid-fp8";
    against_transformers(name, folder(name), Numerics::Exact, &[POSITIONS], 1e-3);
    against_transformers(name, folder(name), Numerics::Fast, &[POSITIONS], 1e-2);
}

fn driver(name: &str, numerics: Numerics) -> Driver {
    Driver::new(load(folder(name), numerics, 2))
}

/// The state and the last logits after the tokens, fed to seat 0 in chunks.
fn fed(driver: &mut Driver, tokens: &[TokenId], chunks: &[usize]) -> (Vec<f32>, Vec<f32>) {
    driver.bind(0, &greedy(), 0, tokens);
    let (mut at, mut logits) = (0, Vec::new());
    for &chunk in chunks {
        logits = driver.logits(feed(0, &tokens[at..at + chunk], Emit::Next));
        at += chunk;
    }
    assert_eq!(at, tokens.len(), "the chunks are the whole sequence");
    let state = driver.backend.state(Seat(0)).expect("a recurrent model").to_vec();
    driver.release(0);
    (state, logits)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A tiny random model as large as a test can wait for: heads of 128 as real ones, and correlated keys. `attends`: which of
/// its four layers has attention.
fn deep(attends: usize) -> ModelSpec {
    let layers = (0..4).map(|layer| if layer == attends { r#""full_attention""# } else { r#""linear_attention""# });
    let layers = layers.collect::<Vec<_>>().join(", ");
    let text = r#"{"architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 128, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 256,
        "max_position_embeddings": 1024, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25,
        "layer_types": [LAYERS]}"#
        .replace("LAYERS", &layers);
    let config = model::hf::Config::parse(Path::new("config.json"), &text).expect("a shape");
    model::dummy::spec(&config.settings, config.vocab, 3).expect("a model")
}

#[test]
fn states_do_not_depend_on_cuts_at_blocks() {
    // Elsewhere a block is another form of the same sums. Behind attention that shows more: a key or a value is stored in
    // 16 bits, and the last bit of a sum may take it to the next number.
    for (spec, apart_max) in [
        (folder("hybrid-1"), 1e-5),
        (folder("hybrid-2"), 1e-5),
        (folder("hybrid-3"), 1e-5),
        (deep(3), 1e-5),
        (deep(2), 1e-4),
    ] {
        let tokens = tiny_tokens(POSITIONS);
        let mut driver = Driver::new(load(spec, Numerics::Fast, 2));
        let whole = fed(&mut driver, &tokens, &[POSITIONS]);
        let tail = [&[192][..], &[1; 18]].concat();
        for chunks in [&[64, 146][..], &[128, 82], &[64, 64, 64, 18], &tail] {
            let cut = fed(&mut driver, &tokens, chunks);
            assert_eq!(bits(&cut.0), bits(&whole.0), "the state after {chunks:?}");
            assert_eq!(bits(&cut.1), bits(&whole.1), "the logits after {chunks:?}");
        }
        let state_sigma = sigma(&whole.0);
        for chunks in [&[37, 100, 73][..], &[1; POSITIONS]] {
            let cut = fed(&mut driver, &tokens, chunks);
            let apart = largest_difference(&cut.0, &whole.0) / state_sigma;
            assert!(apart <= apart_max, "states are {apart} sigma apart after {chunks:?}");
        }
    }
}

/// A state that was saved while a prompt ran leads to the same bits as the prompt itself.
#[test]
fn saved_states_go_on_as_if_nothing_was_left_out() {
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let tokens = tiny_tokens(POSITIONS);
        let mut driver = driver("hybrid-2", numerics);
        driver.bind(0, &greedy(), 0, &tokens);
        driver.save(0, 64, 0);
        driver.save(0, 128, 1);
        let logits = driver.logits(feed(0, &tokens[..128], Emit::Next));
        assert_eq!(logits.len(), common::TINY_VOCAB);
        let whole = driver.logits(feed(0, &tokens[128..], Emit::Next));
        for (seat, start, slot) in [(1, 64, 0), (2, 128, 1), (3, 64, 0)] {
            driver.bind_behind(seat, start, slot, &tokens);
            let behind = driver.logits(feed(seat, &tokens[start as usize..], Emit::Next));
            assert_eq!(bits(&behind), bits(&whole), "{numerics:?} behind {start}");
        }
    }
}

/// A decode step saves at a boundary, at its start or at its end.
#[test]
fn decode_steps_save_too() {
    let tokens = tiny_tokens(130);
    let mut driver = driver("hybrid-2", Numerics::Fast);
    driver.bind(0, &greedy(), 0, &tokens);
    driver.logits(feed(0, &tokens[..127], Emit::Next));
    driver.save(0, 128, 0);
    driver.logits(feed(0, &tokens[127..128], Emit::Next));
    let at_end = driver.backend.state(Seat(0)).expect("a state").to_vec();
    driver.save(0, 128, 1);
    let whole = driver.logits(feed(0, &tokens[128..], Emit::Next));
    for (seat, slot) in [(1, 0), (2, 1)] {
        driver.bind_behind(seat, 128, slot, &tokens);
        let behind = driver.logits(feed(seat, &tokens[128..], Emit::Next));
        assert_eq!(bits(&behind), bits(&whole), "from slot {slot}");
    }
    assert!(at_end.iter().any(|x| *x != 0.0));
}

#[test]
fn states_that_are_not_there_are_refused() {
    let tokens = tiny_tokens(POSITIONS);
    let refused = |change: &dyn Fn(&mut Driver)| {
        let mut driver = driver("hybrid-1", Numerics::Fast);
        driver.bind(0, &greedy(), 0, &tokens);
        change(&mut driver);
        driver.forward(&[feed(0, &tokens[..128], Emit::Next)]).expect_err("a step that lies").to_string()
    };
    let cases: [(String, &str); 5] = [
        (refused(&|d| d.save(0, 65, 0)), "a state at 65; it is at 0, aligned to 64"),
        (refused(&|d| d.save(0, 192, 0)), "no run of this step reaches 192 to save its state"),
        (refused(&|d| d.save(0, 64, 1 << 20)), "state slot 1048576 of"),
        (refused(&|d| d.bind_behind(1, 64, 3, &tokens)), "seat 1 is at 64, state slot 3 at None"),
        (refused(&|d| d.save(5, 64, 0)), "seat 5 is not bound"),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}\nexpected {expected}");
    }
}

/// Ids beyond the tokenizer's are never sampled, however likely they are.
#[test]
fn padding_of_the_vocabulary_is_masked() {
    let mut spec = folder("hybrid-1");
    let tokens = tiny_tokens(POSITIONS);
    let whole = Driver::new(load(spec.clone(), Numerics::Fast, 1)).first_logits(&tokens);
    let best = argmax(&whole);
    spec.vocab_used = best;
    let masked = Driver::new(load(spec, Numerics::Fast, 1)).first_logits(&tokens);
    assert!(masked[best..].iter().all(|x| *x == f32::NEG_INFINITY));
    assert_eq!(bits(&masked[..best]), bits(&whole[..best]));
}
