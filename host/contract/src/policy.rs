//! The scheduling contract: deltas in, decisions out.
//!
//! A policy advises; the scheduler crate enforces budgets, pages, seats and a starvation bound whatever it says. The
//! rules that tie deltas to decisions are the scheduler interface of `docs/protocols.md`.

use std::sync::Arc;

use crate::Slot;
use crate::cost::StepCost;

/// A request that enters the waiting queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    pub slot: Slot,
    /// Requests that share a prompt (`n > 1`).
    pub group: u64,
    pub tenant: u32,
    pub adapter: u32,
    /// Lower first.
    pub priority: i32,
    pub arrived_us: u64,
    pub deadline_us: Option<u64>,
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache held at arrival.
    pub cached_tokens: u32,
    pub max_new_tokens: u32,
}

/// What the next step may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub step: u64,
    pub now_us: u64,
    /// Tokens the host expects to fit this step's target time at the depth of the deepest prompt that runs, from
    /// measured steps; decoding requests take one each.
    pub token_budget: u32,
    /// Tokens that no step exceeds, whatever they cost.
    pub tokens_max: u32,
    /// Wanted time of the step; 0: none. Grants that cost more, by `cost`, are cut.
    pub target_us: u32,
    /// What the step takes without any prompt: its fixed cost and the rows of decoding requests.
    pub decode_us: u32,
    pub cost: StepCost,
    pub free_seats: u32,
    pub free_pages: u32,
    pub page_tokens: u32,
    /// A grant below this is rounded up to it while the budget lasts; a prompt's last chunk is exempt.
    pub resume_align: u32,
    pub last_step_us: u32,
    pub last_step_tokens: u32,
    pub in_flight_steps: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TenantInfo {
    pub id: u32,
    pub name: Arc<str>,
    pub weight: f64,
}

/// Absolute totals of one slot. `computed` counts grants from acceptance; `emitted` what was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub slot: Slot,
    pub computed: u32,
    pub emitted: u32,
}

/// How much of the last grant was accepted, when that was less than asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clamp {
    pub slot: Slot,
    pub tokens: u32,
}

/// What changed since the last call, in the order finished, preempted, arrived, clamped, progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    pub limits: Limits,
    /// New or changed tenants only.
    pub tenants: Vec<TenantInfo>,
    pub finished: Vec<Progress>,
    pub preempted: Vec<Slot>,
    pub arrived: Vec<Arrival>,
    pub clamped: Vec<Clamp>,
    /// Only what did not advance by exactly one token.
    pub progress: Vec<Progress>,
}

impl Delta {
    /// Nothing happened but that every decoding request advanced by one token.
    pub fn is_uneventful(&self) -> bool {
        self.tenants.is_empty()
            && self.finished.is_empty()
            && self.preempted.is_empty()
            && self.arrived.is_empty()
            && self.clamped.is_empty()
            && self.progress.is_empty()
    }
}

/// Arrivals beyond this many come with the next delta.
pub const ARRIVALS_PER_DELTA_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    Waiting,
    Prefilling,
    Decoding,
    Preempted,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SlotView {
    pub request: Arrival,
    pub state: SlotState,
    pub computed: u32,
    pub emitted: u32,
    pub pages: u32,
    pub preemptions: u32,
}

/// Everything, for a policy that starts or starts again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub limits: Limits,
    pub tenants: Vec<TenantInfo>,
    pub slots: Vec<SlotView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub slot: Slot,
    pub tokens: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub slot: Slot,
    pub retry_after_ms: u32,
    pub code: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftDepth {
    pub slot: Slot,
    pub depth: u32,
}

/// A policy's advice. `grant`, `hold`, `preempt` and `refuse` last one step; `victims` and `draft` stand until changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub grant: Vec<Grant>,
    /// Decoding slots that must not run in this step.
    pub hold: Vec<Slot>,
    pub preempt: Vec<Slot>,
    /// Order in which running slots may be preempted when pages run out inside a step; empty keeps the last one.
    pub victims: Vec<Slot>,
    pub refuse: Vec<Refusal>,
    pub draft: Vec<DraftDepth>,
    /// The policy rests: until this time, in microseconds on the clock of `now_us`, a delta that lists nothing would
    /// change nothing, so it need not be delivered. `u64::MAX`: for as long as nothing happens.
    pub rests_until_us: Option<u64>,
}

/// A policy's call failed; FCFS decides this step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("scheduler `{policy}` was late: {limit}")]
    Late { policy: String, limit: String },
    #[error("scheduler `{policy}` trapped: {cause}")]
    Trapped { policy: String, cause: String },
    #[error("scheduler `{policy}` gave an invalid decision: {reason}")]
    Invalid { policy: String, reason: String },
}

/// The plugin kind *scheduler*. Called on the engine thread, once per step, while the previous step runs.
///
/// A policy has no clock and no randomness: times and step numbers are arguments, so a recorded trace replays exactly.
pub trait SchedulePolicy: Send {
    fn name(&self) -> &str;
    /// Which loaded plugin answers here, as `GET /plugins` numbers them; 0: none does.
    fn serial(&self) -> u64 {
        0
    }
    /// At load, after an exchange, after a failure: forget everything and start from here.
    fn resync(&mut self, full: &Snapshot) -> Result<(), PolicyError>;
    fn step(&mut self, delta: &Delta) -> Result<Decision, PolicyError>;
}
