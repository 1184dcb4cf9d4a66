//! Saved recurrent states: how many fit, and what a step copies to them and from them.
//!
//! A saved state is one more number behind those of the seats in each layer's buffers (`delta.rs`). A state that a seat has
//! between two steps is copied by a kernel of its own, in front of a step's first or behind its last; one that a run of
//! several rows passes on its way is written by `delta_scan` and `delta_out`. The stream orders all of them, also with
//! steps that run as graphs.
//!
//! Of a seat's single rows its first writes its matrices, and those that end at a multiple of [`WRITE_EVERY`]; the updates of
//! the others lie beside them (`delta_step`). Copies are made at multiples of 64 alone, so what they copy is whole.

use backend::BackendError;
use backend::load::{LoadOptions, STATES_PER_SEAT, state_note};
use backend::ops::{DELTA_CHUNK, DeltaShape, ModelSpec};
use backend::step::{SeatInit, StateSlot, Step, Table};
use contract::Seat;

use crate::compile::{Compiler, Kernel};
use crate::delta::{Delta, StateType, deferred_bytes, matrix_bytes, ring_bytes};
use crate::device::{Buffer, Device};
use crate::launch::{Args, Shape};
use crate::lay_out::is_single;
use crate::seats::{SaveUpload, StateUpdate, WRITE_EVERY};

/// Pairs of one launch; the kernel's PAIRS.
const PAIRS_MAX: usize = 16;
/// Blocks that share a pair's layer: two megabytes of a large model's, a few kilobytes a thread block at a time.
const PARTS: u32 = 32;
/// Of what is left for the KV pool and saved states together these take a quarter, or more where the pool needs less: a
/// state of Qwen3.5-9B is as large as keys and values of 1,600 tokens, and is wanted once in 2,048.
const SHARE: u64 = 4;

/// All that is kept of one sequence.
pub fn state_bytes(shape: &DeltaShape, state_type: StateType, layers: usize) -> u64 {
    (layers * (matrix_bytes(shape, state_type) + ring_bytes(shape))) as u64
}

/// Room for saved states.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Slots {
    pub count: u32,
    /// The arithmetic, for the start's report.
    pub note: Option<String>,
    /// What does not fit.
    pub remark: Option<String>,
}

impl Slots {
    /// What `budget` bytes for all states and `kv_wanted` bytes of keys and values leave room for; `None`: nobody will save
    /// any.
    pub fn new(spec: &ModelSpec, state_type: StateType, options: &LoadOptions, left: Option<(u64, u64)>) -> Self {
        let Some(shape) = &spec.delta else { return Self::default() };
        let bytes = state_bytes(shape, state_type, spec.state_layers);
        let beside = (spec.state_layers * deferred_bytes(shape)) as u64 * (u64::from(options.seats) + 1);
        match left {
            Some((budget, kv_wanted)) => Self::fit(bytes, options.seats, (budget.saturating_sub(beside), kv_wanted)),
            None => Self { note: Some(state_note(bytes, options.seats, 0)), ..Self::default() },
        }
    }

    fn fit(bytes: u64, seats: u16, (budget, kv_wanted): (u64, u64)) -> Self {
        let left = budget.saturating_sub(bytes * (u64::from(seats) + 1));
        let share = (left / SHARE).max(left.saturating_sub(kv_wanted) / 2);
        let wanted = u32::from(seats) * STATES_PER_SEAT;
        let count = u32::try_from(share / bytes.max(1)).unwrap_or(u32::MAX).min(wanted);
        let remark = (count < u32::from(seats)).then(|| {
            format!(
                "saved states for the prefix cache: {wanted} wanted, {count} of {bytes} bytes fit into a quarter of the \
                 {left} bytes that are left; lower --max-num-seqs to have more"
            )
        });
        Self { count, note: Some(state_note(bytes, seats, count)), remark }
    }
}

/// What a step does with states: which it copies, by number, and how its runs find them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct States {
    /// In front of the step's first kernel, in this order.
    before: Vec<(u32, u32)>,
    /// Behind its last.
    after: Vec<(u32, u32)>,
    /// By the kernels of the delta rule.
    pub within: Vec<SaveUpload>,
    /// Of each run.
    pub updates: Vec<StateUpdate>,
}

