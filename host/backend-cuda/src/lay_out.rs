//! A step as the device sees it.

use backend::BackendError;
use backend::step::{Emit, Feed, Run, Step, Table};
use contract::Seat;

use crate::attention::split_prompts;
use crate::delta::chunks;
use crate::forward::StepSize;
use crate::seats::{AppendUpload, RunUpload};
use crate::step::CudaBackend;

/// Whether a run is a decode to the device: also a prompt's last token that stands alone behind longer runs, unless that
/// would make its sums depend on how the prompt was cut ([`crate::CudaOptions::batch_invariant`]).
pub fn is_single(run: &Run, invariant: bool) -> bool {
    run.rows == 1 && !(invariant && matches!(run.feed, Feed::Tokens(_)))
}

impl CudaBackend {
    /// Runs as the device sees them; checks what the engine promised.
    #[allow(clippy::type_complexity, reason = "three halves of one pass over the runs")]
    pub(crate) fn lay_out(
        &self,
        step: &Step<'_>,
    ) -> Result<(Vec<RunUpload>, StepSize, Vec<(Seat, bool, Option<u8>)>), BackendError> {
        let invalid = |what: String| Err(BackendError::InvalidStep(what));
        let mut runs = Vec::with_capacity(step.runs.len());
        let mut meta = Vec::with_capacity(step.runs.len());
        let mut size = StepSize { runs: step.runs.len(), ..StepSize::decode(0) };
        for run in step.runs {
            let token0 = match &run.feed {
                Feed::Last => -1,
                Feed::Tokens(range) if range.end <= step.tokens.len() as u32 && range.end - range.start == run.rows => {
                    range.start as i32
                }
                other => return invalid(format!("seat {} is fed {other:?} for {} rows", run.seat.0, run.rows)),
            };
            let emits = match run.emit {
                Emit::Nothing | Emit::Next | Emit::Pool { .. } => run.emit.samples(),
                Emit::Every { from, .. } if from < run.rows => run.emit.samples(),
                other => {
                    return Err(BackendError::Unsupported {
                        what: format!("{other:?} on CUDA"),
                        fix: "use `--device cpu`".into(),
                    });
                }
            };
            if usize::from(run.seat.0) >= self.work.seats || run.rows == 0 || run.end_max > self.caps.context_len {
                return invalid(format!("run {run:?} of {} seats, {} tokens", self.work.seats, self.caps.context_len));
            }
            runs.push(RunUpload {
                seat: i32::from(run.seat.0),
                rows: run.rows as i32,
                row0: size.rows as i32,
                token0,
                emit: if emits { size.emits as i32 } else { -1 },
                ..RunUpload::default()
            });
            meta.push((run.seat, emits, self.logprobs[usize::from(run.seat.0)]));
            size.rows += run.rows as usize;
            size.emits += usize::from(emits);
            if is_single(run, self.model.invariant) {
                size.decodes += 1;
            } else {
                size.prefill_rows += run.rows as usize;
            }
        }
        if self.model.delta.is_some() {
            let long = step.runs.iter().filter(|run| !is_single(run, self.model.invariant));
            size.chunks = chunks(long.map(|run| run.rows));
        }
        if size.rows > self.work.max_rows || runs.len() > self.work.seats {
            return invalid(format!("{} rows, {} runs", size.rows, runs.len()));
        }
        if self.kernels.prefill.mapped && size.prefill_rows > 0 && !self.model.invariant {
            let starts: Vec<usize> =
                step.runs.iter().map(|run| run.end_max.saturating_sub(run.rows) as usize).collect();
            let multiprocessors = self.device.multiprocessors as usize;
            size.split_tiles = split_prompts(&mut runs, &starts, &self.model.shape, multiprocessors);
        }
        Ok((runs, size, meta))
    }

    pub(crate) fn appends(&self, step: &Step<'_>) -> Result<Vec<AppendUpload>, BackendError> {
        let mut appends = Vec::new();
        for table in step.tables {
            match table {
                Table::Append { seat, at, pages } => {
                    appends.extend(pages.iter().enumerate().map(|(i, page)| AppendUpload {
                        seat: i32::from(seat.0),
                        at: *at as i32 + i as i32,
                        page: page.0 as i32,
                    }));
                }
                // `saved.rs` sees to them; where there is no state, nobody saves one.
                Table::Save { .. } | Table::Load { .. } if self.saved.is_some() => {}
                other => {
                    return Err(BackendError::Unsupported {
                        what: format!("{other:?} on CUDA"),
                        fix: "use `--device cpu`".into(),
                    });
                }
            }
        }
        let fits = appends.iter().all(|a| (a.at as usize) < self.work.table_width && (a.page as u32) < self.caps.pages);
        if !fits || appends.len() > self.work.layout.appends_max {
            return Err(BackendError::InvalidStep(format!(
                "{} page appends, or one outside the tables",
                appends.len()
            )));
        }
        Ok(appends)
    }
}
