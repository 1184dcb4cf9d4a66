//! Policies that one would not load.

use contract::Slot;
use contract::policy::{Decision, Grant};

use super::Rng;
use super::mirror::Mirror;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hostile {
    /// No policy at all.
    Native,
    /// A plain one that grants everything that waits.
    Greedy,
    Random,
    OverBudget,
    UnknownSlots,
    AlwaysFails,
    FailsSometimes,
    AlwaysPreempts,
    HoldsEverything,
    GrantsNothing,
    NewestOnly,
}

impl Hostile {
    pub fn pick(rng: &mut Rng) -> Self {
        use Hostile::*;
        let all = [
            Native,
            Greedy,
            Random,
            OverBudget,
            UnknownSlots,
            AlwaysFails,
            FailsSometimes,
            AlwaysPreempts,
            HoldsEverything,
            GrantsNothing,
            NewestOnly,
        ];
        all[rng.below(all.len() as u64) as usize]
    }

    /// Late or trapped: no decision in this step.
    pub fn fails(self, rng: &mut Rng) -> bool {
        self == Self::AlwaysFails || (self == Self::FailsSometimes && rng.below(3) == 0)
    }

    pub fn decide(self, mirror: &Mirror, rng: &mut Rng) -> Decision {
        let mut slots: Vec<Slot> = mirror.slots.keys().copied().collect();
        slots.sort();
        let mut decision = Decision::default();
        let grants = |slots: &[Slot], tokens: u32| slots.iter().map(|&slot| Grant { slot, tokens }).collect::<Vec<_>>();
        match self {
            Self::Native | Self::AlwaysFails | Self::GrantsNothing => {}
            Self::Greedy | Self::FailsSometimes => {
                decision.grant = grants(&slots, mirror.limits.token_budget.max(1));
            }
            Self::OverBudget => decision.grant = grants(&slots, u32::MAX),
            Self::UnknownSlots => decision.grant = grants(&[Slot(1 << 30)], 5),
            Self::NewestOnly => decision.grant = grants(&slots[slots.len().saturating_sub(1)..], 16),
            Self::AlwaysPreempts => {
                decision.grant = grants(&slots, 64);
                decision.preempt = slots.clone();
            }
            Self::HoldsEverything => {
                decision.grant = grants(&slots, 64);
                decision.hold = slots.clone();
            }
            Self::Random => {
                for &slot in &slots {
                    match rng.below(8) {
                        0 => decision.hold.push(slot),
                        1 => decision.preempt.push(slot),
                        2 => decision.victims.insert(0, slot),
                        _ => {}
                    }
                    if rng.below(3) > 0 {
                        decision.grant.push(Grant { slot, tokens: rng.below(100) as u32 });
                    }
                }
            }
        }
        decision
    }
}
