//! What a policy says, checked.
//!
//! A decision that names a slot nobody has, names one twice in `grant`, or lists more than there is comes from a policy
//! that lost track: it is invalid as a whole, a strike, and FCFS decides the step. Advice about a real slot that cannot
//! be followed is left out and counted as a [`Violation`]; the rest of the decision stands. `draft` is bounded by the
//! depth that the backend can verify, which is none without a drafter, so it has no effect here.

use std::collections::HashSet;

use contract::Slot;
use contract::policy::{Decision, Grant, Snapshot};

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
        names_slots(decision, self.entries.len(), |slot| self.get(slot).is_some_and(|entry| entry.reported))?;
        self.no_duplicate(&decision.grant)
    }

    fn no_duplicate(&mut self, grants: &[Grant]) -> Result<(), InvalidDecision> {
        let seen = &mut self.scratch.seen;
        seen.clear();
        seen.resize(self.entries.len(), false);
        grants.iter().try_for_each(|grant| match std::mem::replace(&mut seen[grant.slot.0 as usize], true) {
            false => Ok(()),
            true => Err(twice(grant.slot)),
        })
    }
}

/// Whether a policy that was told exactly this may decide so: what [`Scheduler::plan`] asks of it, without a scheduler.
pub fn check_decision(told: &Snapshot, decision: &Decision) -> Result<(), InvalidDecision> {
    let known: HashSet<Slot> = told.slots.iter().map(|slot| slot.request.slot).collect();
    names_slots(decision, known.len(), |slot| known.contains(&slot))?;
    let mut seen = HashSet::with_capacity(decision.grant.len());
    match decision.grant.iter().find(|grant| !seen.insert(grant.slot)) {
        None => Ok(()),
        Some(grant) => Err(twice(grant.slot)),
    }
}

/// Every list is of slots that there are.
fn names_slots(decision: &Decision, slots: usize, is_known: impl Fn(Slot) -> bool) -> Result<(), InvalidDecision> {
    // Every list names a slot at most once, so none is longer than the table of slots.
    let lists = [
        ("grant", decision.grant.len()),
        ("hold", decision.hold.len()),
        ("preempt", decision.preempt.len()),
        ("victims", decision.victims.len()),
        ("refuse", decision.refuse.len()),
        ("draft", decision.draft.len()),
    ];
    if let Some((name, len)) = lists.into_iter().find(|&(_, len)| len > slots) {
        return Err(InvalidDecision(format!("`{name}` has {len} entries; there are {slots} slots")));
    }
    let known = |list: &str, named: &mut dyn Iterator<Item = Slot>| -> Result<(), InvalidDecision> {
        for slot in named {
            if !is_known(slot) {
                return Err(InvalidDecision(format!("`{list}` names slot {}, which no request has", slot.0)));
            }
        }
        Ok(())
    };
    known("grant", &mut decision.grant.iter().map(|grant| grant.slot))?;
    known("hold", &mut decision.hold.iter().copied())?;
    known("preempt", &mut decision.preempt.iter().copied())?;
    // `victims` and `draft` stand until changed, so a slot in them may have ended.
    known("refuse", &mut decision.refuse.iter().map(|refusal| refusal.slot))
}

fn twice(slot: Slot) -> InvalidDecision {
    InvalidDecision(format!("`grant` names slot {} twice", slot.0))
}
