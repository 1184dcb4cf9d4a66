//! The backend that the engine drives: uploads, forward passes (eager or by graph), sampling, results.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use backend::load::LoadOptions;
use backend::ops::DELTA_CHUNK;
use backend::sampler::raw_logprobs;
use backend::step::{Caps, Mask, RunOut, SeatFault, SeatInit, Step, StepOut, Ticket};
use backend::{Backend, BackendError};
use contract::{PAGE_TOKENS, Seat, TokenId};
use cudarc::driver::{CudaEvent, CudaGraph, result, sys};

use crate::blas::{Blas, LARGE_ROWS_TILE, ROWS_TILE};
use crate::device::{Device, Pinned, fault};
use crate::forward::{DeviceModel, Forward, Kernels, SAMPLE_PARTS_MAX, StepSize, Workspace};
use crate::fp8_products::Fp8Work;
use crate::launch::{Args, Shape};
use crate::products::FEW_ROWS_MAX;
use crate::prompt::{self, PromptBuffers, PromptOut};
use crate::saved::{SavedStates, States};
use crate::seats::{AppendUpload, RunUpload, SaveUpload, SeatUpload, StepUpload, bytes_of, captured_sizes, history};

/// Steps that may be launched before the oldest is collected.
const IN_FLIGHT: usize = 2;

/// A launched step, until it is collected.
struct Open {
    ticket: Ticket,
    ring: usize,
    size: StepSize,
    graph: Option<(u16, u8)>,
    /// Seat, whether it emits, and its wanted logprobs, per run.
    runs: Vec<(Seat, bool, Option<u8>)>,
    prompts: Vec<PromptOut>,
    sampled: bool,
}

/// Host memory and events of one step in flight.
struct Ring {
    upload: Pinned,
    out: Pinned,
    masks: Option<Pinned>,
    /// Untouched logits of the step's rows, copied only when somebody wants logprobs.
    logits: Option<Pinned>,
    begun: CudaEvent,
    ended: CudaEvent,
}

pub struct CudaBackend {
    // Fields drop in this order: graphs and buffers before the context that `device` holds.
    graphs: HashMap<usize, CudaGraph>,
    rings: Vec<Ring>,
    pub(crate) blas: Blas,
    fp8: Option<Fp8Work>,
    pub(crate) kernels: Kernels,
    pub(crate) work: Workspace,
    pub(crate) model: DeviceModel,
    /// Of a model with recurrent layers.
    pub(crate) saved: Option<SavedStates>,
    pub(crate) caps: Caps,
    pub(crate) logprobs: Vec<Option<u8>>,
    pub(crate) prompt: Option<PromptBuffers>,
    open: VecDeque<Open>,
    next_ticket: u64,
    fault: Option<BackendError>,
    pub(crate) device: Device,
}

// SAFETY: graphs hold raw handles; one thread drives the backend, and every call binds the context first.
unsafe impl Send for CudaBackend {}

impl CudaBackend {
    #[allow(clippy::too_many_arguments, reason = "called once, by the loader")]
    pub(crate) fn new(
        device: Device,
        model: DeviceModel,
        kernels: Kernels,
        work: Workspace,
        (blas, fp8, saved): (Blas, Option<Fp8Work>, Option<SavedStates>),
        options: &LoadOptions,
        context_len: u32,
        pages: u32,
        graphs: bool,
    ) -> Result<Self, BackendError> {
        let sizes = if graphs { captured_sizes(usize::from(options.seats)) } else { Vec::new() };
        let caps = Caps {
            vocab: model.vocab as u32,
            context_len,
            seats: options.seats,
            pages,
            page_tokens: PAGE_TOKENS,
            recurrent: model.delta.is_some(),
            state_slots: saved.as_ref().map_or(0, SavedStates::slots),
            adapters: 0,
            max_rows: options.max_rows,
            max_query: 1,
            in_flight: IN_FLIGHT as u8,
            resume_align: if model.delta.is_some() { DELTA_CHUNK as u32 } else { 1 },
            rows_tile: ROWS_TILE as u32,
            large_rows_tile: LARGE_ROWS_TILE as u32,
            mask_words: work.mask_words as u32,
            graphs: sizes.iter().map(|&rows| (rows as u16, 1)).collect(),
        };
        let event = || {
            let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
            device.context.new_event(flags).map_err(|e| fault("cuEventCreate", e))
        };
        let rings = (0..IN_FLIGHT + 1)
            .map(|_| {
                let mut upload = Pinned::new(&device, work.layout.bytes)?;
                // No row has a mask until `upload_masks` says so.
                upload.as_mut_slice()[work.layout.mask_of..work.layout.appends].fill(0xff);
                Ok(Ring {
                    upload,
                    out: Pinned::new(&device, (work.seats + 1) * 3 * 4)?,
                    masks: None,
                    logits: None,
                    begun: event()?,
                    ended: event()?,
                })
            })
            .collect::<Result<Vec<_>, BackendError>>()?;
        let logprobs = vec![None; work.seats + 1];
        let mut backend = Self {
            graphs: HashMap::new(),
            rings,
            blas,
            fp8,
            kernels,
            work,
            model,
            saved,
            caps,
            logprobs,
            prompt: None,
            open: VecDeque::new(),
            next_ticket: 0,
            fault: None,
            device,
        };
        backend.prepare_null_seat(pages)?;
        for &rows in &sizes {
            backend.capture(rows)?;
        }
        if graphs && !backend.model.invariant {
            backend.tune_prompts()?;
        }
        backend.device.synchronize()?;
        Ok(backend)
    }

