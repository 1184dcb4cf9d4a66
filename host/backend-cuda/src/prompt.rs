//! What prompts give beside their next token: logprobs of their own tokens, and pooled hidden states.
//!
//! Both are rare and large, so they are read a tile of rows at a time, behind the forward pass and before the next one may
//! begin: the step waits for them.

use backend::BackendError;
use backend::sampler::raw_logprobs;
use backend::step::{Emit, Run, Step};
use contract::TokenId;
use contract::sampling::TokenLogprobs;
use cudarc::driver::result;

use crate::device::{Buffer, Pinned, fault};
use crate::seats::bytes_of;
use crate::step::CudaBackend;

/// Rows of logits at a time: 39 MB of a vocabulary of 150,000.
const TILE: usize = 64;

/// Of one run; empty for runs that want neither.
#[derive(Default)]
pub struct PromptOut {
    pub logprobs: Vec<TokenLogprobs>,
    pub pooled: Vec<f32>,
}

/// Allocated when somebody first asks.
pub struct PromptBuffers {
    picks: Buffer,
    logits: Buffer,
    host: Pinned,
}

/// Whether a run wants more than its next token.
pub fn wanted(run: &Run) -> bool {
    matches!(run.emit, Emit::Every { .. } | Emit::Pool { .. })
}

impl CudaBackend {
    /// One entry for each of the step's runs, or none at all when nobody asked.
    pub(crate) fn read_prompts(&mut self, step: &Step<'_>) -> Result<Vec<PromptOut>, BackendError> {
        if !step.runs.iter().any(wanted) {
            return Ok(Vec::new());
        }
        if self.prompt.is_none() {
            let row_bytes = (self.model.vocab * 4).max(self.model.hidden * 2);
            self.prompt = Some(PromptBuffers {
                picks: self.device.alloc("picked rows", TILE * 4)?,
                logits: self.device.alloc("logits of prompts", TILE * row_bytes)?,
                host: Pinned::new(&self.device, TILE * row_bytes)?,
            });
        }
        let mut first = 0;
        let mut outs = Vec::with_capacity(step.runs.len());
        for run in step.runs {
            let rows = first..first + run.rows as usize;
            first = rows.end;
            let mut out = PromptOut::default();
            match run.emit {
                Emit::Every { from, top, next } => {
                    let backend::step::Feed::Tokens(tokens) = &run.feed else {
                        return Err(BackendError::InvalidStep("logprobs of a prompt without its tokens".into()));
                    };
                    let tokens = &step.tokens[tokens.start as usize..tokens.end as usize];
                    let targets: Vec<TokenId> = tokens[from as usize + 1..].iter().copied().chain(next).collect();
                    let first = rows.start + from as usize;
                    self.prompt_logprobs(first..first + targets.len(), &targets, top, &mut out)?;
                }
                Emit::Pool { mean } => {
                    let rows = if mean { rows } else { rows.end - 1..rows.end };
                    self.pool(rows, &mut out)?;
                }
                Emit::Nothing | Emit::Next | Emit::Verify => {}
            }
            outs.push(out);
        }
        Ok(outs)
    }

    /// Row `r` says how likely the token of row `r + 1` was.
    fn prompt_logprobs(
        &mut self,
        rows: std::ops::Range<usize>,
        targets: &[TokenId],
        top: u8,
        out: &mut PromptOut,
    ) -> Result<(), BackendError> {
        let (row_bytes, used) = (self.model.vocab * 4, self.model.vocab_used);
        let rows: Vec<usize> = rows.collect();
        for (rows, targets) in rows.chunks(TILE).zip(targets.chunks(TILE)) {
            let host = self.tile(rows, row_bytes, true)?;
            for (bytes, &target) in host.chunks_exact(row_bytes).zip(targets) {
                let logits: Vec<f32> =
                    bytes.chunks_exact(4).take(used).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                out.logprobs.push(raw_logprobs(&logits, target, top));
            }
        }
        Ok(())
    }

    /// The mean of some rows' hidden states after the last norm.
    fn pool(&mut self, rows: std::ops::Range<usize>, out: &mut PromptOut) -> Result<(), BackendError> {
        let (row_bytes, f16) = (self.model.hidden * 2, self.model.f16);
        out.pooled.resize(self.model.hidden, 0.0);
        let count = rows.len() as f32;
        let rows: Vec<usize> = rows.collect();
        for rows in rows.chunks(TILE) {
            let host = self.tile(rows, row_bytes, false)?;
            for bytes in host.chunks_exact(row_bytes).take(rows.len()) {
                for (sum, b) in out.pooled.iter_mut().zip(bytes.chunks_exact(2)) {
                    let value = match f16 {
                        true => half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
                        false => half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
                    };
                    *sum += value / count;
                }
            }
        }
        Ok(())
    }

    /// Logits, or normed hidden rows, of a tile of the step's rows, on the host.
    fn tile(&mut self, rows: &[usize], row_bytes: usize, logits: bool) -> Result<&[u8], BackendError> {
        // Always whole tiles, so that the library knows one shape: the last row stands in for the missing ones.
        let picks: Vec<i32> = (0..TILE).map(|i| rows[i.min(rows.len() - 1)] as i32).collect();
        let buffers = self.prompt.as_ref().ok_or_else(|| fault("prompt outputs", "no buffers"))?;
        let (to, at) = (buffers.picks.pointer, buffers.logits.pointer);
        let stream = self.device.stream.cu_stream();
        // SAFETY: the buffer has a tile's picks; the pageable source is copied before the call returns.
        unsafe { result::memcpy_htod_async(to, bytes_of(&picks), stream) }
            .map_err(|e| fault("cuMemcpyHtoDAsync", e))?;
        let from = self.forward().head_rows(to, TILE, logits.then_some(at))?;
        let buffers = self.prompt.as_mut().ok_or_else(|| fault("prompt outputs", "no buffers"))?;
        let host = &mut buffers.host.as_mut_slice()[..rows.len() * row_bytes];
        // SAFETY: page-locked and waited for below; the device's rows are as many and as long.
        unsafe { result::memcpy_dtoh_async(host, from, stream) }.map_err(|e| fault("cuMemcpyDtoHAsync", e))?;
        self.device.synchronize()?;
        let buffers = self.prompt.as_ref().ok_or_else(|| fault("prompt outputs", "no buffers"))?;
        Ok(&buffers.host.as_slice()[..rows.len() * row_bytes])
    }
}
