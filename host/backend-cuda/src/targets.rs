//! Every kernel for a card that is not there: what CI compiles.

use std::path::Path;

use backend::BackendError;
use backend::ops::{AttentionShape, DeltaShape, GateFn, HeadOrder};

use crate::block_products::Uses;
use crate::compile::{Compiler, Target};
use crate::delta::StateType;
use crate::forward::Kernels;
use crate::load::model_flags;
use crate::products::Fp8Scales;

/// Compute capabilities times ten, from Volta to Blackwell.
pub const TARGETS: [u32; 8] = [70, 75, 80, 86, 89, 90, 100, 120];

/// Every head size, and a group that divides nothing evenly.
const SHAPES: [AttentionShape; 5] = [
    AttentionShape { heads: 32, kv_heads: 8, head_dim: 128, gated: false },
    AttentionShape { heads: 9, kv_heads: 3, head_dim: 64, gated: false },
    AttentionShape { heads: 6, kv_heads: 2, head_dim: 96, gated: false },
    AttentionShape { heads: 8, kv_heads: 2, head_dim: 256, gated: false },
    AttentionShape { heads: 16, kv_heads: 4, head_dim: 256, gated: true },
];

/// Of a hybrid's linear layers; cards before 8.0 have no kernels for them.
const DELTA: DeltaShape = DeltaShape {
    key_heads: 16,
    value_heads: 32,
    key_dim: 128,
    value_dim: 128,
    conv: 4,
    order: HeadOrder::Grouped,
    gate: GateFn::Silu,
};

/// Where every shape is compiled: shapes differ in loop counts, not in instructions.
const EVERY_SHAPE: [u32; 2] = [75, 90];

/// The 16-bit types: f16 alone before 8.0; where there are both, one target compiles both.
fn types(machine: u32) -> Vec<bool> {
    match machine {
        ..80 => vec![true],
        90 => vec![false, true],
        _ => vec![false],
    }
}

/// Compiles all kernels for a target, with NVRTC alone. Gives how many were compiled, and how many the cache held.
pub fn compile_for(machine: u32, cache: Option<&Path>) -> Result<(u32, u32), BackendError> {
    // SAFETY: the call only tries to open a shared library.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(BackendError::Unsupported {
            what: "the compilation of kernels: NVRTC (libnvrtc.so) is not on the loader's path".into(),
            fix: "add its folder to LD_LIBRARY_PATH".into(),
        });
    }
    let (mut compiled, mut cached) = (0, 0);
    for f16 in types(machine) {
        for (index, shape) in SHAPES.iter().enumerate() {
            // FP8 kernels know nothing of heads.
            let scales: &[_] = match index {
                0 => &[Some(Fp8Scales::Rows), Some(Fp8Scales::Blocks)],
                _ if EVERY_SHAPE.contains(&machine) => &[None],
                _ => continue,
            };
            for &fp8 in scales {
                let target = Target { machine, arch: machine, f16 };
                let rotated = if shape.gated { shape.head_dim / 4 } else { shape.head_dim };
                let mut compiler = Compiler::new(None, target, cache, &model_flags(shape, rotated, false))?;
                // Block formats know nothing of heads, and are compiled once.
                let blocks = if fp8 == Some(Fp8Scales::Rows) { Uses::samples() } else { Uses::default() };
                let ffn = (index == 0).then_some((12_288, 4096));
                Kernels::compile(&mut compiler, shape, fp8, &blocks, ffn)?;
                if index == 0 && machine >= 80 {
                    for form in [(StateType::F32, false), (StateType::F32, true), (StateType::Bf16, false)] {
                        crate::delta::kernels(&mut compiler, &DELTA, form)?;
                    }
                    crate::delta::gates_kernel(&mut compiler)?;
                    crate::saved::kernel(&mut compiler)?;
                }
                compiled += compiler.compiled;
                cached += compiler.cached;
            }
        }
    }
    Ok((compiled, cached))
}