    /// The seat behind the last: padding rows run on it and write into a page of their own.
    fn prepare_null_seat(&mut self, null_page: u32) -> Result<(), BackendError> {
        let seat = self.work.seats;
        self.write_seat(seat, &SeatUpload::null())?;
        let table = vec![null_page as i32; self.work.table_width];
        let at = self.work.page_table.pointer + (seat * self.work.table_width * 4) as u64;
        // SAFETY: the page table has a row for the null seat.
        unsafe { result::memcpy_htod_sync(at, &table) }.map_err(|e| fault("cuMemcpyHtoD", e))
    }

    fn write_seat(&self, seat: usize, state: &SeatUpload) -> Result<(), BackendError> {
        let at = self.work.seat_states.pointer + (seat * size_of::<SeatUpload>()) as u64;
        // SAFETY: the table has `seats + 1` entries. The source is pageable, so the driver copies it before it returns;
        // the write itself is ordered behind the steps in flight.
        unsafe { result::memcpy_htod_async(at, std::slice::from_ref(state), self.device.stream.cu_stream()) }
            .map_err(|e| fault("cuMemcpyHtoDAsync", e))
    }

    /// Captures a decode step of `rows` rows. Only null seats run while it is recorded.
    fn capture(&mut self, rows: usize) -> Result<(), BackendError> {
        let size = StepSize::decode(rows);
        // The first pass asks cuBLASLt for its algorithms, which may not happen while recording.
        self.upload_null(rows)?;
        if rows > FEW_ROWS_MAX && !self.model.invariant {
            self.blas.record();
        }
        self.forward().run(size)?;
        self.device.synchronize()?;
        self.blas.tune(&self.device)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.device.stream.begin_capture(mode).map_err(|e| fault("cuStreamBeginCapture", e))?;
        let recorded = self.forward().run(size);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.device.stream.end_capture(flags).map_err(|e| fault("cuStreamEndCapture", e));
        recorded?;
        let graph = graph?.ok_or_else(|| fault("cuStreamEndCapture", "an empty graph"))?;
        graph.upload().map_err(|e| fault("cuGraphUpload", e))?;
        self.graphs.insert(rows, graph);
        Ok(())
    }

    fn upload_null(&mut self, rows: usize) -> Result<(), BackendError> {
        let runs: Vec<RunUpload> = (0..rows).map(|row| RunUpload::null(self.work.seats, row)).collect();
        let step = StepUpload { runs: rows as i32, rows: rows as i32, emits: rows as i32, ..StepUpload::default() };
        self.upload(0, &step, &runs, (&[], &[]), &[])
    }

