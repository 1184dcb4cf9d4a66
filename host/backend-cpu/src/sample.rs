//! Sampling of the open step.

use backend::BackendError;
use backend::sampler::Draw;
use backend::step::{Mask, RunOut, SeatFault};
use contract::TokenId;
use contract::sampling::TokenLogprobs;

use crate::cpu::CpuBackend;
use crate::invalid;
use crate::pool::{Shares, Tickets};

pub(crate) type Drawn = Option<(TokenId, Option<TokenLogprobs>)>;

impl CpuBackend {
    /// Draws a token for each run that emits one, the runs shared among the threads, and fills the step's outcome.
    pub(crate) fn draw(&mut self, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        self.check_masks(masks)?;
        self.draw_all(masks)?;
        let mut all_drawn = std::mem::take(&mut self.drawn);
        let Some(open) = &mut self.open else { return Err(invalid("no step is open")) };
        let out = &mut open.out;
        // What leaves the backend is all that a step allocates.
        out.runs.reserve_exact(self.runs.len());
        out.tokens.reserve_exact(self.head_rows.len());
        // A run's logprobs are one range: those of its prompt, already there, then that of its token.
        let prompt_logprobs = std::mem::take(&mut out.logprobs);
        for (index, (run, drawn)) in self.runs.iter().zip(all_drawn.drain(..)).enumerate() {
            let (token_start, logprob_start) = (out.tokens.len() as u32, out.logprobs.len() as u32);
            out.logprobs.extend_from_slice(&prompt_logprobs[run.logprobs.start as usize..run.logprobs.end as usize]);
            let mut fault = None;
            let mut done = run.skipped;
            if run.logits.is_some()
                && let Some(state) = self.seats.open_mut(run.seat)
            {
                match drawn {
                    Some((token, logprobs)) => {
                        out.tokens.push(token);
                        out.logprobs.extend(logprobs);
                        state.last = Some(token);
                        state.generated += 1;
                        if let Some(counts) = &mut state.counts {
                            counts.push(token);
                        }
                        done = state.sampling.stop_tokens.contains(&token);
                        state.done = done;
                    }
                    None => {
                        let masked = masks.iter().any(|mask| mask.run as usize == index);
                        let why = if masked { "the grammar allows no token" } else { "no logit is a finite number" };
                        fault = Some(SeatFault::Error(format!("{why} at position {}", run.end)));
                        state.done = true;
                        done = true;
                    }
                }
            }
            out.runs.push(RunOut {
                tokens: token_start..out.tokens.len() as u32,
                accepted: 0,
                end: run.end,
                done,
                logprobs: logprob_start..out.logprobs.len() as u32,
                pooled: run.pooled.clone(),
                fault,
            });
        }
        self.drawn = all_drawn;
        Ok(())
    }

    fn check_masks(&self, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        for (i, mask) in masks.iter().enumerate() {
            let run = self.runs.get(mask.run as usize);
            if run.is_none_or(|run| !run.masked) || mask.row != 0 {
                return Err(invalid(format!("a mask for row {} of run {}, which is not masked", mask.row, mask.run)));
            }
            if mask.bits.len() != self.caps.mask_words as usize {
                let (found, expected) = (mask.bits.len(), self.caps.mask_words);
                return Err(invalid(format!("the mask of run {} has {found} words, expected {expected}", mask.run)));
            }
            if masks[..i].iter().any(|other| other.run == mask.run) {
                return Err(invalid(format!("run {} has two masks", mask.run)));
            }
        }
        let missing =
            self.runs.iter().enumerate().find(|(i, run)| {
                run.masked && run.logits.is_some() && !masks.iter().any(|mask| mask.run as usize == *i)
            });
        match missing {
            Some((i, _)) => Err(invalid(format!("run {i} is masked, but no mask came"))),
            None => Ok(()),
        }
    }

    /// Fills `drawn`, one for each run.
    fn draw_all(&mut self, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        let vocab = self.caps.vocab as usize;
        self.drawn.clear();
        self.drawn.resize_with(self.runs.len(), || None);
        let emitting = self.runs.iter().filter(|run| run.logits.is_some()).count();
        let results = Shares::new(&mut self.drawn);
        let (logits, samplers) = (Shares::new(&mut self.logits), Shares::new(&mut self.samplers));
        let (runs, seats) = (&self.runs, &self.seats);
        let draw = |thread: usize, i: usize| {
            let run = &runs[i];
            let (Some(at), Some(state)) = (run.logits, seats.open(run.seat)) else { return };
            let draw = Draw {
                params: &state.sampling,
                seed: state.seed,
                position: run.end,
                generated: state.generated,
                counts: state.counts.as_ref(),
                mask: masks.iter().find(|mask| mask.run as usize == i).map(|mask| mask.bits),
            };
            // SAFETY: each run is one item and has logits and a result of its own; each thread has its own sampler.
            let (logits, result, sampler) = unsafe {
                (logits.get(at * vocab..(at + 1) * vocab), results.get(i..i + 1), samplers.get(thread..thread + 1))
            };
            result[0] = sampler[0].sample(logits, &draw);
        };
        let pool = self.interpreter.pool();
        let ran = if emitting <= 1 {
            crate::pool::ThreadPool::run_here(|| (0..runs.len()).for_each(|i| draw(0, i)))
        } else {
            let tickets = Tickets::new(runs.len(), 1);
            pool.run(&|thread| {
                while let Some(range) = tickets.take() {
                    range.for_each(|i| draw(thread, i));
                }
            })
        };
        if ran.is_err() {
            return Err(self.failed("sample"));
        }
        Ok(())
    }
}
