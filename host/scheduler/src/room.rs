//! What is left for prompts while a step is planned: rows, and time by the measured cost of a step.

use contract::Slot;
use contract::cost::StepCost;

use crate::limits::{PREFILL_ROWS_MIN, Tick};
use crate::queue::Scheduler;

#[derive(Clone, Debug)]
pub(crate) struct Room {
    pub rows: u32,
    /// Microseconds; infinite without a target.
    us: f64,
    /// Rows that are given whatever they cost, so that no prompt stands still on a slow device.
    free_rows: u32,
    cost: StepCost,
    /// A request that must come first found no place, so no other may take one.
    pub closed: bool,
    /// Who is refused a page ends admission: those behind it do not overtake.
    pub in_order: bool,
    pub now_us: u64,
}

impl Room {
    /// Rows that a prompt may take after `start` tokens.
    pub fn rows_from(&self, start: u32) -> u32 {
        self.rows.min(self.cost.rows_within(self.us, start).max(self.free_rows))
    }

    /// Whether most of a row's time is attention when `start` tokens come before it.
    pub fn is_deep(&self, start: u32) -> bool {
        f64::from(self.cost.context_ps) * 1e-3 * f64::from(start) > f64::from(self.cost.row_ns)
    }

    /// Rows within half of what is left, in rows and in time.
    pub fn half_from(&self, start: u32) -> u32 {
        (self.rows / 2).min(self.cost.rows_within(self.us / 2.0, start))
    }

    pub fn take(&mut self, start: u32, rows: u32) {
        self.rows -= rows;
        self.free_rows = self.free_rows.saturating_sub(rows);
        self.us -= self.cost.rows_us(start, rows);
    }

    pub fn is_empty(&self) -> bool {
        self.rows_from(0) == 0
    }
}

impl Scheduler {
    /// Room for prompts beside the requests that decode.
    ///
    /// Where the fixed cost is most of the target, or above it, smaller steps would only repeat it: prompts may then take
    /// as long as it does, and a step is at most twice as long as it must be.
    pub(crate) fn room(&self, tick: &Tick, decodes: Decodes) -> Room {
        let free_rows = PREFILL_ROWS_MIN.max(self.config.resume_align);
        let most = tick.token_budget.max(decodes.rows.saturating_add(free_rows)).min(self.config.max_rows);
        let us = match decodes.target_us(tick) {
            0 => f64::INFINITY,
            target_us => (f64::from(target_us) - decodes.us(tick)).max(f64::from(tick.cost.fixed_us)),
        };
        let rows = most.saturating_sub(decodes.rows);
        Room { rows, us, free_rows, cost: tick.cost, closed: false, in_order: false, now_us: tick.now_us }
    }

    /// The next step as a policy may count on it.
    pub(crate) fn outlook(&self, tick: &Tick) -> Outlook {
        let Standing { decodes, depth, .. } = self.standing();
        let prompts = self.room(tick, decodes).rows_from(depth);
        Outlook {
            rows: decodes.rows.saturating_add(prompts).min(self.config.max_rows),
            target_us: decodes.target_us(tick),
            decode_us: decodes.us(tick) as u32,
        }
    }
}

/// What runs, as the next step finds it.
struct Standing {
    decodes: Decodes,
    /// Tokens before the deepest prompt.
    depth: u32,
    /// Rows that all prompts lack.
    need: u32,
}

impl Scheduler {
    fn standing(&self) -> Standing {
        let mut standing = Standing { decodes: Decodes::default(), depth: 0, need: 0 };
        for entry in self.running.iter().map(|&slot: &Slot| self.entry(slot)) {
            if entry.is_decoding() {
                standing.decodes.add(entry.computed);
            } else {
                standing.depth = standing.depth.max(entry.computed);
                standing.need = standing.need.saturating_add(entry.need());
            }
        }
        standing
    }

    /// How many rows the next step may have by what is known of costs, and how many tokens come before one of its prompts'; `None`
    /// where no prompt runs or waits. Who knows costs better for such a step can say so before it is planned.
    pub fn expected(&self, tick: &Tick) -> Option<(u32, u32)> {
        let Standing { decodes, depth, need } = self.standing();
        let waiting = self.waiting.values().take(WAITING_LOOKED_AT).map(|&slot| self.entry(slot).need());
        let need = waiting.fold(need, u32::saturating_add);
        let prompts = self.room(tick, decodes).rows_from(depth).min(need);
        (need > 0).then(|| (decodes.rows.saturating_add(prompts), depth + prompts / 2))
    }
}

/// Of those that wait: more than these fill any step.
const WAITING_LOOKED_AT: usize = 64;

pub(crate) struct Outlook {
    /// Those of decoding requests, and what fits the time at the depth of the deepest prompt that runs.
    pub rows: u32,
    pub target_us: u32,
    /// What the step takes without prompts.
    pub decode_us: u32,
}

/// A step in which nobody decodes may take so many times the target: nobody feels its length but who arrives meanwhile,
/// and small steps read the weights more often.
const WITHOUT_ANSWERS: u32 = 5;

/// The decoding rows of a step, and the tokens that they attend to, all together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decodes {
    pub rows: u32,
    context: u64,
}

impl Decodes {
    pub fn add(&mut self, context: u32) {
        self.rows += 1;
        self.context += u64::from(context);
    }

    /// Wanted time of a step with these rows; 0: none.
    fn target_us(self, tick: &Tick) -> u32 {
        if self.rows > 0 { tick.target_us } else { tick.target_us.saturating_mul(WITHOUT_ANSWERS) }
    }

    /// A step of these rows alone.
    fn us(self, tick: &Tick) -> f64 {
        tick.cost.step_us(self.rows, self.context as f64)
    }
}