/// A sequence on a seat.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Its length in tokens; of one that is done already, more.
    length: u32,
    /// The length at which its matrices were written last.
    written: u32,
    /// The seat's state is that of the sequence.
    ready: bool,
}

/// What is known of all states; knows no device.
struct Ledger {
    /// See [`crate::CudaOptions::batch_invariant`].
    invariant: bool,
    seats: Vec<Option<Held>>,
    /// Of each slot the length of the sequence whose state it holds.
    slots: Vec<Option<u32>>,
}

const _: () = assert!((DELTA_CHUNK as u32).is_multiple_of(WRITE_EVERY));

fn invalid<T>(what: String) -> Result<T, BackendError> {
    Err(BackendError::InvalidStep(what))
}

impl Ledger {
    fn slot(&self, slot: StateSlot) -> Result<usize, BackendError> {
        let (index, slots) = (slot.0 as usize, self.slots.len());
        if index < slots { Ok(index) } else { invalid(format!("state slot {index} of {slots}")) }
    }

    fn held(&mut self, seat: Seat) -> Result<&mut Held, BackendError> {
        let held = self.seats.get_mut(usize::from(seat.0)).and_then(Option::as_mut);
        held.ok_or_else(|| BackendError::InvalidStep(format!("seat {} is not bound", seat.0)))
    }

    /// The null seat stands between the seats and the slots.
    fn number(&self, slot: usize) -> u32 {
        (self.seats.len() + 1 + slot) as u32
    }

    fn plan(&mut self, step: &Step<'_>) -> Result<States, BackendError> {
        let (mut states, mut saved) = (States::default(), Vec::new());
        for table in step.tables {
            match *table {
                Table::Save { seat, at, to } => {
                    let slot = self.slot(to)?;
                    self.slots[slot] = None;
                    self.save(step, (seat, at), slot, &mut states)?;
                    saved.push((slot, at));
                }
                Table::Load { seat, from } => {
                    let slot = self.slot(from)?;
                    let found = self.slots[slot];
                    let held = self.held(seat)?;
                    if found != Some(held.length) {
                        return invalid(format!(
                            "seat {} is at {}, state slot {slot} at {found:?}",
                            seat.0, held.length
                        ));
                    }
                    (held.ready, held.written) = (true, held.length);
                    states.before.push((self.number(slot), u32::from(seat.0)));
                }
                Table::Append { .. } | Table::CopyPage { .. } => {}
            }
        }
        let invariant = self.invariant;
        for run in step.runs {
            let held = self.held(run.seat)?;
            if !held.ready {
                return invalid(format!("seat {} is at {}, its recurrent state at None", run.seat.0, held.length));
            }
            let single = is_single(run, invariant);
            // A first row finds whatever the seat before left.
            let folds = single && (held.length == 0 || run.end_max.is_multiple_of(WRITE_EVERY));
            let deferred = held.length.saturating_sub(held.written).min(WRITE_EVERY - 1);
            states.updates.push(StateUpdate { deferred: deferred as i32, folds: i32::from(folds) });
            held.length = run.end_max;
            if folds || !single {
                held.written = held.length;
            }
        }
        saved.into_iter().for_each(|(slot, at)| self.slots[slot] = Some(at));
        states.within.sort_unstable();
        Ok(states)
    }