    pub(crate) fn forward(&mut self) -> Forward<'_> {
        Forward {
            device: &self.device,
            model: &self.model,
            kernels: &self.kernels,
            work: &self.work,
            blas: &mut self.blas,
            fp8: self.fp8.as_ref(),
            pending: 0,
            every_row: false,
        }
    }

    fn upload(
        &mut self,
        ring: usize,
        step: &StepUpload,
        runs: &[RunUpload],
        (appends, saves): (&[AppendUpload], &[SaveUpload]),
        tokens: &[TokenId],
    ) -> Result<(), BackendError> {
        let layout = self.work.layout;
        let host = self.rings[ring].upload.as_mut_slice();
        let mut put = |at: usize, bytes: &[u8]| host[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, bytes_of(std::slice::from_ref(step)));
        put(layout.runs, bytes_of(runs));
        put(layout.appends, bytes_of(appends));
        put(layout.saves, bytes_of(saves));
        put(layout.tokens, bytes_of(tokens));
        let used =
            if tokens.is_empty() { layout.appends + size_of_val(appends) } else { layout.tokens + size_of_val(tokens) };
        // The masks' section lies between: it says that no row has one, until `upload_masks` of this step.
        let source = &self.rings[ring].upload.as_slice()[..used];
        // SAFETY: page-locked source that stays untouched until this step was collected; `used` fits the device's area.
        unsafe { result::memcpy_htod_async(self.work.upload.pointer, source, self.device.stream.cu_stream()) }
            .map_err(|e| fault("cuMemcpyHtoDAsync", e))
    }

    /// Remembers the first device fault; every later call answers with it.
    fn guard<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, BackendError>) -> Result<T, BackendError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        self.device.context.bind_to_thread().map_err(|e| fault("cuCtxSetCurrent", e))?;
        let answer = work(self);
        if let Err(error @ BackendError::Device { .. }) = &answer {
            self.fault = Some(error.clone());
        }
        answer
    }
}

impl Backend for CudaBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn scores(&self) -> bool {
        true
    }

    fn bind(&mut self, seat: Seat, init: &SeatInit<'_>) -> Result<(), BackendError> {
        self.guard(|this| {
            let index = usize::from(seat.0);
            if index >= this.work.seats {
                return Err(BackendError::InvalidStep(format!("seat {index} of {}", this.work.seats)));
            }
            this.write_seat(index, &SeatUpload::new(init)?)?;
            this.logprobs[index] = init.sampling.logprobs;
            if let Some(saved) = &mut this.saved {
                saved.bind(seat, init);
            }
            if init.sampling.needs_history() {
                let counts = history(this.model.vocab, init);
                let at = this.work.counts.pointer + (index * this.model.vocab * 4) as u64;
                // SAFETY: the table has a row of `vocab` counts for every seat; the source is pageable, as in `write_seat`.
                unsafe { result::memcpy_htod_async(at, &counts, this.device.stream.cu_stream()) }
                    .map_err(|e| fault("cuMemcpyHtoDAsync", e))?;
            }
            Ok(())
        })
    }

    fn release(&mut self, seat: Seat) {
        // The next `bind` is ordered behind the steps in flight, so there is nothing to wait for.
        if let Some(slot) = self.logprobs.get_mut(usize::from(seat.0)) {
            *slot = None;
        }
        if let Some(saved) = &mut self.saved {
            saved.release(seat);
        }
    }

    fn forward(&mut self, step: &Step<'_>) -> Result<Ticket, BackendError> {
        self.guard(|this| this.begin_step(step))
    }

    fn sample(&mut self, ticket: Ticket, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        self.guard(|this| this.sample_step(ticket, masks))
    }

    fn drafts(&mut self, _ticket: Ticket, _run: u32) -> Result<Vec<TokenId>, BackendError> {
        Err(BackendError::InvalidStep("drafts of a backend whose max_query is 1".into()))
    }

    fn collect(&mut self, ticket: Ticket, wait: bool) -> Result<Option<StepOut>, BackendError> {
        self.guard(|this| this.collect_step(ticket, wait))
    }
}

