//! One request: what was asked, and how far it is.

use std::sync::Arc;

use contract::generation::Tenant;
use contract::policy::{Arrival, Progress, SlotState};
use contract::{PAGE_TOKENS, PageId, Seat, Slot, TokenId};

use crate::prefix::Node;
use crate::states::STATE_INTERVAL;

/// What the scheduler must know of a request.
#[derive(Clone, Debug)]
pub struct NewRequest {
    pub prompt: Arc<[TokenId]>,
    pub max_new_tokens: u32,
    pub priority: i32,
    pub tenant: Tenant,
    /// Absolute, on the clock of [`crate::Tick::now_us`].
    pub deadline_us: Option<u64>,
    pub namespace: u64,
    pub group: u64,
    /// Something is read from every row of the prompt: no row may come from the prefix cache before it was computed for
    /// this request, and the chunks are short.
    pub reads_prompt: bool,
}

/// What a backend is told when the request gets a seat.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    pub prompt: &'a [TokenId],
    pub generated: &'a [TokenId],
    pub preemptions: u32,
}

/// Totals of a request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub prompt_tokens: u32,
    pub emitted: u32,
    pub preemptions: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Waiting,
    Running(Seat),
}

pub(crate) struct Entry {
    /// Order of arrival; also tells two requests apart that had one slot after the other.
    pub seq: u64,
    pub arrival: Arrival,
    pub tenant_name: Arc<str>,
    pub namespace: u64,
    pub prompt: Arc<[TokenId]>,
    pub generated: Vec<TokenId>,
    /// `max_new_tokens`, or less when the context or the pool ends before.
    pub new_tokens_max: u32,

    pub phase: Phase,
    /// Counts seats taken: results of an earlier seat do not touch this one's pages.
    pub binding: u32,
    /// Tokens whose KV is computed or being computed.
    pub computed: u32,
    /// Tokens whose KV is known to exist.
    pub committed: u32,
    /// Tokens that steps in flight will emit.
    pub pending: u32,
    /// The seat has sampled since it was taken: its last token is on the device.
    pub sampled: bool,
    pub pages: Vec<PageId>,
    /// Rows from here on must be computed, whatever the prefix cache holds; above every row when nothing is read from
    /// them.
    pub unread_from: u32,
    /// Pages that were offered to the prefix cache, and where their chain ends.
    pub named_pages: u32,
    pub chain: Node,
    /// Lengths at which its recurrent state is worth saving, besides those that the scheduler knows: ends of messages.
    pub anchors: Vec<u32>,
    /// Where its prompt leaves what the prefix cache has pages of but no state: the next one that does so needs one.
    pub junction: u32,
    /// The last state that was saved of what it generates.
    pub rolling: Option<Node>,

    pub started: bool,
    pub preemptions: u32,
    /// The client reads too slowly; nothing is computed for it.
    pub parked: bool,
    pub progress_us: u64,
    /// Step of the last run, of the last hold that a policy asked for, and of the last one that was granted.
    pub planned_at: u64,
    pub hold_asked_at: u64,
    pub held_at: u64,

    /// What the policy was told last.
    pub reported: bool,
    pub seen: Progress,
    pub seen_decoding: bool,
}

impl Entry {
    pub fn slot(&self) -> Slot {
        self.arrival.slot
    }

    pub fn prompt_len(&self) -> u32 {
        self.arrival.prompt_tokens
    }

    pub fn emitted(&self) -> u32 {
        self.generated.len() as u32
    }

    /// Tokens of the sequence, those in flight included.
    pub fn len(&self) -> u32 {
        self.prompt_len() + self.emitted() + self.pending
    }

    /// Tokens that must be fed before the next one can be sampled.
    pub fn need(&self) -> u32 {
        self.len() - self.computed
    }

    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// One row per step from here on, without a grant.
    pub fn is_decoding(&self) -> bool {
        self.is_running() && self.computed >= self.prompt_len() && self.need() == 1
    }

    /// Everything it may generate is generated or in flight.
    pub fn is_exhausted(&self) -> bool {
        self.emitted() + self.pending >= self.new_tokens_max
    }

    pub fn can_decode(&self) -> bool {
        self.is_decoding() && !self.parked && !self.is_exhausted()
    }

    /// Prompt, or generated tokens after a preemption, left to feed on its seat.
    pub fn can_prefill(&self) -> bool {
        self.is_running() && !self.parked && !self.is_decoding()
    }

    /// Pages of the sequence when `tokens` of it have KV.
    pub fn pages_for(tokens: u32) -> u32 {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Pages it lacks for `tokens` more rows.
    pub fn pages_missing(&self, tokens: u32) -> u32 {
        Self::pages_for(self.computed + tokens).saturating_sub(self.pages.len() as u32)
    }

    /// Most tokens of KV it can ever hold: the last token is not fed.
    pub fn kv_tokens_max(&self) -> u32 {
        self.prompt_len() + self.new_tokens_max - 1
    }

    /// Whether rows of its prompt are still to be read.
    pub fn reads_prompt(&self) -> bool {
        self.unread_from < self.prompt_len()
    }

    pub fn progress(&self) -> Progress {
        Progress { slot: self.slot(), computed: self.computed, emitted: self.emitted() }
    }

    pub fn state(&self) -> SlotState {
        match self.phase {
            Phase::Waiting if self.preemptions > 0 => SlotState::Preempted,
            Phase::Waiting => SlotState::Waiting,
            Phase::Running(_) if self.is_decoding() => SlotState::Decoding,
            Phase::Running(_) => SlotState::Prefilling,
        }
    }

    /// Appends tokens `from..to` of the sequence, which must be known.
    pub fn copy_tokens(&self, from: u32, to: u32, into: &mut Vec<TokenId>) {
        let prompt = self.prompt_len();
        if from < prompt {
            into.extend_from_slice(&self.prompt[from as usize..to.min(prompt) as usize]);
        }
        if to > prompt {
            into.extend_from_slice(&self.generated[from.saturating_sub(prompt) as usize..(to - prompt) as usize]);
        }
    }

    /// Whether its recurrent state after `at` tokens, the end of a page, is likely to be wanted: at the prompt's end and
    /// where the same prompt could go on, at the ends of messages, where others left it, now and then on a long way, and
    /// as far as it has generated.
    pub fn is_worth_saving(&self, at: u32) -> bool {
        let prompt = self.prompt_len();
        let last_page = |tokens: u32| tokens / PAGE_TOKENS * PAGE_TOKENS;
        at > prompt
            || at == last_page(prompt)
            || at == last_page(prompt - 1)
            || at == self.junction
            || at.is_multiple_of(STATE_INTERVAL)
            || self.anchors.contains(&at)
    }

    pub fn ended(&self) -> Ended {
        Ended { prompt_tokens: self.prompt_len(), emitted: self.emitted(), preemptions: self.preemptions }
    }
}