    /// Where in the step the state is there to be copied. The engine knows the length of every seat that is not done.
    fn save(
        &mut self,
        step: &Step<'_>,
        (seat, at): (Seat, u32),
        slot: usize,
        states: &mut States,
    ) -> Result<(), BackendError> {
        let (number, held) = (self.number(slot), *self.held(seat)?);
        let run = step.runs.iter().position(|run| run.seat == seat);
        let (start, end) = run.map_or((held.length, held.length), |run| {
            let run = &step.runs[run];
            (run.end_max.saturating_sub(run.rows), run.end_max)
        });
        let align = DELTA_CHUNK as u32;
        if at < start || !at.is_multiple_of(align) {
            return invalid(format!("seat {}: a state at {at}; it is at {start}, aligned to {align}", seat.0));
        }
        match run {
            // At its beginning a seat holds whatever was there before.
            _ if at == start && (at == 0 || !held.ready) => {
                return invalid(format!("seat {} has no state at {at}", seat.0));
            }
            _ if at == start => states.before.push((u32::from(seat.0), number)),
            _ if at == end => states.after.push((u32::from(seat.0), number)),
            Some(run) if at < end => {
                // Chunks are counted from the run's first row.
                if !start.is_multiple_of(align) {
                    return invalid(format!("seat {}: a state at {at} in a run that begins at {start}", seat.0));
                }
                let (run, seat, at, to) = (run as i32, i32::from(seat.0), at as i32, number as i32);
                states.within.push(SaveUpload { run, seat, at, to });
            }
            _ => return invalid(format!("seat {}: no run of this step reaches {at} to save its state", seat.0)),
        }
        Ok(())
    }
}

/// Pairs in order, cut where one would meet what another of its launch writes, or write what another reads.
fn launches(pairs: &[(u32, u32)]) -> Vec<&[(u32, u32)]> {
    let (mut groups, mut first) = (Vec::new(), 0);
    for (index, &(from, to)) in pairs.iter().enumerate() {
        let meets = |&(other_from, other_to): &(u32, u32)| to == other_from || to == other_to || from == other_to;
        if index - first == PAIRS_MAX || pairs[first..index].iter().any(meets) {
            groups.push(&pairs[first..index]);
            first = index;
        }
    }
    groups.extend((first < pairs.len()).then(|| &pairs[first..]));
    groups
}

pub fn kernel(compiler: &mut Compiler<'_>) -> Result<Kernel, BackendError> {
    compiler.kernel(kernels::COPY_STATES, &[])
}

/// The states of a model with recurrent layers, and the copies between them.
pub struct SavedStates {
    ledger: Ledger,
    kernel: Kernel,
    /// As `copy_states` reads them.
    buffers: Buffer,
    layers: usize,
    /// Units of 16 bytes that a layer keeps: of matrices, and of the ring.
    units: [usize; 2],
}

impl SavedStates {
    pub fn new(
        device: &Device,
        compiler: &mut Compiler<'_>,
        delta: &Delta,
        (seats, slots, invariant): (usize, u32, bool),
    ) -> Result<Self, BackendError> {
        let addresses: Vec<u64> = delta.states.iter().chain(&delta.rings).map(|buffer| buffer.pointer).collect();
        Ok(Self {
            ledger: Ledger { invariant, seats: vec![None; seats], slots: vec![None; slots as usize] },
            kernel: kernel(compiler)?,
            buffers: device.upload("addresses of states", &addresses)?,
            layers: delta.states.len(),
            units: [matrix_bytes(&delta.shape, delta.state_type), ring_bytes(&delta.shape)].map(|bytes| bytes / 16),
        })
    }

    pub fn slots(&self) -> u32 {
        self.ledger.slots.len() as u32
    }

    pub fn bind(&mut self, seat: Seat, init: &SeatInit<'_>) {
        self.ledger.seats[usize::from(seat.0)] =
            Some(Held { length: init.start, written: init.start, ready: init.start == 0 });
    }

    pub fn release(&mut self, seat: Seat) {
        if let Some(held) = self.ledger.seats.get_mut(usize::from(seat.0)) {
            *held = None;
        }
    }

    /// Checks a step's saves and loads, and its runs.
    pub fn plan(&mut self, step: &Step<'_>) -> Result<States, BackendError> {
        self.ledger.plan(step)
    }

    pub fn copy_before(&self, device: &Device, states: &States) -> Result<(), BackendError> {
        self.copy(device, &states.before)
    }

    pub fn copy_after(&self, device: &Device, states: &States) -> Result<(), BackendError> {
        self.copy(device, &states.after)
    }

