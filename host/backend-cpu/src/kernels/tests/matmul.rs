//! Products: exact integers, small errors, and the same bits for every number of rows and threads.

use backend::weights::{Weight, WeightType};

use super::{Random, TYPES, assert_same_bits, random_weight, relative_l2};
use crate::kernels::dequant::dequantize_row;
use crate::kernels::matmul::{Store, matmul};
use crate::kernels::simd::{Simd, entry};
use crate::kernels::{Isa, OutCols, PackedWeight, QuantRows, RowForms, Scratch, scalar};

const BOTH: RowForms = RowForms { codes: true, halves: true, float: true };

fn rows_of(isa: Isa, x: &[f32], cols: usize) -> QuantRows {
    let rows = x.len() / cols;
    let mut acts = QuantRows::new(rows, cols, BOTH);
    acts.set_shape(rows, cols);
    for (m, x) in x.chunks_exact(cols).enumerate() {
        acts.writer().put(isa, m, 0, x);
    }
    acts
}

fn product(isa: Isa, weight: &PackedWeight, acts: &QuantRows) -> Vec<f32> {
    let mut out = vec![0.0; acts.rows() * weight.rows()];
    let mut cols = OutCols::new(&mut out, weight.rows(), 0..weight.rows());
    matmul(isa, weight, acts, 0..weight.rows(), &mut cols, Store::Set, &mut Scratch::new());
    out
}

fn dequantized(weight: &Weight) -> Vec<Vec<f32>> {
    (0..weight.rows)
        .map(|row| {
            let mut values = vec![0.0; weight.cols];
            dequantize_row(weight.ty, weight.row(row), &mut values);
            values
        })
        .collect()
}

/// `sum_k w[n][k] x[m][k]` over the rows as they are quantised (or not).
fn reference(weight: &Weight, x: &[f32]) -> Vec<f32> {
    let values = dequantized(weight);
    x.chunks_exact(weight.cols).flat_map(|x| values.iter().map(|w| scalar::dot(w, x) as f32)).collect()
}

/// What the codes and scales of quantised rows stand for.
fn rounded(acts: &QuantRows) -> Vec<f32> {
    let mut x = Vec::new();
    for row in 0..acts.rows() {
        for block in 0..acts.cols() / 32 {
            let (codes, scale) = acts.block(row, block);
            x.extend(codes.iter().map(|&code| f32::from(code) * scale));
        }
    }
    x
}

