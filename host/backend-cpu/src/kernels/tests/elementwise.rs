//! Row operations against their plain forms.

use super::{Random, assert_same_bits, relative_l2};
use crate::kernels::elementwise::{argmax, exp, exp2, log_sum_exp, rms_norm, rope, rope_angles, silu_mul, softmax};
use crate::kernels::simd::{Simd, entry};
use crate::kernels::{Isa, QuantRows, RowForms, scalar};

entry!(unsafe fn exps = exps_on(x: &[f32; 16]) -> ([f32; 16], [f32; 16]));

/// # Safety
/// The processor has `S`.
#[inline(always)]
unsafe fn exps_on<S: Simd>(x: &[f32; 16]) -> ([f32; 16], [f32; 16]) {
    let (mut e, mut two) = ([0.0; 16], [0.0; 16]);
    // SAFETY: the arrays have 16 elements; the instruction set is the caller's promise.
    unsafe {
        S::store(e.as_mut_ptr(), exp::<S>(S::load(x.as_ptr())));
        S::store(two.as_mut_ptr(), exp2::<S>(S::load(x.as_ptr())));
    }
    (e, two)
}

#[test]
fn exponentials_are_within_1e_6() {
    let mut random = Random(1);
    for isa in Isa::all_available() {
        for _ in 0..20_000 {
            let x: [f32; 16] = std::array::from_fn(|_| random.below(1_740_000) as f32 / 10_000.0 - 87.0);
            // SAFETY: no conditions beyond the instruction set.
            let (e, two) = unsafe { exps(isa, &x) };
            for ((x, e), two) in x.into_iter().zip(e).zip(two) {
                let exact = f64::from(x).exp();
                assert!((f64::from(e) / exact - 1.0).abs() < 1e-6, "{}: e^{x} = {e}", isa.name());
                let exact = f64::from(x).exp2();
                assert!((f64::from(two) / exact - 1.0).abs() < 1e-6, "{}: 2^{x} = {two}", isa.name());
            }
        }
        // SAFETY: as above.
        let (e, two) = unsafe { exps(isa, &[f32::NAN; 16]) };
        assert!(e[0].is_nan() && two[0].is_nan());
        // SAFETY: as above.
        let (e, two) = unsafe { exps(isa, &[f32::NEG_INFINITY; 16]) };
        assert!(e[0] < 1e-37 && two[0] < 2e-38 && e[0] > 0.0);
    }
}

#[test]
fn norm_and_activation() {
    let mut random = Random(2);
    for isa in Isa::all_available() {
        for len in [16, 64, 576, 4096] {
            let (x, w) = (random.normals(len), random.normals(len));
            let mut out = vec![0.0; len];
            rms_norm(isa, &x, &w, 1e-5, &mut out);
            assert!(relative_l2(&out, &scalar::rms_norm(&x, &w, 1e-5)) < 1e-6);
            let wide: Vec<f32> = x.iter().map(|x| 30.0 * x).collect();
            silu_mul(isa, &wide, &w, &mut out);
            assert!(relative_l2(&out, &scalar::silu_mul(&wide, &w)) < 1e-6);
        }
    }
}

/// Norm and activation into quantised rows give the codes of the plain operation put in afterwards.
#[test]
fn fused_rows_are_those_of_two_steps() {
    let mut random = Random(3);
    let forms = RowForms { codes: true, halves: true, float: true };
    for isa in Isa::all_available() {
        let (x, w) = (random.normals(192), random.normals(192));
        let (mut fused, mut plain) = (QuantRows::new(2, 192, forms), QuantRows::new(2, 192, forms));
        fused.set_shape(2, 192);
        plain.set_shape(2, 192);
        let mut out = vec![0.0; 192];
        rms_norm(isa, &x, &w, 1e-5, &mut out);
        fused.writer().put_rms_norm(isa, 0, &x, &w, 1e-5);
        plain.writer().put(isa, 0, 0, &out);
        silu_mul(isa, &x, &w, &mut out);
        fused.writer().put_silu_mul(isa, 1, 0, &x[..64], &w[..64]);
        fused.writer().put_silu_mul(isa, 1, 64, &x[64..], &w[64..]);
        plain.writer().put(isa, 1, 0, &out);
        for row in 0..2 {
            for block in 0..6 {
                assert_eq!(fused.block(row, block), plain.block(row, block), "{} row {row}", isa.name());
            }
        }
    }
}

#[test]
fn rotary_embedding() {
    let mut random = Random(4);
    for isa in Isa::all_available() {
        for (head_dim, dims) in [(64, 64), (128, 128), (80, 80), (256, 64), (16, 8)] {
            let inv_freq: Vec<f32> = (0..dims / 2).map(|j| 1e4f32.powf(-2.0 * j as f32 / dims as f32)).collect();
            let (mut cos, mut sin) = (vec![0.0; dims / 2], vec![0.0; dims / 2]);
            rope_angles(&inv_freq, 1234, &mut cos, &mut sin);
            let mut head = random.normals(head_dim);
            let mut expected = head.clone();
            scalar::rope(&mut expected, &inv_freq, 1234);
            rope(isa, &mut head, &cos, &sin);
            assert!(relative_l2(&head, &expected) < 1e-4, "{} {head_dim}", isa.name());
            assert_same_bits(&head[dims..], &expected[dims..], "beyond the pairs");
        }
    }
}

#[test]
fn reductions_over_logits() {
    let mut random = Random(5);
    for isa in Isa::all_available() {
        for len in [1, 15, 16, 511, 512, 513, 49_152] {
            let mut x = random.normals(len);
            let at = random.below(len);
            x[at] = 50.0;
            if at + 3 < len {
                x[at + 3] = 50.0;
            }
            assert_eq!(argmax(isa, &x), Some((at, 50.0)), "{} {len}", isa.name());
            let total: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
            assert!((f64::from(log_sum_exp(isa, &x)) - total.ln()).abs() < 1e-4);
            let expected: Vec<f32> = x.iter().map(|&x| (f64::from(x).exp() / total) as f32).collect();
            softmax(isa, &mut x);
            assert!(relative_l2(&x, &expected) < 2e-5);
        }
        assert_eq!(argmax(isa, &[f32::NAN, -1.0, f32::NAN, 2.0]), Some((3, 2.0)));
        assert_eq!(argmax(isa, &[]), None);
        assert_eq!(argmax(isa, &[f32::NAN]), None);
        assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 3]), Some((0, f32::NEG_INFINITY)));
        assert_eq!(log_sum_exp(isa, &[f32::NEG_INFINITY; 20]), f32::NEG_INFINITY);
    }
}
