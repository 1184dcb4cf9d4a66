//! What one step has to give: token rows, time by the host's measured cost, seats and pages.

use crate::queue::Request;
use crate::scheduler::{Limits, StepCost};

/// Rows that a step always has for prompts, however slow the device is; the host gives them too.
const FREE_ROWS: u32 = 16;

/// What is left of a step while a policy shares it out.
#[derive(Clone, Debug, Default)]
pub struct Room {
    pub tokens: u32,
    pub seats: u32,
    pub pages: u32,
    /// The smallest chunk worth a grant: a page, or what the model's resume points ask.
    pub least: u32,
    page_tokens: u32,
    /// Microseconds; infinite when the host gives no target.
    us: f64,
    /// Microseconds that were taken so far.
    used_us: f64,
    free_rows: u32,
    cost: Cost,
}

impl Room {
    /// Room for prompts beside `decoding` requests in a step of the host's target time, or of `target_us` when that is
    /// shorter.
    pub fn new(limits: &Limits, decoding: u32, target_us: u32) -> Self {
        let page_tokens = limits.page_tokens.max(1);
        let least = page_tokens.max(limits.resume_align);
        let free_rows = FREE_ROWS.max(limits.resume_align);
        // Without a target there is no cost either, and the budget alone counts.
        let (tokens, us) = match limits.target_us {
            0 => (limits.token_budget, f64::INFINITY),
            host_us => {
                let left = f64::from(host_us.min(target_us)) - f64::from(limits.decode_us);
                // As the host does: a step may take twice as long as it must.
                (limits.tokens_max.max(decoding + free_rows), left.max(f64::from(limits.cost.fixed_us)))
            }
        };
        Self {
            tokens: tokens.saturating_sub(decoding),
            seats: limits.free_seats,
            pages: limits.free_pages,
            least,
            page_tokens,
            us,
            used_us: 0.0,
            free_rows,
            cost: limits.cost.into(),
        }
    }

    /// Tokens of prompt that may follow after `start`.
    pub fn tokens_from(&self, start: u32) -> u32 {
        self.tokens.min(self.cost.rows_within(self.us, start).max(self.free_rows))
    }

    /// A part of what is left, from 0 to 1, in rows and in time.
    pub fn part(&self, share: f64) -> Self {
        let rows = |rows: u32| (f64::from(rows) * share) as u32;
        Self { tokens: rows(self.tokens), us: self.us * share, free_rows: rows(self.free_rows), ..self.clone() }
    }

    /// Adds what another part has left.
    pub fn join(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.us += other.us;
        self.free_rows += other.free_rows;
    }

    /// Uses up `tokens` after `start`.
    pub fn take(&mut self, start: u32, tokens: u32) {
        self.tokens = self.tokens.saturating_sub(tokens);
        self.free_rows = self.free_rows.saturating_sub(tokens);
        let us = self.cost.rows_us(start, tokens);
        self.us -= us;
        self.used_us += us;
    }

    /// What the step takes as shared out so far.
    pub fn step_us(&self, limits: &Limits) -> f64 {
        f64::from(limits.decode_us) + self.used_us
    }

    /// Ends the step at most `us` microseconds after its start, unless it is that long already.
    pub fn end_by(&mut self, us: f64, limits: &Limits) {
        let left = us - self.step_us(limits);
        self.us = self.us.min(left);
        if left <= 0.0 {
            self.free_rows = 0;
        }
    }

    /// Microseconds until the first token of a prompt that has all that this step and the next ones can give to prompts.
    pub fn first_token_us(&self, limits: &Limits, start: u32, need: u32) -> f64 {
        let prompt_us = self.cost.rows_us(start, need);
        // Each step spends the same time on what is not prompt.
        let steps = (prompt_us / self.us).ceil();
        prompt_us + steps * f64::from(limits.decode_us)
    }

    pub fn is_empty(&self) -> bool {
        self.tokens_from(0) == 0
    }

    /// Takes a seat and the pages of the whole prompt for a request that waits; `false`: they are not there.
    pub fn admit<K>(&mut self, request: &Request<K>) -> bool {
        let pages = self.pages_for(request);
        if self.seats == 0 || pages > self.pages {
            return false;
        }
        self.seats -= 1;
        self.pages -= pages;
        true
    }

    /// Pages that a waiting request needs, one for its first answer included.
    pub fn pages_for<K>(&self, request: &Request<K>) -> u32 {
        request.need().saturating_add(self.page_tokens).div_ceil(self.page_tokens)
    }

    /// A running request will give up its seat and pages.
    pub fn give_back<K>(&mut self, victim: &Request<K>) {
        self.seats += 1;
        self.pages = self.pages.saturating_add(victim.computed / self.page_tokens);
    }
}

/// The part of a step's cost that prompts add, in microseconds; see `step-cost` in `wit/scheduler`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    row_us: f64,
    /// For one row and one token of its context.
    context_us: f64,
}

impl From<StepCost> for Cost {
    fn from(cost: StepCost) -> Self {
        Self { row_us: f64::from(cost.row_ns) * 1e-3, context_us: f64::from(cost.context_ps) * 1e-6 }
    }
}

impl Cost {
    /// What `rows` rows of one sequence add to a step when `start` tokens come before them.
    pub fn rows_us(&self, start: u32, rows: u32) -> f64 {
        let rows = f64::from(rows);
        let context = rows * f64::from(start) + rows * (rows + 1.0) / 2.0;
        self.row_us * rows + self.context_us * context
    }

    /// The most rows of one sequence, after `start` tokens, that add no more than `us`.
    pub fn rows_within(&self, us: f64, start: u32) -> u32 {
        if (self.row_us == 0.0 && self.context_us == 0.0) || us == f64::INFINITY {
            return u32::MAX;
        }
        if us <= 0.0 {
            return 0;
        }
        // context_us / 2 · rows² + (row_us + context_us · (start + 1/2)) · rows = us
        let linear = self.row_us + self.context_us * (f64::from(start) + 0.5);
        let root = (linear * linear + 2.0 * self.context_us * us).sqrt();
        // The small allowance is for the root's rounding.
        (2.0 * us / (linear + root) + 1e-6) as u32
    }
}
