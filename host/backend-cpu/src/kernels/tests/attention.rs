//! Attention against the plain form over the same f16 keys and values.

use contract::PageId;
use half::f16;

use super::{Random, assert_same_bits, relative_l2};
use crate::kernels::attention::{Attend, KvShape, attend, attend_part, merge_parts, store_kv};
use crate::kernels::{Isa, OutCols, Scratch, scalar};

struct Sequence {
    shape: KvShape,
    pool: Vec<u16>,
    pages: Vec<PageId>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// `tokens` tokens in shuffled pages of a pool whose other contents are NaN.
fn sequence(isa: Isa, shape: KvShape, kv_head: usize, tokens: usize, random: &mut Random) -> Sequence {
    let count = tokens.div_ceil(64);
    let mut pages: Vec<PageId> = (0..count as u32).map(PageId).collect();
    for i in (1..count).rev() {
        pages.swap(i, random.below(i + 1));
    }
    let mut pool = vec![f16::NAN.to_bits(); count * shape.page_len()];
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for token in 0..tokens {
        let (key, value) = (random.normals(shape.head_dim), random.normals(shape.head_dim));
        let start = shape.block_start(pages[token / 64], kv_head);
        store_kv(isa, shape, &mut pool[start..start + shape.block_len()], token % 64, &key, &value);
        let round = |x: Vec<f32>| x.into_iter().map(|x| f16::from_f32(x).to_f32()).collect();
        keys.push(round(key));
        values.push(round(value));
    }
    Sequence { shape, pool, pages, keys, values }
}

fn run(isa: Isa, job: &Attend<'_>) -> Vec<f32> {
    let width = job.group * job.shape.head_dim;
    let mut out = vec![0.0; job.rows * width];
    attend(isa, job, &mut OutCols::new(&mut out, width, 0..width), &mut Scratch::new());
    out
}

#[test]
fn attention_is_close_to_the_plain_one_and_the_same_in_any_cut() {
    for isa in Isa::all_available() {
        let mut random = Random(1);
        for (head_dim, group, kv_heads, first, rows) in
            [(64, 3, 3, 0, 1), (64, 3, 1, 70, 61), (128, 4, 2, 600, 3), (80, 1, 1, 500, 40), (96, 7, 1, 1100, 2)]
        {
            let shape = KvShape { kv_heads, head_dim };
            let kv_head = kv_heads - 1;
            let kept = sequence(isa, shape, kv_head, first + rows, &mut random);
            let width = group * head_dim;
            let q: Vec<f32> = random.normals(rows * width).iter().map(|x| 2.0 * x).collect();
            let Sequence { pool, pages, .. } = &kept;
            let job = Attend { shape: kept.shape, pool, pages, kv_head, group, q: &q, q_stride: width, rows, first };
            let found = run(isa, &job);
            let what = format!("{} head {head_dim}, {rows} rows at {first}", isa.name());
            for m in 0..rows {
                for h in 0..group {
                    let at = m * width + h * head_dim;
                    let seen = first + m + 1;
                    let expected = scalar::attention(&q[at..at + head_dim], &kept.keys[..seen], &kept.values[..seen]);
                    let error = relative_l2(&found[at..at + head_dim], &expected);
                    assert!(error < 5e-6, "{what}: row {m} head {h}: {error}");
                }
                let one = Attend { q: &q[m * width..], rows: 1, first: first + m, ..job };
                assert_same_bits(&run(isa, &one), &found[m * width..(m + 1) * width], &format!("{what}: row {m}"));
            }
            let mut results = vec![0.0; job.parts() * job.part_len()];
            for (part, result) in results.chunks_exact_mut(job.part_len()).enumerate().rev() {
                attend_part(isa, &job, part, result, &mut Scratch::new());
            }
            let mut merged = vec![0.0; rows * width];
            merge_parts(isa, &job, &mut results, &mut OutCols::new(&mut merged, width, 0..width));
            assert_same_bits(&merged, &found, &format!("{what}: in parts"));
        }
    }
}

#[test]
fn large_scores_stay_finite_and_large_values_are_clamped() {
    for isa in Isa::all_available() {
        let shape = KvShape { kv_heads: 1, head_dim: 16 };
        let mut pool = vec![0u16; shape.page_len()];
        store_kv(isa, shape, &mut pool, 0, &[1e3; 16], &[1e9; 16]);
        store_kv(isa, shape, &mut pool, 1, &[-1e3; 16], &[2.0; 16]);
        let job = Attend {
            shape,
            pool: &pool,
            pages: &[PageId(0)],
            kv_head: 0,
            group: 1,
            q: &[1e3; 32],
            q_stride: 16,
            rows: 2,
            first: 0,
        };
        assert_eq!(run(isa, &job), vec![65504.0; 32], "{}", isa.name());
    }
}
