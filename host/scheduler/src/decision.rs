//! What a policy says, checked.
//!
//! A decision that names a slot nobody has, names one twice in `grant`, or lists more than there is comes from a policy
//! that lost track: it is invalid as a whole, a strike, and FCFS decides the step. Advice about a real slot that cannot
//! be followed is left out and counted as a [`Violation`]; the rest of the decision stands. `draft` is bounded by the
//! depth that the backend can verify, which is none without a drafter, so it has no effect here.

use contract::Slot;
use contract::policy::{Decision, Grant};

use crate::queue::Scheduler;

/// Who decides this step.
#[derive(Clone, Copy, Debug)]
pub enum Advice<'a> {
    /// First come, first served.
    Native,
    Policy(&'a Decision),
}

/// The decision was not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDecision(pub String);

/// Advice about a real slot that could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// Grants beyond the token budget.
    OverBudget,
    /// More requests admitted than there are seats.
    OverSeats,
    /// A grant of no token.
    ZeroGrant,
    /// A hold of a slot that does not decode.
    HoldNotDecoding,
    /// A slot to preempt that has no seat, or was preempted too often.
    Preempt,
    /// A refusal of a request that runs, or whose stream has begun.
    Refuse,
}

impl Violation {
    pub const ALL: [Self; 6] =
        [Self::OverBudget, Self::OverSeats, Self::ZeroGrant, Self::HoldNotDecoding, Self::Preempt, Self::Refuse];

    pub fn name(self) -> &'static str {
        match self {
            Self::OverBudget => "over_budget",
            Self::OverSeats => "over_seats",
            Self::ZeroGrant => "zero_grant",
            Self::HoldNotDecoding => "hold_not_decoding",
            Self::Preempt => "preempt",
            Self::Refuse => "refuse",
        }
    }
}

impl Scheduler {
    /// Looks at a decision without changing anything.
    pub(crate) fn validate(&mut self, decision: &Decision) -> Result<(), InvalidDecision> {
        // Every list names a slot at most once, so none is longer than the table of slots.
        let longest = self.entries.len();
        let lists = [
            ("grant", decision.grant.len()),
            ("hold", decision.hold.len()),
            ("preempt", decision.preempt.len()),
            ("victims", decision.victims.len()),
            ("refuse", decision.refuse.len()),
            ("draft", decision.draft.len()),
        ];
        if let Some((name, len)) = lists.into_iter().find(|&(_, len)| len > longest) {
            return Err(InvalidDecision(format!("`{name}` has {len} entries; there are {longest} slots")));
        }
        self.known("grant", decision.grant.iter().map(|grant| grant.slot))?;
        self.known("hold", decision.hold.iter().copied())?;
        self.known("preempt", decision.preempt.iter().copied())?;
        self.known("refuse", decision.refuse.iter().map(|refusal| refusal.slot))?;
        // `victims` and `draft` stand until changed, so a slot in them may have ended.
        self.no_duplicate(&decision.grant)
    }

    fn known(&self, list: &str, slots: impl Iterator<Item = Slot>) -> Result<(), InvalidDecision> {
        for slot in slots {
            if self.get(slot).is_none_or(|entry| !entry.reported) {
                return Err(InvalidDecision(format!("`{list}` names slot {}, which no request has", slot.0)));
            }
        }
        Ok(())
    }

    fn no_duplicate(&mut self, grants: &[Grant]) -> Result<(), InvalidDecision> {
        let seen = &mut self.scratch.seen;
        seen.clear();
        seen.resize(self.entries.len(), false);
        for grant in grants {
            if std::mem::replace(&mut seen[grant.slot.0 as usize], true) {
                return Err(InvalidDecision(format!("`grant` names slot {} twice", grant.slot.0)));
            }
        }
        Ok(())
    }
}
