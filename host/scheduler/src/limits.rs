//! Fixed sizes, the numbers of one step, and the limits of this crate.

use contract::PAGE_TOKENS;
use contract::cost::StepCost;

/// A request that was preempted this often is no victim any more while others are left, and a policy's wish to preempt
/// it is ignored. With the growing headroom of `admit`, running out of pages stays below it by itself.
pub const PREEMPTIONS_MAX: u32 = 5;

/// Waiting requests that are looked at for starvation in one step, oldest first; the rest is younger.
pub(crate) const STARVED_SCAN_MAX: usize = 16;

/// Steps from one waiting request that is seated because it starved to the next. Under a load that no order can serve
/// everybody waits beyond the bound in the end; the policy's order still counts between those.
pub const FORCED_SEAT_STEPS: u64 = 8;

/// Rows of prompt that every step has room for, however many requests decode and however slow the device is: about
/// one tile of a matrix product, so they cost little more than one row.
pub(crate) const PREFILL_ROWS_MIN: u32 = 16;

/// Rows of a prompt that is read row by row, in one step: each costs a row of logits on the host, and the others wait
/// for them.
pub(crate) const READ_ROWS_MAX: u32 = 256;

/// Prompts that native FCFS shares one step's budget between. More would only make chunks of less than a page.
pub(crate) const FCFS_PREFILLS_MAX: usize = 64;

/// Tokens by which every running request must be able to grow before one that was preempted comes back; doubled with
/// each of its preemptions, so the number of preemptions is logarithmic in the length of the output.
pub(crate) const READMIT_HEADROOM_TOKENS: u32 = 512;

/// Tenants without a live request that are remembered; names may come from clients.
pub(crate) const TENANTS_MAX: usize = 4096;

/// A policy's refusal code is shown to clients; longer ones are cut.
pub(crate) const REFUSAL_CODE_BYTES_MAX: usize = 64;

/// One hour; a longer wait is the same as no.
pub(crate) const RETRY_AFTER_MS_MAX: u32 = 3_600_000;

/// What the scheduler works with, from the backend's caps and the operator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub seats: u16,
    pub pages: u32,
    /// Longest sequence, prompt and output together, in tokens.
    pub context_len: u32,
    /// Token rows in one step.
    pub max_rows: u32,
    /// Prefill is cut at multiples of this in absolute position; the last chunk is exempt. At least 1.
    pub resume_align: u32,
    /// Steps with a chunk that does not end its prompt are cut to a multiple of so many rows, where the chunk is longer.
    pub rows_tile: u32,
    /// The multiple for steps of at least four times as many rows.
    pub large_rows_tile: u32,
    pub prefix_cache: bool,
    /// A request without progress for this long is served before what the policy asks for.
    pub starvation_bound_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}, but it must be {needed}")]
pub struct ConfigError {
    pub what: &'static str,
    pub value: u64,
    pub needed: &'static str,
}

/// The request cannot be served however long it waits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a prompt of {prompt_tokens} tokens cannot be served: the longest sequence is {longest} tokens")]
pub struct NeverFits {
    pub prompt_tokens: u64,
    pub longest: u64,
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let needs = |what, value: u64, ok: bool, needed| {
            if ok { Ok(()) } else { Err(ConfigError { what, value, needed }) }
        };
        let align = self.resume_align;
        needs("seats", self.seats.into(), self.seats > 0, "at least 1")?;
        needs("pages", self.pages.into(), self.pages > 0, "at least 1")?;
        needs("context_len", self.context_len.into(), self.context_len > 1, "at least 2")?;
        needs("max_rows", self.max_rows.into(), self.max_rows > 0, "at least 1")?;
        // A cut at a multiple of the alignment must fit one step, or a prompt could never start.
        needs("resume_align", align.into(), align > 0 && align <= self.max_rows, "from 1 to max_rows")?;
        needs("rows_tile", self.rows_tile.into(), self.rows_tile > 0, "at least 1")?;
        needs("large_rows_tile", self.large_rows_tile.into(), self.large_rows_tile > 0, "at least 1")
    }

    /// Longest sequence that can be finished: its last token is sampled but never fed, so it needs no KV.
    pub(crate) fn longest(&self) -> u64 {
        u64::from(self.context_len).min(u64::from(self.pages) * u64::from(PAGE_TOKENS) + 1)
    }
}

/// What changes from step to step and is not the scheduler's to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    pub now_us: u64,
    /// Rows that the step may have at most: beyond what was measured, the cost is only a guess.
    pub token_budget: u32,
    /// Wanted time of the step, and what a step costs; 0, and nothing: only the rows count.
    pub target_us: u32,
    pub cost: StepCost,
    pub last_step_us: u32,
    pub last_step_tokens: u32,
    pub in_flight_steps: u32,
}
