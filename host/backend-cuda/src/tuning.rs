//! Which of the library's products are fastest for chunks of prompts, found by running them when a model is loaded.

use backend::BackendError;

use crate::blas::{ROWS_TILE, library_rows};
use crate::delta::Delta;
use crate::forward::{DeviceOp, Forward};
use crate::products::Epilogue;
use crate::step::CudaBackend;

/// Chunks up to so many rows have their products chosen by measurement.
const TUNED_ROWS_MAX: usize = 1024;
/// Layers whose products are timed: more weights than the caches hold.
const TUNED_LAYERS: usize = 6;

/// Rows of prompts for which products are chosen by measurement.
fn tuned_rows(rows_max: usize) -> impl Iterator<Item = usize> {
    (ROWS_TILE..=TUNED_ROWS_MAX.min(rows_max)).step_by(ROWS_TILE).filter(|&rows| library_rows(rows) == rows)
}

impl CudaBackend {
    /// Chooses the products of chunks by measurement; which one the library would take is often not the fastest.
    pub(crate) fn tune_prompts(&mut self) -> Result<(), BackendError> {
        for rows in tuned_rows(self.work.max_rows) {
            self.blas.record();
            self.forward().sample_products(rows)?;
            self.device.synchronize()?;
            self.blas.tune(&self.device)?;
        }
        Ok(())
    }
}

impl Forward<'_> {
    /// Every product of the first layers as a step of `m` rows has it, on whatever the buffers hold.
    fn sample_products(&mut self, m: usize) -> Result<(), BackendError> {
        let (model, w) = (self.model, self.work);
        let (hidden, ffn) = (model.hidden, model.ffn);
        for op in model.ops.iter().filter(|op| op.matrix().is_some()).take(4 * TUNED_LAYERS) {
            match op {
                DeviceOp::NormQkv { weight, .. } => {
                    let n = model.shape.mix_width();
                    self.library(Epilogue::Store, w.mix.pointer, w.normed.pointer, weight, (m, n, hidden))?;
                }
                DeviceOp::NormDelta { weight, .. } => {
                    let n = model.delta.as_ref().map_or(0, Delta::mix_width);
                    self.library(Epilogue::Store, w.mix.pointer, w.normed.pointer, weight, (m, n, hidden))?;
                }
                DeviceOp::OutResidual { weight, k } => {
                    self.library(Epilogue::AddResidual, w.h.pointer, w.attended.pointer, weight, (m, hidden, *k))?;
                }
                DeviceOp::NormGateUp { weight, .. } if self.gate_up_kernel(m).is_none() => {
                    self.library(Epilogue::SiluMul, w.act.pointer, w.normed.pointer, weight, (m, ffn, hidden))?;
                }
                DeviceOp::DownResidual { weight } => {
                    self.library(Epilogue::AddResidual, w.h.pointer, w.act.pointer, weight, (m, hidden, ffn))?;
                }
                DeviceOp::Embed { .. }
                | DeviceOp::RopeKv { .. }
                | DeviceOp::Attend { .. }
                | DeviceOp::DeltaRule(_)
                | DeviceOp::NormGateUp { .. }
                | DeviceOp::Head { .. } => {}
            }
        }
        Ok(())
    }
}
