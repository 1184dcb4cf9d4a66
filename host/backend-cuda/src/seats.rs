//! What the host writes to the device: the mirrors of the structures in `prelude.cuh`.

use backend::BackendError;
use backend::ops::DELTA_CHUNK;
use backend::step::SeatInit;

/// Stop tokens and logit biases that fit a seat; the API's own limits are lower or equal.
pub const STOPS_MAX: usize = 16;
pub const BIASES_MAX: usize = 320;

/// `RunInfo` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RunUpload {
    pub seat: i32,
    pub rows: i32,
    pub row0: i32,
    pub token0: i32,
    pub emit: i32,
    /// Filled on the device; of a prompt the third says before how often its tiles' keys should be split.
    pub derived: [i32; 3],
    pub update: StateUpdate,
    /// Of a prompt's tiles so many should have `more_splits` splits instead.
    pub more: i32,
    /// So many parts of `first_keys` 128s of keys come before the splits.
    pub firsts: u8,
    pub more_splits: u8,
    pub first_keys: u16,
}

/// How a run finds its seat's recurrent states, and how a single row leaves them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateUpdate {
    /// Updates that the matrices lack: less than [`WRITE_EVERY`].
    pub deferred: i32,
    /// Not 0: a single row writes the matrices, with all that was deferred.
    pub folds: i32,
}

/// A single row that ends at a multiple of this writes its seat's matrices; the others leave their updates beside them.
pub const WRITE_EVERY: u32 = 4;

impl RunUpload {
    /// A row that nobody wants: it runs on the seat behind the last.
    pub fn null(seats: usize, row: usize) -> Self {
        let row = row as i32;
        Self { seat: seats as i32, rows: 1, row0: row, token0: -1, emit: row, ..Self::default() }
    }
}

/// `StepInfo` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct StepUpload {
    pub runs: i32,
    pub rows: i32,
    pub emits: i32,
    pub appends: i32,
    /// Filled on the device.
    pub derived: [i32; 4],
}

/// `Append` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AppendUpload {
    pub seat: i32,
    pub at: i32,
    pub page: i32,
}

/// `StateSave` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SaveUpload {
    pub run: i32,
    pub seat: i32,
    pub at: i32,
    pub to: i32,
}

/// `SeatState` of the prelude.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SeatUpload {
    position: i32,
    last: i32,
    done: i32,
    generated: i32,
    seed: u64,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    presence: f32,
    frequency: f32,
    repetition: f32,
    top_k: i32,
    min_tokens: i32,
    stops: i32,
    stop: [i32; STOPS_MAX],
    biases: i32,
    bias_token: [i32; BIASES_MAX],
    bias: [f32; BIASES_MAX],
    counted: i32,
}

impl SeatUpload {
    /// A seat that never advances: padding rows run on it.
    pub fn null() -> Self {
        Self {
            position: 0,
            last: 0,
            done: 1,
            generated: 0,
            seed: 0,
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            presence: 0.0,
            frequency: 0.0,
            repetition: 1.0,
            top_k: 0,
            min_tokens: 0,
            stops: 0,
            stop: [0; STOPS_MAX],
            biases: 0,
            bias_token: [0; BIASES_MAX],
            bias: [0.0; BIASES_MAX],
            counted: 0,
        }
    }

    pub fn new(init: &SeatInit<'_>) -> Result<Self, BackendError> {
        let params = init.sampling;
        let too_many = |what: &str, found: usize, limit: usize| BackendError::Unsupported {
            what: format!("{found} {what} of one request: the limit is {limit}"),
            fix: "send fewer".into(),
        };
        if params.stop_tokens.len() > STOPS_MAX {
            return Err(too_many("stop tokens", params.stop_tokens.len(), STOPS_MAX));
        }
        if params.logit_bias.len() > BIASES_MAX {
            return Err(too_many("logit biases", params.logit_bias.len(), BIASES_MAX));
        }
        let mut seat = Self {
            position: init.start as i32,
            last: init.generated.last().or(init.prompt.last()).map_or(0, |&token| token as i32),
            done: 0,
            generated: init.generated.len() as i32,
            seed: init.seed,
            temperature: params.temperature,
            top_p: params.top_p,
            min_p: params.min_p,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            repetition: params.repetition_penalty,
            top_k: params.top_k.min(i32::MAX as u32) as i32,
            min_tokens: params.min_tokens.min(i32::MAX as u32) as i32,
            stops: params.stop_tokens.len() as i32,
            biases: params.logit_bias.len() as i32,
            counted: i32::from(params.needs_history()),
            ..Self::null()
        };
        for (slot, &token) in seat.stop.iter_mut().zip(&params.stop_tokens) {
            *slot = token as i32;
        }
        for (i, &(token, bias)) in params.logit_bias.iter().enumerate() {
            seat.bias_token[i] = token as i32;
            seat.bias[i] = bias;
        }
        Ok(seat)
    }
}

/// The penalty counts of a sequence: bit 31 for tokens of the prompt, below it how often each was generated.
pub fn history(vocab: usize, init: &SeatInit<'_>) -> Vec<u32> {
    let mut counts = vec![0u32; vocab];
    for &token in init.prompt {
        if let Some(count) = counts.get_mut(token as usize) {
            *count |= 1 << 31;
        }
    }
    for &token in init.generated {
        if let Some(count) = counts.get_mut(token as usize) {
            *count += 1;
        }
    }
    counts
}

/// Exact sizes to 16 rows, then padded ones up to the seats.
pub fn captured_sizes(seats: usize) -> Vec<usize> {
    let steps = [24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
    let mut sizes: Vec<usize> = (1..=16).chain(steps).filter(|&size| size < seats).collect();
    sizes.push(seats);
    sizes
}

/// Byte offsets of the sections of the upload area.
#[derive(Clone, Copy)]
pub struct UploadLayout {
    pub runs: usize,
    pub mask_of: usize,
    pub appends: usize,
    pub saves: usize,
    pub tokens: usize,
    pub bytes: usize,
    pub appends_max: usize,
    pub saves_max: usize,
}

impl UploadLayout {
    pub fn new(seats: usize, max_rows: usize, context_pages: usize) -> Self {
        let runs = size_of::<StepUpload>();
        let mask_of = runs + (seats + 1) * size_of::<RunUpload>();
        let appends = mask_of + (seats + 1) * 4;
        // A resumed seat may append its whole table at once.
        let appends_max = seats * 4 + max_rows / 64 + context_pages * 4;
        let saves = appends + appends_max * size_of::<AppendUpload>();
        // Each at the end of a chunk of its own.
        let saves_max = max_rows / DELTA_CHUNK;
        let tokens = (saves + saves_max * size_of::<SaveUpload>()).next_multiple_of(16);
        Self { runs, mask_of, appends, saves, tokens, bytes: tokens + max_rows * 4, appends_max, saves_max }
    }
}

/// The bytes of a plain structure of integers and floats.
pub fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: the upload structures are `repr(C)` of 4- and 8-byte fields; any padding is written by nobody and read by
    // nobody on the device, and every caller's values were initialised field by field.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