    fn copy(&self, device: &Device, pairs: &[(u32, u32)]) -> Result<(), BackendError> {
        for pairs in launches(pairs) {
            let mut words = [0u64; PAIRS_MAX];
            for (word, &(from, to)) in words.iter_mut().zip(pairs) {
                *word = u64::from(from) | u64::from(to) << 32;
            }
            let args = Args::default()
                .pointer(self.buffers.pointer)
                .int(self.layers)
                .int(self.units[0])
                .int(self.units[1])
                .words(&words);
            let grid = (PARTS, (self.layers * pairs.len()) as u32);
            self.kernel.launch(device, Shape::of(grid, 256), args)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use backend::step::{Emit, Feed, Run};

    use super::*;

    fn run(seat: u16, rows: u32, end_max: u32) -> Run {
        Run { seat: Seat(seat), feed: Feed::Tokens(0..rows), rows, end_max, emit: Emit::Next, masked: false }
    }

    fn save(seat: u16, at: u32, slot: u32) -> Table<'static> {
        Table::Save { seat: Seat(seat), at, to: StateSlot(slot) }
    }

    fn load(seat: u16, slot: u32) -> Table<'static> {
        Table::Load { seat: Seat(seat), from: StateSlot(slot) }
    }

    /// Four seats, of which 0 is new, 1 lacks its state of 64 tokens and 2 is at 128; slot 3 holds a state of 64 tokens.
    fn ledger() -> Ledger {
        let held = |length, ready| Some(Held { length, written: length, ready });
        let seats = vec![held(0, true), held(64, false), held(128, true), None];
        Ledger { invariant: false, seats, slots: vec![None, None, None, Some(64)] }
    }

