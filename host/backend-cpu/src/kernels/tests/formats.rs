//! Packing keeps every value to the bit.

use backend::weights::{SharedBytes, Weight};

use super::{Random, TYPES, assert_same_bits, random_weight};
use crate::kernels::PackedWeight;
use crate::kernels::dequant::dequantize_row;

fn check_unpack(weight: &Weight) {
    let packed = PackedWeight::pack(weight).expect("test shapes can be packed");
    for row in 0..weight.rows {
        let mut expected = vec![0.0; weight.cols];
        dequantize_row(weight.ty, weight.row(row), &mut expected);
        let mut found = vec![0.0; weight.cols];
        packed.unpack_row(row, &mut found);
        assert_same_bits(&found, &expected, &format!("{:?} row {row}", weight.ty));
    }
}

#[test]
fn unpacking_gives_the_files_values_to_the_bit() {
    for ty in TYPES {
        let mut random = Random(1 + ty as u64);
        for (rows, cols) in [(1, 256), (16, 512), (37, 768)] {
            check_unpack(&random_weight(ty, rows, cols, &mut random));
            // Any bytes at all: infinite, tiny and NaN scales too.
            let bytes = random.bytes(rows * ty.row_bytes(cols).unwrap());
            check_unpack(&Weight::new("any", ty, rows, cols, SharedBytes::from_vec(bytes)).unwrap());
        }
    }
}

#[test]
fn packing_follows_the_row_order() {
    let mut random = Random(7);
    let weight = random_weight(backend::weights::WeightType::Q4_1, 48, 64, &mut random);
    let order: Vec<u32> = (0..48).rev().collect();
    check_unpack(&weight.with_row_order(order.into()).unwrap());
}

#[test]
fn columns_that_are_not_whole_blocks_are_refused() {
    let mut random = Random(8);
    let weight = random_weight(backend::weights::WeightType::F32, 2, 48, &mut random);
    let error = PackedWeight::pack(&weight).unwrap_err().to_string();
    assert_eq!(error, "weight `test`: 48 columns; the CPU kernels need a multiple of 32");
}