impl CudaBackend {
    fn begin_step(&mut self, step: &Step<'_>) -> Result<Ticket, BackendError> {
        if self.open.len() >= IN_FLIGHT {
            return Err(BackendError::InvalidStep(format!("{IN_FLIGHT} steps are in flight already")));
        }
        let (mut runs, mut size, meta) = self.lay_out(step)?;
        let appends = self.appends(step)?;
        let states = self.saved.as_mut().map_or(Ok(States::default()), |saved| saved.plan(step))?;
        runs.iter_mut().zip(&states.updates).for_each(|(run, &update)| run.update = update);
        size.saves = states.within.len();
        if size.saves > self.work.layout.saves_max {
            return Err(BackendError::InvalidStep(format!("{} states saved within runs", size.saves)));
        }
        // A lone prompt token that emits nothing would leave a hole among the emitted rows of a graph.
        let decode_only = size.prefill_rows == 0 && size.emits == size.rows && !step.runs.iter().any(prompt::wanted);
        let graph =
            decode_only.then(|| self.caps.graphs.iter().map(|g| usize::from(g.0)).find(|&g| g >= size.rows)).flatten();
        if let Some(padded) = graph {
            runs.extend((size.rows..padded).map(|row| RunUpload::null(self.work.seats, row)));
            size = StepSize::decode(padded);
        }
        let header = StepUpload {
            runs: runs.len() as i32,
            rows: size.rows as i32,
            emits: size.emits as i32,
            appends: appends.len() as i32,
            derived: [0; 4],
        };
        let ring = (self.next_ticket as usize) % self.rings.len();
        self.upload(ring, &header, &runs, (&appends, &states.within), step.tokens)?;
        self.rings[ring].begun.record(&self.device.stream).map_err(|e| fault("cuEventRecord", e))?;
        if let Some(saved) = &self.saved {
            saved.copy_before(&self.device, &states)?;
        }
        match graph {
            Some(rows) => self.graphs[&rows].launch().map_err(|e| fault("cuGraphLaunch", e))?,
            None => {
                let mut forward = self.forward();
                forward.every_row = step.runs.iter().any(prompt::wanted);
                forward.run(size)?;
            }
        }
        if let Some(saved) = &self.saved {
            saved.copy_after(&self.device, &states)?;
        }
        let prompts = self.read_prompts(step)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.open.push_back(Open {
            ticket,
            ring,
            size,
            graph: graph.map(|rows| (rows as u16, 1)),
            runs: meta,
            prompts,
            sampled: false,
        });
        Ok(ticket)
    }

    fn sample_step(&mut self, ticket: Ticket, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        let index = self.open.iter().position(|open| open.ticket == ticket && !open.sampled);
        let Some(index) = index else {
            return Err(BackendError::InvalidStep(format!("{ticket:?} is not open, or was sampled")));
        };
        let (ring, size) = (self.open[index].ring, self.open[index].size);
        let wants_logits = self.open[index].runs.iter().any(|(_, emits, wanted)| *emits && wanted.is_some());
        let stream = self.device.stream.cu_stream();
        if size.emits > 0 {
            if wants_logits {
                let bytes = self.work.logits.bytes;
                if self.rings[ring].logits.is_none() {
                    self.rings[ring].logits = Some(Pinned::new(&self.device, bytes)?);
                }
                let rows = self.open[index].runs.iter().filter(|run| run.1).count();
                let host = self.rings[ring].logits.as_mut().expect("made above").as_mut_slice();
                // SAFETY: page-locked, as large as the device's logits, read only after the step's event.
                unsafe {
                    result::memcpy_dtoh_async(
                        &mut host[..rows * self.model.vocab * 4],
                        self.work.logits.pointer,
                        stream,
                    )
                }
                .map_err(|e| fault("cuMemcpyDtoHAsync", e))?;
            }
            self.upload_masks(index, masks)?;
            let (w, base) = (&self.work, self.work.upload.pointer);
            // The kernel writes its few results straight to the host.
            let out = self.rings[ring].out.device_pointer()?;
            let emits = (w.seats + 1) as u64;
            let args = Args::default()
                .pointer(w.logits.pointer)
                .pointer(w.seat_states.pointer)
                .pointer(base + w.layout.runs as u64)
                .pointer(w.emit_run.pointer)
                .pointer(w.counts.pointer)
                .pointer(w.masks.pointer)
                .pointer(base + w.layout.mask_of as u64)
                .int(w.mask_words)
                .int(self.model.vocab)
                .int(self.model.vocab_used)
                .pointer(w.sample_parts.pointer)
                .pointer(w.sample_arrived.pointer)
                .pointer(out)
                .pointer(out + emits * 4)
                .pointer(out + emits * 8);
            // Two blocks a multiprocessor; how many share a row changes no draw.
            let blocks = 2 * self.device.multiprocessors as usize;
            let parts = (blocks / size.emits.max(1)).clamp(1, SAMPLE_PARTS_MAX);
            let shape = Shape::of((parts as u32, size.emits as u32), 1024);
            self.kernels.sample.launch(&self.device, shape, args)?;
        }
        self.rings[ring].ended.record(&self.device.stream).map_err(|e| fault("cuEventRecord", e))?;
        self.open[index].sampled = true;
        Ok(())
    }