    fn plan(ledger: &mut Ledger, tables: &[Table<'_>], runs: &[Run]) -> Result<States, String> {
        ledger.plan(&Step { tables, runs, tokens: &[] }).map_err(|error| error.to_string())
    }

    /// Where a step copies what: slots are numbers from 5 on.
    #[test]
    fn saves_and_loads_have_their_places() {
        let mut ledger = ledger();
        let tables = [load(1, 3), save(0, 128, 1), save(0, 64, 0), save(0, 192, 3), save(2, 128, 2)];
        let states = plan(&mut ledger, &tables, &[run(2, 1, 129), run(0, 192, 192), run(1, 5, 69)]);
        let within = [(64, 5), (128, 6)].map(|(at, to)| SaveUpload { run: 1, seat: 0, at, to });
        let updates = vec![StateUpdate::default(); 3];
        let expected = States { before: vec![(8, 1), (2, 7)], after: vec![(0, 8)], within: within.into(), updates };
        assert_eq!(states, Ok(expected));
        assert_eq!(ledger.slots, [Some(64), Some(128), Some(128), Some(192)]);
        // A decode that reaches a boundary.
        let states = plan(&mut ledger, &[save(0, 256, 0)], &[run(0, 1, 256)]).expect("the end of its run");
        assert_eq!((states.before.len(), states.after), (0, vec![(0, 5)]));
    }

    /// `(rows, fed with tokens)` of runs one after the other: how many updates each finds deferred, and which fold them.
    fn updates(invariant: bool, runs: &[(u32, bool)]) -> Vec<(i32, bool)> {
        let held = Some(Held { length: 0, written: 0, ready: true });
        let mut ledger = Ledger { invariant, seats: vec![held], slots: Vec::new() };
        let mut end = 0;
        let mut step = |&(rows, fed): &(u32, bool)| {
            end += rows;
            let feed = if fed { Feed::Tokens(0..rows) } else { Feed::Last };
            let states = plan(&mut ledger, &[], &[Run { feed, ..run(0, rows, end) }]).expect("a good step");
            (states.updates[0].deferred, states.updates[0].folds != 0)
        };
        runs.iter().map(&mut step).collect()
    }

    #[test]
    fn single_rows_write_at_multiples_of_four() {
        assert_eq!(updates(false, &[(1, true), (1, false)]), [(0, true), (0, false)]);
        let decodes = [(5, true), (1, false), (1, false), (1, false), (1, false), (1, false), (3, true), (1, false)];
        let expected = [(0, false), (0, false), (1, false), (2, true), (0, false), (1, false), (2, false), (0, false)];
        assert_eq!(updates(false, &decodes), expected);
        // A prompt's row that stands alone is a chunk where nothing may depend on how the prompt was cut.
        let alone = [(3, true), (1, true), (1, true), (1, false)];
        assert_eq!(updates(false, &alone), [(0, false), (0, true), (0, false), (1, false)]);
        assert_eq!(updates(true, &alone), [(0, false); 4]);
    }

    #[test]
    fn states_that_are_not_there_are_refused() {
        let prompt = [run(0, 128, 128)];
        for (tables, runs, needle) in [
            (vec![save(0, 65, 0)], &prompt[..], "seat 0: a state at 65; it is at 0, aligned to 64"),
            (vec![save(0, 192, 0)], &prompt, "seat 0: no run of this step reaches 192 to save its state"),
            (vec![save(0, 64, 4)], &prompt, "state slot 4 of 4"),
            (vec![save(0, 0, 0)], &prompt, "seat 0 has no state at 0"),
            (vec![save(1, 64, 0)], &[], "seat 1 has no state at 64"),
            (vec![save(2, 64, 0)], &[], "seat 2: a state at 64; it is at 128"),
            (vec![save(3, 64, 0)], &prompt, "seat 3 is not bound"),
            (vec![save(0, 192, 0)], &[run(0, 200, 227)], "seat 0: a state at 192 in a run that begins at 27"),
            (vec![load(1, 0)], &prompt, "seat 1 is at 64, state slot 0 at None"),
            (vec![save(0, 64, 3), load(1, 3)], &prompt, "seat 1 is at 64, state slot 3 at None"),
            (vec![], &[run(1, 5, 69)], "seat 1 is at 64, its recurrent state at None"),
        ] {
            let error = plan(&mut ledger(), &tables, runs).expect_err("a step that lies");
            assert!(error.contains(needle), "{error}\nexpected {needle}");
        }
    }

    /// Slots for 4 seats of 1 MiB a state, by what is left beside and what keys and values could fill.
    #[test]
    fn room_is_shared_with_the_pool() {
        let fit = |left: u64, kv_wanted: u64| Slots::fit(1 << 20, 4, ((5 + left) << 20, kv_wanted << 20));
        for (left, kv_wanted, count, remark) in [
            (400, 1000, 32, None),
            (100, 1000, 25, None),
            (100, 50, 25, None),
            (60, 20, 20, None),
            (12, 1000, 3, Some("32 wanted, 3 of 1048576 bytes fit into a quarter of the 12582912 bytes")),
            (0, 1000, 0, Some("32 wanted, 0 of")),
        ] {
            let slots = fit(left, kv_wanted);
            assert_eq!(slots.count, count, "{left} MiB left, {kv_wanted} wanted");
            assert_eq!(slots.remark.is_some(), remark.is_some(), "{:?}", slots.remark);
            assert!(slots.remark.is_none_or(|found| remark.is_some_and(|needle| found.contains(needle))));
        }
        let note = fit(100, 50).note.expect("the arithmetic");
        assert!(
            note.contains("1.0 MiB a sequence, 4 seats and 25 saved states for the prefix cache: 29.0 MiB"),
            "{note}"
        );
    }

    /// Pairs of one launch do not meet.
    #[test]
    fn copies_keep_their_order() {
        assert_eq!(launches(&[]), [] as [&[(u32, u32)]; 0]);
        assert_eq!(launches(&[(8, 1), (8, 2), (3, 7)]), [[(8, 1), (8, 2), (3, 7)]]);
        assert_eq!(launches(&[(8, 1), (2, 8)]), [[(8, 1)], [(2, 8)]]);
        assert_eq!(launches(&[(2, 8), (8, 1)]), [[(2, 8)], [(8, 1)]]);
        let many: Vec<(u32, u32)> = (0..20).map(|i| (i, 100 + i)).collect();
        assert_eq!(launches(&many).iter().map(|group| group.len()).collect::<Vec<_>>(), [16, 4]);
    }
}