#[test]
fn products_are_close_to_the_plain_ones() {
    for isa in Isa::all_available() {
        for ty in TYPES {
            let mut random = Random(100 + ty as u64);
            for (rows, outputs, cols) in [(1, 48, 256), (3, 100, 512), (16, 16, 768), (21, 33, 256), (40, 80, 512)] {
                let weight = random_weight(ty, outputs, cols, &mut random);
                let x = random.normals(rows * cols);
                let acts = rows_of(isa, &x, cols);
                let packed = PackedWeight::pack(&weight).unwrap();
                let found = product(isa, &packed, &acts);
                let what = format!("{} {ty:?} {rows}x{outputs}x{cols}", isa.name());
                let coded = packed.reads().codes;
                let error = relative_l2(&found, &reference(&weight, &x));
                assert!(error <= if coded { 1e-3 } else { 5e-6 }, "{what}: {error} from fp32");
                if coded {
                    // With the rounding of activations taken out, only f32 sums are left.
                    let error = relative_l2(&found, &reference(&weight, &rounded(&acts)));
                    assert!(error <= 5e-6, "{what}: {error} from the quantised rows");
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_among_any_others() {
    for isa in Isa::all_available() {
        for ty in TYPES {
            let mut random = Random(200 + ty as u64);
            let (outputs, cols) = (96, 512);
            let packed = PackedWeight::pack(&random_weight(ty, outputs, cols, &mut random)).unwrap();
            let x = random.normals(53 * cols);
            let all = product(isa, &packed, &rows_of(isa, &x, cols));
            for rows in [1, 2, 3, 5, 7, 8, 13, 16, 17, 31] {
                let found = product(isa, &packed, &rows_of(isa, &x[..rows * cols], cols));
                assert_same_bits(&found, &all[..rows * outputs], &format!("{} {ty:?}, {rows} rows", isa.name()));
            }
        }
    }
}

#[test]
fn ranges_give_the_bits_of_the_whole() {
    for isa in Isa::all_available() {
        for ty in [WeightType::Q4_1, WeightType::Q6_K, WeightType::BF16] {
            let mut random = Random(300 + ty as u64);
            let (outputs, cols, rows) = (100, 256, 19);
            let packed = PackedWeight::pack(&random_weight(ty, outputs, cols, &mut random)).unwrap();
            let acts = rows_of(isa, &random.normals(rows * cols), cols);
            let whole = product(isa, &packed, &acts);
            let mut parts = vec![1.0; rows * outputs];
            let (first, second) = OutCols::new(&mut parts, outputs, 0..outputs).split_at(48);
            std::thread::scope(|scope| {
                for (mut out, range) in [(first, 0..48), (second, 48..100)] {
                    let (packed, acts) = (&packed, &acts);
                    scope.spawn(move || matmul(isa, packed, acts, range, &mut out, Store::Set, &mut Scratch::new()));
                }
            });
            assert_same_bits(&parts, &whole, "two threads");
            let mut added = vec![1.0; rows * outputs];
            let mut out = OutCols::new(&mut added, outputs, 0..outputs);
            matmul(isa, &packed, &acts, 0..outputs, &mut out, Store::Add, &mut Scratch::new());
            let sums: Vec<f32> = whole.iter().map(|x| 1.0 + x).collect();
            assert_same_bits(&added, &sums, "added");
        }
    }
}

/// A block with NaN or infinity spoils its own row and no other.
#[test]
fn a_bad_activation_spoils_only_its_row() {
    for isa in Isa::all_available() {
        for (ty, bad) in [(WeightType::Q4_1, f32::NAN), (WeightType::Q8_0, f32::INFINITY), (WeightType::F16, f32::NAN)]
        {
            let mut random = Random(400);
            let packed = PackedWeight::pack(&random_weight(ty, 32, 64, &mut random)).unwrap();
            let mut x = random.normals(4 * 64);
            let good = product(isa, &packed, &rows_of(isa, &x, 64));
            x[64 + 40] = bad;
            let found = product(isa, &packed, &rows_of(isa, &x, 64));
            assert!(found[32..64].iter().all(|x| x.is_nan()), "{} {ty:?}", isa.name());
            assert_same_bits(&found[..32], &good[..32], "row 0");
            assert_same_bits(&found[64..], &good[64..], "rows 2 and 3");
        }
    }
}

#[test]
fn tiny_and_zero_blocks_are_finite() {
    for isa in Isa::all_available() {
        for value in [0.0, 1e-44, -1e-38] {
            let acts = rows_of(isa, &[value; 32], 32);
            let (codes, scale) = acts.block(0, 0);
            assert!(scale.is_finite() && codes.iter().all(|&code| code == 0 || scale > 0.0), "{value}: {scale}");
        }
    }
}

entry!(unsafe fn dots = dots_on(w: &[u8], x: &[i8], bias: i32, offset: bool) -> [f32; 16]);

/// # Safety
/// `w` has 512 bytes, `x` 64.
#[inline(always)]
unsafe fn dots_on<S: Simd>(w: &[u8], x: &[i8], bias: i32, offset: bool) -> [f32; 16] {
    assert!(w.len() == 512 && x.len() == 64);
    let mut out = [0.0; 16];
    // SAFETY: the lengths are asserted; the instruction set is the caller's promise.
    unsafe {
        let w = [0, 1, 2, 3, 4, 5, 6, 7].map(|g| S::bytes(w.as_ptr().add(64 * g)));
        let dot = if offset { S::dot::<true>(&w, x.as_ptr(), bias) } else { S::dot::<false>(&w, x.as_ptr(), 0) };
        S::store(out.as_mut_ptr(), dot);
    }
    out
}

/// Random codes, and the largest of both signs, which must not overflow anywhere.
#[test]
fn integer_dots_are_exact() {
    let mut random = Random(500);
    for isa in Isa::all_available() {
        for case in 0..200 {
            let offset = case % 2 == 0;
            let x: Vec<i32> = (0..32)
                .map(|_| match case % 5 {
                    0 => 2032,
                    1 => -2032,
                    _ => random.below(4065) as i32 - 2032,
                })
                .collect();
            let high = |x: &i32| (*x as f32 / 16.0).round_ties_even() as i32;
            let bytes: Vec<i8> =
                x.iter().map(high).chain(x.iter().map(|x| x - 16 * high(x))).map(|x| x as i8).collect();
            let most = if offset { 255 } else { 63 };
            let w: Vec<u8> = (0..512)
                .map(|_| match case % 3 {
                    0 => most,
                    1 => random.below(usize::from(most) + 1) as u8,
                    _ => 0,
                })
                .collect();
            let zero = if offset { 128 } else { 0 };
            let bias = -zero / 16 * x.iter().sum::<i32>();
            // SAFETY: the lengths are 512 and 64.
            let found = unsafe { dots(isa, &w, &bytes, bias, offset) };
            for (output, found) in found.into_iter().enumerate() {
                let expected: i32 =
                    (0..32).map(|k| (i32::from(w[k / 4 * 64 + 4 * output + k % 4]) - zero) * x[k]).sum();
                assert_eq!(found, expected as f32, "{} case {case} output {output}", isa.name());
            }
        }
    }
}