    /// Which mask each emitted row uses, and the masks themselves.
    fn upload_masks(&mut self, index: usize, masks: &[Mask<'_>]) -> Result<(), BackendError> {
        if masks.is_empty() {
            return Ok(());
        }
        let emits = self.open[index].size.emits;
        let mut mask_of = vec![-1i32; emits];
        let words = self.work.mask_words;
        let stream = self.device.stream.cu_stream();
        let ring = self.open[index].ring;
        if self.rings[ring].masks.is_none() {
            self.rings[ring].masks = Some(Pinned::new(&self.device, self.work.masks.bytes)?);
        }
        for (i, mask) in masks.iter().enumerate() {
            let run = mask.run as usize;
            let known = self.open[index].runs.get(run).is_some_and(|run| run.1) && mask.bits.len() == words;
            if !known || i >= emits {
                return Err(BackendError::InvalidStep(format!("mask {i} of run {run} has {} words", mask.bits.len())));
            }
            let emit = self.open[index].runs[..run].iter().filter(|run| run.1).count();
            mask_of[emit] = i as i32;
            let host = self.rings[ring].masks.as_mut().expect("made above").as_mut_slice();
            host[i * words * 4..(i + 1) * words * 4].copy_from_slice(bytes_of(mask.bits));
        }
        let host = &self.rings[ring].masks.as_ref().expect("made above").as_slice()[..masks.len() * words * 4];
        // SAFETY: page-locked and untouched until the step was collected; the device's area is as large.
        unsafe { result::memcpy_htod_async(self.work.masks.pointer, host, stream) }
            .map_err(|e| fault("cuMemcpyHtoDAsync", e))?;
        let at = self.work.upload.pointer + self.work.layout.mask_of as u64;
        // SAFETY: the section has `seats + 1` entries; the pageable source is copied before the call returns.
        unsafe { result::memcpy_htod_async(at, &mask_of, stream) }.map_err(|e| fault("cuMemcpyHtoDAsync", e))
    }

    fn collect_step(&mut self, ticket: Ticket, wait: bool) -> Result<Option<StepOut>, BackendError> {
        match self.open.front() {
            Some(open) if open.ticket == ticket && open.sampled => {}
            _ => return Err(BackendError::InvalidStep(format!("{ticket:?} is not the oldest sampled step"))),
        }
        let ring = self.open[0].ring;
        let ended = &self.rings[ring].ended;
        if wait {
            ended.synchronize().map_err(|e| fault("the step", e))?;
        } else if !ended.try_is_complete().map_err(|e| fault("the step", e))? {
            return Ok(None);
        }
        let mut open = self.open.pop_front().expect("looked at above");
        let millis = self.rings[ring].begun.elapsed_ms(ended).map_err(|e| fault("cuEventElapsedTime", e))?;
        let padded_rows = open.size.rows.saturating_sub(open.runs.len()) as u32;
        let mut out = StepOut {
            device: Duration::from_secs_f32(millis.max(0.0) / 1e3),
            padded_rows: if open.graph.is_some() { padded_rows } else { 0 },
            graph: open.graph,
            ..StepOut::default()
        };
        let host = self.rings[ring].out.as_slice();
        let emits_max = self.work.seats + 1;
        let read = |section: usize, i: usize| {
            let at = (section * emits_max + i) * 4;
            i32::from_le_bytes(host[at..at + 4].try_into().expect("four bytes"))
        };
        let mut emit = 0;
        for (index, (_, emits, wanted)) in open.runs.iter().enumerate() {
            let (tokens, logprobs, pooled) =
                (out.tokens.len() as u32, out.logprobs.len() as u32, out.pooled.len() as u32);
            let prompt = open.prompts.get_mut(index).map(std::mem::take).unwrap_or_default();
            out.logprobs.extend(prompt.logprobs);
            out.pooled.extend(prompt.pooled);
            let mut run = RunOut {
                tokens: tokens..tokens,
                accepted: 0,
                end: 0,
                done: false,
                logprobs: logprobs..out.logprobs.len() as u32,
                pooled: pooled..out.pooled.len() as u32,
                fault: None,
            };
            if *emits {
                let token = read(0, emit);
                run.end = read(1, emit).max(0) as u32;
                run.done = read(2, emit) != 0;
                if token == -2 {
                    run.fault = Some(SeatFault::Error("the grammar forbids every token".into()));
                } else if token >= 0 {
                    out.tokens.push(token as TokenId);
                    run.tokens.end += 1;
                    if let (Some(top), Some(logits)) = (wanted, &self.rings[ring].logits) {
                        let row = &logits.as_slice()[emit * self.model.vocab * 4..][..self.model.vocab_used * 4];
                        let row: Vec<f32> =
                            row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                        out.logprobs.push(raw_logprobs(&row, token as TokenId, *top));
                        run.logprobs.end += 1;
                    }
                }
                emit += 1;
            }
            out.runs.push(run);
        }
        Ok(Some(out))
    }
}
