//! Gate, up and the activation in one kernel, for 16-bit weights and steps of 17 to 128 rows on Hopper.
//!
//! The library is as fast at the product alone, but leaves rows of twice the width for another kernel to read, and begins
//! only when the kernel before has ended; this one has its first weights by then.

use backend::BackendError;

use crate::blas::library_rows;
use crate::compile::{Compiler, Kernel};
use crate::device::Buffer;
use crate::forward::Forward;
use crate::launch::{Args, HOPPER_SHARED_MAX, Shape};
use crate::tensor_map::tensor_map;

/// The kernel's ROWS: a step takes the fewest that hold it.
const ROWS: [usize; 3] = [32, 64, 128];
/// Columns of the activation for each warpgroup of a block, and values of k of a stage.
const GROUP_OUTPUTS: usize = 32;
const STEP: usize = 64;
/// Fewer blocks leave multiprocessors idle: then a block gets fewer warpgroups.
const BLOCKS_MIN: usize = 96;
/// More stages are of no use.
const STAGES_MAX: usize = 10;

/// The kernel of up to `rows` rows.
pub struct GateUp {
    rows: usize,
    groups: usize,
    kernel: Kernel,
    shared_bytes: u32,
}

impl GateUp {
    /// By their rows; none where there is no kernel for the card or the shape.
    pub fn compile(compiler: &mut Compiler<'_>, ffn: usize, hidden: usize) -> Result<Vec<Self>, BackendError> {
        if compiler.target.arch != 90 || !ffn.is_multiple_of(8) || !hidden.is_multiple_of(8) {
            return Ok(Vec::new());
        }
        let groups = (2..=3).rev().find(|groups| ffn.div_ceil(groups * GROUP_OUTPUTS) >= BLOCKS_MIN).unwrap_or(1);
        let of = |rows: usize| {
            let stages = stages(rows, groups);
            let flags = [("ROWS", rows), ("GROUPS", groups), ("STAGES", stages)];
            let kernel = compiler.kernel(kernels::GATE_UP_SM90, &flags)?;
            let shared_bytes = (stages * (stage_bytes(rows, groups) + BARRIERS)) as u32;
            kernel.allow_shared(shared_bytes)?;
            Ok(Self { rows, groups, kernel, shared_bytes })
        };
        ROWS.into_iter().map(of).collect()
    }
}

/// Two barriers a stage.
const BARRIERS: usize = 16;

fn stage_bytes(rows: usize, groups: usize) -> usize {
    (2 * groups * GROUP_OUTPUTS + rows) * STEP * 2
}

fn stages(rows: usize, groups: usize) -> usize {
    (HOPPER_SHARED_MAX / (stage_bytes(rows, groups) + BARRIERS)).min(STAGES_MAX)
}

impl Forward<'_> {
    /// The kernel for such a step, where it has one.
    pub(crate) fn gate_up_kernel(&self, m: usize) -> Option<&GateUp> {
        self.kernels.products.gate_up.iter().find(|kernel| m <= kernel.rows).filter(|_| !self.few(m))
    }

    /// `act = silu(gate x) * (up x)`; `weights` are `n` rows of gate, then `n` of up.
    pub(crate) fn gate_up(
        &self,
        GateUp { rows, groups, kernel, shared_bytes }: &GateUp,
        (act, x): (u64, u64),
        weights: &Buffer,
        (m, n, k): (usize, usize, usize),
    ) -> Result<(), BackendError> {
        let outputs = groups * GROUP_OUTPUTS;
        let stride = [k * 2];
        let weights = tensor_map(weights.pointer, &[(k, STEP), (2 * n, outputs)], &stride)?;
        let x = tensor_map(x, &[(k, STEP), (library_rows(self.work.max_rows), *rows)], &stride)?;
        let args = Args::default().pointer(act).words(&weights.opaque).words(&x.opaque).int(m).int(n).int(k);
        let shape = Shape::new(n.div_ceil(outputs) as u32, (128 * groups + 32) as u32);
        kernel.launch(self.device, shape.shared(*shared_bytes), args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ring holds the sums of all its rows in the end, a pitch of four f32 beside each, and fits.
    #[test]
    fn rings_hold_the_sums() {
        for rows in ROWS {
            for groups in 1..=3 {
                let ring = stages(rows, groups) * stage_bytes(rows, groups);
                let sums = rows * (2 * groups * GROUP_OUTPUTS + 4) * 4;
                assert!(
                    sums <= ring && ring + stages(rows, groups) * BARRIERS <= HOPPER_SHARED_MAX,
                    "{rows} rows, {groups}"
                );
            }
        }
    }
}
